//! The process that asks devices.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use braid_format::{ByteOffset, Bytes};

use super::notes::Notes;
use crate::error::Silent;
use crate::{AlignedBuf, Device, DeviceError, FileDevice, OpenOptions};

/// Memory for the stack of a thread that opens a device and reads two sectors.
const STACK: usize = 256 << 10;

/// That a device answers, or for how long it has not.
pub(super) type Answer = Result<(), Silent>;

/// A line that says how device `at` answered.
fn line(at: usize, answer: Answer) -> String {
    match answer {
        Ok(()) => format!("{at}\n"),
        Err(Silent(time)) => format!("{at} {}\n", time.as_millis()),
    }
}

/// The same, read.
pub(super) fn answer(line: &str) -> Option<(usize, Answer)> {
    let mut words = line.split_whitespace();
    let at = words.next()?.parse().ok()?;
    let Some(millis) = words.next() else { return Some((at, Ok(()))) };
    Some((at, Err(Silent(Duration::from_millis(millis.parse().ok()?)))))
}

/// The work of an asker: takes the request that [`super::silent`] wrote to standard input, asks, answers
/// there, and returns once no device hangs any more. `notes`: a directory that only this user may enter. To
/// be called by a process that does nothing else: all descriptors but the first three are closed.
///
/// # Errors
/// The request makes no sense; standard input is no socket.
pub fn serve(notes: &Path) -> io::Result<()> {
    close_all();
    let mut to = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut request = Vec::new();
    to.read_to_end(&mut request)?;
    let mut words = request.split(|byte| *byte == 0);
    let millis = words.next().and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
    let within = Duration::from_millis(millis.ok_or(io::ErrorKind::InvalidInput)?);
    let paths = words.map(|word| PathBuf::from(OsStr::from_bytes(word))).collect();
    Asker { to, notes: Notes::new(notes), paths }.ask(within);
    Ok(())
}

/// Whoever started this process may have had locks, pipes and sockets open: a process that hangs must not
/// keep them.
fn close_all() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: no pointers; no object of this process, which has just begun, owns one of them.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0 as libc::c_uint) };
}

struct Asker {
    to: UnixStream,
    notes: Notes,
    paths: Vec<PathBuf>,
}

impl Asker {
    /// Whoever asked may be gone.
    fn say(&mut self, at: usize, answer: Answer) {
        self.to.write_all(line(at, answer).as_bytes()).ok();
    }
    fn ask(mut self, within: Duration) {
        let bound = Instant::now() + within;
        let (answered, answers) = channel();
        let mut waits: Vec<usize> = Vec::new();
        for (at, path) in self.paths.clone().into_iter().enumerate() {
            match self.notes.silent(&path) {
                Some(silent) => self.say(at, Err(silent)),
                // Without a thread nothing is found out.
                None if begin(at, path, answered.clone()).is_err() => self.say(at, Ok(())),
                None => waits.push(at),
            }
        }
        drop(answered);
        while let Some(at) = next(&answers, bound, &waits) {
            self.say(at, Ok(()));
            waits.retain(|waiting| *waiting != at);
        }
        let silent = Silent(within);
        let mut notes: Vec<_> = Vec::new();
        for at in waits {
            notes.push((at, self.paths.get(at).and_then(|path| self.notes.write(path, within))));
            self.say(at, Err(silent));
        }
        while !notes.is_empty()
            && let Ok(at) = answers.recv()
        {
            notes.retain(|(silent, _)| *silent != at);
        }
    }
}

/// The next device that answers before `bound`, while some are waited for.
fn next(answers: &Receiver<usize>, bound: Instant, waits: &[usize]) -> Option<usize> {
    let left = bound.saturating_duration_since(Instant::now());
    if waits.is_empty() { None } else { answers.recv_timeout(left).ok() }
}

fn begin(at: usize, path: PathBuf, answered: Sender<usize>) -> io::Result<()> {
    let work = move || {
        // An error is an answer, too.
        drop(read(&path));
        answered.send(at).ok();
    };
    std::thread::Builder::new().stack_size(STACK).spawn(work).map(drop)
}

/// Reads the first and the last sector.
fn read(path: &Path) -> Result<(), DeviceError> {
    let device = FileDevice::open(path, OpenOptions { read_only: true, ..OpenOptions::default() })?;
    let (size, sector) = (device.info().size, device.info().sector);
    let mut buf = AlignedBuf::zeroed(sector.to_usize());
    device.read(ByteOffset(0), &mut buf)?;
    device.read(ByteOffset(0) + Bytes(size.get() - sector.get()), &mut buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_asker_says_is_understood() {
        for said in [(0, Ok(())), (7, Err(Silent(Duration::from_secs(5))))] {
            assert_eq!(answer(&line(said.0, said.1)), Some(said));
        }
        for line in ["", "\n", "x", "1 x", "-1"] {
            assert_eq!(answer(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_no_device_answers() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert!(read(&fifo).is_err() && read(&dir.path().join("none")).is_err());
        let file = dir.path().join("file");
        std::fs::write(&file, [0; 8192]).unwrap();
        read(&file).unwrap();
    }
}

//! Whether devices answer, found out by a process that may hang in this one's place.
//!
//! A disk that answers nothing keeps whoever asks it in the kernel, where no signal ends the wait. A thread
//! of this process that waited so would keep the process from ending. So a process of its own asks, the
//! *asker*: this program, started once more for all devices of one look. It asks each by a thread, and says
//! within a bound which of them answered. Then this process goes on, and the asker ends as soon as the last
//! device has answered.
//!
//! ```text
//!  command ── paths, bound ──> asker ── thread ──> device 1 ── answers ──> "answered" ──> command opens it
//!                               │ └── thread ──> device 2 ── silent ┐
//!                               └── bound over: locks a note ───────┴─> "silent" ──> command goes on without
//!  another command ──> asker: the note of device 2 is locked ──> "silent" at once
//! ```
//!
//! The note's lock ends with the wait, however that ends, so no device is called silent that answers again.
//! A healthy host has no notes.
//!
//! Not asked are files that are in memory, units of iSCSI targets (which have bounds of their own), and any
//! device if the program did not say how its asker is started ([`ask_by`]).

mod asker;
mod notes;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::Silent;
use crate::iscsi::UnitName;
use crate::mount_table::MountTable;

pub use asker::serve;

use asker::Answer;

/// What was found out stays known for so long: what finds a device opens it soon after.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// How long the asker itself may take beyond the bound of its devices.
const SLACK: Duration = Duration::from_secs(5);
/// How long a device may take, if nobody says otherwise, in milliseconds. A disk at rest takes about as long
/// to begin to turn.
const WITHIN_MS: u64 = 10_000;

static PROGRAM: OnceLock<fn() -> Command> = OnceLock::new();
static WITHIN: AtomicU64 = AtomicU64::new(WITHIN_MS);
static KNOWN: Mutex<BTreeMap<PathBuf, (Instant, Answer)>> = Mutex::new(BTreeMap::new());

/// From now on this process asks devices before it opens them. `program` starts the asker, which calls
/// [`serve`].
pub fn ask_by(program: fn() -> Command) {
    PROGRAM.set(program).ok();
}

/// A device is silent that does not answer within `time`, from now on.
pub fn wait_for(time: Duration) {
    WITHIN.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Asks all devices at once that have to be asked and were not of late; those that are silent. Where no
/// asker can be started, which is logged, none is.
pub fn silent<'a>(names: impl IntoIterator<Item = &'a Path>) -> Vec<(&'a Path, Silent)> {
    let Some(program) = PROGRAM.get() else { return Vec::new() };
    let names: Vec<&Path> = names.into_iter().filter(|name| !is_unit(name)).collect();
    let table = MountTable::own().unwrap_or_default();
    let unknown = |name: &&&Path| known(name).is_none() && !is_in_memory(&table, name);
    let asked: BTreeSet<&Path> = names.iter().filter(unknown).copied().collect();
    let asked: Vec<&Path> = asked.into_iter().collect();
    if !asked.is_empty() {
        let within = Duration::from_millis(WITHIN.load(Ordering::Relaxed));
        match ask(program(), &asked, within) {
            Ok(answers) => remember(&asked, answers),
            Err(error) => tracing::warn!("cannot find out which devices answer: {error}"),
        }
    }
    let silent = |name| Some((name, known(name)?.err()?));
    names.into_iter().filter_map(silent).collect()
}

/// What [`silent`] has found out of late, whoever asked: devices that are silent.
pub fn found_silent() -> Vec<(PathBuf, Silent)> {
    let known = KNOWN.lock();
    known.iter().filter_map(|(name, (_, answer))| Some((name.clone(), answer.err()?))).collect()
}

/// Why the device of this name should not be opened.
pub(crate) fn is_silent(name: &Path) -> Option<Silent> {
    silent([name]).pop().map(|(_, silent)| silent)
}

/// Whether `name` names a unit of a target.
pub(crate) fn is_unit(name: &Path) -> bool {
    name.to_str().is_some_and(UnitName::is_meant)
}

fn known(name: &Path) -> Option<Answer> {
    let known = KNOWN.lock();
    let (since, answer) = known.get(name)?;
    (since.elapsed() < KNOWN_FOR).then_some(*answer)
}

fn remember(asked: &[&Path], answers: Vec<Answer>) {
    let mut known = KNOWN.lock();
    known.retain(|_, (since, _)| since.elapsed() < KNOWN_FOR);
    let now = Instant::now();
    known.extend(
        asked.iter().zip(answers).map(|(name, answer)| ((*name).to_owned(), (now, answer))),
    );
}

/// Whether `name` is a file that lies in memory, and nothing on the way to it lies elsewhere.
fn is_in_memory(table: &MountTable, name: &Path) -> bool {
    let Ok(path) = std::path::absolute(name) else { return false };
    if path.components().any(|part| part == Component::ParentDir) {
        return false;
    }
    let mount = table.iter().filter(|m| path.starts_with(&m.dir));
    let Some(mount) = mount.max_by_key(|m| m.dir.as_os_str().len()) else { return false };
    let plain = |part: &Path| {
        let meta = std::fs::symlink_metadata(part);
        meta.is_ok_and(|meta| meta.is_dir() || meta.is_file())
    };
    // Two mounts on one directory: the later one counts.
    let kind = table.on(&mount.dir).map_or("", |m| &m.kind);
    let beneath = path.ancestors().take_while(|part| *part != mount.dir);
    matches!(kind, "tmpfs" | "ramfs") && beneath.collect::<Vec<_>>().into_iter().rev().all(plain)
}

/// Has an asker ask `paths`; its answers in their order.
fn ask(mut program: Command, paths: &[&Path], within: Duration) -> io::Result<Vec<Answer>> {
    let bound = Instant::now() + within + SLACK;
    let (own, its) = UnixStream::pair()?;
    // An asker that hangs keeps nothing of this process: no terminal, no directory, no process group.
    program.stdin(OwnedFd::from(its)).stdout(Stdio::null()).stderr(Stdio::null());
    program.current_dir("/").process_group(0);
    let mut child = program.spawn()?;
    // With it goes this process's hold on the asker's end.
    drop(program);
    own.set_write_timeout(Some(SLACK))?;
    let mut request = within.as_millis().to_string().into_bytes();
    for path in paths {
        request.push(0);
        request.extend_from_slice(std::path::absolute(path)?.as_os_str().as_bytes());
    }
    (&own).write_all(&request)?;
    own.shutdown(Shutdown::Write)?;
    let answers = heard(&own, paths.len(), bound);
    let unheard = |answer: Option<Answer>| answer.unwrap_or(Err(Silent(within)));
    let answers: Vec<Answer> = answers.into_iter().map(unheard).collect();
    let mut end = move || drop(child.wait());
    if answers.iter().any(Result::is_err) {
        // Only a process that lives longer than its asker needs to wait for it.
        std::thread::Builder::new().name("asker".into()).spawn(end)?;
    } else {
        end();
    }
    Ok(answers)
}

/// What the asker says of each of `count` devices until `bound`; `None`: nothing. If the asker ends before
/// its time nobody knows, and the devices count as answering.
fn heard(from: &UnixStream, count: usize, bound: Instant) -> Vec<Option<Answer>> {
    let mut answers = vec![None; count];
    let mut lines = BufReader::new(from);
    let mut line = String::new();
    while answers.contains(&None) {
        let left = bound.saturating_duration_since(Instant::now());
        if left.is_zero() || from.set_read_timeout(Some(left)).is_err() {
            break;
        }
        match lines.read_line(&mut line) {
            Ok(0) => return answers.into_iter().map(|a| a.or(Some(Ok(())))).collect(),
            Ok(_) => {}
            Err(_) => break,
        }
        if let Some((at, answer)) = asker::answer(&line)
            && let Some(heard) = answers.get_mut(at)
        {
            *heard = Some(answer);
        }
        line.clear();
    }
    answers
}

//! Notes of processes that run in the background: one small file each in the user's runtime directory,
//! locked by the process that wrote it for as long as it lives.
//!
//! A process's number would not tell whether it lives: in a PID namespace it is another one than outside,
//! and in each of them the first has number 1. So a note's name only begins with it, and whoever waits for
//! the end of a process waits for its lock.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Notes of one process number: in so many PID namespaces.
const ALIKE_MAX: u32 = 256;
/// Longest wait for others that begin or remove notes: each takes microseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// The note of this process. It removes itself; its lock stays until the process has ended.
#[derive(Debug)]
pub struct Note {
    id: String,
    path: PathBuf,
    file: Arc<File>,
}

impl Note {
    /// Begins a note of this `kind` of the process `pid`. Until [`Note::write`] nobody finds it, and its name is
    /// taken: sockets that are named by it can be made.
    ///
    /// # Errors
    /// The system's; `AlreadyExists`: there are too many of that number.
    pub fn begin(dir: &Path, kind: &str, pid: u32) -> io::Result<Self> {
        let _alone = Alone::within(dir, PATIENCE)?;
        for n in 0..ALIKE_MAX {
            let id = if n == 0 { pid.to_string() } else { format!("{pid}-{n}") };
            let path = dir.join(format!("{kind}-{id}.json"));
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                file.set_len(0)?;
                return Ok(Self { id, path, file: Arc::new(file) });
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// What this process is called among its kind: `PID`, or `PID-N` where others have that number.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Says `value`.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&*self.file, value).map_err(Into::into)
    }

    /// For the last word of this process, which may come when the note is gone.
    pub fn last_word(&self) -> LastWord {
        LastWord { file: self.file.clone() }
    }
}

/// Says how the process ends, to those who wait for its end.
#[derive(Debug)]
pub struct LastWord {
    file: Arc<File>,
}

impl LastWord {
    /// Says `value`, at last. [`Note::write`] came before.
    ///
    /// # Errors
    /// The system's.
    pub fn say(self, value: &impl Serialize) -> io::Result<()> {
        self.say_first(value)
    }

    /// Says `value`, of another kind, before the last word. One thread at a time.
    ///
    /// # Errors
    /// The system's.
    pub fn say_first(&self, value: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(value)?;
        text.insert(0, b'\n');
        (&*self.file).write_all(&text)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
        // Others wait until this process has ended, not only until it says so.
        std::mem::forget(self.file.clone());
    }
}

/// A process that has written a note.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    id: String,
    note: Option<Arc<File>>,
}

impl Writer {
    /// As [`Note::id`].
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What the process said last of this kind ([`LastWord`]). `None`: nothing, as yet.
    pub fn last_word<T: DeserializeOwned>(&self) -> Option<T> {
        let mut note = self.note.as_deref()?;
        note.seek(SeekFrom::Start(0)).ok()?;
        let said = serde_json::Deserializer::from_reader(note).into_iter::<serde_json::Value>();
        let said = said.skip(1).map_while(Result::ok);
        said.filter_map(|value| serde_json::from_value(value).ok()).last()
    }

    /// Is told when the process has ended, in whatever PID namespace it runs.
    ///
    /// # Errors
    /// No thread can be started to wait.
    pub fn ended(&self) -> io::Result<Receiver<()>> {
        let (tell, told) = channel();
        self.when_ended(move || {
            tell.send(()).ok();
        })?;
        Ok(told)
    }

    /// Calls `then` when the process has ended, in a thread of its own.
    ///
    /// # Errors
    /// As [`Writer::ended`].
    pub fn when_ended(&self, then: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let note = self.note.clone();
        let wait = move || {
            if let Some(note) = note {
                while flock(&*note, FlockOperation::LockShared) == Err(rustix::io::Errno::INTR) {}
            }
            then();
        };
        std::thread::Builder::new().name("waits".into()).spawn(wait).map(drop)
    }
}

/// The notes of this `kind` in `dir` whose writers live, and those. Notes of dead ones are removed, after
/// `remove` has removed what else bears their name.
pub fn living<T: DeserializeOwned>(
    dir: &Path,
    kind: &str,
    remove: impl Fn(&str),
) -> Vec<(T, Writer)> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut all = Vec::new();
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let id = name.strip_prefix(kind).and_then(|rest| rest.strip_prefix('-'));
        let Some(id) = id.and_then(|rest| rest.strip_suffix(".json")) else { continue };
        let Ok(file) = File::open(&path) else { continue };
        if is_locked(&file) {
            // One that begins has said nothing yet.
            let mut said = serde_json::Deserializer::from_reader(&file).into_iter();
            if let Some(Ok(value)) = said.next() {
                all.push((value, Writer { id: id.to_owned(), note: Some(Arc::new(file)) }));
            }
        } else if let Ok(_alone) = Alone::within(dir, Duration::ZERO)
            // Somebody may have removed it since, and a process begun another one of the name.
            && names(&path, &file)
            && !is_locked(&file)
        {
            remove(id);
            std::fs::remove_file(&path).ok();
        }
    }
    all
}

/// Whether the writer of a note holds its lock. Shared, so that two who look at once do not take each
/// other for the writer.
fn is_locked(file: &File) -> bool {
    let locked = flock(file, FlockOperation::NonBlockingLockShared).is_err();
    flock(file, FlockOperation::Unlock).ok();
    locked
}

/// Whether a file is still what its path names.
fn names(path: &Path, file: &File) -> bool {
    let id = |meta: io::Result<std::fs::Metadata>| meta.ok().map(|m| (m.dev(), m.ino()));
    id(std::fs::metadata(path)) == id(file.metadata())
}

/// Nobody else begins or removes notes of a directory.
struct Alone {
    _dir: File,
}

impl Alone {
    /// After a wait of at most `patience`.
    fn within(dir: &Path, patience: Duration) -> io::Result<Self> {
        let (dir, begun) = (File::open(dir)?, Instant::now());
        loop {
            match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _dir: dir }),
                Err(rustix::io::Errno::AGAIN) if begun.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(dir: &Path) -> Vec<(String, String)> {
        let all = living::<String>(dir, "test", |id| drop(std::fs::remove_file(dir.join(id))));
        let mut all: Vec<_> = all.into_iter().map(|(v, w)| (v, w.id().to_owned())).collect();
        all.sort();
        all
    }

    #[test]
    fn two_processes_of_one_number_have_a_name_each() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|value| {
            let note = Note::begin(dir.path(), "test", 1).unwrap();
            assert!(found(dir.path()).iter().all(|(v, _)| v != value));
            note.write(&value).unwrap();
            note
        });
        let named = |value: &str, id: &str| (value.to_owned(), id.to_owned());
        assert_eq!(found(dir.path()), [named("one", "1"), named("two", "1-1")]);
        drop(one);
        assert_eq!(found(dir.path()), [named("two", "1-1")]);
        drop(two);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_dead_one_left_goes_and_what_a_living_one_has_stays() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let living = Note::begin(dir, "test", 1).unwrap();
        living.write(&"living").unwrap();
        std::fs::write(dir.join("1"), "").unwrap();
        std::fs::write(dir.join("test-7.json"), "\"dead\"").unwrap();
        std::fs::write(dir.join("7"), "").unwrap();
        assert_eq!(found(dir), [("living".to_owned(), "1".to_owned())]);
        assert!(dir.join("1").exists() && !dir.join("7").exists());
        assert!(!dir.join("test-7.json").exists());
    }

    #[test]
    fn what_a_process_said_last_is_heard_though_its_note_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let note = Note::begin(dir.path(), "test", 1).unwrap();
        note.write(&"value").unwrap();
        let (_, writer) = living::<String>(dir.path(), "test", |_| {}).pop().unwrap();
        let last = note.last_word();
        assert_eq!(writer.last_word::<String>(), None);
        drop(note);
        last.say(&"left\n").unwrap();
        for _ in 0..2 {
            assert_eq!(writer.last_word(), Some("left\n".to_owned()));
        }
        assert_eq!(writer.last_word::<u32>(), None);
    }

    #[test]
    fn an_end_is_told_when_the_lock_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("test-1.json")).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        serde_json::to_writer(&file, "value").unwrap();
        let (_, writer) = living::<String>(dir.path(), "test", |_| {}).pop().unwrap();
        let told = writer.ended().unwrap();
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err());
        drop(file);
        told.recv_timeout(Duration::from_mins(1)).unwrap();
    }
}

//! Notes of devices that are silent: a small file for each, locked by the process that waits for the device.

use std::fs::File;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, major, minor};

use crate::error::Silent;

/// The directory of the notes.
pub(super) struct Notes(PathBuf);

/// A note: while it stands nobody asks the device. It goes when it is dropped; if the process ends before,
/// its lock does.
pub(super) struct Note(PathBuf, #[expect(dead_code, reason = "keeps the lock")] File);

impl Drop for Note {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

impl Notes {
    pub fn new(dir: &Path) -> Self {
        Self(dir.to_owned())
    }
    /// By number, for a block device in `/dev` (where a look never waits), else by name.
    fn place(&self, device: &Path) -> PathBuf {
        let meta = std::fs::metadata(device).ok().filter(|_| device.starts_with("/dev"));
        let number = meta.filter(|meta| meta.file_type().is_block_device()).map(|meta| meta.rdev());
        self.0.join(number.map_or_else(
            || {
                format!(
                    "silent-{:016x}",
                    BuildHasherDefault::<DefaultHasher>::new().hash_one(device)
                )
            },
            |number| format!("silent-{}:{}", major(number), minor(number)),
        ))
    }
    /// Whether a process waits for `device` that has told of it.
    pub fn silent(&self, device: &Path) -> Option<Silent> {
        let file = File::open(self.place(device)).ok()?;
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            return None;
        }
        let written = file.metadata().and_then(|meta| meta.modified()).ok()?;
        Some(Silent(written.elapsed().unwrap_or_default() + told(&file)))
    }
    /// Tells everybody that `device` has not answered for `time`; `None`: another process does so, or the
    /// note cannot be written. Then each command waits for itself.
    pub fn write(&self, device: &Path, time: Duration) -> Option<Note> {
        let place = self.place(device);
        let file = File::options().create(true).truncate(false).write(true).open(&place).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        // Whoever wrote the one that stood there may have removed it just now.
        let number = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        let named = std::fs::metadata(&place).map(number).ok()?;
        if file.metadata().map(number).ok()? != named {
            return None;
        }
        file.set_len(0).ok()?;
        writeln!(&file, "{} {}", time.as_millis(), device.display()).ok()?;
        Some(Note(place, file))
    }
}

/// For how long the device had not answered when the note was written.
fn told(mut note: &File) -> Duration {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut note, &mut text).ok();
    let millis = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_millis(millis.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_counts_as_long_as_its_writer_waits() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, device) = (Notes::new(dir.path()), Path::new("/a device"));
        let left = || std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(notes.silent(device), None);
        let note = notes.write(device, Duration::from_secs(5)).unwrap();
        assert!(notes.silent(device).unwrap().0 >= Duration::from_secs(5));
        assert_eq!(notes.silent(Path::new("/another")), None);
        assert!(notes.write(device, Duration::ZERO).is_none(), "somebody has told");
        drop(note);
        assert_eq!((notes.silent(device), left()), (None, 0));
        // Its writer was killed.
        std::fs::write(notes.place(device), "5000 /a device\n").unwrap();
        assert_eq!(notes.silent(device), None);
        drop(notes.write(device, Duration::ZERO).unwrap());
        assert_eq!(left(), 0);
    }
}

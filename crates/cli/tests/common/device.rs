//! Loop devices and mounts of the kernel's own file systems, given back when dropped.

use std::path::{Path, PathBuf};
use std::process::Command;

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
/// Whether this is root, which a test needs for this `reason`; if not, the test counts as skipped.
pub fn can_be_root(reason: &str) -> bool {
    let root = is_root();
    if !root {
        braid_testkit::skip(reason);
    }
    root
}

/// A loop device over a file.
pub struct Loop(pub String);
impl Loop {
    /// `None`: there are none here.
    pub fn new(file: &Path) -> Option<Self> {
        Self::with(&[], file)
    }
    /// The same, which nobody can write.
    pub fn read_only(file: &Path) -> Option<Self> {
        Self::with(&["--read-only"], file)
    }
    /// The same, with sectors of 4096 bytes.
    pub fn of_large_sectors(file: &Path) -> Option<Self> {
        Self::with(&["--sector-size=4096"], file)
    }
    /// `len` bytes of the file from `at` on.
    pub fn part(file: &Path, at: u64, len: u64) -> Option<Self> {
        Self::with(&[&format!("--offset={at}"), &format!("--sizelimit={len}")], file)
    }
    fn with(how: &[&str], file: &Path) -> Option<Self> {
        let mut command = Command::new("losetup");
        let made = command.args(["--find", "--show"]).args(how).arg(file).output().ok()?;
        let name = String::from_utf8(made.stdout).ok()?.trim().to_owned();
        (made.status.success() && !name.is_empty()).then_some(Self(name))
    }
}
impl Drop for Loop {
    fn drop(&mut self) {
        Command::new("losetup").args(["-d", &self.0]).status().ok();
    }
}

/// A mount of the kernel's.
pub struct Mounted(PathBuf);
impl Mounted {
    /// `mount WORDS... dir`; `None`, said loudly, where that is not possible.
    pub fn new(words: &[&str], dir: &Path) -> Option<Self> {
        let done = Command::new("mount").args(words).arg(dir).output();
        if done.as_ref().is_ok_and(|o| o.status.success()) {
            return Some(Self(dir.to_owned()));
        }
        braid_testkit::skip(&format!("mount {words:?}: {done:?}"));
        None
    }
}
impl Drop for Mounted {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.0).status().ok();
    }
}

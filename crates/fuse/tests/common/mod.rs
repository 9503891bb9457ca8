//! What mounted tests share.

#![allow(dead_code, reason = "each test file needs a part of it")]

pub mod memfs;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_fs::Errno;
use braid_fuse::{FuseError, FuseOptions, KernelLink, Session, Terms, unmount};
use memfs::{MemFs, Shared};

/// Longest wait for what comes about by itself, on a machine that does much else.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Whether this machine and user can mount; says so if not.
pub fn can_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if root && device.is_ok() {
        return true;
    }
    braid_testkit::skip(&format!(
        "mounting needs root and /dev/fuse (root: {root}, device: {device:?})"
    ));
    false
}

/// A mounted file system in memory; unmounted when dropped.
pub struct Mounted {
    pub fs: Arc<MemFs>,
    pub link: Arc<KernelLink>,
    pub terms: Terms,
    server: Option<JoinHandle<Result<(), FuseError>>>,
    dir: tempfile::TempDir,
}

impl Mounted {
    pub fn new() -> Self {
        Self::with(|_| {})
    }
    pub fn with(change: impl FnOnce(&mut FuseOptions)) -> Self {
        let dir = tempfile::Builder::new().prefix("braid-fuse-test").tempdir().unwrap();
        let mut options = FuseOptions::new(dir.path().to_owned());
        change(&mut options);
        let fs = MemFs::new();
        let session = Session::mount("test", options).unwrap();
        let (link, terms) = (session.kernel_cache(), session.terms());
        fs.link.set(Arc::clone(&link)).ok();
        let files = Shared(Arc::clone(&fs));
        let server = Some(std::thread::spawn(move || session.serve(files)));
        Self { fs, link, terms, server, dir }
    }
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    /// Unmounts, and returns what serving ended with. Nothing may be open any more.
    pub fn end(mut self) -> Result<(), FuseError> {
        unmount_idle(self.dir.path())?;
        self.server.take().unwrap().join().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The server is not waited for: files that a failed test left open keep it.
        if self.server.take().is_some() {
            let _ = unmount(self.dir.path(), true);
        }
    }
}

/// Unmounts `dir`, on which this test has nothing open. A program that another test's thread starts
/// holds copies of all descriptors between its fork and its exec, so "busy" may last for a moment.
pub fn unmount_idle(dir: &Path) -> Result<(), FuseError> {
    let start = Instant::now();
    loop {
        match unmount(dir, false) {
            Err(FuseError::Unmount { errno: Errno::BUSY, .. }) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            ended => return ended,
        }
    }
}

/// Runs a shell script in `dir`; it must succeed. Returns what it printed.
pub fn sh(dir: &Path, script: &str) -> String {
    run(Command::new("sh").arg("-euc").arg(script).current_dir(dir), script)
}

/// Runs a Python program in `dir`; it must succeed. Returns what it printed.
pub fn python(dir: &Path, program: &str) -> String {
    run(Command::new("python3").arg("-c").arg(program).current_dir(dir), program)
}

fn run(command: &mut Command, what: &str) -> String {
    let out = command.output().unwrap();
    assert!(
        out.status.success(),
        "{what}\n{}: {}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

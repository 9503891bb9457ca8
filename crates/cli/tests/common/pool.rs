//! A pool over some of its disks, mounted by one node; and files in it that are looked for again.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Disks, braid, is_mounted, ok, pid_of, sh};

/// A pool of `create`'s options; unmounted when dropped.
pub struct Pool {
    /// No other pool has it that is mounted at the same time.
    pub name: String,
    pub disks: Disks,
    pub dir: PathBuf,
}

impl Pool {
    /// `disks` sparse files of `mib` MiB each; the pool is on the first `used` of them.
    pub fn new((disks, mib): (usize, u64), used: usize, options: &[&str]) -> Self {
        let disks = Disks::new(disks, mib);
        let dir = disks.dir.path().join("mnt");
        std::fs::create_dir(&dir).expect("mount point");
        let members = disks.names().into_iter().take(used).collect::<Vec<_>>();
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pool{}n{count}", std::process::id());
        ok(&[&["create", &name], &members[..], options].concat());
        Self { name, disks, dir }
    }
    pub fn dir(&self) -> &str {
        self.dir.to_str().expect("UTF-8")
    }
    pub fn disk(&self, n: usize) -> &str {
        self.disks.names()[n]
    }
    /// The names of these.
    pub fn names(&self, which: &[usize]) -> Vec<&str> {
        which.iter().map(|n| self.disk(*n)).collect()
    }
    /// Mounts it by these.
    pub fn mount(&self, which: &[usize], options: &[&str]) {
        let log = format!("log={}.log", self.dir());
        ok(&[&["mount"], &self.names(which)[..], &[self.dir(), "-o", &log], options].concat());
    }
    /// The check of these finds nothing.
    pub fn clean(&self, which: &[usize]) {
        let said = ok(&[&["check"], &self.names(which)[..]].concat());
        assert!(said.contains("clean"), "{said}");
    }
    /// These disks in one word.
    pub fn together(&self, which: &[usize]) -> String {
        self.names(which).join(":")
    }
    /// SIGKILL to the mount's process.
    pub fn kill(&self) {
        kill(self.dir());
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if is_mounted(&self.dir) {
            if std::thread::panicking() {
                let log = std::fs::read_to_string(format!("{}.log", self.dir()));
                eprintln!("{}", log.unwrap_or_default());
            }
            braid(&["unmount", "--lazy", self.dir()]);
            // Where the node is dead.
            let mut umount = std::process::Command::new("umount");
            umount.args(["-l", self.dir()]).output().ok();
        }
    }
}

/// SIGKILL to the process that serves the mount on `dir`: as if its machine lost power, but for the
/// page cache.
pub fn kill(dir: &str) {
    rustix::process::kill_process(pid_of(dir), rustix::process::Signal::KILL).expect("kill");
}

/// Files of many sizes in `dir/tree`, durable; their [`sums`].
pub fn fill(dir: &Path) -> String {
    let tree = dir.join("tree");
    sh(&format!(
        "mkdir -p {0}; cd {0}
         for i in $(seq 60); do head -c $((i * 3000)) /dev/urandom > $i; done
         head -c 30000000 /dev/urandom > big; find . -type f | xargs sync",
        tree.display()
    ));
    sums(&tree)
}

/// Names and checksums of all files below `dir`.
pub fn sums(dir: &Path) -> String {
    sh(&format!("cd {} && find . -type f | sort | xargs sha256sum", dir.display()))
}

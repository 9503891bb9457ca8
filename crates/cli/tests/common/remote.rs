//! Mounts from a server.

use std::path::Path;
use std::process::Command;

use super::served::Served;
use super::{Disks, braid, is_mounted, sh, unmount_idle};

/// A mount from a server; unmounted when dropped.
pub struct Remote {
    pub dir: String,
}

impl Remote {
    /// Mounts what `url` names on a new directory beside the disks; its messages go to a file of that name and `.log`.
    pub fn new(disks: &Disks, name: &str, url: &str, words: &[&str]) -> Self {
        let dir = disks.path(name);
        std::fs::create_dir_all(&dir).expect("mount point");
        let log = format!("log={dir}.log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(["mount", url, &dir, "-o", &log]).args(words).env("HOME", "/nonexistent");
        command.env_remove("BRAID_IDENTITY").env_remove("XDG_CONFIG_HOME");
        let out = command.output().expect("braid starts");
        assert!(out.status.success(), "{url}: {out:?}");
        Self { dir }
    }
    /// The same without TLS.
    pub fn plain(disks: &Disks, name: &str, served: &Served) -> Self {
        Self::new(disks, name, &served.url, &["--insecure"])
    }
    pub fn log(&self) -> String {
        std::fs::read_to_string(format!("{}.log", self.dir)).unwrap_or_default()
    }
    /// As a user ends it.
    pub fn unmount(self) {
        unmount_idle(Path::new(&self.dir));
    }
    /// Runs a Python program that begins as those of two nodes do: `A` is this directory, `B` another.
    pub fn python(&self, disks: &Disks, other: &str, program: &str) {
        let path = disks.path("program.py");
        std::fs::write(&path, format!("{}{program}", super::PYTHON)).expect("a script");
        let reached = disks.path("");
        sh(&format!("chmod 755 {reached} && timeout 120 python3 {path} {} {other}", self.dir));
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if is_mounted(Path::new(&self.dir)) {
            if std::thread::panicking() {
                eprintln!("{}: {}", self.dir, self.log());
            }
            braid(&["unmount", "--lazy", &self.dir]);
        }
    }
}

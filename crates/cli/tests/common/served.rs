//! A bulk data server (`braid serve`) as a process, and how far a client's copy has come.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::Disks;

/// A server process; killed when dropped.
pub struct Served {
    child: Child,
    /// `braid://ADDRESS/POOL`
    pub url: String,
}

impl Served {
    /// Serves the pool of `disks`; `words`: options. What it says goes to the file `serve.log` beside them.
    pub fn new(disks: &Disks, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        let devices = disks.names().join(":");
        command.args(["serve", &devices]).args(words);
        let log = std::fs::File::options().create(true).append(true).open(disks.path("serve.log"));
        let served = Self::begin(command.stderr(log.unwrap()));
        let log = std::fs::read_to_string(disks.path("serve.log")).unwrap();
        assert!(served.url.starts_with("braid://"), "{log}");
        served
    }
    /// Runs a server, and waits until it says where.
    pub fn begin(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }
    /// ADDRESS of its `url`.
    pub fn address(&self) -> &str {
        self.url.split('/').nth(2).unwrap()
    }
    /// Sends its process a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
    /// Whether its process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
    /// As a power cut ends it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
    /// As a user ends it.
    pub fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "{ended}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Waits until a process has read or written so much.
pub fn wait_for_io(child: &Child, field: &str, mib: u64) {
    let path = format!("/proc/{}/io", child.id());
    let field = format!("{field}: ");
    let bytes = || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix(&field).map(str::to_owned));
        line.and_then(|l| l.parse::<u64>().ok()).unwrap_or(u64::MAX)
    };
    while bytes() < mib << 20 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

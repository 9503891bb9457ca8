//! A SAN of one process: a target.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::ok;

/// A target, ended when dropped.
pub struct San {
    process: Child,
    pub units: Vec<String>,
    dir: tempfile::TempDir,
}

impl San {
    pub fn new(devices: &[&str], options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let control = dir.path().join("control");
        let mut process = Command::new(env!("CARGO_BIN_EXE_braid"))
            .args(["target", "--listen", "127.0.0.1:0", "--control"])
            .arg(&control)
            .args(options)
            .args(devices)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let units = out.lines().map_while(Result::ok).take(devices.len()).collect();
        Self { process, units, dir }
    }
    /// Ends its process at once.
    pub fn kill(&mut self) {
        self.process.kill().expect("kill");
        self.process.wait().expect("wait");
    }
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
    pub fn with<'a>(&'a self, head: &[&'a str], tail: &[&'a str]) -> Vec<&'a str> {
        let units = self.units.iter().map(String::as_str);
        head.iter().copied().chain(units).chain(tail.iter().copied()).collect()
    }
    /// The keys that are registered with a unit.
    pub fn keys(&self, unit: usize) -> Vec<u64> {
        let options = braid_pool::device::OpenOptions::default();
        let name = std::path::Path::new(&self.units[unit]);
        let device = braid_pool::device::open(name, options).expect("the unit opens");
        let mut keys =
            device.abilities().reservations.expect("reservations").keys().expect("its keys");
        keys.sort_unstable();
        keys
    }
    pub fn tell(&self, order: &[&str]) -> String {
        let control = self.path("control");
        let mut args = vec!["target", "--tell", &control];
        args.extend(order);
        ok(&args)
    }
    pub fn mount(&self, name: &str) -> String {
        let dir = self.path(name);
        std::fs::create_dir_all(&dir).unwrap();
        let log = format!("log={dir}.log");
        ok(&self.with(&["mount"], &[&dir, "-o", &log]));
        dir
    }
    /// Mounts as if on another host; the log is beside the directory.
    pub fn mount_as(&self, host: &str, name: &str, options: &str) -> String {
        let units: Vec<&str> = self.units.iter().map(String::as_str).collect();
        Self::mount_these_as(host, &units, &self.path(name), options)
    }
    /// Of a pool on some of the units.
    pub fn mount_these_as(host: &str, units: &[&str], dir: &str, options: &str) -> String {
        super::mount_as(host, units, dir, options)
    }
}

impl Drop for San {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

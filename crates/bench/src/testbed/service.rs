//! `braid serve` over the devices of a testbed, and mounts from it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use super::wire::Wire;
use super::{Mount, braid, text};

/// How it is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    /// Bytes per second of the wire in each direction. `None`: as this host can.
    pub wire: Option<u64>,
    /// With TLS and certificates.
    pub tls: bool,
}

/// A server process.
#[derive(Debug)]
pub(crate) struct Service {
    child: Child,
    /// Where it is mounted from: over the wire.
    url: String,
    /// Certificates.
    folder: Option<PathBuf>,
}

impl Service {
    /// Serves the pool on `devices` as a node of its own. Certificates go below `work`.
    ///
    /// # Errors
    /// It does not begin, and says why.
    pub fn new(devices: &[PathBuf], work: &Path, reach: Reach) -> Result<Self> {
        let names = devices.iter().map(|d| text(d)).collect::<Result<Vec<_>>>()?.join(":");
        let folder = reach.tls.then(|| work.join("certificates"));
        let mut words = vec!["serve", &names, "--listen", "127.0.0.1:0"];
        match &folder {
            None => words.push("--insecure"),
            Some(folder) => {
                let dir = text(folder)?;
                braid(&["serve", "init", &names, "--dir", dir, "--address", "127.0.0.1"])?;
                words.extend(["--dir", dir]);
            }
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.env("BRAID_LOG", "warn");
        let mut child = command.args(words).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("no standard output")?;
        let mut service = Self { child, url: String::new(), folder };
        let mut said = String::new();
        BufReader::new(stdout).read_line(&mut said)?;
        let place = said.trim().strip_prefix("braid://").context("`braid serve` has ended")?;
        let (address, pool) = place.split_once('/').context("`braid serve` says no pool")?;
        let address: SocketAddr = address.parse()?;
        let address = match reach.wire {
            None => address,
            Some(rate) => Wire::new(address, rate)?.address,
        };
        service.url = format!("braid://{address}/{pool}");
        Ok(service)
    }
    /// Mounts from it.
    ///
    /// # Errors
    /// It cannot be mounted, and why.
    pub fn mount(&self, dir: PathBuf) -> Result<Mount> {
        std::fs::create_dir_all(&dir)?;
        let mut words = vec!["mount", &self.url, text(&dir)?];
        let identity = self.folder.as_ref().map(|folder| folder.join("client.id"));
        match (&self.folder, &identity) {
            (Some(folder), Some(identity)) => {
                let pool = self.url.rsplit('/').next().context("the pool's name")?;
                let (dir, file) = (text(folder)?, text(identity)?);
                if !identity.exists() {
                    braid(&["serve", "invite", pool, "client", "--dir", dir, "--output", file])?;
                }
                words.extend(["--identity", file]);
            }
            _ => words.push("--insecure"),
        }
        braid(&words)?;
        Ok(Mount::of_braid(dir))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let ended = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        );
        if ended.is_err() {
            self.child.kill().ok();
        }
        self.child.wait().ok();
        if let Some(folder) = &self.folder {
            std::fs::remove_dir_all(folder).ok();
        }
    }
}

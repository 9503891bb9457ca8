//! NFS-Ganesha's program: found, configured, started, ended, and what its log says.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process};

use super::config;
use super::export::{Export, Server};
use super::rpc;

/// `preload.c`, compiled.
const PRELOADED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));
/// Where daemons are, if `PATH` does not say.
const FOLDERS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
/// A part that comes in a package of its own.
const PLUGIN: &str = "ganesha/libfsalvfs.so";
/// A server that does not answer for so long after its start does not start.
const START_MAX: Duration = Duration::from_mins(1);
/// It reads its configuration again within that time.
const RELOAD_MAX: Duration = Duration::from_secs(30);
/// Longest wait for its end.
const END_MAX: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// What it says when it has read its exports again.
const RELOADED: &str = "Reread exports complete";
/// The log is begun anew when it has so many bytes.
const LOG_MAX: u64 = 4 << 20;
/// As much of the log is looked at.
const LOG_LOOK: u64 = 64 << 10;
/// So many lines of it are shown.
const LINES_SHOWN: usize = 4;

/// A program that can be started.
#[derive(Debug)]
pub struct Ganesha {
    program: PathBuf,
    /// Its files on this host.
    room: PathBuf,
    /// What is loaded into it. Children inherit it.
    preloaded: OwnedFd,
}

/// A server that runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// When it was started.
    pub since: Instant,
}

/// Finds the program, and the part of it that serves mounted file systems.
///
/// # Errors
/// It is not installed.
pub fn find() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    let program = folders.map(|dir| dir.join("ganesha.nfsd")).find(|p| p.is_file());
    let libraries = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut places =
        libraries.map(|e| e.path()).chain(["/usr/lib".into(), "/usr/local/lib".into()]);
    match program {
        Some(program) if places.any(|dir| dir.join(PLUGIN).is_file()) => Ok(program),
        _ => bail!(
            "NFS-Ganesha is not installed: apt-get install nfs-ganesha nfs-ganesha-vfs. Debian then starts a server \
             of its own, which takes port 2049: systemctl disable --now nfs-ganesha"
        ),
    }
}

impl Ganesha {
    /// Its files are in `room`, a directory that is there.
    ///
    /// # Errors
    /// It is not installed, or the system's.
    pub fn new(room: &Path) -> Result<Self> {
        let program = find()?;
        // Kept open by exec: the loader opens it by its number. A file would not do: /run may forbid programs.
        let preloaded = rustix::fs::memfd_create("braid-nfs-preload", MemfdFlags::empty())?;
        let mut file = File::from(preloaded);
        file.write_all(PRELOADED)?;
        Ok(Self { program, room: room.to_owned(), preloaded: file.into() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.room.join(name)
    }
    fn log(&self) -> PathBuf {
        self.path("ganesha.log")
    }

    /// Writes the configuration, for the next start or [`Ganesha::reload`].
    ///
    /// # Errors
    /// The system's.
    pub fn configure(
        &self,
        server: &Server,
        exports: &[Export],
        recovery: &Path,
    ) -> io::Result<()> {
        std::fs::write(self.path("mounts"), config::mount_table(server))?;
        std::fs::write(self.path("ganesha.conf"), config::text(server, exports, recovery))
    }

    /// Starts the server, and waits until it answers. To be called by a thread that lives as long as the server
    /// may: the kernel kills it when that thread ends. `start`: see `Recovery::next_start`.
    ///
    /// # Errors
    /// Why it does not start, by its log.
    pub fn start(&self, server: &Server, start: u64) -> Result<Running> {
        std::fs::remove_file(self.log()).ok();
        let output = File::create(self.path("output"))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.program).arg("-F");
        command.arg("-f").arg(self.path("ganesha.conf")).arg("-L").arg(self.log());
        command.arg("-p").arg(self.path("ganesha.pid")).args(["-E", &start.to_string()]);
        command.env("LD_PRELOAD", format!("/proc/self/fd/{}", self.preloaded.as_raw_fd()));
        command.env("BRAID_NFS_MOUNTS", self.path("mounts"));
        command.env("BRAID_NFS_FSID", config::fsid(&server.uuid));
        // Another Ganesha may have its name on the system's bus.
        command.env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/dev/null").current_dir("/");
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().context("setpriv (Debian package util-linux)")?;
        let mut running = Running { child, since: Instant::now() };
        let address = SocketAddr::new(server.address(), server.port);
        while rpc::ping(address).is_err() {
            if let Some(how) = running.ended()? {
                bail!("the NFS server does not start ({how}){}", self.complaints(0));
            }
            if running.since.elapsed() > START_MAX {
                running.end(true);
                bail!("the NFS server does not answer{}", self.complaints(0));
            }
            std::thread::sleep(LOOK);
        }
        Ok(running)
    }

    /// Has a running server take the exports of the configuration over, without a break for those that stay.
    ///
    /// # Errors
    /// It has not, or complains.
    pub fn reload(&self, running: &mut Running) -> Result<()> {
        let from = std::fs::metadata(self.log()).map_or(0, |m| m.len());
        running.signal(Signal::HUP)?;
        let begun = Instant::now();
        while !self.tail(from).contains(RELOADED) {
            if running.ended()?.is_some() || begun.elapsed() > RELOAD_MAX {
                bail!("the NFS server does not take the change over{}", self.complaints(from));
            }
            std::thread::sleep(LOOK);
        }
        if self.tail(from).contains("Config File") {
            bail!("the NFS server refuses the change{}", self.complaints(from));
        }
        Ok(())
    }

    /// Keeps the log from filling the host's memory.
    pub fn trim_log(&self) {
        let log = self.log();
        if std::fs::metadata(&log).is_ok_and(|m| m.len() > LOG_MAX) {
            std::fs::rename(&log, self.path("ganesha.log.1")).ok();
        }
    }

    /// The end of the log, of what was written behind `from`.
    fn tail(&self, from: u64) -> String {
        let mut text = Vec::new();
        let read = File::open(self.log()).and_then(|mut file| {
            let len = file.metadata()?.len();
            file.seek(SeekFrom::Start(from.max(len.saturating_sub(LOG_LOOK))))?;
            file.read_to_end(&mut text)
        });
        read.ok();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// What the log complains about behind `from`, to be put behind a message.
    pub fn complaints(&self, from: u64) -> String {
        let mut lines = complaints(&self.tail(from));
        if lines.is_empty() {
            let output = std::fs::read_to_string(self.path("output")).unwrap_or_default();
            lines.extend(output.lines().rev().take(LINES_SHOWN).map(str::to_owned));
        }
        let shown = lines.iter().rev().take(LINES_SHOWN).rev().map(|line| format!("\n    {line}"));
        let shown: String = shown.collect();
        if shown.is_empty() { shown } else { format!("; NFS-Ganesha says:{shown}") }
    }
}

/// Lines of a log that tell of something wrong, without what stands before each message; those left out that
/// every server writes here.
fn complaints(log: &str) -> Vec<String> {
    const WRONG: [&str; 4] = [":CRIT :", ":MAJ :", ":FATAL :", ":WARN :"];
    const USUAL: [&str; 5] = ["DBUS", "dbus", "krb5", "keytab", "RADOS"];
    let lines = log.lines().filter(|line| !USUAL.iter().any(|usual| line.contains(usual)));
    let wrong = lines.filter_map(|line| {
        let at = WRONG.iter().find_map(|level| Some(line.find(level)? + level.len()))?;
        line.get(at..).map(|text| text.trim().to_owned())
    });
    wrong.collect()
}

impl Running {
    /// Ganesha's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// The system's.
    pub fn ended(&mut self) -> io::Result<Option<String>> {
        Ok(self.child.try_wait()?.map(|status| status.to_string()))
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Ends it, and waits. `at_once`: what it serves is gone.
    pub fn end(&mut self, at_once: bool) {
        if !at_once {
            self.signal(Signal::TERM).ok();
            let begun = Instant::now();
            while begun.elapsed() < END_MAX && matches!(self.child.try_wait(), Ok(None)) {
                std::thread::sleep(LOOK);
            }
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wrong_is_shown_of_a_log() {
        let log = "\
            26/11/2026 00:54:21 : epoch 6b07833d : vm : nfs-ganesha-1[main] posix :FSAL :INFO :Added\n\
            26/11/2026 00:54:21 : epoch 6b07833d : vm : nfs-ganesha-1[main] dbus :DBUS :CRIT :no bus\n\
            26/11/2026 00:54:21 : epoch 6b07833d : vm : nfs-ganesha-1[main] Bind :DISP :FATAL :Cannot bind\n";
        assert_eq!(complaints(log), ["Cannot bind"]);
    }
}

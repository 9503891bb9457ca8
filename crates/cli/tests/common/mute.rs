//! Disks that answer nothing, for the processes of a group. The kernel keeps such a process where no signal
//! reaches it, so a process of its own lifts the mute after a while, whatever becomes of the test.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Where the kernel limits what groups of processes ask of block devices (cgroup v1).
const GROUPS: &str = "/sys/fs/cgroup/blkio";
/// What may pass in a second: in fact nothing does.
const LIMITS: [&str; 2] = ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"];
/// After so long the mute is lifted, in seconds.
const WATCHED: &str = "150";

/// A group of processes for which devices can be muted.
pub struct Group(PathBuf);

impl Group {
    /// `None`, which counts as skipped: the kernel has no such groups, or this is not root.
    pub fn new() -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(GROUPS).join(format!("braid-test-{}-{number}", std::process::id()));
        if std::fs::create_dir(&dir).is_ok() && dir.join(LIMITS[0]).exists() {
            return Some(Self(dir));
        }
        std::fs::remove_dir(&dir).ok();
        braid_testkit::skip("muting a disk needs root and blkio groups (cgroup v1)");
        None
    }
    /// A command that runs in the group.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        command.args(["-c", &script, "sh", program]).args(args);
        command
    }
    /// The command under test, in the group.
    pub fn braid(&self, args: &[&str]) -> Output {
        self.command(env!("CARGO_BIN_EXE_braid"), args).output().expect("braid starts")
    }
    /// From now on `device` answers nothing to the group.
    pub fn mute(&self, device: &str) -> Mute {
        let meta = std::fs::metadata(device).expect("a device");
        assert!(meta.file_type().is_block_device(), "{device}");
        let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let files = LIMITS.map(|limit| self.0.join(limit));
        let device = format!("{major}:{minor}");
        // First the one who lifts it: the test may be killed.
        let watchdog = Command::new("sh")
            .args(["-c", "sleep \"$1\"; for f in \"$3\" \"$4\"; do echo \"$2 0\" > \"$f\"; done"])
            .args(["sh", WATCHED, &device])
            .args(&files)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a watchdog");
        let mute = Mute { files, device, watchdog };
        mute.limit("1");
        mute
    }
}

impl Drop for Group {
    /// Processes of the group may be about to end.
    fn drop(&mut self) {
        let begun = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A device that is mute until this is dropped, or its time is over.
pub struct Mute {
    files: [PathBuf; 2],
    device: String,
    watchdog: Child,
}

impl Mute {
    fn limit(&self, rate: &str) {
        for file in &self.files {
            std::fs::write(file, format!("{} {rate}\n", self.device)).expect("a limit");
        }
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        self.limit("0");
        self.watchdog.kill().ok();
        self.watchdog.wait().ok();
    }
}

//! `braid bench`

use std::path::PathBuf;

use anyhow::{Result, ensure};

/// Measure what storage does, layer by layer.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, clap::Subcommand)]
enum Mode {
    /// Raw devices -> pool -> file system (native) -> mount, and XFS beside them: sequential,
    /// 1 MiB, direct
    Ladder(Common),
    /// Buffered streams against XFS on one loop device: cold read, write with fsync
    Buffered(Common),
    /// Creating, looking up and removing empty files against XFS
    Meta(Common),
    /// Resident memory of a mount's process that holds many inodes and streams a large file
    Memory(Common),
}

/// What all modes have.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Where the backing files are made (a RAM file system: the layers' own cost; a disk: the disk)
    #[arg(long, default_value = "/dev/shm")]
    pub dir: PathBuf,
    /// Devices in the pool
    #[arg(long, default_value_t = 4)]
    pub members: usize,
    /// Bytes moved per phase, over all streams
    #[arg(long, default_value = "2G", value_parser = braid_size)]
    pub size: u64,
    /// Streams (threads, each with its own file)
    #[arg(long, default_value_t = 4)]
    pub streams: usize,
    /// Repeats; all systems are measured in turn in each
    #[arg(long, default_value_t = 5)]
    pub repeats: usize,
    /// Limit each device to this many bytes per second (loop devices, cgroup v1, root)
    #[arg(long, value_name = "RATE", value_parser = braid_size)]
    pub throttle: Option<u64>,
    /// Put a loop device over each file (`--throttle` does so anyway): what a block device costs
    #[arg(long = "loop")]
    pub loop_devices: bool,
    /// Options of the mount (for `memory`), e.g. memory=256M
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    pub mount_options: Option<String>,
    /// Files (for `meta` and `memory`)
    #[arg(long, default_value_t = 20_000)]
    pub files: usize,
    /// Machine-readable, all samples
    #[arg(long)]
    pub json: bool,
    /// Exit with an error when a ratio's median is below this
    #[arg(long, value_name = "RATIO")]
    pub accept: Option<f64>,
}

impl Common {
    /// Refuses what leaves a thread of the ladder without a request.
    fn check(&self) -> Result<()> {
        ensure!((1..=MEMBERS_MAX).contains(&self.members), "--members: 1 to {MEMBERS_MAX}");
        ensure!((1..=STREAMS_MAX).contains(&self.streams), "--streams: 1 to {STREAMS_MAX}");
        ensure!(self.repeats > 0, "--repeats: at least 1");
        let least = (self.members + self.streams) as u64;
        ensure!(
            self.size >> 20 >= least,
            "--size: at least {least}M for these members and streams"
        );
        Ok(())
    }
}

/// Of a pool.
const MEMBERS_MAX: usize = 256;
/// More threads than any machine gains from.
const STREAMS_MAX: usize = 1024;

/// Sizes as on the rest of the command line.
fn braid_size(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    let shift = match suffix.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(format!("'{text}' is not a size")),
    };
    number.parse::<u64>().map(|n| n << shift).map_err(|e| format!("'{text}': {e}"))
}

/// Runs it.
///
/// # Errors
/// Something could not be set up or measured, or `--accept` was not met.
pub fn run(args: &Args) -> Result<()> {
    let (Mode::Ladder(common) | Mode::Buffered(common) | Mode::Meta(common) | Mode::Memory(common)) =
        &args.mode;
    common.check()?;
    let (report, base, unit) = match &args.mode {
        Mode::Ladder(c) => (crate::ladder::run(c)?, "raw", "MB/s"),
        Mode::Buffered(c) => (crate::buffered::run(c)?, "xfs", "MB/s"),
        Mode::Meta(c) => (crate::meta::run(c)?, "xfs", "files/s"),
        Mode::Memory(c) => (crate::memory::run(c)?, "", "MiB"),
    };
    if common.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print(unit, base);
    }
    match common.accept {
        Some(accept) => report.accept(base, accept),
        None => Ok(()),
    }
}

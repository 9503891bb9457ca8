//! Arguments that several modes take.

use std::path::PathBuf;

use anyhow::{Result, ensure};

pub(crate) use braid_pool::layout::size::parse as size;

/// What a device of a testbed is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    /// The backing file itself.
    File,
    Loop,
    /// A loop device of so many bytes per second.
    Throttled {
        read: u64,
        write: u64,
    },
}

impl DeviceKind {
    /// The same in both directions.
    pub fn throttled(rate: u64) -> Self {
        Self::Throttled { read: rate, write: rate }
    }
}

/// Options of modes that make their own testbed.
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub struct Common {
    /// Directory for backing files: a RAM file system shows the layers' own cost, a disk the disk's
    #[arg(long, default_value = "/dev/shm")]
    pub dir: PathBuf,
    /// Devices in the pool
    #[arg(long, default_value_t = 4)]
    pub members: usize,
    /// Bytes moved in each phase, by all streams together
    #[arg(long, default_value = "2G", value_parser = size)]
    pub size: u64,
    /// Streams: threads, each with its own file
    #[arg(long, default_value_t = 4)]
    pub streams: usize,
    /// Limit each device to this many bytes per second (loop devices, cgroup v1, root)
    #[arg(long, value_name = "RATE", value_parser = size)]
    pub throttle: Option<u64>,
    /// Put a loop device over each backing file, as `--throttle` does: adds the cost of a block device
    #[arg(long = "loop")]
    pub loop_devices: bool,
}

impl Common {
    /// What its devices are.
    pub(crate) fn device_kind(&self) -> DeviceKind {
        match (self.throttle, self.loop_devices) {
            (Some(rate), _) => DeviceKind::throttled(rate),
            (None, true) => DeviceKind::Loop,
            (None, false) => DeviceKind::File,
        }
    }
    /// Refuses what leaves a thread of the ladder without a request.
    pub fn check(&self) -> Result<()> {
        ensure!((1..=MEMBERS_MAX).contains(&self.members), "--members: 1 to {MEMBERS_MAX}");
        ensure!((1..=STREAMS_MAX).contains(&self.streams), "--streams: 1 to {STREAMS_MAX}");
        ensure!(self.size <= SIZE_MAX, "--size: {SIZE_MAX} bytes at most");
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
/// Of a phase: so much that sums of sizes are no concern.
const SIZE_MAX: u64 = 1 << 56;
/// More threads than any machine gains from.
const STREAMS_MAX: usize = 1024;

/// A list of sizes: `64K,1M`, none of them 0.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Sizes(Vec<u64>);
impl Sizes {
    pub fn of(sizes: &[u64]) -> Self {
        Self(sizes.to_vec())
    }
}
impl std::str::FromStr for Sizes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let all = text.split(',').map(size).collect::<Result<Vec<_>, _>>()?;
        if all.contains(&0) {
            return Err(format!("'{text}': a size of 0"));
        }
        Ok(Self(all))
    }
}
impl std::ops::Deref for Sizes {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::{Sizes, size};

    #[test]
    fn sizes_with_and_without_a_unit() {
        for (text, bytes) in [("0", 0), ("4K", 4096), ("1MiB", 1 << 20), ("2G", 2 << 30), ("7", 7)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "K", "-1", "1.5M", "4X", "99999999999999999999", "16777216T"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(*"4K,1M".parse::<Sizes>().unwrap(), [4096, 1 << 20]);
        assert!("4K,0".parse::<Sizes>().is_err() && "".parse::<Sizes>().is_err());
    }
}

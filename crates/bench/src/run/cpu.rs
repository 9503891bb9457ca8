//! CPU time of the whole machine, from /proc/stat. It includes kernel threads (loop devices) and other processes
//! (FUSE servers).

use anyhow::{Context, Result};

use crate::statistics::float;

/// Busy CPU seconds since boot (user, nice, system, interrupts; not idle, not I/O wait), and those that
/// the hypervisor gave to others.
pub(crate) fn times() -> Result<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    let sum = |which: &[usize]| -> u64 { which.iter().filter_map(|i| fields.get(*i)).sum() };
    let hertz = float(rustix::param::clock_ticks_per_second());
    let seconds = |ticks: u64| float(ticks) / hertz;
    Ok((seconds(sum(&[0, 1, 2, 5, 6])), seconds(sum(&[7]))))
}

//! CPU time of the whole machine, from /proc/stat: kernel threads (loop devices, FUSE servers in
//! other processes) count, whoever did the work.

use anyhow::{Context, Result};

/// Busy CPU seconds since boot (user, nice, system, interrupts; not idle, not I/O wait), and those that
/// the hypervisor gave to others.
pub(crate) fn times() -> Result<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    let sum = |which: &[usize]| -> u64 { which.iter().filter_map(|i| fields.get(*i)).sum() };
    let hertz = rustix::param::clock_ticks_per_second();
    #[expect(clippy::cast_precision_loss, reason = "ticks since boot are far below 2^52")]
    let seconds = |ticks: u64| ticks as f64 / hertz as f64;
    Ok((seconds(sum(&[0, 1, 2, 5, 6])), seconds(sum(&[7]))))
}

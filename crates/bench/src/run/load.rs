//! CPU time of this process, of the machine, and of other programs. That of the machine includes kernel threads
//! (loop devices) and servers of other processes (FUSE).

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::statistics::float;

/// Busy CPU seconds of the whole machine since boot (user, nice, system, interrupts; not idle, not I/O wait),
/// and those that the hypervisor gave to others.
fn machine() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let fields = text.lines().next()?.split_whitespace().skip(1);
    let fields: Vec<u64> = fields.filter_map(|f| f.parse().ok()).collect();
    let hertz = float(rustix::param::clock_ticks_per_second());
    let sum = |which: &[usize]| which.iter().filter_map(|i| fields.get(*i)).sum::<u64>();
    Some((float(sum(&[0, 1, 2, 5, 6])) / hertz, float(sum(&[7])) / hertz))
}

/// Processor time at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Meter {
    machine: f64,
    steal: f64,
    own: f64,
    switches: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Metered {
    /// CPU seconds of the whole machine: kernel threads, servers, strangers.
    pub cpu_machine: f64,
    /// CPU seconds of this process.
    pub cpu_own: f64,
    /// CPU seconds that the hypervisor gave to others.
    pub steal: f64,
    /// Context switches of this process.
    pub switches: u64,
}

impl Meter {
    pub fn start() -> Self {
        let (machine, steal) = machine().unwrap_or_default();
        let usage = getrusage(UsageWho::RUSAGE_SELF);
        let (own, switches) = usage.map_or((0.0, 0), |u| {
            let micros = u.user_time().num_microseconds() + u.system_time().num_microseconds();
            let switches = u.voluntary_context_switches() + u.involuntary_context_switches();
            let count = |n: i64| u64::try_from(n).unwrap_or(0);
            (float(count(micros)) / 1e6, count(switches))
        });
        Self { machine, steal, own, switches }
    }
    pub fn stop(self) -> Metered {
        let now = Self::start();
        Metered {
            cpu_machine: (now.machine - self.machine).max(0.0),
            cpu_own: (now.own - self.own).max(0.0),
            steal: (now.steal - self.steal).max(0.0),
            switches: now.switches.saturating_sub(self.switches),
        }
    }
}

/// Processors' worth of work that others do, looked at for so long while this process does nothing.
pub(crate) fn foreign(look: Duration) -> f64 {
    if look.is_zero() {
        return 0.0;
    }
    let meter = Meter::start();
    std::thread::sleep(look);
    let m = meter.stop();
    (m.cpu_machine - m.cpu_own + m.steal).max(0.0) / look.as_secs_f64()
}

//! Signals that ask a process to end: the first is noted, for the work to come to a good end; the
//! second ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::terminal::answer;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Whether the process was asked to end, since [`catch`].
pub fn asked_to_end() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// The signals that ask this process to end. Those that it ignores since its beginning (`nohup`) stay ignored.
pub fn that_end() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let all = [SIGHUP, SIGINT, SIGTERM].into_iter();
    all.filter(|signal| !ignores(&status, *signal)).collect()
}

/// Whether a process ignores a signal, by its `status` in `/proc`.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}

/// From now on the first of these signals is only noted.
///
/// # Errors
/// They cannot be caught.
pub fn catch() -> Result<()> {
    let mut signals = Signals::new(that_end()).context("cannot catch signals")?;
    let work = move || {
        for signal in signals.forever() {
            if ASKED.swap(true, Ordering::Relaxed) {
                std::process::exit(128 + signal);
            }
            answer::note_line(format_args!(
                "leaving the pool; a second signal ends at once, and the next node recovers this one"
            ));
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(work)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_a_process_s_status() {
        // As under `nohup`, and of a program of Rust, which ignores SIGPIPE.
        let status = "Name:\tbraid\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000004002\n";
        assert!(ignores(status, SIGHUP));
        assert!(!ignores(status, SIGINT) && !ignores(status, SIGTERM) && !ignores("", SIGHUP));
    }
}

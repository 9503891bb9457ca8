//! Signals that ask a process to end: the first is noted, for the work to come to a good end; the
//! second ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Whether the process was asked to end, since [`catch`].
pub fn asked_to_end() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// From now on the first of these signals is only noted.
///
/// # Errors
/// They cannot be caught.
pub fn catch() -> Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot catch signals")?;
    let work = move || {
        for signal in signals.forever() {
            if ASKED.swap(true, Ordering::Relaxed) {
                std::process::exit(128 + signal);
            }
            eprintln!(
                "leaving the pool; a second signal ends at once, and the next node recovers this one"
            );
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(work)?;
    Ok(())
}

//! Ctrl-C and SIGTERM: the first one asks the run to end, the second one ends the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Of the run that is shown.
static STOP: OnceLock<Mutex<Arc<AtomicBool>>> = OnceLock::new();

/// From now on these signals set `stop`.
pub(super) fn catch(stop: &Arc<AtomicBool>) -> std::io::Result<()> {
    let mut first = false;
    let place = STOP.get_or_init(|| {
        first = true;
        Mutex::new(stop.clone())
    });
    *place.lock().unwrap_or_else(PoisonError::into_inner) = stop.clone();
    if !first {
        return Ok(());
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let stop = place.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if stop.swap(true, Ordering::Relaxed) {
                super::screen::restore();
                std::process::exit(128 + signal);
            }
            tracing::info!("signal {signal}: ending; once more to end at once");
        }
    })?;
    Ok(())
}

//! How threads end.

use std::thread::JoinHandle;

/// Ends the process if its thread panics; the message has been printed by then. Such a thread leaves behind what nobody
/// goes on with: the process would live, and hold locks that it never gives up.
#[derive(Debug)]
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a thread met a broken invariant: this node stops");
            std::process::abort();
        }
    }
}

/// Waits for threads; not for the one that calls.
pub(crate) fn join_all(threads: Vec<JoinHandle<()>>) {
    let here = std::thread::current().id();
    for thread in threads.into_iter().filter(|t| t.thread().id() != here) {
        let name = thread.thread().name().unwrap_or_default().to_owned();
        if thread.join().is_err() {
            tracing::error!(name, "a thread panicked");
        }
    }
}

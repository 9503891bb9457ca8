//! What all threads that answer requests share.

/// Is called for requests that come by another way.
pub trait Note: Send + Sync {
    /// One has come.
    fn note(&self);
}

/// Ends the process when a thread panics; the message has been printed by then.
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a request met a broken invariant: this node stops");
            std::process::abort();
        }
    }
}

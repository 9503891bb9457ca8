//! What all threads that answer requests share.

/// Is called for requests that come by another way.
pub trait Note: Send + Sync {
    /// One has come.
    fn note(&self);
}

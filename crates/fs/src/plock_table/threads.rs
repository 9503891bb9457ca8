//! What there is to do for the threads that look at locks of other nodes, and for circles of waiters
//! ([`crate::plock`] starts them).

/// What there is to do for a bucket's thread.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent marks, not states of one thing")]
pub(crate) struct PollNeed {
    /// It is there.
    pub running: bool,
    /// Something is new: look at once.
    pub called: bool,
    /// Some wait can become free without anybody here noticing: when locks of other nodes go, or when it
    /// has given way to earlier requests for long enough.
    pub far: bool,
    /// And the thread has not been called for it.
    pub news: bool,
    /// A request of this node was the next in order when another node took the bucket.
    pub next: bool,
    /// Waits that have ended are still on the devices.
    pub stale: bool,
}

/// The thread that looks for circles.
#[derive(Debug, Default)]
pub(crate) struct CircleSearch {
    pub running: bool,
    pub called: bool,
}

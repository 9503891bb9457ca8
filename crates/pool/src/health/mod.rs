//! What is noticed of members that still work: how long their transfers take, whether they end, and what they
//! return.

pub(crate) mod silent;
pub(crate) mod slow;
pub(crate) mod suspect;

use std::sync::Arc;

use parking_lot::Mutex;

/// What was noticed of the members of an open pool.
#[derive(Debug, Default)]
pub(crate) struct MemberHealth {
    /// The members' times.
    pub slow: Mutex<slow::SlowDetector>,
    /// Members that answer nothing.
    pub silence: Mutex<silent::Silence>,
    /// Members that return garbage: what each epoch's topology has, too.
    pub suspicion: Arc<suspect::Suspicion>,
}

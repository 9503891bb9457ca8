//! What is noticed of members that still work: how long their transfers take, whether they end, and what they
//! return.

pub(crate) mod silent;
pub(crate) mod slow;
pub(crate) mod suspect;

use std::sync::Arc;

use parking_lot::Mutex;

/// Called when a member has become suspected.
pub(crate) type Told = Box<dyn Fn() + Send + Sync>;
/// What is called then.
#[derive(Default)]
pub(crate) struct Listener(Mutex<Option<Told>>);
impl Listener {
    pub fn set(&self, told: Told) {
        *self.0.lock() = Some(told);
    }
    pub fn tell(&self) {
        if let Some(told) = &*self.0.lock() {
            told();
        }
    }
}
impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listener")
    }
}

/// What was noticed of the members of an open pool.
#[derive(Debug, Default)]
pub(crate) struct MemberHealth {
    /// The members' times.
    pub slow: Mutex<slow::SlowDetector>,
    /// Members that answer nothing.
    pub silence: Mutex<silent::Silence>,
    /// Members that return garbage: what each epoch's topology has, too.
    pub suspicion: Arc<suspect::Suspicion>,
    /// Who writes it into the labels.
    pub suspected: Listener,
}

//! What a lock manager asks about other nodes.

use braid_format::LockNo;
use braid_format::lock_record::Life;
use braid_format::node::SlotDamage;

use crate::dlock::Hint;

/// Whether a life may still act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It lives, or may live, or is not yet recovered: what it holds stands.
    Alive,
    /// Its slot is free or another's: it was recovered or left; what it held may be broken.
    Dead,
}

/// The other nodes, as the lock manager sees them.
pub trait Peers: Send + Sync {
    /// Whether `life`'s hold of `lock` may be broken. In doubt: alive.
    fn liveness(&self, lock: LockNo, life: Life) -> Liveness;
    /// What keeps `life`, which is dead and fenced, from being recovered for now: what it holds
    /// stands until the damage is repaired, so nobody should wait for it.
    fn lost(&self, life: Life) -> Option<SlotDamage> {
        let _ = life;
        None
    }
    /// Sends a hint; may be lost; never blocks.
    fn hint(&self, to: Life, lock: LockNo, hint: &Hint);
    /// Sends several together; any of them may be lost; never blocks.
    fn hints(&self, to: Life, hints: &[(LockNo, Hint)]) {
        for (lock, hint) in hints {
            self.hint(to, *lock, hint);
        }
    }
    /// Whether hints reach `life`, and its own come back, as far as is known.
    fn reaches(&self, life: Life) -> bool {
        let _ = life;
        false
    }
}

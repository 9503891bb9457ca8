//! Watches over the end of this node's lease. The thread does no I/O to devices, so none that hangs
//! keeps it from that.

use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_device::Moment;

use super::super::lease::{Notice, Tell};
use super::freezes::list;
use super::state::NodeState;

/// Hears when this node may not act any more, from a thread that waits for nothing else.
pub trait OnLease: Send + Sync {
    /// The lease is over; or, `for_good`, the node has withdrawn. What this node lets programs read
    /// without asking must be gone in `within`: then others may act. What programs ask for waits for `patience`.
    fn over(&self, for_good: bool, within: Duration, patience: Duration);
    /// The lease lasts again: a heartbeat was written, and slot and key are still this node's.
    fn regained(&self);
}

impl NodeState {
    /// Until when programs may be told what was read.
    fn serves_until(&self) -> Moment {
        let lease = *self.lease.lock();
        lease.min(*self.seen_until.lock())
    }
    pub(super) fn keep_lease(&self, on: &dyn OnLease) {
        let mut notice = Notice::default();
        let grace = self.options.timing.grace();
        while !self.stopped() {
            let until = self.serves_until();
            let withdrawn = self.withdrawn.get().is_some();
            let tell = notice.look(Moment::now().since_boot(), until.since_boot(), withdrawn);
            // Whoever extends the lease then rings.
            self.lapsed.store(notice.is_over(), Ordering::SeqCst);
            match tell {
                Some(Tell::Regained) => on.regained(),
                Some(Tell::Over) => self.tell_over(on),
                Some(Tell::Withdrawn) => on.over(true, grace, Duration::ZERO),
                None => {}
            }
            // It may have changed meanwhile.
            if self.serves_until() == until || notice.is_final() {
                self.alarm.wait(notice.next(until.since_boot()).map(Moment::at));
            }
        }
    }
    fn tell_over(&self, on: &dyn OnLease) {
        let timing = self.options.timing;
        if Moment::now() < *self.lease.lock() {
            tracing::warn!(
                "a member has failed, and nodes {} have not taken note: perhaps they do not see this node's heartbeats any more. Until they have, or are known to be dead, nothing is served here",
                list(&self.not_following())
            );
            // Those that are dead are fenced meanwhile.
            return on.over(false, timing.grace(), timing.lease() * 2);
        }
        tracing::warn!(
            "no heartbeat was written for {:?}: the lease is over, and what the kernel has cached is dropped",
            timing.lease()
        );
        on.over(false, timing.grace(), timing.grace() / 2);
    }
}

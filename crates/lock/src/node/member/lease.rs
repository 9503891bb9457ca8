//! Watches over the end of this node's lease. The thread does no I/O to devices, so none that hangs
//! keeps it from that.

use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_device::Moment;

use super::super::lease::{Notice, Tell};
use super::state::NodeState;

/// Hears when this node may not act any more, from a thread that waits for nothing else.
pub trait OnLease: Send + Sync {
    /// The lease is over; or, `for_good`, the node has withdrawn. What this node lets programs read
    /// without asking must be gone in `within`: then others may act.
    fn over(&self, for_good: bool, within: Duration);
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
                Some(Tell::Over) => {
                    let time = self.options.timing.lease();
                    let why = if Moment::now() < *self.lease.lock() {
                        "no other node was sure to see a heartbeat"
                    } else {
                        "no heartbeat was written"
                    };
                    tracing::warn!(
                        "{why} for {time:?}: the lease is over, and what the kernel has cached is dropped"
                    );
                    on.over(false, grace);
                }
                Some(Tell::Withdrawn) => on.over(true, grace),
                None => {}
            }
            // It may have changed meanwhile.
            if self.serves_until() == until || notice.is_final() {
                self.alarm.wait(notice.next(until.since_boot()).map(Moment::at));
            }
        }
    }
}

//! Watches over the end of this node's lease. The thread does no I/O to devices, so none that hangs
//! keeps it from that.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_device::Moment;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::super::lease::{Notice, Tell};
use super::{Inner, Membership};
use crate::error::LockError;

/// Hears when this node may not act any more, from a thread that waits for nothing else.
pub trait OnLease: Send + Sync {
    /// The lease is over; or, `for_good`, the node has withdrawn. What this node lets programs read
    /// without asking must be gone in `within`: then others may act.
    fn over(&self, for_good: bool, within: Duration);
    /// The lease lasts again: a heartbeat was written, and slot and key are still this node's.
    fn regained(&self);
}

/// Wakes a thread at a moment, at once if the machine slept past it, or when it is called.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: OwnedFd,
    bell: OwnedFd,
}

impl Alarm {
    pub fn new() -> Result<Self, LockError> {
        let os =
            |e: Errno| LockError::Os { what: "cannot make a timer", source: Arc::new(e.into()) };
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).map_err(os)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { timer, bell: eventfd(0, flags).map_err(os)? })
    }
    /// Wakes the thread.
    pub fn ring(&self) {
        // If that fails it rings already.
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).ok();
    }
    fn wait(&self, until: Option<Moment>) {
        let at = until.map_or(Duration::ZERO, Moment::since_boot);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec::try_from(at).unwrap_or(none);
        let at = Itimerspec { it_interval: none, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &at).ok();
        let mut wakes =
            [PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        poll(&mut wakes, None).ok();
        let mut rung = [0; 8];
        rustix::io::read(&self.bell, &mut rung).ok();
    }
}

impl Membership {
    /// Starts the thread that watches over the lease and tells `on`. Once.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn watch_lease(&self, on: Arc<dyn OnLease>) -> Result<(), LockError> {
        let inner = self.inner.clone();
        self.spawn("lease", move || inner.keep_lease(&*on))
    }
    /// From the end of this node's lease until others may act.
    pub fn grace(&self) -> Duration {
        self.inner.options.timing.grace()
    }
}

impl Inner {
    fn keep_lease(&self, on: &dyn OnLease) {
        let mut notice = Notice::default();
        let grace = self.options.timing.grace();
        while !self.stopped() {
            let until = *self.lease.lock();
            let withdrawn = self.withdrawn.get().is_some();
            let tell = notice.look(Moment::now().since_boot(), until.since_boot(), withdrawn);
            // Whoever extends the lease then rings.
            self.lapsed.store(notice.is_over(), Ordering::SeqCst);
            match tell {
                Some(Tell::Regained) => on.regained(),
                Some(Tell::Over) => {
                    tracing::warn!(
                        "no heartbeat was written for {:?}: the lease is over, and what the kernel has cached is dropped",
                        self.options.timing.lease()
                    );
                    on.over(false, grace);
                }
                Some(Tell::Withdrawn) => on.over(true, grace),
                None => {}
            }
            // It may have changed meanwhile.
            if *self.lease.lock() == until || notice.is_final() {
                self.alarm.wait(notice.next(until.since_boot()).map(Moment::at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_comes_at_its_time_and_when_it_is_rung() {
        let alarm = Alarm::new().unwrap();
        let then = Moment::now() + Duration::from_millis(20);
        alarm.wait(Some(then));
        assert!(Moment::now() >= then);
        alarm.ring();
        alarm.wait(None);
        alarm.wait(Some(then));
    }
}

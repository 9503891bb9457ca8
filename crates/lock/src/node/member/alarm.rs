//! A thread waits for a moment, and is woken before it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use braid_device::Moment;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::error::LockError;

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
    pub fn wait(&self, until: Option<Moment>) {
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

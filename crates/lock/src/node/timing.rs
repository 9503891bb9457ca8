//! A node's timers, all of one number.
//!
//! ```text
//!  io_timeout = T (10 s)
//!  0        T/40 (250 ms)      T (10 s)        5/4 T (12.5 s)       9/4 T (22.5 s)
//!  |---beat---|----- ... -------|----------------|--------------------|---------> t since the last beat
//!  last beat  next beat         |                |                    |
//!                               |                |                    fenced at the latest, if every
//!                               |                |                    member answers within T
//!                               |                suspect: others fence it
//!                               its lease is over: it issues nothing any more, and drops what its
//!                               kernel has cached
//! ```
//!
//! The lease is counted by a clock that goes on while the machine is suspended
//! ([`braid_device::Moment`]). It counts from before a beat was written, and silence from when it was
//! seen: so a node stops before anybody else acts, however long a beat was on its way. Who watches uses
//! the timers of the node that is watched, which are in its slot.

use std::time::Duration;

/// Timers of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    io_timeout: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { io_timeout: Self::USUAL }
    }
}

impl Timing {
    /// The usual `io_timeout`.
    pub const USUAL: Duration = Duration::from_secs(10);
    /// The least: shorter ones take a busy machine for a dead one.
    pub const MIN: Duration = Duration::from_secs(1);
    /// The longest.
    pub const MAX: Duration = Duration::from_mins(5);
    /// Beats in an `io_timeout`.
    pub const BEATS: u32 = 40;

    /// From the time in which a device that works answers; unbounded, for tests.
    pub fn of(io_timeout: Duration) -> Self {
        Self { io_timeout }
    }
    /// Such that a beat comes so often.
    pub fn of_beat(beat: Duration) -> Self {
        Self { io_timeout: beat * Self::BEATS }
    }
    /// As a slot says it, in milliseconds; 0: the usual.
    pub fn of_slot(milliseconds: u32) -> Self {
        match milliseconds {
            0 => Self::default(),
            n => Self { io_timeout: Duration::from_millis(u64::from(n)).min(Self::MAX) },
        }
    }
    /// For a slot.
    pub fn milliseconds(self) -> u32 {
        u32::try_from(self.io_timeout.as_millis()).unwrap_or(u32::MAX)
    }
    /// What all is made of.
    pub fn io_timeout(self) -> Duration {
        self.io_timeout
    }
    /// Between two heartbeats.
    pub fn beat(self) -> Duration {
        self.io_timeout / Self::BEATS
    }
    /// Between two heartbeats of a node that has nothing new to say.
    pub fn quiet_beat(self) -> Duration {
        self.beat() * 5 / 4
    }
    /// A node that lives has shown a new heartbeat in so long, if nothing holds it up.
    pub fn shows_within(self) -> Duration {
        self.beat() * 11 / 8
    }
    /// Of a node that lives, another one has seen a new heartbeat in so long, also while both rest.
    pub fn seen_within(self) -> Duration {
        self.beat() * 8
    }
    /// A node that has written no beat for so long issues no change.
    pub fn lease(self) -> Duration {
        self.io_timeout
    }
    /// From the end of a node's lease until others may act.
    pub fn grace(self) -> Duration {
        self.suspect_after().saturating_sub(self.lease())
    }
    /// A node of another host that shows no beat for so long is fenced.
    pub fn suspect_after(self) -> Duration {
        self.io_timeout * 5 / 4
    }
    /// From the last beat to the end of the fence at the latest, if all members answer in time.
    pub fn fence_after(self) -> Duration {
        self.suspect_after() + self.io_timeout
    }
}

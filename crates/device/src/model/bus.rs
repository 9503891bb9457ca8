//! A bus that several disks share: one of them at a time moves bytes.

use std::collections::VecDeque;
use std::time::Duration;

use braid_format::Bytes;

use super::time::{Rate, Time};

/// The parameters of a bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bus {
    /// Bytes per second while bytes move.
    pub rate: Rate,
    /// Time on the bus for each command: arbitration, selection, the command, its status.
    pub command: Duration,
    /// Bytes that move between two arbitrations; a disk sends or asks for so much at a time.
    pub burst: Bytes,
    /// Time on the bus to get it back for a burst.
    pub reconnect: Duration,
    /// Whether disks leave the bus to others while their mechanisms work. Without it a command
    /// holds the bus from its beginning to its end, and two disks of a bus are never faster than
    /// one.
    pub disconnect: bool,
}

impl Bus {
    /// A bus that only limits the rate: bursts of 64 KiB, no overhead, disconnecting.
    pub const fn of_rate(rate: Rate) -> Self {
        Self {
            rate,
            command: Duration::ZERO,
            burst: Bytes(64 << 10),
            reconnect: Duration::ZERO,
            disconnect: true,
        }
    }
    /// The rate when `disks` of `each` (their sequential rate) stream on it with commands of
    /// `len`: what they can do, but never more than bytes and overheads leave room for.
    pub fn shared_rate(&self, disks: u64, each: Rate, len: Bytes) -> Rate {
        let bursts = len.0.div_ceil(self.burst.0.max(1));
        let overhead = self.reconnect.saturating_mul(u32::try_from(bursts).unwrap_or(u32::MAX));
        let most = Rate::of(len, self.rate.time_for(len) + overhead + self.command);
        Rate(each.0.saturating_mul(disks)).min(most)
    }
}

/// What a bus has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BusStats {
    /// Time during which it was not to be had by others.
    pub busy: Duration,
    /// Bytes moved.
    pub moved: Bytes,
}

/// Something that needs the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// A command is sent.
    Command,
    /// Bytes move, this way or that.
    Burst(u64),
}

/// Who needs it, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub command: usize,
    pub what: Use,
}

/// A bus and who waits for it. Granted in the order of asking; a holder comes first.
#[derive(Debug)]
pub(super) struct BusState {
    bus: Bus,
    waiting: VecDeque<Job>,
    current: Option<Job>,
    /// The command that keeps the bus, without disconnect, and since when.
    holder: Option<(usize, Time)>,
    stats: BusStats,
}

impl BusState {
    pub fn new(bus: Bus) -> Self {
        let bus = Bus { burst: bus.burst.max(Bytes(1)), ..bus };
        let stats = BusStats::default();
        Self { bus, waiting: VecDeque::new(), current: None, holder: None, stats }
    }
    pub const fn stats(&self) -> BusStats {
        self.stats
    }
    pub const fn burst(&self) -> u64 {
        self.bus.burst.0
    }
    pub fn ask(&mut self, job: Job) {
        self.waiting.push_back(job);
    }
    /// Grants the bus, if it is free and wanted; returns when the grant ends.
    pub fn grant(&mut self, now: Time) -> Option<Time> {
        if self.current.is_some() {
            return None;
        }
        let next = match self.holder {
            Some((holder, _)) => self.waiting.iter().position(|j| j.command == holder)?,
            None => 0,
        };
        let job = self.waiting.remove(next)?;
        let takes = match job.what {
            Use::Command => {
                if !self.bus.disconnect {
                    self.holder = Some((job.command, now));
                }
                self.bus.command
            }
            Use::Burst(len) => {
                self.stats.moved = Bytes(self.stats.moved.0 + len);
                let regain = if self.bus.disconnect { self.bus.reconnect } else { Duration::ZERO };
                regain + self.bus.rate.time_for(Bytes(len))
            }
        };
        if self.bus.disconnect {
            self.stats.busy += takes;
        }
        self.current = Some(job);
        Some(now + takes)
    }
    /// The grant has ended; what it was for.
    pub fn ended(&mut self) -> Option<Job> {
        self.current.take()
    }
    /// A command is complete: if it holds the bus, it holds it no longer.
    pub fn release(&mut self, command: usize, now: Time) {
        if let Some((_, since)) = self.holder.take_if(|(holder, _)| *holder == command) {
            self.stats.busy += now.since(since);
        }
    }
}

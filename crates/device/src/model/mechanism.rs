//! Arm, platters and heads: when which byte is under the head. A pure function of the past.
//!
//! Time is measured in *byte times*: with `P` bytes passing in a rotation of `R` nanoseconds, byte
//! time `x` begins at `floor(x R / P)`. The byte at offset `a`, on track `i`, is under its head at
//! every `x` with `x = a + skew(i) (mod P)`. All starts and ends are computed from whole `x`, so
//! that an access which continues another begins at the very nanosecond at which that one ended,
//! and no rotation is lost or won by rounding.
//!
//! The skew from one track to the next is the least that hides the switch, as drives are laid out.

use std::time::Duration;

use super::disk::DiskModel;
use super::time::{Rate, Time, nanos};

/// A run of bytes to pass under the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Written rather than read.
    pub write: bool,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

/// What a mechanism has spent its time on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MechanismStats {
    /// Changes of track, and settling after them.
    pub seeking: Duration,
    /// Waiting for the sector.
    pub rotating: Duration,
    /// Reading and writing what was asked for, with the switches inside an access.
    pub busy: Duration,
    /// Accesses that found bytes read ahead.
    pub found_ahead: u64,
}

/// Bytes read on after the last read: those in `from..mark` are in the buffer, `mark..until` come
/// under the head from `since` on.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    from: u64,
    mark: u64,
    since: Time,
    until: u64,
}

/// How an access went.
#[derive(Debug, Clone, Copy)]
struct Passed {
    end: Time,
    track: u64,
    seeking: Duration,
    rotating: Duration,
}

/// The mechanism of one disk.
#[derive(Debug)]
pub struct Mechanism {
    model: DiskModel,
    size: u64,
    /// Bytes that pass in a rotation.
    passing: u64,
    rotation: u64,
    head_skew: u64,
    cylinder_skew: u64,
    /// The track the heads are on.
    track: u64,
    ahead: Option<Ahead>,
    stats: MechanismStats,
}

impl Mechanism {
    /// The mechanism of a disk of `size` bytes, its heads on the first track, byte 0 under them at
    /// time 0. The model has passed [`DiskModel::check`].
    pub fn new(model: &DiskModel, size: u64) -> Self {
        let rotation = nanos(model.rotation);
        let passing = match model.media_rate {
            // To the nearest byte.
            Some(rate) => Rate(rate.0 * 2).in_time(model.rotation).0.div_ceil(2).max(1),
            None => model.track.0,
        };
        // The least skew whose time, rounded down, is not less than the switch.
        let skew = |switch: Duration| {
            if switch.is_zero() || rotation == 0 {
                return 0;
            }
            let needed = (u128::from(nanos(switch)) + 1) * u128::from(passing);
            u64::try_from(needed.div_ceil(u128::from(rotation))).unwrap_or(0)
        };
        let (head, cylinder) = model.switches();
        Self {
            model: *model,
            size,
            passing,
            rotation,
            head_skew: skew(head),
            cylinder_skew: skew(cylinder),
            track: 0,
            ahead: None,
            stats: MechanismStats::default(),
        }
    }

    /// What it has spent its time on.
    pub const fn stats(&self) -> MechanismStats {
        self.stats
    }

    /// Serves an access from `now` on; returns when its last byte has passed. Calls come in order
    /// of time, each at or after the end of the one before.
    pub fn serve(&mut self, now: Time, access: Access) -> Time {
        let ahead = self.ahead.take();
        let end = access.at + access.len;
        let passed = match ahead {
            Some(a) if !access.write && access.at >= a.from && access.at <= a.until => {
                self.read_from_ahead(a, now, end)
            }
            other => {
                if let Some(a) = other {
                    self.track = self.interrupted(&a, now);
                }
                let passed = self.pass(self.track, now, access);
                self.read_on(access, end, end, passed.end);
                passed
            }
        };
        self.track = passed.track;
        self.stats.seeking += passed.seeking;
        self.stats.rotating += passed.rotating;
        self.stats.busy += passed.end.since(now);
        passed.end
    }

    /// Notes that bytes after a read are read on.
    fn read_on(&mut self, access: Access, from: u64, mark: u64, since: Time) {
        let until = from.saturating_add(self.model.read_ahead.0).min(self.size);
        if !access.write && self.model.read_ahead.0 != 0 && until > from {
            self.ahead = Some(Ahead { from, mark, since, until: until.max(mark) });
        }
    }

    /// A read that begins among the bytes read ahead.
    fn read_from_ahead(&mut self, a: Ahead, now: Time, end: u64) -> Passed {
        self.stats.found_ahead += 1;
        let read = |at: u64, end: u64| Access { write: false, at, len: end - at };
        let still = Passed {
            end: now,
            track: self.track,
            seeking: Duration::ZERO,
            rotating: Duration::ZERO,
        };
        let whole = self.pass(self.track, a.since, read(a.mark, a.until));
        // Does the stream go on without a break?
        let flows = now <= whole.end;
        let passed = if flows && end > a.mark {
            let p = self.pass(self.track, a.since, read(a.mark, end));
            Passed { end: p.end.max(now), track: p.track, ..still }
        } else if end > a.until {
            self.pass(whole.track, now, read(a.until, end))
        } else {
            still
        };
        // Where the bytes after this read come from: the same stream, or a new one that begins
        // now that there is room.
        if flows {
            let (mark, since) = if end > a.mark {
                let p = self.pass(self.track, a.since, read(a.mark, end));
                (end, p.end)
            } else {
                (a.mark, a.since)
            };
            self.read_on(read(end, end), end, mark, since);
            passed
        } else if end > a.until {
            self.read_on(read(end, end), end, end, passed.end);
            passed
        } else {
            self.read_on(read(end, end), end, a.until, now);
            Passed { track: whole.track, ..passed }
        }
    }

    /// The track on which reading ahead is interrupted.
    fn interrupted(&self, a: &Ahead, now: Time) -> u64 {
        let (mut track, mut at, mut time) = (self.track, a.mark, a.since);
        while at < a.until && time < now {
            let stop = self.track_end(at).min(a.until);
            let passed = self.pass(track, time, Access { write: false, at, len: stop - at });
            (track, at, time) = (passed.track, stop, passed.end);
        }
        track
    }

    fn track_end(&self, at: u64) -> u64 {
        (at / self.model.track.0 + 1).saturating_mul(self.model.track.0)
    }

    /// Passes over an access, beginning on `track` at `now`.
    fn pass(&self, track: u64, now: Time, access: Access) -> Passed {
        let mut p = Passed { end: now, track, seeking: Duration::ZERO, rotating: Duration::ZERO };
        let (mut at, end) = (access.at, access.at + access.len);
        if self.rotation == 0 {
            let rate = self.model.media_rate.unwrap_or(Rate(u64::MAX));
            p.end = now + rate.time_for(access.len.into());
            return p;
        }
        while at < end {
            let track = at / self.model.track.0;
            let stop = self.track_end(at).min(end);
            let switch = self.switch(p.track, track, access.write);
            let ready = p.end + switch;
            let x = self.first_pass(ready, at, track);
            p.seeking += switch;
            p.rotating += self.begins(x).since(ready);
            p.end = self.begins(x + u128::from(stop - at));
            p.track = track;
            at = stop;
        }
        p
    }

    /// The time to get from one track to another.
    fn switch(&self, from: u64, to: u64, write: bool) -> Duration {
        if from == to {
            return Duration::ZERO;
        }
        let (a, b) = (from / self.model.heads, to / self.model.heads);
        let moving = if a == b {
            self.model.head_switch
        } else {
            self.model.seek.time(a.abs_diff(b), self.model.cylinders)
        };
        moving + if write { self.model.write_settle } else { Duration::ZERO }
    }

    /// When byte time `x` begins.
    fn begins(&self, x: u128) -> Time {
        let time = x * u128::from(self.rotation) / u128::from(self.passing);
        Time(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// The first byte time at or after `now` at which byte `at` comes under its head.
    fn first_pass(&self, now: Time, at: u64, track: u64) -> u128 {
        let passing = u128::from(self.passing);
        let cylinder = track / self.model.heads;
        let skew = u128::from(track - cylinder) * u128::from(self.head_skew)
            + u128::from(cylinder) * u128::from(self.cylinder_skew);
        let angle = (u128::from(at) + skew) % passing;
        let earliest = (u128::from(now.0) * passing).div_ceil(u128::from(self.rotation));
        earliest + (angle + passing - earliest % passing) % passing
    }
}

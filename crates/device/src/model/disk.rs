//! What a modelled disk is made of.

use std::time::Duration;

use braid_format::Bytes;
use thiserror::Error;

use super::time::{Rate, nanos};

/// Why a model makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A number that must not be zero.
    #[error("the disk model's {what} is zero")]
    Zero {
        /// Its name.
        what: &'static str,
    },
    /// A disk without rotation whose speed was not told.
    #[error("a disk model without rotation needs a media rate")]
    NoRate,
    /// Seek times that are not track-to-track <= average <= full stroke.
    #[error("the disk model's seek times do not rise from track-to-track to full stroke")]
    SeekOrder,
    /// A bus of another clock.
    #[error("the disk and its bus belong to different clocks")]
    OtherClock,
}

/// In what order waiting requests are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// As they came.
    #[default]
    Fifo,
    /// Upwards from the head, then again from the lowest.
    Elevator,
}

/// Seek times, as data sheets give them: settled, without rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seek {
    /// To the next cylinder.
    pub track_to_track: Duration,
    /// Mean over random pairs of cylinders.
    pub average: Duration,
    /// From the first cylinder to the last.
    pub full_stroke: Duration,
}

impl Seek {
    /// The time to move over `distance` of `cylinders` cylinders:
    /// `t(d) = min + a sqrt(d - 1) + b (d - 1)`, with
    /// `a = (-10 min + 15 avg - 5 max) / (3 sqrt(C))` and `b = (7 min - 15 avg + 8 max) / (3 C)`,
    /// which meets all three numbers of the data sheet (the middle one as the mean over random
    /// pairs); never less than `min`, never more than `max`.
    ///
    /// # Source
    /// Lee, Katz: An Analytic Performance Model of Disk Arrays, SIGMETRICS 1993.
    pub fn time(&self, distance: u64, cylinders: u64) -> Duration {
        if distance == 0 {
            return Duration::ZERO;
        }
        let [min, avg, max] = [self.track_to_track, self.average, self.full_stroke]
            .map(|d| i128::from(nanos(d).min(u64::MAX >> 8)));
        let (beyond, all) = (u128::from(distance - 1), u128::from(cylinders.max(1)));
        // sqrt((d - 1) / C) and (d - 1) / C, in units of 2^-32.
        let of = |x: u128| i128::try_from(x).unwrap_or(i128::MAX >> 64);
        let part = of((beyond << 32) / all);
        let root = of(((beyond << 64) / all).isqrt());
        let curved = (-10 * min + 15 * avg - 5 * max) * root / 3;
        let straight = (7 * min - 15 * avg + 8 * max) * part / 3;
        let time = (min + ((curved + straight) >> 32)).clamp(min, max.max(min));
        Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX))
    }
}

/// The parameters of a disk. Everything that is not told is zero or off, so that
/// `DiskModel { overhead, ..DiskModel::spinning(7200, track) }` reads as what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskModel {
    /// Bytes on one track of one surface.
    pub track: Bytes,
    /// Surfaces, that is tracks in a cylinder.
    pub heads: u64,
    /// Cylinders, for the seek curve; farther seeks take the full stroke.
    pub cylinders: u64,
    /// One rotation; zero: no mechanism (an array's port, solid state), only a media rate.
    pub rotation: Duration,
    /// Speed under the head; `None`: a track in a rotation. Less is sector interleave (a track then
    /// takes several rotations), more leaves a gap at the end of each track.
    pub media_rate: Option<Rate>,
    /// Seek times.
    pub seek: Seek,
    /// From one track of a cylinder to the next.
    pub head_switch: Duration,
    /// What a write waits longer than a read after any change of track. Nothing else is special
    /// about writes: one whose sector has just passed waits for a rotation, as a read does.
    pub write_settle: Duration,
    /// The disk's own work on a command before anything moves: one command at a time, but while
    /// the mechanism works on another.
    pub overhead: Duration,
    /// Commands the disk holds at a time; those beyond wait in the host. 1: no tagged queueing.
    pub tags: u32,
    /// In what order host and disk take what waits.
    pub order: Order,
    /// The longest command the host sends: longer requests are cut, and those that wait in the host
    /// and adjoin are joined, up to this; zero: neither.
    pub transfer_max: Bytes,
    /// The mechanism begins a write when so much of it has come over the bus (or all of it); bytes
    /// that then come too late cost a rotation.
    pub write_fill: Bytes,
    /// How far the disk reads on by itself after a read; zero: not at all.
    pub read_ahead: Bytes,
    /// Writes that fit are complete when their bytes have reached the disk, and durable after a
    /// flush; zero: off.
    pub write_cache: Bytes,
}

impl DiskModel {
    /// A disk of one cylinder, `rpm` and `track`: rotation and nothing else; 64 tags.
    pub const fn spinning(rpm: u64, track: Bytes) -> Self {
        let rpm = if rpm == 0 { 1 } else { rpm };
        Self {
            track,
            heads: u64::MAX,
            cylinders: 1,
            rotation: Duration::from_nanos(60_000_000_000 / rpm),
            media_rate: None,
            seek: Seek {
                track_to_track: Duration::ZERO,
                average: Duration::ZERO,
                full_stroke: Duration::ZERO,
            },
            head_switch: Duration::ZERO,
            write_settle: Duration::ZERO,
            overhead: Duration::ZERO,
            tags: 64,
            order: Order::Fifo,
            transfer_max: Bytes(0),
            write_fill: Bytes(0),
            read_ahead: Bytes(0),
            write_cache: Bytes(0),
        }
    }
    /// A device that moves bytes at `rate` wherever they are.
    pub const fn flat(rate: Rate) -> Self {
        Self {
            rotation: Duration::ZERO,
            media_rate: Some(rate),
            ..Self::spinning(1, Bytes(1 << 20))
        }
    }
    /// Whether it makes sense.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn check(&self) -> Result<(), ModelError> {
        let zero = [
            ("track", self.track.0 == 0),
            ("number of heads", self.heads == 0),
            ("number of cylinders", self.cylinders == 0),
            ("number of tags", self.tags == 0),
            ("media rate", self.media_rate == Some(Rate(0))),
        ];
        if let Some((what, _)) = zero.into_iter().find(|(_, zero)| *zero) {
            return Err(ModelError::Zero { what });
        }
        if self.rotation.is_zero() && self.media_rate.is_none() {
            return Err(ModelError::NoRate);
        }
        let s = &self.seek;
        if s.track_to_track > s.average || s.average > s.full_stroke {
            return Err(ModelError::SeekOrder);
        }
        Ok(())
    }
    /// The speed under the head.
    pub fn media_rate(&self) -> Rate {
        self.media_rate.unwrap_or_else(|| Rate::of(self.track, self.rotation))
    }
    /// How long the head is on its way from one track to the next: within a cylinder, and at its
    /// end. The longer of reading and writing, since both are laid out alike.
    pub(crate) fn switches(&self) -> (Duration, Duration) {
        let cylinder = self.seek.time(1, self.cylinders);
        (self.head_switch + self.write_settle, cylinder + self.write_settle)
    }
    /// The speed of a long sequential transfer that is never late: a cylinder's bytes over its
    /// tracks and the switches between them, `H T / (H T / m + (H - 1) h + c)`.
    ///
    /// # Source
    /// The same formula as "sustained transfer rate" in IBM's and Hitachi's disk specifications
    /// (for example Deskstar 7K500, 4.4.4), but for the time of a track.
    pub fn sequential_rate(&self) -> Rate {
        let (head, cylinder) = self.switches();
        if head.is_zero() && cylinder.is_zero() {
            return self.media_rate();
        }
        let heads = self.heads.min(1 << 20);
        let bytes = Bytes(heads.saturating_mul(self.track.0));
        let switching = head * u32::try_from(heads - 1).unwrap_or(u32::MAX) + cylinder;
        Rate::of(bytes, self.media_rate().time_for(bytes) + switching)
    }
}

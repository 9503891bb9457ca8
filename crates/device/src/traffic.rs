//! Counts and sizes of requests, as they were issued, and how long transfers took.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use braid_format::Bytes;

use crate::Command;
use crate::times::{TimeCounters, Times};

/// Classes of sizes: the first is up to 1 KiB, each next twice the one before, the last from 64 MiB.
pub const SIZE_CLASSES: usize = 18;
/// The first class begins at two to this power.
const FIRST_CLASS: u32 = 9;

/// Counts of requests, kept while they are issued.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct IoCounters {
    reads: Counter,
    writes: Counter,
    flushes: AtomicU64,
    compare_and_writes: AtomicU64,
    discards: AtomicU64,
    zeroes: AtomicU64,
    errors: AtomicU64,
}

#[derive(Debug, Default)]
struct Counter {
    bytes: AtomicU64,
    times: TimeCounters,
    sizes: [AtomicU64; SIZE_CLASSES],
}

fn one_more(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counter {
    fn count(&self, len: u64) {
        self.bytes.fetch_add(len, Ordering::Relaxed);
        if let Some(class) = self.sizes.get(class_of(len)) {
            one_more(class);
        }
    }
    fn now(&self) -> Traffic {
        let sizes = self.sizes.each_ref().map(|n| n.load(Ordering::Relaxed));
        let times = self.times.now();
        let bytes = Bytes(self.bytes.load(Ordering::Relaxed));
        Traffic { bytes, sizes, times }
    }
}

fn class_of(len: u64) -> usize {
    let class = len.max(1).ilog2().saturating_sub(FIRST_CLASS);
    (class as usize).min(SIZE_CLASSES - 1)
}

impl IoCounters {
    /// A transfer that was issued.
    pub(crate) fn transfer(&self, write: bool, len: usize) {
        (if write { &self.writes } else { &self.reads }).count(len as u64);
    }
    /// A transfer has ended, so long after it was issued.
    pub(crate) fn took(&self, write: bool, time: Duration) {
        (if write { &self.writes } else { &self.reads }).times.note(time);
    }
    /// Counts a request that has ended, if it failed.
    pub(crate) fn failed_if<T, E>(&self, result: &Result<T, E>) {
        if result.is_err() {
            one_more(&self.errors);
        }
    }
    /// A flush that was issued.
    pub(crate) fn flush(&self) {
        one_more(&self.flushes);
    }
    /// A command that was issued, other than a transfer.
    pub(crate) fn other(&self, command: &Command<'_>) {
        match command {
            Command::Read(_) | Command::Write(_) => {}
            Command::Flush => self.flush(),
            Command::CompareAndWrite { .. } => one_more(&self.compare_and_writes),
            Command::Discard(_) | Command::Deallocate(_) => one_more(&self.discards),
            Command::WriteZeroes(_) => one_more(&self.zeroes),
        }
    }
    /// What was counted so far.
    pub fn now(&self) -> Issued {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Issued {
            reads: self.reads.now(),
            writes: self.writes.now(),
            flushes: of(&self.flushes),
            compare_and_writes: of(&self.compare_and_writes),
            discards: of(&self.discards),
            zeroes: of(&self.zeroes),
            errors: of(&self.errors),
        }
    }
}

/// Transfers in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of all of them.
    pub bytes: Bytes,
    /// How many of each class of sizes.
    pub sizes: [u64; SIZE_CLASSES],
    /// How long those took that have ended and whose time is known.
    pub times: Times,
}

impl Traffic {
    /// How long one took on average; nothing when none is known.
    pub fn latency(&self) -> Option<Duration> {
        self.times.mean()
    }
    /// How many have ended whose time is known.
    pub fn ended(&self) -> u64 {
        self.times.count()
    }
    /// How many there were.
    pub fn requests(&self) -> u64 {
        self.sizes.iter().sum()
    }
    /// Bytes of one on average; 0 when there was none.
    pub fn mean(&self) -> Bytes {
        Bytes(self.bytes.0.checked_div(self.requests()).unwrap_or(0))
    }
    /// The classes that have any: the least size of the class, and how many.
    pub fn classes(&self) -> impl Iterator<Item = (Bytes, u64)> + '_ {
        let least = (FIRST_CLASS..).map(|power| Bytes(1_u64 << power));
        least.zip(self.sizes).filter(|(_, count)| *count != 0)
    }
    fn each(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let sizes = std::array::from_fn(|i| f(self.sizes[i], other.sizes[i]));
        Self {
            bytes: Bytes(f(self.bytes.0, other.bytes.0)),
            sizes,
            times: self.times.each(&other.times, &f),
        }
    }
}

impl Display for Traffic {
    /// `1200 requests, 256 KiB on average: 98 % from 256 KiB, 2 % from 4 KiB`
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let all = self.requests();
        if all == 0 {
            return f.write_str("none");
        }
        let size = |b: u64| match b {
            0..0x400 => format!("{b} B"),
            0x400..0x10_0000 => format!("{} KiB", b >> 10),
            _ => format!("{} MiB", b >> 20),
        };
        write!(f, "{all} requests, {} on average:", size(self.mean().0))?;
        let mut classes: Vec<_> = self.classes().collect();
        classes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (i, (from, count)) in classes.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match count * 100 / all {
                0 => write!(f, "{comma} {count} from {}", size(from.0))?,
                part => write!(f, "{comma} {part} % from {}", size(from.0))?,
            }
        }
        Ok(())
    }
}

/// What a device was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Issued {
    /// Reads.
    pub reads: Traffic,
    /// Writes.
    pub writes: Traffic,
    /// Flushes.
    pub flushes: u64,
    /// Compare-and-writes.
    pub compare_and_writes: u64,
    /// Discards, those that leave zeros included.
    pub discards: u64,
    /// Zeroed ranges.
    pub zeroes: u64,
    /// Those that failed, of all these.
    pub errors: u64,
}

impl Issued {
    fn each(&self, other: &Self, f: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        Self {
            reads: self.reads.each(&other.reads, f),
            writes: self.writes.each(&other.writes, f),
            flushes: f(self.flushes, other.flushes),
            compare_and_writes: f(self.compare_and_writes, other.compare_and_writes),
            discards: f(self.discards, other.discards),
            zeroes: f(self.zeroes, other.zeroes),
            errors: f(self.errors, other.errors),
        }
    }
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.each(other, u64::saturating_add)
    }
    /// What came after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.each(earlier, u64::saturating_sub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two_and_said_in_order_of_number() {
        let counter = Counter::default();
        for len in [1, 512, 1023, 1024, 4096, 4096, 64 << 20, 1 << 40] {
            counter.count(len);
        }
        let now = counter.now();
        let classes: Vec<_> = now.classes().map(|(b, n)| (b.0, n)).collect();
        assert_eq!(classes, [(512, 3), (1024, 1), (4096, 2), (64 << 20, 2)]);
        let mut some = Traffic::default();
        assert_eq!(some.to_string(), "none");
        some.sizes[9] = 99;
        some.sizes[3] = 1;
        some.bytes = Bytes(99 * 262_144 + 4096);
        let said = "100 requests, 253 KiB on average: 99 % from 256 KiB, 1 % from 4 KiB";
        assert_eq!(some.to_string(), said);
    }
}

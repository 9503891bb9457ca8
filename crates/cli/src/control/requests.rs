//! Requests that a node issued to each member, and that programs made: the answer to
//! [`Order::Io`](crate::control::Order::Io).

use braid_bulk::server::{Counts, Operation};
use braid_fuse::OperationCounts;
use braid_pool::device::{Times, Traffic};
use serde::{Deserialize, Serialize};

use crate::control::Node;

/// Requests of one kind since the node was mounted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// How many were issued.
    pub requests: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How long one took on average.
    pub mean_ms: Option<f64>,
    /// How many by size, of the classes that have any.
    #[serde(default)]
    pub sizes: Vec<SizeClass>,
    /// How many have ended.
    #[serde(default)]
    pub ended: u64,
    /// How long these took together, in nanoseconds.
    #[serde(default)]
    pub nanos: u64,
    /// How many of these took how long: the n-th up to 2^n microseconds.
    #[serde(default)]
    pub times: Vec<u64>,
    /// How many are under way.
    #[serde(default)]
    pub in_progress: u64,
}

/// Requests of a size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SizeClass {
    /// Of so many bytes, and less than twice as many.
    pub from: u64,
    /// How many.
    pub requests: u64,
}

/// A member.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MemberIo {
    /// Its place.
    pub index: u16,
    /// Its device.
    pub path: String,
    /// It is slow beside its peers.
    pub slow: bool,
    /// Reads.
    pub reads: Flow,
    /// Writes.
    pub writes: Flow,
    /// Flushes.
    pub flushes: u64,
    /// Compare-and-writes.
    pub compare_and_writes: u64,
    /// Discards.
    pub discards: u64,
    /// Zeroed ranges.
    pub zeroes: u64,
    /// Commands that failed.
    #[serde(default)]
    pub errors: u64,
}

/// What programs asked for, as far as the kernel passed it on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ProgramsIo {
    /// Reads.
    pub reads: Flow,
    /// Writes.
    pub writes: Flow,
    /// Everything else: names, attributes, locks.
    pub others: Flow,
}

/// The answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct IoView {
    /// The pool.
    pub pool: String,
    /// When this was so, in nanoseconds since the node was mounted.
    #[serde(default)]
    pub at_ns: u64,
    /// What programs asked for.
    #[serde(default)]
    pub programs: ProgramsIo,
    /// The members.
    pub members: Vec<MemberIo>,
}

impl Flow {
    fn of_traffic(t: &Traffic) -> Self {
        let sizes = t.classes().map(|(from, requests)| SizeClass { from: from.get(), requests });
        let in_progress = t.requests().saturating_sub(t.ended());
        let timed = Self::of_times(&t.times, in_progress);
        Self { requests: t.requests(), bytes: t.bytes.get(), sizes: sizes.collect(), ..timed }
    }
    fn of_times(times: &Times, in_progress: u64) -> Self {
        Self {
            requests: times.count() + in_progress,
            mean_ms: times.mean().map(|mean| mean.as_secs_f64() * 1000.0),
            ended: times.count(),
            nanos: times.nanos,
            times: times.classes.to_vec(),
            in_progress,
            ..Self::default()
        }
    }
    fn of_operation(counts: &OperationCounts) -> Self {
        Self { bytes: counts.bytes, ..Self::of_times(&counts.times, counts.in_progress) }
    }
    /// `f` of each count of both; how many are under way is as it is now.
    fn each(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let longest = self.times.len().max(other.times.len());
        let at = |times: &[u64], n: usize| times.get(n).copied().unwrap_or(0);
        let times = (0..longest).map(|n| f(at(&self.times, n), at(&other.times, n))).collect();
        Self {
            requests: f(self.requests, other.requests),
            bytes: f(self.bytes, other.bytes),
            mean_ms: None,
            sizes: Vec::new(),
            ended: f(self.ended, other.ended),
            nanos: f(self.nanos, other.nanos),
            times,
            in_progress: self.in_progress,
        }
    }
    /// What came after `earlier`, but for sizes.
    pub fn since(&self, earlier: &Self) -> Self {
        self.each(earlier, u64::saturating_sub)
    }
    /// Both together, but for sizes.
    pub fn plus(&self, other: &Self) -> Self {
        let in_progress = self.in_progress + other.in_progress;
        Self { in_progress, ..self.each(other, u64::saturating_add) }
    }
}

impl ProgramsIo {
    /// What programs of a server's clients asked for: of one, or of all.
    pub fn of_clients(counts: &Counts) -> Self {
        let of = |operation| {
            let counts = counts.of(operation);
            Flow { bytes: counts.bytes, ..Flow::of_times(&counts.times, counts.in_progress) }
        };
        Self {
            reads: of(Operation::Read),
            writes: of(Operation::Write),
            others: of(Operation::Sync).plus(&of(Operation::Other)),
        }
    }
}

/// The answer of a node.
pub fn answer(node: &Node) -> IoView {
    let pool = node.fs.pool();
    let slow = pool.slow();
    let members = (0_u16..).zip(pool.devices().into_iter().zip(pool.issued()));
    let members = members.map(|(index, (device, issued))| MemberIo {
        index,
        path: device.info().name.clone(),
        slow: slow.iter().any(|m| m.0 == index),
        reads: Flow::of_traffic(&issued.reads),
        writes: Flow::of_traffic(&issued.writes),
        flushes: issued.flushes,
        compare_and_writes: issued.compare_and_writes,
        discards: issued.discards,
        zeroes: issued.zeroes,
        errors: issued.errors,
    });
    let mut programs = ProgramsIo::default();
    for (name, counts) in node.requests.operations() {
        let flow = Flow::of_operation(&counts);
        let all = match name {
            "read" => &mut programs.reads,
            "write" => &mut programs.writes,
            _ => &mut programs.others,
        };
        *all = all.plus(&flow);
    }
    // Of a server's clients: their programs' requests.
    if let Some(service) = &node.service {
        programs = ProgramsIo::of_clients(&service.counts());
    }
    IoView {
        pool: pool.info().name.clone(),
        at_ns: u64::try_from(node.begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
        programs,
        members: members.collect(),
    }
}

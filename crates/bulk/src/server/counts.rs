//! What clients have asked for, counted for people and for metrics. Counting takes no lock.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_device::{TimeCounters, Times};
use braid_fs::Errno;

use super::outcome::Outcome;
use crate::wire::{Header, LockRequest, MountRequest, Request, Status};

/// Requests of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Reads of file data.
    Read,
    /// Writes of file data.
    Write,
    /// What makes something durable: of a file, a directory, or all.
    Sync,
    /// Names, attributes, locks and all others, but for questions that wait for an event.
    Other,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Sync, Self::Other];

    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Other => "other",
        }
    }

    /// `None`: it waits for an event by design, so its time says nothing.
    const fn of(request: &Request) -> Option<Self> {
        match request {
            Request::Leases { .. } | Request::Lock(LockRequest::Events { .. }) => None,
            Request::Read { .. } => Some(Self::Read),
            Request::Write { .. } => Some(Self::Write),
            Request::Commit { .. }
            | Request::SyncDir { .. }
            | Request::Mount(MountRequest::Sync) => Some(Self::Sync),
            _ => Some(Self::Other),
        }
    }
}

/// What the requests of one kind came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// How long the server took for each, with waits for cluster locks and for recalls of leases, and without the
    /// network.
    pub times: Times,
    /// Requests that are being answered.
    pub in_progress: u64,
    /// Bytes that were read, or written.
    pub bytes: u64,
    /// Requests answered by EIO.
    pub errors: u64,
}

#[derive(Debug, Default)]
struct OperationCounters {
    begun: AtomicU64,
    times: TimeCounters,
    bytes: AtomicU64,
    errors: AtomicU64,
}

/// Counts of a client, or of all that there were.
#[derive(Debug, Default)]
pub struct Counters {
    operations: [OperationCounters; Operation::ALL.len()],
    repeated: AtomicU64,
}

impl Counters {
    fn of(&self, operation: Operation) -> &OperationCounters {
        &self.operations[operation as usize]
    }
    /// A request came once more, since its reply was lost.
    pub(super) fn repeated(&self) {
        self.repeated.fetch_add(1, Ordering::Relaxed);
    }
    /// What was counted so far.
    pub(super) fn now(&self) -> Counts {
        let operations = Operation::ALL.map(|operation| {
            let counters = self.of(operation);
            // Ends first: what ends between the two looks counts as under way, not as less than nothing.
            let times = counters.times.now();
            RequestCounts {
                in_progress: counters.begun.load(Ordering::Relaxed).saturating_sub(times.count()),
                times,
                bytes: counters.bytes.load(Ordering::Relaxed),
                errors: counters.errors.load(Ordering::Relaxed),
            }
        });
        Counts { operations, repeated: self.repeated.load(Ordering::Relaxed) }
    }
}

/// A request that is being done.
pub(super) struct Counted<'a> {
    all: [&'a Counters; 2],
    operation: Option<Operation>,
    begun: Instant,
}

impl<'a> Counted<'a> {
    /// It begins; it counts for its client, and for the server.
    pub(super) fn begin(all: [&'a Counters; 2], request: &Request) -> Self {
        let operation = Operation::of(request);
        for counters in all.iter().filter_map(|all| Some(all.of(operation?))) {
            counters.begun.fetch_add(1, Ordering::Relaxed);
        }
        Self { all, operation, begun: Instant::now() }
    }
    /// It came to that; `header` is the request's.
    pub(super) fn end(self, header: &Header, outcome: &Outcome) {
        let Some(operation) = self.operation else { return };
        let took = self.begun.elapsed();
        let bytes = match (operation, outcome) {
            (Operation::Read, Ok((_, length))) => u64::try_from(*length).unwrap_or(0),
            (Operation::Write, Ok(_)) => u64::from(header.data_len),
            _ => 0,
        };
        let failed = outcome.as_ref().is_err_and(|status| *status == Status::of(Errno::IO));
        for counters in self.all.iter().map(|all| all.of(operation)) {
            counters.times.note(took);
            counters.bytes.fetch_add(bytes, Ordering::Relaxed);
            counters.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
        }
    }
}

/// What was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the order of [`Operation::ALL`].
    operations: [RequestCounts; Operation::ALL.len()],
    /// Requests that came once more, since their replies were lost.
    pub repeated: u64,
}

impl Counts {
    /// Requests of a kind.
    pub fn of(&self, operation: Operation) -> &RequestCounts {
        &self.operations[operation as usize]
    }
}

/// A client, as it is now.
#[derive(Debug, Clone)]
pub struct ClientView {
    /// Of its session, as the server counts them.
    pub number: u64,
    /// Its certificate's name and, in brackets, what it calls itself.
    pub name: String,
    /// Where it has come from.
    pub address: Option<IpAddr>,
    /// Its certificate is one to read only.
    pub read_only: bool,
    /// How long ago its session began.
    pub age: Duration,
    /// Connections now. None: the network is gone, or it is.
    pub connections: usize,
    /// Files that it has open.
    pub open_files: usize,
    /// Files that its programs have locked, or want to, each as often as owners do.
    pub locks: usize,
    /// Its programs' waits for locks.
    pub lock_waits: usize,
    /// Inodes of which it may keep something.
    pub leases: usize,
    /// What it has asked for.
    pub counts: Counts,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Reply, op};

    #[test]
    fn requests_count_for_their_client_and_for_the_server() {
        let (client, server) = (Counters::default(), Counters::default());
        let read = Request::Read { handle: 1, offset: 0, length: 4096, keep: false };
        let header = Header::request(op::READ);
        let under_way = Counted::begin([&client, &server], &read);
        Counted::begin([&client, &server], &read).end(&header, &Ok((Reply::Done, 4096)));
        for counters in [&client, &server] {
            let counts = counters.now();
            let reads = counts.of(Operation::Read);
            assert_eq!((reads.times.count(), reads.in_progress, reads.bytes), (1, 1, 4096));
            assert_eq!(counts.of(Operation::Write), &RequestCounts::default());
        }
        under_way.end(&header, &Err(Status::of(Errno::IO)));
        let write = Request::Write { handle: 1, offset: 0, how: 0 };
        let header = Header { data_len: 512, ..Header::request(op::WRITE) };
        Counted::begin([&client, &server], &write).end(&header, &Err(Status::of(Errno::NOSPC)));
        Counted::begin([&client, &server], &write).end(&header, &Ok((Reply::Done, 0)));
        let counts = client.now();
        let (reads, writes) = (counts.of(Operation::Read), counts.of(Operation::Write));
        assert_eq!((reads.times.count(), reads.in_progress, reads.errors), (2, 0, 1));
        assert_eq!((writes.times.count(), writes.bytes, writes.errors), (2, 512, 0));
        // It waits for seconds if nothing happens.
        let waits = Request::Lock(LockRequest::Events { seen: 0, patience_ms: 5000 });
        Counted::begin([&client, &server], &waits).end(&header, &Ok((Reply::Done, 0)));
        assert_eq!(client.now(), counts);
    }
}

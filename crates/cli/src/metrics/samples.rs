//! What a node has counted and knows, gathered when somebody asks.

use std::time::Duration;

use braid_bulk::server::{ClientView, Observer, Operation};
use braid_format::label::MemberState;
use braid_format::node::SlotState;
use braid_format::{Bytes, MemberIndex};
use braid_fs::lock::{MessageWay, NodeView};
use braid_fs::{Fs, NodeStatus};
use braid_pool::Scrubbed;
use braid_pool::device::{Issued, Times, Traffic};
use braid_pool::layout::Facts;

use super::families::{self as f, Family};
use crate::control::health::{self, Health, State};
use crate::control::{Node, nodes};
use crate::pools::topology::state_name;

/// One value of a family.
#[derive(Debug)]
pub struct Sample {
    /// Of what.
    pub family: &'static Family,
    /// Values of its labels, in their order.
    pub labels: Vec<String>,
    /// The value.
    pub value: Value,
}

/// A value.
#[derive(Debug)]
pub enum Value {
    /// A number of things.
    Whole(u64),
    /// Seconds.
    Real(f64),
    /// Counts of classes by their upper bounds, and the sum of all values.
    Histogram {
        /// Of all values.
        sum: f64,
        /// Upper bound, and how many in this class.
        buckets: Vec<(f64, u64)>,
    },
}

/// Times that have a bound of their own in a histogram: every second class, from 4 us to 67 s.
const BOUNDS: std::ops::RangeInclusive<usize> = 2..=26;
/// Sizes likewise: from 1 KiB, each class twice the one before, the last from 64 MiB.
const FIRST_SIZE: u64 = 1 << 10;
const STATES: [MemberState; 5] = [
    MemberState::Active,
    MemberState::Failed,
    MemberState::Rebuilding,
    MemberState::Spare,
    MemberState::Leaving,
];

#[derive(Default)]
struct Samples(Vec<Sample>);

impl Samples {
    fn add(&mut self, family: &'static Family, labels: &[&str], value: Value) {
        debug_assert_eq!(family.labels.len(), labels.len(), "{}", family.name);
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.0.push(Sample { family, labels, value });
    }
    fn whole(&mut self, family: &'static Family, labels: &[&str], value: u64) {
        self.add(family, labels, Value::Whole(value));
    }
    fn seconds(&mut self, family: &'static Family, labels: &[&str], value: Duration) {
        self.add(family, labels, Value::Real(value.as_secs_f64()));
    }
    fn times(&mut self, family: &'static Family, labels: &[&str], times: &Times) {
        let mut buckets = Vec::new();
        let mut count = 0;
        for (class, (bound, n)) in Times::bounds().zip(times.classes).enumerate() {
            count += n;
            if BOUNDS.contains(&class) && class % 2 == 0 {
                buckets.push((bound.as_secs_f64(), std::mem::take(&mut count)));
            }
        }
        buckets.push((f64::INFINITY, count));
        let sum = Duration::from_nanos(times.nanos).as_secs_f64();
        self.add(family, labels, Value::Histogram { sum, buckets });
    }
    #[expect(clippy::cast_precision_loss, reason = "a sum of bytes, for plots")]
    fn sizes(&mut self, family: &'static Family, labels: &[&str], traffic: &Traffic) {
        let (last, classes) = traffic.sizes.split_last().unwrap_or((&0, &[]));
        let bounds = (0..).map(|n: u32| ((FIRST_SIZE << n) - 1) as f64);
        let mut buckets: Vec<(f64, u64)> = bounds.zip(classes.iter().copied()).collect();
        buckets.push((f64::INFINITY, *last));
        let sum = traffic.bytes.get() as f64;
        self.add(family, labels, Value::Histogram { sum, buckets });
    }
}

/// All samples of a node.
pub fn gather(node: &Node) -> Vec<Sample> {
    let mut all = Samples::default();
    let fs = &node.fs;
    let status = fs.status();
    add_node(&mut all, fs, &status);
    add_operations(&mut all, node);
    add_locks(&mut all, &status);
    add_caches(&mut all, &status);
    add_members(&mut all, fs);
    add_redundancy(&mut all, fs, &status);
    add_nodes(&mut all, fs, &status);
    add_space(&mut all, fs);
    if let Some(service) = &node.service {
        add_service(&mut all, service);
    }
    all.0
}

fn add_node(all: &mut Samples, fs: &Fs, status: &NodeStatus) {
    all.whole(&f::BUILD, &[env!("CARGO_PKG_VERSION")], 1);
    let info = fs.pool().info();
    let own = status.nodes.iter().find(|n| n.life.slot == status.slot);
    let (host, mounted_on) = own.map_or(("", ""), |n| (&n.host, &n.mount_point));
    let (uuid, slot) = (info.uuid.to_string(), status.slot.to_string());
    all.whole(&f::NODE, &[&info.name, &uuid, &slot, host, mounted_on], 1);
    if let Some(own) = own {
        all.whole(&f::MOUNTED, &[], own.since);
    }
    all.whole(&f::WITHDRAWN, &[], u64::from(fs.withdrawn().is_some()));
    let health = Health::of(&health::facts(fs)).state();
    for state in State::ALL {
        all.whole(&f::HEALTH, &[state.name()], u64::from(state == health));
    }
}

fn add_operations(all: &mut Samples, node: &Node) {
    for (name, counts) in node.requests.operations() {
        all.times(&f::OPERATION_DURATION, &[name], &counts.times);
        all.whole(&f::OPERATIONS_IN_PROGRESS, &[name], counts.in_progress);
        if ["read", "write", "copy_file_range"].contains(&name) {
            all.whole(&f::OPERATION_BYTES, &[name], counts.bytes);
        }
        for (error, count) in [
            ("io", counts.errors_io),
            ("space", counts.errors_space),
            ("other", counts.errors_other),
        ] {
            all.whole(&f::OPERATION_ERRORS, &[name, error], count);
        }
    }
}

fn add_locks(all: &mut Samples, status: &NodeStatus) {
    let locks = &status.locks;
    all.whole(&f::LOCKS, &[], status.locks_held as u64);
    all.whole(&f::LOCK_ACQUISITIONS, &["cached"], locks.cached);
    all.whole(&f::LOCK_ACQUISITIONS, &["slow"], locks.acquires.saturating_sub(locks.cached));
    all.times(&f::LOCK_WAIT, &[], &locks.waited);
    all.whole(&f::LOCK_DEMOTIONS, &[], locks.demotions);
    all.whole(&f::LOCK_HAND_OVERS, &[], locks.hand_overs);
    all.whole(&f::LOCK_POLLS, &[], locks.polls);
    all.whole(&f::LOCK_RECORD_READS, &[], locks.reads);
    all.whole(&f::LOCK_COMPARE_AND_WRITES, &[], locks.caws);
    all.whole(&f::HINTS, &["sent"], locks.hints_sent);
    all.whole(&f::HINTS, &["received"], locks.hints_received);
    all.whole(&f::LOCK_ASKS, &["sent"], locks.asks);
    all.whole(&f::LOCK_ASKS, &["answered"], locks.gives);
    status.nodes.iter().for_each(|node| add_peer(all, node));
}

/// Another node that lives.
fn add_peer(all: &mut Samples, node: &NodeView) {
    let Some(way) = node.messages else { return };
    let slot = node.life.slot.to_string();
    for other in MessageWay::ALL {
        all.whole(&f::PEER_WAY, &[&slot, other.name()], u64::from(other == way));
    }
    all.whole(&f::PEER_ASKS, &[&slot], node.asks.asks);
    all.whole(&f::PEER_GIVEN, &[&slot], node.asks.given);
    if let Some(mean) = node.asks.mean {
        all.seconds(&f::PEER_HAND_OVER, &[&slot], mean);
    }
}

fn add_caches(all: &mut Samples, status: &NodeStatus) {
    let metadata = &status.metadata;
    all.whole(&f::INODES_CACHED, &[], status.inodes as u64);
    all.whole(&f::OPEN_FILES, &[], status.open_files as u64);
    let clean = metadata.cached.saturating_sub(metadata.dirty);
    all.whole(&f::METADATA_BLOCKS, &["clean"], clean);
    all.whole(&f::METADATA_BLOCKS, &["dirty"], metadata.dirty);
    all.whole(&f::METADATA_MISSES, &[], metadata.misses);
    all.whole(&f::DIRTY, &[], status.dirty);
    all.whole(&f::JOURNAL_COMMITS, &[], metadata.commits);
    all.whole(&f::JOURNAL_BLOCKS, &[], metadata.logged);
    all.whole(&f::METADATA_WRITES, &[], metadata.in_place);
    all.whole(&f::JOURNAL_FLUSHES, &[], metadata.flushes);
}

fn add_members(all: &mut Samples, fs: &Fs) {
    let pool = fs.pool();
    let label = pool.label();
    let members = pool.devices().into_iter().zip(pool.issued()).zip(&label.members);
    let (slow, silent, suspects) = (pool.slow(), pool.silent(), pool.suspects());
    for (index, ((device, issued), member)) in (0..).map(MemberIndex).zip(members) {
        let (number, path) = (index.to_string(), device.info().name.clone());
        let who = [number.as_str(), path.as_str()];
        for state in STATES {
            let labels = [who[0], who[1], state_name(state)];
            all.whole(&f::MEMBER_STATE, &labels, u64::from(member.state == state));
        }
        add_member_requests(all, who, &issued);
        all.whole(&f::MEMBER_SLOW, &who, u64::from(slow.contains(&index)));
        let silence = silent.iter().find(|s| s.member == index).map(|s| s.time);
        all.seconds(&f::MEMBER_SILENT, &who, silence.unwrap_or_default());
        let damaged = suspects.iter().find(|(m, _)| *m == index).map_or(0, |(_, n)| *n as u64);
        all.whole(&f::MEMBER_DAMAGED, &who, damaged);
        all.whole(&f::MEMBER_USED, &who, label.bytes_on(index).get());
    }
}

fn add_member_requests(all: &mut Samples, who: [&str; 2], issued: &Issued) {
    for (direction, traffic) in [("read", &issued.reads), ("write", &issued.writes)] {
        let labels = [who[0], who[1], direction];
        all.times(&f::MEMBER_DURATION, &labels, &traffic.times);
        all.sizes(&f::MEMBER_SIZE, &labels, traffic);
        let in_progress = traffic.requests().saturating_sub(traffic.ended());
        all.whole(&f::MEMBER_IN_PROGRESS, &labels, in_progress);
    }
    for (command, count) in [
        ("flush", issued.flushes),
        ("compare_and_write", issued.compare_and_writes),
        ("discard", issued.discards),
        ("zero", issued.zeroes),
    ] {
        all.whole(&f::MEMBER_COMMANDS, &[who[0], who[1], command], count);
    }
    all.whole(&f::MEMBER_ERRORS, &who, issued.errors);
}

fn add_redundancy(all: &mut Samples, fs: &Fs, status: &NodeStatus) {
    let pool = fs.pool();
    let label = pool.label();
    all.whole(&f::EPOCH, &[], label.epoch.get());
    all.whole(&f::TOLERATES, &[], u64::from(Facts::of(&label).tolerates));
    let maintenance = fs.maintenance();
    if let Some((member, progress)) = maintenance.rebuilding {
        let member = member.to_string();
        all.whole(&f::REBUILD_DONE, &[&member], progress.done.get());
        all.whole(&f::REBUILD_SIZE, &[&member], progress.total.get());
    }
    if let Some((moving, progress)) = maintenance.moving {
        let member = moving.leaving.to_string();
        all.whole(&f::MOVE_DONE, &[&member], progress.done.get());
        all.whole(&f::MOVE_SIZE, &[&member], progress.total.get());
    }
    all.whole(&f::SCRUBS, &[], maintenance.scrubs);
    if let Some((progress, _)) = &maintenance.scrubbing {
        all.whole(&f::SCRUB_DONE, &[], progress.done.get());
        all.whole(&f::SCRUB_SIZE, &[], progress.total.get());
    }
    let found = maintenance.scrubbing.as_ref().map(|(_, found)| found);
    let found = found.or(maintenance.scrubbed.as_ref());
    let of = |bytes: fn(&Scrubbed) -> Bytes| found.map_or(0, |found| bytes(found).get());
    all.whole(&f::SCRUB_HEALED, &[], of(|found| found.healed));
    all.whole(&f::SCRUB_UNDECIDED, &[], of(|found| found.undecided));
    all.whole(&f::DAMAGED, &[], status.damaged.len() as u64);
}

fn add_nodes(all: &mut Samples, fs: &Fs, status: &NodeStatus) {
    let seen = nodes::seen(fs);
    for state in nodes::STATES {
        let count = seen.iter().filter(|(_, word)| *word == state).count();
        all.whole(&f::NODES, &[state], count as u64);
    }
    let other = |n: &&NodeView| n.state == SlotState::Active && n.life.slot != status.slot;
    for node in seen.iter().map(|(node, _)| node).filter(other) {
        if let Some(beat) = node.last_beat {
            let slot = node.life.slot.to_string();
            all.seconds(&f::NODE_LAST_BEAT, &[&slot, &node.host], beat);
        }
    }
    all.whole(&f::RECOVERIES, &[], status.recovered);
    all.whole(&f::NODE_WAITS, &[], fs.waits().len() as u64);
}

fn add_space(all: &mut Samples, fs: &Fs) {
    let info = fs.pool().info();
    all.whole(&f::POOL_SIZE, &[], info.size.get().saturating_sub(info.holes.get()));
    let space = fs.space();
    let block = u64::from(space.block_size);
    all.whole(&f::SPACE_SIZE, &[], space.blocks * block);
    all.whole(&f::SPACE_FREE, &[], space.free * block);
    all.whole(&f::SPACE_AVAILABLE, &[], space.available * block);
    all.whole(&f::INODES, &[], space.files.saturating_sub(space.files_free));
    all.whole(&f::INODES_FREE, &[], space.files_free);
}

fn add_service(all: &mut Samples, service: &Observer<Fs>) {
    let clients = service.clients();
    all.whole(&f::SERVICE_CLIENTS, &[], clients.len() as u64);
    let connections: usize = clients.iter().map(|client| client.connections).sum();
    all.whole(&f::SERVICE_CONNECTIONS, &[], connections as u64);
    let counts = service.counts();
    for operation in Operation::ALL {
        let (labels, of) = ([operation.name()], counts.of(operation));
        all.times(&f::SERVICE_DURATION, &labels, &of.times);
        if matches!(operation, Operation::Read | Operation::Write) {
            all.whole(&f::SERVICE_BYTES, &labels, of.bytes);
        }
        all.whole(&f::SERVICE_ERRORS, &labels, of.errors);
        all.whole(&f::SERVICE_IN_PROGRESS, &labels, of.in_progress);
    }
    all.whole(&f::SERVICE_REPEATED, &[], counts.repeated);
    let leases = service.leases();
    all.whole(&f::SERVICE_LEASES, &[], leases.held as u64);
    all.whole(&f::SERVICE_LEASES_GRANTED, &[], leases.granted);
    all.whole(&f::SERVICE_LEASES_RECALLED, &[], leases.recalled);
    all.whole(&f::SERVICE_LEASES_LATE, &[], leases.late);
    // A name has a sample each, however many sessions it has. They come sorted by name.
    for sessions in clients.chunk_by(|a, b| a.name == b.name) {
        let name = sessions.first().map_or("", |client| client.name.as_str());
        let sum = |of: &dyn Fn(&ClientView) -> u64| sessions.iter().map(of).sum();
        for operation in [Operation::Read, Operation::Write] {
            let bytes = sum(&|client| client.counts.of(operation).bytes);
            all.whole(&f::CLIENT_BYTES, &[name, operation.name()], bytes);
        }
        let requests = |client: &ClientView| {
            Operation::ALL.iter().map(|op| client.counts.of(*op).times.count()).sum()
        };
        all.whole(&f::CLIENT_REQUESTS, &[name], sum(&requests));
        all.whole(&f::CLIENT_OPEN_FILES, &[name], sum(&|client| client.open_files as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_keep_every_value_and_their_bounds_hold() {
        let mut times = Times { nanos: 3_000_000_000, ..Times::default() };
        // 0, up to 2, up to 4, up to 8 microseconds; and longer than any bound.
        times.classes[..4].copy_from_slice(&[1, 2, 4, 8]);
        times.classes[31] = 16;
        let mut all = Samples::default();
        all.times(&f::LOCK_WAIT, &[], &times);
        let mut traffic = Traffic { bytes: Bytes(5000), ..Traffic::default() };
        traffic.sizes[0] = 1;
        traffic.sizes[3] = 2;
        traffic.sizes[17] = 4;
        all.sizes(&f::MEMBER_SIZE, &["0", "d", "read"], &traffic);
        let Value::Histogram { sum, buckets } = &all.0[0].value else { panic!() };
        assert_eq!((*sum, buckets.len()), (3.0, 14));
        assert_eq!(buckets[..2], [(0.000_004, 7), (0.000_016, 8)]);
        assert_eq!(buckets[12..], [(67.108_864, 0), (f64::INFINITY, 16)]);
        let Value::Histogram { sum, buckets } = &all.0[1].value else { panic!() };
        assert_eq!((*sum, buckets.len()), (5000.0, 18));
        assert_eq!(buckets[0], (1023.0, 1));
        assert_eq!(buckets[3], (8191.0, 2));
        assert_eq!(buckets[17], (f64::INFINITY, 4));
    }
}

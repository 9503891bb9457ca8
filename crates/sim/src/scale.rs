//! One to many nodes, each writing a file on a device of its own, in virtual time: what the cluster
//! itself costs them (the founding documents' S4.3 and S4.4).
//!
//! The protocol of a lock, the watcher's and every record are the real ones; devices are queues that
//! take so long for a request and so long for a byte. What nodes have in common stands on one
//! device: locks, slots, heartbeats, journals. That is the first node's (S4.3), or one apart (S4.4). A
//! node streams requests of 1 MiB, some at a time; it takes its file's lock and one for each GiB of
//! space, beats, looks at the others, and commits every 5 s and at the end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use braid_format::features::Features;
use braid_format::lock_record::LockRecord;
use braid_format::node::{Heartbeat, SlotRecord, SlotState};
use braid_format::{Bytes, Incarnation, LockNo, NodeId};
use braid_lock::dlock::{Action, Context, Dlock, Event as LockEvent, Seen, Time};
use braid_lock::node::observation::SlotObservation;
use braid_lock::node::watch::{Watch, WatchEvent};
use braid_lock::{HostIdentity, Life, Mode, Timing};

const SECTOR: u64 = 512;
const REQUEST: Bytes = Bytes::MIB;
const IN_FLIGHT: u32 = 4;
const COMMIT: Duration = Duration::from_secs(5);
/// Of a journal, in one commit.
const COMMIT_BYTES: u64 = 64 << 10;
/// From one lock of space to the next.
const GROUP: u64 = 1 << 30;

/// How a device takes its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// For a request, whatever its length.
    pub request: Duration,
    /// Bytes in a second.
    pub rate: Bytes,
}

/// A run.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Nodes, each with a device.
    pub nodes: u16,
    /// What is common stands on a device of its own.
    pub apart: bool,
    /// What each writes.
    pub each: Bytes,
    /// All devices.
    pub pace: Pace,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaled {
    /// Bytes in a second, of each node.
    pub rates: Vec<f64>,
    /// Requests to lock records, of all.
    pub locks: u64,
    /// Requests of beats and looks, of all.
    pub watching: u64,
    /// Share of the time in which the common device served what is common.
    pub common: f64,
}

impl Scaled {
    /// Mean of all nodes.
    #[expect(clippy::cast_precision_loss, reason = "few nodes")]
    pub fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Beat(usize),
    Look(usize),
    /// Slots and heartbeats were read.
    Seen(usize),
    /// A request for a lock's record is served.
    Locked(usize),
    /// A data request is.
    Wrote(usize),
    Commit(usize),
    /// The last commit is durable.
    Ended(usize),
}

struct Device {
    pace: Pace,
    free: Time,
    /// Time taken by what is common.
    common: Duration,
}
impl Device {
    fn serve(&mut self, now: Time, len: u64) -> Time {
        let bytes = Duration::from_nanos(len.saturating_mul(1_000_000_000) / self.pace.rate.0);
        self.free = self.free.max(now) + self.pace.request + bytes;
        self.free
    }
}

struct Node {
    me: Life,
    lock: Dlock,
    /// What the record's request was.
    asked: Option<Action>,
    watch: Watch,
    sequence: u64,
    /// Not yet issued.
    left: u64,
    in_flight: u32,
    ended: Option<Time>,
}

struct World {
    scale: Scale,
    now: Time,
    queue: BTreeMap<(Time, u64), Event>,
    serial: u64,
    devices: Vec<Device>,
    nodes: Vec<Node>,
    records: HashMap<LockNo, Arc<LockRecord>>,
    slots: Vec<SlotRecord>,
    beats: Vec<Option<Heartbeat>>,
    result: Scaled,
}

/// Runs it.
///
/// # Errors
/// A node did what none should: took another for dead, or waited for a lock.
pub fn scale(scale: Scale) -> Result<Scaled, String> {
    let mut world = World::new(scale);
    for n in 0..world.nodes.len() {
        // Beats of many nodes are spread as mounts are.
        let at = Timing::default().beat() * u32::try_from(n).unwrap_or(0) / u32::from(scale.nodes);
        world.at(at, Event::Beat(n));
        world.at(at + Timing::default().beat() / 2, Event::Look(n));
        world.at(COMMIT, Event::Commit(n));
        world.take_lock(n)?;
    }
    while world.result.rates.len() < world.nodes.len() {
        let Some(((at, _), event)) = world.queue.pop_first() else {
            return Err("nothing goes on".to_owned());
        };
        world.now = at;
        world.handle(event)?;
    }
    let common: Duration = world.devices.iter().map(|d| d.common).sum();
    world.result.common = common.as_secs_f64() / world.now.as_secs_f64();
    Ok(world.result)
}

fn host(n: u16) -> HostIdentity {
    let [low, high] = n.to_le_bytes();
    let id = std::array::from_fn(|at| if at % 2 == 0 { low } else { high ^ 0x55 });
    HostIdentity { boot_id: id, machine_id: id, host: format!("host{n}") }
}

impl World {
    fn new(scale: Scale) -> Self {
        let device = || Device { pace: scale.pace, free: Time::ZERO, common: Duration::ZERO };
        let devices = usize::from(scale.nodes) + usize::from(scale.apart);
        let life = |n| Life { slot: NodeId(n), incarnation: Incarnation(1) };
        let slots = (0..scale.nodes).map(|n| {
            let id = host(n);
            SlotRecord {
                life: life(n),
                state: SlotState::Active,
                boot_id: id.boot_id,
                machine_id: id.machine_id,
                host: id.host,
                ..SlotRecord::free(NodeId(n))
            }
        });
        let node = |n| Node {
            me: life(n),
            lock: Dlock::new(LockNo(0)),
            asked: None,
            watch: Watch::new(life(n), host(n), Timing::default().beat()),
            sequence: 0,
            left: scale.each.0,
            in_flight: 0,
            ended: None,
        };
        Self {
            scale,
            now: Time::ZERO,
            queue: BTreeMap::new(),
            serial: 0,
            devices: std::iter::repeat_with(device).take(devices).collect(),
            nodes: (0..scale.nodes).map(node).collect(),
            records: HashMap::new(),
            slots: slots.collect(),
            beats: vec![None; usize::from(scale.nodes)],
            result: Scaled { rates: Vec::new(), locks: 0, watching: 0, common: 0.0 },
        }
    }
    fn at(&mut self, at: Time, event: Event) {
        self.serial += 1;
        self.queue.insert((at.max(self.now), self.serial), event);
    }
    /// A request to what is common; when it is served.
    fn common(&mut self, len: u64) -> Time {
        let now = self.now;
        let at = if self.scale.apart { self.devices.len() - 1 } else { 0 };
        let Some(device) = self.devices.get_mut(at) else { return now };
        let before = device.free.max(now);
        let served = device.serve(now, len);
        device.common += served.saturating_sub(before);
        served
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let beat = Timing::default().beat();
        match event {
            Event::Beat(n) => {
                self.beat(n);
                self.at(self.now + beat, Event::Beat(n));
            }
            Event::Look(n) => {
                // Slots, then heartbeats.
                let area = u64::from(self.scale.nodes) * SECTOR;
                self.common(area);
                let served = self.common(area);
                self.result.watching += 2;
                self.at(served, Event::Seen(n));
            }
            Event::Seen(n) => {
                self.see(n)?;
                self.at(self.now + beat, Event::Look(n));
            }
            Event::Locked(n) => self.locked(n)?,
            Event::Wrote(n) => self.wrote(n)?,
            Event::Commit(n) => {
                if self.nodes.get(n).is_some_and(|node| node.ended.is_none()) {
                    self.common(COMMIT_BYTES);
                    self.at(self.now + COMMIT, Event::Commit(n));
                }
            }
            Event::Ended(n) => {
                if let Some(node) = self.nodes.get_mut(n) {
                    node.ended = Some(self.now);
                }
                #[expect(clippy::cast_precision_loss, reason = "sizes of files")]
                let bytes = self.scale.each.0 as f64;
                self.result.rates.push(bytes / self.now.as_secs_f64());
            }
        }
        Ok(())
    }

    fn beat(&mut self, n: usize) {
        let Some(node) = self.nodes.get_mut(n) else { return };
        node.sequence += 1;
        let beat = Heartbeat {
            life: node.me,
            pool_epoch: 1,
            pool_change: 0,
            sequence: node.sequence,
            free_delta: 0,
            inode_delta: 0,
            meta_delta: 0,
            stuck: None,
            freeze: None,
            followed: None,
            knows: Features::KNOWN,
            wishes: Vec::new(),
        };
        self.common(SECTOR);
        self.result.watching += 1;
        if let Some(place) = self.beats.get_mut(n) {
            *place = Some(beat);
        }
    }

    /// Nobody is dead, so nobody does anything.
    fn see(&mut self, n: usize) -> Result<(), String> {
        let observations =
            self.slots.iter().zip(&self.beats).map(|(record, beat)| SlotObservation {
                record: record.clone(),
                sequence: beat.as_ref().map(|b| b.sequence),
                life_locked: false,
                lock_visible: false,
                foreign_locks: false,
                proven: false,
                fenceable: true,
            });
        let (observations, now, nonce) = (observations.collect(), self.now, self.serial);
        let Some(node) = self.nodes.get_mut(n) else { return Ok(()) };
        let done = node.watch.step(now, nonce, WatchEvent::Observed(observations));
        if done.is_empty() { Ok(()) } else { Err(format!("node {n} at {now:?}: {done:?}")) }
    }

    /// The next lock that a node needs: of its file, then of its space, GiB by GiB.
    fn take_lock(&mut self, n: usize) -> Result<(), String> {
        let (number, each) = (u64::try_from(n).unwrap_or(0), self.scale.each.0);
        let Some(node) = self.nodes.get_mut(n) else { return Ok(()) };
        let nth = (each - node.left) / GROUP;
        node.lock = Dlock::new(LockNo(1 + number * 1000 + nth));
        self.lock_step(n, LockEvent::Want(Mode::Exclusive))
    }
    fn lock_step(&mut self, n: usize, event: LockEvent) -> Result<(), String> {
        self.serial += 1;
        let poll = (Duration::from_millis(1), Duration::from_millis(100));
        let (now, nonce) = (self.now, self.serial);
        let Some(node) = self.nodes.get_mut(n) else { return Ok(()) };
        let cx = Context { me: node.me, now, nonce, poll, ask: None, presumed: None };
        match node.lock.step(&cx, event).into_iter().next() {
            None => Ok(()),
            Some(Action::Granted(_)) => self.write(n),
            Some(action @ (Action::Read | Action::CompareAndWrite { .. })) => {
                node.asked = Some(action);
                self.result.locks += 1;
                let served = self.common(SECTOR);
                self.at(served, Event::Locked(n));
                Ok(())
            }
            Some(other) => Err(format!("node {n} shares nothing, and does {other:?}")),
        }
    }
    fn locked(&mut self, n: usize) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(n) else { return Ok(()) };
        let lock = match node.asked.as_ref() {
            Some(Action::CompareAndWrite { new, .. }) => new.lock,
            _ => LockNo(
                1 + u64::try_from(n).unwrap_or(0) * 1000 + (self.scale.each.0 - node.left) / GROUP,
            ),
        };
        let stands = self.records.entry(lock);
        let stands = stands.or_insert_with(|| Arc::new(LockRecord::unlocked(lock, 0)));
        let seen = |record: &Arc<LockRecord>| Seen { record: record.clone(), dead: Vec::new() };
        let answer = match node.asked.take() {
            Some(Action::CompareAndWrite { expected, new }) if **stands == *expected => {
                *stands = new;
                LockEvent::Written
            }
            Some(Action::CompareAndWrite { .. }) => LockEvent::Mismatch(seen(stands)),
            _ => LockEvent::Read(seen(stands)),
        };
        self.lock_step(n, answer)
    }

    /// Keeps its device busy, up to the next lock that it needs.
    fn write(&mut self, n: usize) -> Result<(), String> {
        loop {
            let (now, each) = (self.now, self.scale.each.0);
            let (Some(node), Some(device)) = (self.nodes.get_mut(n), self.devices.get_mut(n))
            else {
                return Ok(());
            };
            if node.left == 0 || node.in_flight == IN_FLIGHT {
                return Ok(());
            }
            node.left -= REQUEST.0;
            node.in_flight += 1;
            let served = device.serve(now, REQUEST.0);
            let next = node.left > 0 && (each - node.left).is_multiple_of(GROUP);
            self.at(served, Event::Wrote(n));
            if next {
                return self.take_lock(n);
            }
        }
    }
    fn wrote(&mut self, n: usize) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(n) else { return Ok(()) };
        node.in_flight -= 1;
        if node.left == 0 && node.in_flight == 0 {
            let served = self.common(COMMIT_BYTES);
            self.at(served, Event::Ended(n));
            return Ok(());
        }
        // Waits for a lock, or goes on.
        if node.lock.held() == Mode::Exclusive { self.write(n) } else { Ok(()) }
    }
}

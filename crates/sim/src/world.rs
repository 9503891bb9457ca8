//! Virtual time: the queue of events, requests under way, processes that come and go.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::rot::Rotten;
use braid_format::lock_record::LockRecord;
use braid_format::node::LockPlace;
use braid_format::{LockNo, NodeId};
use braid_lock::dlock::{Hint, Time};
use braid_lock::glock::Event as LockEvent;
use braid_lock::simulation::SimulationScope;
use braid_lock::{Life, Mode};

use crate::disk::{Address, Answer, Disk, Fates, LEN, Op};
use crate::files::Files;
use crate::image::{Image, Place};
use crate::lane::HOOKS;
use crate::members::Members;
use crate::mirrors::Peers;
use crate::model::Model;
use crate::node::{Fence, Process, Purpose, State};
use crate::random::{Random, draw_identities};
use crate::{Cluster, Faults, Sabotage};

/// A process: never the same number twice.
pub(crate) type Pid = usize;

#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A process starts on a node.
    Start(u16),
    /// A request has its effect.
    Land { pid: Pid, token: u64, address: Address, op: Op, tells: Tells },
    /// A process is told of it.
    Answer { pid: Pid, token: u64, answer: Answer },
    /// A thread that waits for a lock looks what it can do.
    Turn { pid: Pid, lock: usize, thread: usize },
    /// A demoter visits a lock.
    Visit { pid: Pid, lock: usize },
    /// A thread goes on, for it has a lock.
    Admitted { pid: Pid, thread: usize },
    /// A thread goes on without a lock.
    Refused { pid: Pid, thread: usize },
    /// A message about a lock arrives.
    Hint { pid: Pid, from: Life, lock: usize, hint: Hint },
    /// A pause of a join is over.
    Join { pid: Pid },
    /// Time to write a heartbeat of a series.
    Beat { pid: Pid, series: u64 },
    /// Time to look at the other nodes.
    Look { pid: Pid },
    /// A thread wants a lock.
    Thread { pid: Pid, thread: usize },
    /// A lane that waited for other nodes looks again.
    GoOn { pid: Pid, lane: usize },
    /// Regions are to be given up.
    Regions { pid: Pid },
    /// A message about a region arrives.
    AboutRegion { pid: Pid, from: Life, lock: LockNo, hint: Hint },
    /// A program closes a file.
    Close { pid: Pid, lock: usize },
    /// A thread has finished with it.
    EndUse { pid: Pid, thread: usize },
    /// The kernel of a process has dropped what it had under a lock that is given up.
    Dropped { pid: Pid, lock: usize, from: Mode },
    /// A process dies, now.
    Crash { pid: Pid },
    /// Power is cut.
    PowerCut,
    /// A write of a dead process lands, perhaps torn.
    Late { pid: Pid, place: Place, bytes: Vec<u8>, torn: bool },
    /// Something happens to some node.
    Trouble,
    /// Something happens to some member of mirrors.
    Members,
    /// A program on the node's host reads.
    Program { pid: Pid },
    /// The lease may be over, or last again.
    LeaseLook { pid: Pid },
    /// The kernel drops what it has cached, as it was told.
    DropPages { pid: Pid },
    /// A slot that could not be read can be read again.
    Heal { slot: u16 },
    /// A fence by a process has come to a device.
    Fence { pid: Pid, fence: Fence },
}

impl Event {
    /// The process whose CPU it needs.
    fn needs(&self) -> Option<Pid> {
        match self {
            Self::Start(_)
            | Self::Land { .. }
            | Self::Late { .. }
            | Self::Crash { .. }
            | Self::PowerCut
            | Self::Program { .. }
            | Self::Heal { .. }
            | Self::Members
            | Self::Trouble => None,
            Self::Fence { pid, .. }
            | Self::Answer { pid, .. }
            | Self::Turn { pid, .. }
            | Self::Visit { pid, .. }
            | Self::Admitted { pid, .. }
            | Self::Refused { pid, .. }
            | Self::Hint { pid, .. }
            | Self::Beat { pid, .. }
            | Self::Join { pid }
            | Self::LeaseLook { pid }
            | Self::DropPages { pid }
            | Self::Look { pid }
            | Self::Thread { pid, .. }
            | Self::Close { pid, .. }
            | Self::GoOn { pid, .. }
            | Self::Regions { pid }
            | Self::AboutRegion { pid, .. }
            | Self::Dropped { pid, .. }
            | Self::EndUse { pid, .. } => Some(*pid),
        }
    }
}

/// What a landing tells its issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tells {
    Truth,
    Failure,
    /// It was told of a failure already.
    Nothing,
    /// It never lands, and it is told of a failure.
    NeverLands,
    /// It never lands, and it is told that it is done.
    Lie,
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Events handled.
    pub events: u64,
    /// Uses of locks that ended.
    pub uses: u64,
    /// Crashes.
    pub crashes: u64,
    /// Recoveries that ended.
    pub recoveries: u64,
    /// Fences that ended.
    pub fences: u64,
    /// Nodes that went on after their lease was over, for nobody had fenced them.
    pub resumed: u64,
    /// Requests of fenced nodes that a device did not take.
    pub refused: u64,
    /// Failed or late requests.
    pub faults: u64,
    /// Nodes that were cut off from the devices for a while.
    pub cut_offs: u64,
    /// Hosts that started anew.
    pub resets: u64,
    /// Slot records that could not be read.
    pub bad_slots: u64,
    /// Times that etcd answered nobody.
    pub etcd_away: u64,
    /// Journal headers that rotted.
    pub rotten: u64,
    /// Faults of devices under mirrors.
    pub member_faults: u64,
    /// Members that were replaced.
    pub replaced: u64,
    /// Members that were filled.
    pub rebuilt: u64,
    /// Reads of programs that the kernel answered by itself.
    pub program_reads: u64,
    /// Contents written under concurrent holds, or exclusive ones.
    pub overwrites: u64,
    /// Files opened.
    pub opened: u64,
    /// Files deleted.
    pub deleted: u64,
    /// Power cuts, the one at the end among them.
    pub power_cuts: u64,
    /// Transactions.
    pub transactions: u64,
    /// Of these, acknowledged as durable.
    pub acknowledged: u64,
    /// Bodies that replay has put in place.
    pub replayed: u64,
    /// Unstable writes that were lost with their node or with the power.
    pub lost: u64,
    /// Those of which some sectors landed.
    pub torn: u64,
    /// Those that landed after the death of their node.
    pub late: u64,
    /// Of everything that happened, in its order. (Summed up for several runs.)
    pub hash: u64,
}

impl Report {
    pub(crate) fn fates(&mut self, fates: Fates) {
        self.lost += fates.lost;
        self.torn += fates.torn;
        self.late += fates.late;
    }
    /// Takes something that happened into the hash (FNV-1a over words).
    pub(crate) fn hash(&mut self, what: u64) {
        self.hash = (self.hash ^ what).wrapping_mul(0x0100_0000_01b3);
    }
}

impl std::ops::AddAssign<&Report> for Report {
    fn add_assign(&mut self, other: &Report) {
        self.events += other.events;
        self.uses += other.uses;
        self.crashes += other.crashes;
        self.recoveries += other.recoveries;
        self.fences += other.fences;
        self.resumed += other.resumed;
        self.refused += other.refused;
        self.faults += other.faults;
        self.cut_offs += other.cut_offs;
        self.resets += other.resets;
        self.bad_slots += other.bad_slots;
        self.etcd_away += other.etcd_away;
        self.rotten += other.rotten;
        self.member_faults += other.member_faults;
        self.replaced += other.replaced;
        self.rebuilt += other.rebuilt;
        self.program_reads += other.program_reads;
        self.overwrites += other.overwrites;
        self.opened += other.opened;
        self.deleted += other.deleted;
        self.power_cuts += other.power_cuts;
        self.transactions += other.transactions;
        self.acknowledged += other.acknowledged;
        self.replayed += other.replayed;
        self.lost += other.lost;
        self.torn += other.torn;
        self.late += other.late;
        self.hash = self.hash.wrapping_add(other.hash);
    }
}

/// An invariant that broke.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// By which arguments of `sim` it is run again.
    pub kind: &'static str,
    /// When.
    pub at: Duration,
    /// What.
    pub what: String,
    /// The events before it, if traced.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} at {:?}: {}", self.seed, self.at, self.what)?;
        let Self { kind, seed, .. } = self;
        write!(f, "to replay it: cargo run -p braid-sim -- {kind}{seed} --trace")
    }
}
impl std::error::Error for Failure {}

pub(crate) struct World {
    seed: u64,
    pub(crate) cluster: Cluster,
    pub(crate) now: Time,
    pub(crate) random: Random,
    queue: BTreeMap<(Time, u64), Event>,
    serial: u64,
    pub(crate) disk: Disk,
    pub(crate) processes: Vec<Process>,
    /// Who holds the liveness lock of a slot, of those that one host sees.
    pub(crate) lives: HashMap<(LockPlace, u16), Pid>,
    pub(crate) model: Model,
    pub(crate) files: Files,
    /// Until when etcd answers nobody.
    pub(crate) etcd_away_until: Time,
    /// What the nodes' pools know of each other.
    pub(crate) peers: Arc<Peers>,
    pub(crate) members: Members,
    /// Since when everything is well.
    pub(crate) well_since: Option<Time>,
    pub(crate) last_death: Time,
    /// Counts power cuts, which every host survives with another boot.
    pub(crate) boot: u8,
    /// Counts how often each host started anew by itself.
    pub(crate) host_boots: Vec<u8>,
    /// Slots whose records cannot be read, and what stood there.
    pub(crate) bad_slots: BTreeMap<u16, Vec<u8>>,
    /// Those that could not be read once: an answer may still be of then.
    pub(crate) spoilt: BTreeSet<u16>,
    /// Journal headers that have rotted.
    pub(crate) rotten: BTreeMap<NodeId, Rotten>,
    pub(crate) report: Report,
    pub(crate) broken: Option<String>,
    trace: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(seed: u64, cluster: &Cluster, trace: bool) -> Self {
        let image = Image::on(cluster.devices, cluster.large_blocks, cluster.mirrors);
        let mut disk = Disk::new(image, cluster.slots);
        disk.lies = cluster.sabotage == Some(Sabotage::LyingFlush);
        disk.etcd = cluster.etcd;
        let mut world = Self {
            seed,
            cluster: cluster.clone(),
            now: Time::ZERO,
            random: Random::new(seed),
            queue: BTreeMap::new(),
            serial: 0,
            disk,
            processes: Vec::new(),
            lives: HashMap::new(),
            model: Model::new(),
            files: Files::default(),
            etcd_away_until: Time::ZERO,
            peers: Arc::default(),
            members: Members::new(seed),
            well_since: None,
            last_death: Time::ZERO,
            boot: 1,
            host_boots: vec![0; usize::from(cluster.nodes)],
            bad_slots: BTreeMap::new(),
            spoilt: BTreeSet::new(),
            rotten: BTreeMap::new(),
            report: Report::default(),
            broken: None,
            trace: trace.then(Vec::new),
        };
        for node in 0..cluster.nodes {
            let at = world.random.time(Duration::from_millis(50));
            world.after(at, Event::Start(node));
        }
        world.next_trouble();
        world.look_at_members();
        world
    }
    pub(crate) fn run(mut self) -> Result<Report, Box<Failure>> {
        let end = self.cluster.faults.until + self.cluster.faults.patience;
        let _drawn = self.cluster.mirrors.map(|_| draw_identities(self.seed));
        let _simulated = self.cluster.mirrors.map(|_| SimulationScope::of(HOOKS));
        if self.cluster.faults.hints_lost == 1000 {
            self.peers.mute();
        }
        while let Some(((at, serial), event)) = self.queue.pop_first() {
            if at > end || self.broken.is_some() {
                break;
            }
            self.now = at;
            self.report.events += 1;
            self.report.hash(serial);
            self.report.hash(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
            if let Some(pid) = event.needs() {
                let Some(process) = self.processes.get(pid) else { continue };
                if process.state == State::Gone {
                    continue;
                }
                if process.stalled_until > at {
                    let until = process.stalled_until;
                    self.at(until, event);
                    continue;
                }
                if self.must_wait(pid, &event) {
                    self.at(at + self.beat_len(), event);
                    continue;
                }
            }
            self.note(|| format!("{event:?}"));
            self.handle(event);
        }
        if self.broken.is_none() {
            self.check_end();
        }
        if self.broken.is_none() {
            self.end();
        }
        self.report.acknowledged = self.model.acknowledged();
        // While lanes still see that their nodes have died.
        self.processes.clear();
        match self.broken.take() {
            None => Ok(self.report),
            Some(what) => Err(Box::new(Failure {
                seed: self.seed,
                kind: self.cluster.kind(),
                at: self.now,
                what,
                trace: self.trace.unwrap_or_default(),
            })),
        }
    }
    /// Remembers a line, when traced.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            let line = format!("{now:>12?} {}", line());
            if std::env::var_os("BRAID_SIM_TELL").is_some() {
                eprintln!("{line}");
            }
            trace.push(line);
        }
    }
    /// Ends the run.
    pub(crate) fn fail(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Start(node) => self.start(node),
            Event::Land { pid, token, address, op, tells } => {
                self.land(pid, token, address, &op, tells);
            }
            Event::Answer { pid, token, answer } => self.answered(pid, token, answer),
            Event::Turn { pid, lock, thread } => self.turn(pid, lock, thread),
            Event::Visit { pid, lock } => self.step(pid, lock, LockEvent::Visit),
            Event::Admitted { pid, thread } => self.wants_next(pid, thread),
            Event::Refused { pid, thread } => self.refused_lock(pid, thread),
            Event::Hint { pid, from, lock, hint } => self.heard(pid, from, lock, hint),
            Event::Join { pid } => self.join_goes_on(pid),
            Event::Beat { pid, series } => self.beat(pid, series),
            Event::Look { pid } => self.submit(pid, Address::Slots, Op::Read, Purpose::Sight),
            Event::Thread { pid, thread } => self.thread_wants(pid, thread),
            Event::GoOn { pid, lane } => self.lane_goes_on(pid, lane),
            Event::Regions { pid } => self.give_regions_up(pid),
            Event::AboutRegion { pid, from, lock, hint } => {
                self.heard_about_region(pid, from, lock, hint);
            }
            Event::Close { pid, lock } => self.close_file(pid, lock),
            Event::EndUse { pid, thread } => self.end_use(pid, thread),
            Event::Dropped { pid, lock, from } => self.dropped(pid, lock, from),
            Event::Crash { pid } => self.crash(pid),
            Event::PowerCut => self.power_cut(),
            Event::Late { pid, place, bytes, torn } => self.land_late(pid, place, &bytes, torn),
            Event::Trouble => self.trouble(),
            Event::Members => self.look_at_members(),
            Event::Program { pid } => self.program_reads(pid),
            Event::LeaseLook { pid } => self.lease_look(pid),
            Event::DropPages { pid } => self.drop_pages(pid),
            Event::Heal { slot } => self.heal_slot(slot),
            Event::Fence { pid, fence } => self.fence_device(pid, fence),
        }
    }
    pub(crate) fn at(&mut self, at: Time, event: Event) {
        self.serial += 1;
        self.queue.insert((at.max(self.now), self.serial), event);
    }
    pub(crate) fn after(&mut self, pause: Duration, event: Event) {
        self.at(self.now + pause, event);
    }
    pub(crate) fn faulty(&self) -> bool {
        self.now < self.cluster.faults.until
    }
    pub(crate) fn nonce(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Issues a request, and decides its fate.
    pub(crate) fn submit(&mut self, pid: Pid, address: Address, op: Op, purpose: Purpose) {
        let Faults { failing, slow, late_max, crashing, .. } = self.cluster.faults;
        let faulty = self.faulty();
        let mut latency = Duration::from_micros(10) + self.random.time(Duration::from_micros(100));
        if faulty && self.random.permille(slow) {
            latency += self.random.time(late_max);
        }
        let fails = faulty && self.random.permille(failing);
        let compares = matches!(op, Op::CompareAndWrite { .. });
        let beats = matches!(purpose, Purpose::Beat(_));
        let data = matches!(purpose, Purpose::Work(_));
        // A failed read of data makes a node withdraw: less often, or nothing else would happen.
        let spared = data && self.random.below(16) != 0;
        // Of members of mirrors: `members`.
        let member = self.cluster.mirrors.is_some_and(|m| {
            m.mirrors_metadata() && data || self.disk.image.is_member(self.disk.device_of(address))
        });
        let reads = op == Op::Read && purpose.may_fail() && !spared && !member;
        let risky = (data && op != Op::Read) || (compares && matches!(address, Address::Slot(_)));
        if faulty && risky && self.random.permille(crashing) {
            let pause = self.random.time(latency * 2);
            let all = self.random.below(6) == 0;
            self.after(pause, if all { Event::PowerCut } else { Event::Crash { pid } });
        }
        let in_etcd = self.disk.is_in_etcd(address);
        if in_etcd {
            latency += self.etcd_takes();
        }
        let Some(process) = self.processes.get_mut(pid) else { return };
        latency += process.cut_off_until.saturating_sub(self.now);
        process.tokens += 1;
        let token = process.tokens;
        process.requests.insert(token, purpose);
        process.in_flight += u32::from(!in_etcd);
        let mut tells = Tells::Truth;
        let mut lands = latency;
        if fails && (compares && !data || reads || beats) {
            self.report.faults += 1;
            process.withdraws |= data && self.cluster.mirrors.is_some();
            tells = match self.random.below(3) {
                0 => Tells::Failure,
                1 => Tells::NeverLands,
                _ if reads || beats => Tells::NeverLands,
                _ => {
                    // Often just after the issuer was told, which is when it matters.
                    let soon = self.random.below(2) == 0;
                    lands += self.random.time(if soon { late_max / 200 } else { late_max });
                    self.after(latency, Event::Answer { pid, token, answer: Answer::Failed });
                    Tells::Nothing
                }
            };
        }
        if data && let Some(told) = self.member_fails(pid, address, &op) {
            tells = told;
        }
        self.after(lands, Event::Land { pid, token, address, op, tells });
    }

    /// What a process has under way at a device, or will have after its death.
    pub(crate) fn under_way(&self, of: Pid, device: u16) -> Vec<(Time, u64)> {
        let at = |address: Address| self.disk.device_of(address) == device;
        let of_it = |event: &Event| match event {
            Event::Land { pid, address, .. } => *pid == of && at(*address),
            Event::Late { pid, place, .. } => *pid == of && place.0 == device,
            _ => false,
        };
        self.queue.iter().filter(|(_, event)| of_it(event)).map(|(key, _)| *key).collect()
    }
    pub(crate) fn take(&mut self, key: (Time, u64)) -> Option<Event> {
        self.queue.remove(&key)
    }

    pub(crate) fn land(&mut self, pid: Pid, token: u64, address: Address, op: &Op, tells: Tells) {
        let in_etcd = self.disk.is_in_etcd(address);
        let Some(process) = self.processes.get_mut(pid) else { return };
        if process.cut && !in_etcd {
            return;
        }
        process.in_flight -= u32::from(!in_etcd);
        let dead = process.state == State::Gone;
        let fenced = process.fenced && *op != Op::Read && !in_etcd;
        if self.refused(pid, Some(token), address, op) {
            return self.refuse(pid, token, tells);
        }
        // What a dead process had in flight: about half of it lands, some of that in part.
        let never = matches!(tells, Tells::NeverLands | Tells::Lie);
        let lands = !(never || dead && self.random.below(2) == 0);
        let lie = tells == Tells::Lie;
        let mut answer = if lie { Answer::Done(Vec::new()) } else { Answer::Failed };
        if lands {
            if fenced {
                self.fail(format!("a request of fenced process {pid} lands: {op:?}"));
            }
            self.hash_landing(pid, address, op);
            self.check_landing(pid, address, op);
            if let (true, Address::Data(place, _), Op::Write(bytes)) = (dead, address, op)
                && self.random.below(2) == 0
            {
                self.report.torn += 1;
                self.disk.land_torn(pid, place, bytes, &mut self.random);
            } else {
                let mut done = self.disk.land(pid, address, op);
                self.members.landed(pid, self.disk.device_of(address), op);
                if !matches!(done, Answer::Mismatch(_)) && *op != Op::Read {
                    self.note_region(pid, address, op);
                    self.changed(address);
                }
                if let (Answer::Done(bytes), Op::Read, Address::Data(place, _)) =
                    (&mut done, op, address)
                {
                    self.tear_read(place, bytes);
                }
                if tells == Tells::Truth {
                    answer = done;
                }
            }
        }
        if dead {
            self.fence_if_quiet(pid);
        } else if tells != Tells::Nothing {
            let mut back = self.random.time(Duration::from_micros(50));
            if in_etcd {
                back += self.etcd_away_until.saturating_sub(self.now);
            }
            self.after(back, Event::Answer { pid, token, answer });
        }
    }
    /// For the trace: what a lock on a region says from now on.
    fn note_region(&mut self, pid: Pid, address: Address, op: &Op) {
        let (Some(_), Address::Data(..), Op::CompareAndWrite { new, .. }) =
            (&self.trace, address, op)
        else {
            return;
        };
        let found = (0..64).find_map(|n| LockRecord::decode(new, LockNo(n)).ok());
        if let Some(record) = found {
            self.note(|| format!("process {pid} writes of a region: {record:?}"));
        }
    }
    /// A read sees some sectors of the writes that are under way to the same place. (Nothing is that
    /// the power took, or that is to be refused.)
    fn tear_read(&mut self, at: Place, bytes: &mut [u8]) {
        for event in self.queue.values() {
            let Event::Land { pid, token, address, op: op @ Op::Write(new), .. } = event else {
                continue;
            };
            let Address::Data(place, _) = address else { continue };
            let gone = self.processes.get(*pid).is_none_or(|p| p.cut)
                || self.refused(*pid, Some(*token), *address, op);
            if !gone && *place == at && new.len() == bytes.len() {
                let sectors = bytes.chunks_mut(LEN).zip(new.chunks(LEN));
                for (old, new) in sectors.filter(|_| self.random.below(2) == 0) {
                    old.copy_from_slice(new);
                }
            }
        }
    }
    /// A write that its dead issuer had been told was complete, but that was never flushed.
    pub(crate) fn land_late(&mut self, pid: Pid, place: Place, bytes: &[u8], torn: bool) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        if process.cut {
            return;
        }
        process.in_flight -= 1;
        let address = Address::Data(place, bytes.len());
        let op = Op::Write(bytes.to_vec());
        if self.refused(pid, None, address, &op) {
            self.report.refused += 1;
            return self.fence_if_quiet(pid);
        }
        self.hash_landing(pid, address, &op);
        self.check_landing(pid, address, &op);
        if torn {
            self.disk.land_torn(pid, place, bytes, &mut self.random);
        } else {
            self.disk.land(pid, address, &op);
        }
        self.fence_if_quiet(pid);
    }
    fn hash_landing(&mut self, pid: Pid, address: Address, op: &Op) {
        let (kind, (place, len)) = match (address, op) {
            (Address::Data(place, len), Op::Read) => (1, (place, len)),
            (Address::Data(place, len), _) => (2, (place, len)),
            (Address::Device(device), _) => (3, ((device, 0), 0)),
            (_, Op::Read) => return,
            (_, _) => (4, ((0, 0), 0)),
        };
        let len = len as u64;
        for word in [pid as u64, kind, u64::from(place.0), place.1, len] {
            self.report.hash(word);
        }
    }

    /// What is in flight may have got as far as a device's cache when the power goes.
    pub(crate) fn land_in_caches(&mut self) {
        for event in self.queue.values() {
            if let Event::Land { pid, address: address @ Address::Data(..), op, .. } = event
                && matches!(op, Op::Write(_))
                && !self.processes.get(*pid).is_some_and(|p| p.cut || p.fenced)
                && self.random.below(2) == 0
            {
                self.disk.land(*pid, *address, op);
            }
        }
    }

    /// The living process of a life, if it can be reached.
    pub(crate) fn process_of(&self, life: Life) -> Option<Pid> {
        self.processes.iter().position(|p| p.me == Some(life) && p.state == State::Running)
    }
}

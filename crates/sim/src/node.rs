//! A process: what is known of it, and who is told when one of its requests is answered. What it decides
//! is decided by the steps of `braid_lock::node`; what its threads do there is done by events here: it
//! joins ([`join`]), beats ([`beat`]), looks at the others and recovers them ([`look`]), fences them
//! ([`fence`]), and leaves ([`leave`]).

mod beat;
mod fence;
mod join;
mod leave;
mod look;
mod slots;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use braid_format::NodeId;
use braid_format::node::{LockPlace, SlotRecord};
use braid_fs::simulation::{Metadata, Terms};
use braid_lock::dlock::Time;
use braid_lock::node::fencing::Fencing;
use braid_lock::node::join::Join;
use braid_lock::node::lease::Lease;
use braid_lock::node::leave::Leave;
use braid_lock::node::life::is_over;
use braid_lock::node::observation::Heartbeats;
use braid_lock::node::slot_write::SlotWrite;
use braid_lock::node::watch::Watch;
use braid_lock::node::wishes::Wishes;
use braid_lock::{HostIdentity, JoinOptions, Life, Proofs, SilentSlots, Timing};

use crate::Sabotage;
use crate::disk::{Address, Answer, Op};
use crate::files::Opened;
use crate::kernel::Kernel;
use crate::locks::{Lock, Plan};
use crate::mirrors::{Knows, Own};
use crate::work::{Assembler, Task, Work};
use crate::world::{Event, Pid, World};
pub(crate) use fence::Fence;

/// Between two heartbeats, and two looks: of nodes of one host; of others. A node's `io_timeout` is 40
/// times this.
const BEAT: Duration = Duration::from_millis(20);
const BEAT_OF_HOSTS: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Joining,
    Running,
    /// No new uses; everything is being put in place.
    Leaving,
    /// Dead, or has left.
    Gone,
}

/// What a request was for.
#[derive(Debug, Clone)]
pub(crate) enum Purpose {
    /// A look of the join.
    Join(join::Reads),
    /// A slot record: first compared and written, then perhaps read.
    Slot(SlotWrite, slots::For),
    /// A heartbeat, and when it was issued.
    Beat(Time),
    /// Its lease was over: is the slot its own still?
    LeaseCheck,
    /// A look at the others.
    Sight,
    /// Of these devices, the ones from here: so that no power cut makes the slot free again.
    JoinFlush(u16),
    Lock(usize),
    /// Of a lane.
    Work(usize),
}
impl Purpose {
    /// Failures of these reads are handled as in the real code.
    pub(crate) fn may_fail(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::Work(_) | Self::Sight | Self::Join(_))
    }
    /// Its answer is heard while the lease is over: what the pool's gate stops are new changes, not the answers
    /// of earlier ones. (That most answers are withheld here stands for the changes that they would lead to. A
    /// node that leaves extends its lease no more, and would wait for its last answer for ever.)
    pub(crate) fn needs_no_lease(&self) -> bool {
        matches!(self, Self::Beat(_) | Self::LeaseCheck | Self::Slot(_, slots::For::Leave))
    }
}

/// What a process has to do with its slot and the other nodes.
pub(crate) struct Member {
    /// While it joins.
    join: Option<Join>,
    /// The life that it has, or wants to have: it is named so in its heartbeats.
    pub(crate) life: Option<Life>,
    /// The key by which the devices know it; 0: none.
    key: u64,
    /// Its slot, as it wrote it last.
    mine: Option<Box<SlotRecord>>,
    /// When its slot's record was issued.
    begun: Time,
    /// Once its heartbeats have begun.
    lease: Option<Lease>,
    /// Heartbeats of this series go on; 0: none.
    series: u64,
    sequence: u64,
    watch: Option<Watch>,
    /// It looks at the others once in a beat.
    looks: bool,
    leave: Option<Leave>,
    fencings: Vec<Fencing>,
    /// The nodes that it has fenced.
    proofs: Proofs,
    /// Since when slots that it cannot read are silent.
    silent_slots: SilentSlots,
    /// What it has seen of the others.
    slots: BTreeMap<NodeId, SlotRecord>,
    beats: Heartbeats,
    wishes: Wishes,
    /// The liveness lock that it did not see at its last look, though it is held.
    blinked: Option<NodeId>,
    /// Its own slot is being written anew.
    mending: bool,
}

impl Member {
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }
    pub(crate) fn lease_until(&self) -> Option<Time> {
        self.lease.as_ref().map(Lease::until)
    }
}

#[expect(clippy::struct_excessive_bools, reason = "independent facts, each asked by name")]
pub(crate) struct Process {
    pub(crate) node: u16,
    pub(crate) me: Option<Life>,
    pub(crate) state: State,
    /// Nothing of it lands any more.
    pub(crate) fenced: bool,
    /// It left in good order: its liveness lock went with it.
    pub(crate) left: bool,
    /// Its slot shows that it is over.
    pub(crate) recovered: bool,
    pub(crate) stalled_until: Time,
    /// For how long its host has been suspended: the clock that rests meanwhile is so far behind.
    pub(crate) suspended: Duration,
    /// Until then its host does not reach the devices.
    pub(crate) cut_off_until: Time,
    pub(crate) kernel: Kernel,
    pub(crate) opened: Opened,
    /// Dead lives that it takes a lock for before it recovers them: as it once was.
    pub(crate) locking_for: Vec<Life>,
    pub(crate) in_flight: u32,
    pub(crate) tokens: u64,
    pub(crate) requests: HashMap<u64, Purpose>,
    pub(crate) locks: Vec<Lock>,
    pub(crate) work: Option<Work>,
    /// Per thread, since when it waits for a lock.
    pub(crate) waits: Vec<Option<Time>>,
    pub(crate) plans: Vec<Plan>,
    pub(crate) member: Member,
    /// It leaves, and nobody uses a lock any more: none is taken or given up from now on.
    pub(crate) stopped: bool,
    /// Its journal is being closed.
    closing: bool,
    /// It is clean; the slot is to be freed once nothing is under way.
    pub(crate) closed: bool,
    /// Power was cut: nothing of it lands any more.
    pub(crate) cut: bool,
    /// A write or a flush of it has failed that it cannot do without.
    pub(crate) withdraws: bool,
    pub(crate) started: Time,
    /// When it is to give regions up.
    pub(crate) regions_at: Option<Time>,
    /// Devices that refuse it, and how many requests it had issued before.
    pub(crate) barred: Vec<(u16, u64)>,
}

impl Process {
    pub(crate) fn says_dead(&self, life: Life) -> bool {
        self.member.slots.get(&life.slot).is_some_and(|record| is_over(record, life))
    }
}

impl World {
    /// How a process puts a pool of its own together, if it has one.
    pub(crate) fn assembler(&self, pid: Pid) -> Option<Assembler> {
        self.cluster.mirrors?;
        let (image, peers) = (self.disk.image.clone(), self.peers.clone());
        let process = self.processes.get(pid);
        let join = JoinOptions {
            timing: self.timing(),
            identity: Some(self.identity_of(pid)),
            proofs: process.map(|p| p.member.proofs.clone()).unwrap_or_default(),
            silent_slots: process.map(|p| p.member.silent_slots.clone()).unwrap_or_default(),
            ..JoinOptions::default()
        };
        let put_back = |sabotage| self.cluster.sabotage == Some(sabotage);
        let terms = Terms {
            regions: self.cluster.regions,
            its_dead_first: !put_back(Sabotage::LeaveItsDead),
            waits_end: !put_back(Sabotage::WaitForUnclaimed),
        };
        let lock_places = self.places_of(pid);
        let (slots, keys) = (self.cluster.slots, self.cluster.hosts);
        let knows = Knows { pid, join, lock_places, slots, keys, terms };
        Some(Arc::new(move || Own::assemble(&image, &peers, &knows)))
    }
    pub(crate) fn start(&mut self, node: u16) {
        let locks = usize::from(self.cluster.locks);
        let threads = self.all_threads();
        let pid = self.processes.len();
        let member = Member {
            join: None,
            life: None,
            key: 0,
            mine: None,
            begun: Time::ZERO,
            lease: None,
            series: 0,
            sequence: 0,
            watch: None,
            looks: false,
            leave: None,
            fencings: Vec::new(),
            proofs: Proofs::default(),
            silent_slots: SilentSlots::default(),
            slots: BTreeMap::new(),
            beats: Heartbeats::default(),
            wishes: Wishes::default(),
            blinked: None,
            mending: false,
        };
        self.processes.push(Process {
            node,
            me: None,
            state: State::Joining,
            fenced: false,
            left: false,
            recovered: false,
            stalled_until: Time::ZERO,
            suspended: Duration::ZERO,
            cut_off_until: Time::ZERO,
            kernel: Kernel::new(),
            opened: Opened::new(),
            locking_for: Vec::new(),
            in_flight: 0,
            tokens: 0,
            requests: HashMap::new(),
            locks: (0..locks).map(|l| Lock::new(self.disk.image.lock_no(l), threads)).collect(),
            work: None,
            waits: vec![None; threads],
            plans: vec![Plan::default(); threads],
            member,
            stopped: false,
            closing: false,
            closed: false,
            cut: false,
            withdraws: false,
            started: self.now,
            regions_at: None,
            barred: Vec::new(),
        });
        let work = Work::new(self.disk.image.clone(), threads, self.assembler(pid));
        if let Some(process) = self.processes.get_mut(pid) {
            process.work = Some(work);
        }
        if self.cluster.mirrors.is_some() {
            self.work(pid, Task::Assemble);
        } else {
            self.begin_join(pid);
        }
    }

    pub(crate) fn answered(&mut self, pid: Pid, token: u64, answer: Answer) {
        let Some(process) = self.processes.get_mut(pid) else { return };
        let Some(purpose) = process.requests.remove(&token) else {
            return self.fail(format!("process {pid} is answered twice"));
        };
        if answer == Answer::Fenced && !matches!(purpose, Purpose::Beat(_)) {
            return self.gives_up(pid, &"it has been fenced");
        }
        match purpose {
            Purpose::Lock(lock) => self.lock_answered(pid, lock, answer),
            Purpose::Work(lane) => self.work_answered(pid, lane, answer),
            Purpose::JoinFlush(device) => self.join_flush(pid, device + 1),
            Purpose::Beat(issued) => self.beat_answered(pid, issued, &answer),
            Purpose::LeaseCheck => self.lease_checked(pid, &answer),
            Purpose::Sight => {
                if let Answer::Done(bytes) = answer {
                    self.see(pid, &bytes);
                }
                let mirrors = self.cluster.mirrors.is_some();
                if let Some(member) = self.member(pid).filter(|m| mirrors && m.watch.is_none()) {
                    member.looks = false;
                    return;
                }
                self.after(self.beat_len(), Event::Look { pid });
            }
            Purpose::Join(reads) => self.join_read(pid, reads, answer),
            Purpose::Slot(write, whom) => self.slot_answered(pid, &write, whom, answer),
        }
    }

    /// The journal is its own: it runs.
    pub(crate) fn opened(&mut self, pid: Pid, metadata: Metadata) {
        let (identity, beat) = (self.identity_of(pid), self.beat_len());
        let Some(process) = self.processes.get_mut(pid) else { return };
        let (Some(me), Some(work)) = (process.me, &mut process.work) else { return };
        work.metadata = Some(metadata);
        process.state = State::Running;
        process.member.watch = Some(Watch::new(me, identity, beat));
        if !std::mem::replace(&mut process.member.looks, true) {
            self.after(beat / 2, Event::Look { pid });
        }
        for thread in 0..usize::from(self.cluster.threads) {
            let pause = self.random.time(Duration::from_millis(20));
            self.after(pause, Event::Thread { pid, thread });
        }
        self.begin_programs(pid);
    }
    /// It cannot go on: as a crash, but by its own decision.
    pub(crate) fn gives_up(&mut self, pid: Pid, why: &dyn std::fmt::Display) {
        self.note(|| format!("process {pid} gives up: {why}"));
        self.crash(pid);
    }

    // Who it is, and where it looks for locks.

    pub(crate) fn beat_len(&self) -> Duration {
        if self.cluster.hosts { BEAT_OF_HOSTS } else { BEAT }
    }
    pub(crate) fn timing(&self) -> Timing {
        Timing::of_beat(self.beat_len())
    }
    fn host_of(&self, pid: Pid) -> u16 {
        match self.processes.get(pid) {
            Some(process) if self.cluster.hosts && !self.cluster.containers => 1 + process.node,
            _ => 0,
        }
    }
    fn identity_of(&self, pid: Pid) -> HostIdentity {
        let host = self.host_of(pid);
        let [low, _] = host.to_le_bytes();
        let node = self.processes.get(pid).map_or(0, |p| usize::from(p.node));
        let own_boot = self.host_boots.get(node).filter(|_| !self.cluster.containers);
        let mut boot_id = [self.boot; 16];
        (boot_id[0], boot_id[1]) = (low, own_boot.copied().unwrap_or_default());
        let machine = if self.cluster.clones { 0 } else { low };
        let host = format!("host{machine}");
        HostIdentity { boot_id, machine_id: [2 + machine; 16], host }
    }
    /// The inode on which a process holds liveness locks, and looks for them.
    fn place_of(&self, pid: Pid) -> LockPlace {
        let container = self.processes.get(pid).filter(|_| self.cluster.containers);
        let inode = container.map_or(1, |p| 1 + u64::from(p.node));
        LockPlace { kernel: u32::from(self.host_of(pid)), device: 1, inode }
    }
    /// The places that count as those where this process would see a liveness lock.
    fn places_of(&self, pid: Pid) -> Vec<LockPlace> {
        let own = self.place_of(pid);
        if self.cluster.sabotage != Some(Sabotage::TrustUnseenLocks) {
            return vec![own];
        }
        // Any of the same kernel.
        let inodes = 1..=1 + u64::from(self.cluster.nodes);
        inodes.map(|inode| LockPlace { inode, ..own }).collect()
    }
    /// Whether another process is seen to hold the liveness lock of a slot.
    pub(crate) fn is_life_locked(&self, pid: Pid, slot: NodeId) -> bool {
        self.lives.get(&(self.place_of(pid), slot.0)).is_some_and(|holder| *holder != pid)
    }
    /// The clock that rests while the host is suspended.
    pub(crate) fn clock(&self, pid: Pid) -> Time {
        self.now.saturating_sub(self.suspended(pid))
    }
    pub(crate) fn suspended(&self, pid: Pid) -> Duration {
        self.processes.get(pid).map_or(Duration::ZERO, |p| p.suspended)
    }
    fn member(&mut self, pid: Pid) -> Option<&mut Member> {
        Some(&mut self.processes.get_mut(pid)?.member)
    }

    // Recovery.

    /// Replays the journal of `dead`, if nothing of it is under way any more.
    pub(crate) fn begin_recovery(&mut self, pid: Pid, dead: Life) {
        let owner = self.processes.iter().find(|p| p.me == Some(dead));
        // A life whose claim landed late never was a process.
        let fenced = owner
            .is_none_or(|p| (p.state == State::Gone || self.cluster.hosts) && (p.fenced || p.left));
        if !fenced {
            return self.fail(format!("process {pid} recovers {dead:?}, which is not fenced"));
        }
        self.note(|| format!("process {pid} recovers {dead:?}"));
        if self.cluster.sabotage == Some(Sabotage::SkipReplay) {
            return self.recovered_by(pid, dead, true);
        }
        let believing = self.cluster.sabotage == Some(Sabotage::BelieveCleanHeaders);
        let by = self.processes.get(pid).and_then(|p| p.me.or(p.member.life));
        self.work(pid, Task::Recover { dead, by, believing });
    }
    pub(crate) fn recovered_by(&mut self, pid: Pid, dead: Life, done: bool) {
        self.note(|| format!("process {pid} has recovered {dead:?}: {done}"));
        if self.member(pid).is_some_and(|m| m.join.is_some()) {
            self.recovered_to_join(pid, done);
        } else {
            self.recovered_by_watcher(pid, dead, done);
        }
    }
    /// A slot changed on the device: whose life is over?
    pub(crate) fn slot_changed(&mut self, slot: u16) {
        let record = match self.disk.slot(slot) {
            Ok(record) => record,
            Err(_) if self.spoilt.contains(&slot) => return,
            Err(e) => return self.fail(e),
        };
        let mut over = Vec::new();
        for (pid, process) in self.processes.iter_mut().enumerate() {
            if let Some(me) = process.me
                && me.slot == record.life.slot
                && !process.recovered
                && is_over(&record, me)
            {
                process.recovered = true;
                over.push((pid, me));
            }
        }
        for (pid, me) in over {
            self.life_has_ended(pid);
            self.check_recovered(me);
        }
    }
    /// Once its slot is durably its own: until then a power cut may give the same life to another.
    fn join_flush(&mut self, pid: Pid, device: u16) {
        if device < self.cluster.devices {
            let address = Address::Device(device);
            return self.submit(pid, address, Op::Flush, Purpose::JoinFlush(device));
        }
        let Some(process) = self.processes.get_mut(pid) else { return };
        let me = process.member.mine.as_ref().map(|mine| mine.life);
        process.me = me;
        self.note(|| format!("process {pid} is {me:?}"));
        // One that was stopped for long while it joined may have been recovered meanwhile.
        let record = me.and_then(|me| self.disk.slot(me.slot.0).ok());
        let over = me.zip(record).is_some_and(|(me, record)| is_over(&record, me));
        if let Some(process) = self.processes.get_mut(pid) {
            process.recovered = over;
        }
        let timing = self.timing();
        if let Some(member) = self.member(pid) {
            member.lease = Some(Lease::new(timing, member.begun));
        }
        self.begin_beats(pid, 1 << 32);
        self.watch_to_join(pid);
        self.work(pid, Task::Open);
    }
}

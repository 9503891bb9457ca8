//! A cluster in virtual time: several nodes, several devices, one seed. It runs the real code:
//! * of `braid_lock`, the protocol of a lock (`dlock`), users, queue and demotion of a node's locks
//!   (`glock`), and all that a node decides about itself and others (`node`): joining, the lease,
//!   death, fences, recovery, leaving;
//! * of `braid_fs`, mkfs, the journal, the metadata cache with commits and write-back, and replay
//!   (through `braid_fs::simulation`);
//! * of `braid_pool`, striping and labels; of `braid_format`, every record.
//!
//! Only threads, sockets, kernel locks and devices are simulated: for the threads of the lock manager
//! and of the membership, which do what those steps say, stand events and the answers of devices. The
//! code of `braid_fs` blocks; it runs in a `lane`, a stack of its own that goes on only while the world
//! waits for it, so that every request to a device is a point where other nodes go on, where a node
//! dies, or the power goes.
//! The same seed gives the same run, to the last event: `cargo run -p braid-sim -- SEED --trace`.
//! `BRAID_SIM_SEEDS=FIRST..LAST cargo test -p braid-sim` runs other seeds than the first thousand.
//!
//! What nodes do: their threads take up to all locks in order, shared or exclusive, read every
//! metadata block under them, change some in one transaction, and sometimes commit; nodes commit and
//! checkpoint by themselves; a lock that another wants is demoted through the journal and handed over;
//! nodes leave in good order or die, others replay their journals. The journals are nearly full
//! at the start, so that most runs reach the end of a ring.
//!
//! # Permitted faults
//! Whatever is not listed is a bug if it happens.
//! * **Crash.** A node's process dies at any moment, often between or during the requests of a
//!   commit, a write-back or a recovery. What it has in flight may land, within
//!   [`Faults::late_max`], whole or torn between sectors, or never; and so may everything that its
//!   journal and metadata cache have written since the last flush of a device. Its liveness lock is
//!   released when nothing of it is in flight any more (the kernel closes descriptors after their
//!   I/O), and not before: that is the fence.
//! * **Power cut.** Everything dies at once; of what was not flushed since, lock and slot records
//!   included, each write is kept, lost, or torn between sectors. The hosts come back with another
//!   boot. Each run ends with one.
//! * **Failed heartbeat.** The next one comes a beat later.
//! * **Cut off.** What a node asks of the devices takes up to [`Faults::stall_max`] longer for a while.
//! * **Suspended host.** As a stall; the clock that rests meanwhile is behind from then on.
//! * **Bad slot record.** One slot that was never used cannot be read, for good; any other for a while, or
//!   until its node has written it anew.
//! * **Rotten journal header.** Of a dead node's journal the newer header rots, while the older one says
//!   clean. The journal is replayed all the same, or refused, and then repaired.
//! * **A liveness lock that is not seen**, though it is held: at one look, never at two in a row.
//! * **Unknown compare-and-write.** The issuer is told of a failure; the write has landed, never
//!   will, or lands within `late_max` while the issuer goes on.
//! * **Torn read.** A read sees some sectors of the writes that are under way to the same place.
//! * **Failed read.** Of metadata: the node withdraws, as if it had died; of a recovery: another try.
//! * **Slow I/O.** Any request may take up to `late_max`.
//! * **Hints** are lost, doubled, late, or about a lock that nobody asked for.
//! * **Interruption.** A thread that waits for a lock gives up.
//! * **Stall.** A node is stopped for up to [`Faults::stall_max`] (as by SIGSTOP) and then goes on
//!   as if nothing had happened; its I/O lands meanwhile.
//! * **Hosts** ([`Cluster::of_hosts`]; `sim --hosts SEED`). Each node is on a host of its own. Nobody sees
//!   the liveness lock of another then: who is silent is fenced, device by device; what it has under
//!   way at one lands before that device's part of the fence or never, and is refused from then on,
//!   however late it is. Recovery begins after the last device's part. A node that was stopped, or
//!   whose heartbeat was under way, for longer than its lease looks at its slot before it does anything.
//!   A fence may be late at a device, or fail there. Hosts start anew with another boot, and what they had
//!   under way lands all the same. They may be containers of one kernel that do not see each other's
//!   liveness locks ([`Cluster::containers`]), or clones of one machine ([`Cluster::clones`]).
//! * **Mirrors** ([`Cluster::of_mirrors`]; `sim --mirrors SEED`). Contents of files stand on mirrors, and each node
//!   has a pool of its own (`mirrors`). Of the members one at a time fails a write or a flush, answers nothing but
//!   errors, or loses its power alone, and comes back (`members`); the device of the metadata does so, too, and
//!   then nodes withdraw.
//! * **Locks in etcd** ([`Cluster::of_etcd`]; `sim --etcd SEED`). Lock records and slots stand in etcd: what is changed
//!   there is stable at once, no fence ends it, and what a dead process has sent may land at any time, also after a
//!   power cut. etcd answers nobody for a while; what was asked before is done at once or later, and answered later.
//!   Leases in etcd are left out: without them less is known of who lives.
//! * **Leave and join.** Nodes leave in good order and come back, also after a crash, in any slot, now and
//!   then not before the faults have ceased.
//! * A recoverer may crash at any step of a recovery.
//!
//! Not permitted here: misdirected or corrupted writes (`braid-device`'s faulty device has them),
//! failed writes and flushes, and loss of power of one device alone, but with mirrors; silence
//! taken for death (on one host nobody is fenced). Not run here: two commits or write-backs of one node at once,
//! allocation. Files ([`Cluster::of_files`]; `sim --files SEED`) have no names, sizes or mappings: they are
//! opened and closed, unlinked while they are open elsewhere, and overwritten in place, also by several nodes
//! at once under concurrent holds (`files`).
//!
//! # Checked at every event that could change it
//! * exclusion: of all lives not yet recovered, no two believe in modes that exclude each other;
//! * belief: no life believes in more than the record on the device gives it;
//! * protection: a body is written in place only while its life holds EX in the record on the
//!   device, or is being recovered and nobody else uses the lock;
//! * order: no write, late ones and replay's included, puts an older generation over a newer one,
//!   and what was in place for good never goes back;
//! * one owner: no two processes live in a slot, and a recovery begins only after the fence;
//! * fence: nothing of a fenced process changes a device, but for what had landed before;
//! * release: what a lock covers is stable in place, and the latest, whenever no living or
//!   unrecovered life holds it exclusively;
//! * dirt: no two nodes have something of one block that is not in place;
//! * reads: every read under a lock sees the latest transaction; so does every read that a node's kernel
//!   answers from its cache (`kernel`), unless the node's process was stopped when its lease ended;
//! * contents: what is read under a lock is of a write that no acknowledged one has followed; who writes holds
//!   the lock; what fsync or the housekeeper's commit and flush cover is there after a power cut;
//! * copies: where nobody writes, and no dead node is left unrecovered, all copies of contents are the same; at a
//!   power cut every copy that nodes read holds what fsync covers;
//! * openers: who has a file open holds its lock or is named in its record, and who is named has it open or sees
//!   to it that the name goes; no file is deleted that somebody has open;
//! * recovery: every acknowledged transaction of a dead life survives, of the others the oldest so
//!   many, each of them whole (`model`).
//!
//! Faults cease after [`Faults::until`]; [`Faults::patience`] later every thread that waited has been
//! served, every dead node recovered, every node joined, and no file is left that lost its name before and that
//! nobody has open. Then power is cut once more, all journals
//! are replayed, the metadata is compared with the model, and replaying everything again from the
//! former journal headers must write nothing.

#![forbid(unsafe_code)]

mod check;
mod contents;
mod disk;
mod files;
mod image;
mod kernel;
mod lane;
mod locks;
mod members;
mod mirrors;
mod model;
mod node;
mod nodes;
mod random;
mod region_messages;
mod regions;
mod rot;
mod scale;
mod trouble;
mod volume;
mod waits;
mod work;
mod world;

use std::time::Duration;

pub use random::Random;
pub use scale::{Pace, Scale, Scaled, scale};
pub use volume::{
    VolumeFailure, VolumeReport, run_concurrent, run_contended, run_offline, run_volume,
    trace_volume,
};
pub use world::{Failure, Report};

/// How much goes wrong, and for how long.
#[derive(Debug, Clone)]
pub struct Faults {
    /// Faults cease then.
    pub until: Duration,
    /// The run goes on for so long after that; in its last quarter nobody still waits who waited
    /// at its beginning, and every dead node has been recovered.
    pub patience: Duration,
    /// Longest delay of a request, and of what a dead process had in flight.
    pub late_max: Duration,
    /// Longest stall.
    pub stall_max: Duration,
    /// Of a thousand requests, how many fail for their issuer.
    pub failing: u64,
    /// Of a thousand requests, how many are slow.
    pub slow: u64,
    /// Of a thousand writes and flushes of journal and metadata, and of slot records, during or soon
    /// after how many the node dies, or power is cut.
    pub crashing: u64,
    /// Of a thousand hints, how many are lost.
    pub hints_lost: u64,
    /// Mean time between crashes, stalls and leaves, of the whole cluster; zero: none.
    pub trouble_every: Duration,
}

/// A cluster to simulate.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each turns something on that the others do not need"
)]
pub struct Cluster {
    /// Nodes.
    pub nodes: u16,
    /// Slots, at least as many.
    pub slots: u16,
    /// Locks.
    pub locks: u16,
    /// Threads on each node.
    pub threads: u16,
    /// Devices.
    pub devices: u16,
    /// Blocks of 8 KiB instead of 4: the journal is soon full.
    pub large_blocks: bool,
    /// Nodes write back by themselves now and then, not only for others and for room in the journal.
    pub checkpoints: bool,
    /// Each node is a host of its own: the dead are known by silence, and fenced on every device.
    pub hosts: bool,
    /// The hosts are containers of one kernel, each with device nodes of its own: none sees the other's
    /// liveness locks.
    pub containers: bool,
    /// The hosts are clones of one machine: each takes another for an earlier boot of its own.
    pub clones: bool,
    /// There is a file under each lock: opened, overwritten under concurrent holds, unlinked.
    pub files: bool,
    /// Lock records and slots stand in etcd.
    pub etcd: bool,
    /// Contents of files stand on mirrors, and each node has a pool of its own.
    pub mirrors: Option<Mirrors>,
    /// Locks on regions there: where there is one, what stands on all groups meets.
    pub regions: u64,
    /// What goes wrong.
    pub faults: Faults,
    /// A bug put in on purpose, to see that it is found.
    pub sabotage: Option<Sabotage>,
}

/// What mirrors there are: the first device has the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mirrors {
    /// Two copies.
    Two,
    /// Three.
    Three,
    /// Two mirrors side by side.
    Striped,
    /// Two copies, on three devices by turns.
    Rotating,
    /// Two copies of metadata and journals, on devices of their own, and two of contents.
    Both,
    /// Two copies of metadata and journals, and contents on parity of three devices.
    Parity,
    /// The same of four devices by turns.
    TurningParity,
}

impl Mirrors {
    fn layout(self) -> &'static str {
        match self {
            Self::Two => "metadata = 0; data = mirror(1,2)",
            Self::Three => "metadata = 0; data = mirror(1,2,3)",
            Self::Striped => "metadata = 0; data = stripe(mirror(1,2),mirror(3,4))",
            Self::Rotating => "metadata = 0; data = mirror+1(1-3)",
            Self::Both => "metadata = mirror(0,1); data = mirror(2,3)",
            Self::Parity => "metadata = mirror(0,1); data = parity+1/64K(2-4)",
            Self::TurningParity => "metadata = mirror(0,1); data = parity+1/128K(2-5)",
        }
    }
    /// The first two devices have copies of the metadata.
    pub(crate) fn mirrors_metadata(self) -> bool {
        matches!(self, Self::Both | Self::Parity | Self::TurningParity)
    }
    pub(crate) fn is_parity(self) -> bool {
        matches!(self, Self::Parity | Self::TurningParity)
    }
    /// Devices that have metadata.
    pub(crate) fn of_metadata(self) -> u16 {
        if self.mirrors_metadata() { 2 } else { 1 }
    }
    fn devices(self) -> u16 {
        match self {
            Self::Two => 3,
            Self::Three | Self::Rotating | Self::Both => 4,
            Self::Striped | Self::Parity => 5,
            Self::TurningParity => 6,
        }
    }
}

/// Bugs that the checkers must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A demotion does not write what is dirty.
    KeepDirty,
    /// A lock is given up while the write of what it covers is under way.
    ReleaseEarly,
    /// A dead process lets its liveness lock go while requests are in flight.
    FenceEarly,
    /// Living lives are taken for dead.
    BreakLiving,
    /// Devices say that they have flushed, and have not.
    LyingFlush,
    /// A commit does not wait for the records of the locks that it relies on.
    ForgetGrants,
    /// Recovery replays nothing.
    SkipReplay,
    /// A fence takes a node's keys, and does not end what it has under way.
    FenceWithoutDrain,
    /// A fence leaves the last device out.
    FencePartly,
    /// A node that cannot say that it lives goes on serving its locks.
    IgnoreLease,
    /// Once ours: a liveness lock that is not seen was taken for gone, also where it could not be seen.
    TrustUnseenLocks,
    /// Once ours: a silent node of an earlier boot was recovered without a fence.
    TrustSilence,
    /// Once ours: one slot record that could not be read was the end of every look.
    OneBadSlot,
    /// Once ours: a node that had lost its lease left in its kernel what that had cached.
    KeepKernelCaches,
    /// Once ours: a journal header that says clean was believed, whatever the other one had said.
    BelieveCleanHeaders,
    /// Once ours: a recovery took a lock before it replayed the journal.
    LockBeforeReplay,
    /// Once ours: whether a file is open was asked before what its lock covers was written, and a close in
    /// between found nothing to do.
    OpenerForEver,
    /// Once ours: the housekeeper committed metadata, and flushed nothing where there was none.
    UnflushedContents,
    /// A flush that has failed on a device counts as done, and the member is not taken out.
    IgnoreFailedFlushes,
    /// Once ours: writes of what other nodes may write did not look at the copies afterwards.
    SplitCopies,
    /// Once ours: the journal of a node that died while it recovered others was replayed before what those were
    /// writing was whole.
    LeaveItsDead,
    /// Once ours: a demotion that began under a shared hold made nothing stable, though a truncation had taken the lock
    /// exclusively meanwhile.
    TrustFirstHold,
    /// Once ours: a node that joined waited for a region for ever that a dead node held, whom nobody recovered.
    WaitForUnclaimed,
}

impl Cluster {
    /// A small cluster, all of whose sizes and faults follow from the seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut r = Random::new(seed ^ 0x00c1_0573);
        let nodes = r.small(2, 4);
        let ms = Duration::from_millis;
        let faults = Faults {
            until: ms(1500),
            patience: ms(8000),
            late_max: ms(r.below(300) + 1),
            stall_max: ms(r.below(800) + 1),
            failing: r.below(30) * r.below(2),
            slow: r.below(50),
            crashing: *r.pick(&[0, 5, 15, 40]),
            hints_lost: *r.pick(&[0, 100, 500, 1000]),
            trouble_every: ms(*r.pick(&[0, 100, 200, 400])),
        };
        Self {
            nodes,
            slots: nodes + r.small(0, 2),
            locks: r.small(1, 4),
            threads: r.small(1, 2),
            devices: r.small(1, 3),
            large_blocks: r.below(2) == 0,
            checkpoints: r.below(3) != 0,
            hosts: false,
            containers: false,
            clones: false,
            files: false,
            etcd: false,
            mirrors: None,
            regions: 1,
            faults,
            sabotage: None,
        }
    }
    /// The same with each node on a host of its own, in a third of all cases often stopped for
    /// longer than the others wait.
    pub fn of_hosts(seed: u64) -> Self {
        let mut r = Random::new(seed ^ 0x0fe2_ce00);
        let still = r.below(3) == 0;
        let kind = r.below(4);
        let (containers, clones) = (kind == 0, kind == 1);
        Self { containers, clones, ..Self::from_seed(seed).on_hosts(still) }
    }
    /// A cluster with files; half of them on hosts.
    pub fn of_files(seed: u64) -> Self {
        let hosts = Random::new(seed ^ 0xf11e_5000).below(2) == 0;
        let cluster = if hosts { Self::of_hosts(seed) } else { Self::from_seed(seed) };
        Self { files: true, ..cluster }
    }
    /// A cluster with files, and locks in etcd; half of them on hosts.
    pub fn of_etcd(seed: u64) -> Self {
        Self { etcd: true, ..Self::of_files(seed) }
    }
    /// A cluster with files on mirrors; half of them on hosts.
    pub fn of_mirrors(seed: u64) -> Self {
        let mut r = Random::new(seed ^ 0x0c09_1e50);
        let mirrors = *r.pick(&[
            Mirrors::Two,
            Mirrors::Three,
            Mirrors::Striped,
            Mirrors::Rotating,
            Mirrors::Both,
            Mirrors::Both,
            Mirrors::Both,
        ]);
        Self::on_mirrors(seed, mirrors)
    }
    /// A cluster with files on parity; half of them on hosts.
    pub fn of_parity(seed: u64) -> Self {
        let mut r = Random::new(seed ^ 0x7061_7269_7479);
        let mirrors = *r.pick(&[Mirrors::Parity, Mirrors::TurningParity]);
        Self::on_mirrors(seed, mirrors)
    }
    fn on_mirrors(seed: u64, mirrors: Mirrors) -> Self {
        let regions = *Random::new(seed ^ 0x0072_6567_696f).pick(&[1, 1, 5]);
        let devices = mirrors.devices();
        Self { mirrors: Some(mirrors), regions, devices, ..Self::of_files(seed) }
    }
    /// By which argument `sim` makes it from a seed.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self { mirrors: Some(mirrors), .. } if mirrors.is_parity() => "--parity ",
            Self { mirrors: Some(_), .. } => "--mirrors ",
            Self { etcd: true, .. } => "--etcd ",
            Self { files: true, .. } => "--files ",
            Self { hosts: true, .. } => "--hosts ",
            _ => "",
        }
    }
    /// The same with each node on a host of its own; `still`: often stopped for longer than the
    /// others wait, and with requests that are under way for as long.
    #[must_use]
    pub fn on_hosts(mut self, still: bool) -> Self {
        self.hosts = true;
        // Silence, a turn for each node, the fence, the recovery.
        self.faults.patience = Duration::from_secs(6);
        if still {
            self.faults.stall_max = Duration::from_millis(1500);
            self.faults.late_max = Duration::from_millis(1500);
        }
        self
    }
}

/// Runs one cluster from one seed.
///
/// # Errors
/// The first invariant that broke, with the events before it when `trace` is set.
pub fn run(seed: u64, cluster: &Cluster, trace: bool) -> Result<Report, Box<Failure>> {
    world::World::new(seed, cluster, trace).run()
}

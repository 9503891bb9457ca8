use std::collections::HashSet;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};
use std::time::Instant;

use braid_format::lock_record::LockRecord;
use braid_format::{Incarnation, NodeId};
use parking_lot::{Condvar, Mutex, RwLock};

use super::*;
use crate::peers::Liveness;
use crate::store::{MemoryStore, Unsure};

const LOCK: LockNo = LockNo(64);

fn me(slot: u16) -> Life {
    Life { slot: NodeId(slot), incarnation: Incarnation(1) }
}

/// Managers that reach each other by function call.
#[derive(Default)]
struct Net {
    nodes: RwLock<Vec<(Life, Weak<LockManager>)>>,
    dead: Mutex<HashSet<Life>>,
    deaf: AtomicBool,
}
/// The others as one node sees them.
struct TestPeers {
    me: Life,
    net: Arc<Net>,
}
impl Peers for TestPeers {
    fn liveness(&self, _: LockNo, life: Life) -> Liveness {
        if self.net.dead.lock().contains(&life) { Liveness::Dead } else { Liveness::Alive }
    }
    fn hint(&self, to: Life, lock: LockNo, hint: &Hint) {
        if !self.reaches(to) {
            return;
        }
        let found = self.net.nodes.read().iter().find(|n| n.0 == to).map(|n| n.1.clone());
        if let Some(manager) = found.and_then(|weak| weak.upgrade()) {
            manager.message(self.me, lock, hint, false);
        }
    }
    fn hints(&self, to: Life, hints: &[(LockNo, Hint)]) {
        if !self.reaches(to) {
            return;
        }
        let found = self.net.nodes.read().iter().find(|n| n.0 == to).map(|n| n.1.clone());
        if let Some(manager) = found.and_then(|weak| weak.upgrade()) {
            let hints: Vec<_> = hints.iter().map(|(lock, hint)| (*lock, hint)).collect();
            manager.messages(self.me, &hints, true);
        }
    }
    fn reaches(&self, _: Life) -> bool {
        !self.net.deaf.load(Ordering::Relaxed)
    }
}

/// A file system that caches nothing.
#[derive(Default)]
struct Plain {
    calls: AtomicUsize,
}
impl GlockOps for Plain {
    fn demote(&self, what: &Demoting<'_>) -> Result<Demoted, DemoteFailed> {
        let Demoting { from, to, .. } = *what;
        assert!(to < from);
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(Demoted::default())
    }
}

struct Cluster {
    net: Arc<Net>,
    store: MemoryStore,
    /// How the nodes see it.
    unsure: Unsure<MemoryStore>,
    nodes: Vec<Arc<LockManager>>,
    beat: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}
impl Cluster {
    fn new(n: u16, ops: &[Arc<dyn GlockOps>], options: &ManagerOptions) -> Self {
        let net = Arc::new(Net::default());
        let store = MemoryStore::new();
        let unsure = Unsure::new(store.clone());
        let nodes: Vec<_> = (0..n)
            .map(|slot| {
                let ops = ops.get(usize::from(slot)).cloned();
                let ops = ops.unwrap_or_else(|| Arc::new(Plain::default()));
                LockManager::new(
                    me(slot),
                    Arc::new(unsure.clone()),
                    Arc::new(TestPeers { me: me(slot), net: net.clone() }),
                    ops,
                    options.clone(),
                )
                .unwrap()
            })
            .collect();
        *net.nodes.write() = nodes.iter().map(|m| (m.me(), Arc::downgrade(m))).collect();
        Self { net, store, unsure, nodes, beat: None }
    }
    fn plain(n: u16) -> Self {
        Self::new(n, &[], &ManagerOptions::default())
    }
    /// All hints are lost; wishes reach everybody every `every`.
    fn deaf(mut self, every: Duration) -> Self {
        self.net.deaf.store(true, Ordering::Relaxed);
        let stop = Arc::new(AtomicBool::new(false));
        let nodes: Vec<_> = self.nodes.iter().map(Arc::downgrade).collect();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(every);
                let nodes: Vec<_> = nodes.iter().filter_map(Weak::upgrade).collect();
                for from in &nodes {
                    for (lock, mode) in from.wishes(24) {
                        for to in nodes.iter().filter(|to| to.me() != from.me()) {
                            to.wish(lock, mode);
                        }
                    }
                }
            }
        });
        self.beat = Some((stop, thread));
        self
    }
    fn record(&self, lock: LockNo) -> LockRecord {
        LockRecord::decode(&self.store.read(lock).unwrap(), lock).unwrap()
    }
}
impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.beat.take() {
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap();
        }
    }
}

/// Remembers which threads demote.
#[derive(Default)]
struct Threads(Mutex<Vec<std::thread::ThreadId>>);
impl GlockOps for Threads {
    fn demote(&self, _: &Demoting<'_>) -> Result<Demoted, DemoteFailed> {
        self.0.lock().push(std::thread::current().id());
        Ok(Demoted::default())
    }
}

#[test]
fn a_thread_that_may_visit_gives_the_lock_up_itself() {
    let threads = Arc::new(Threads::default());
    let ops: [Arc<dyn GlockOps>; 1] = [threads.clone()];
    let c = Cluster::new(2, &ops, &ManagerOptions::default());
    let ask = Hint::Ask { mode: Mode::Exclusive, ticket: 7 };
    let here = std::thread::current().id();
    drop(c.nodes[0].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap());
    c.nodes[0].message(me(1), LOCK, &ask, true);
    assert_eq!(*threads.0.lock(), [here]);
    assert_eq!(c.record(LOCK).holders, [me(1)]);
    // One that may not wait leaves it to a demoter.
    let other = LockNo(65);
    drop(c.nodes[0].acquire(other, Mode::Exclusive, Local::Exclusive).unwrap());
    c.nodes[0].message(me(1), other, &ask, false);
    while c.record(other).holders != [me(1)] {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(**threads.0.lock(), [first, second] if first == here && second != here));
}

/// Node 0 has all of these alone, and node 1 knows of the first that it had.
fn held_by_another(c: &Cluster, locks: &[LockNo]) {
    for lock in locks {
        drop(c.nodes[0].acquire(*lock, Mode::Exclusive, Local::Exclusive).unwrap());
    }
    drop(c.nodes[1].acquire(locks[0], Mode::Shared, Local::Shared).unwrap());
}

#[test]
fn many_locks_come_by_one_message_each_way() {
    let c = Cluster::plain(2);
    let locks: Vec<LockNo> = (0..33).map(|n| LockNo(640 + n)).collect();
    held_by_another(&c, &locks);
    let before = [0, 1].map(|n: usize| c.nodes[n].stats());
    assert_eq!(c.nodes[1].fetch_together(&locks, Mode::Shared, &|| false), 32);
    let after = [0, 1].map(|n: usize| c.nodes[n].stats());
    for lock in &locks {
        assert_eq!([0, 1].map(|n: usize| c.nodes[n].held(*lock)), [Mode::Shared; 2], "{lock}");
        assert_eq!(c.record(*lock).holders.len(), 2);
    }
    assert_eq!(after[1].asks - before[1].asks, 32);
    assert_eq!((after[1].hints_sent - before[1].hints_sent, after[1].reads), (1, before[1].reads));
    assert_eq!((after[1].caws - before[1].caws, after[0].caws - before[0].caws), (0, 32));
    // More, if the giver's thread lost its processor in between.
    let (gives, messages) =
        (after[0].gives - before[0].gives, after[0].hints_sent - before[0].hints_sent);
    assert!(gives == 32 && messages < 8, "{gives} by {messages}");
    // They are used like any, and nothing is asked for again.
    assert_eq!(c.nodes[1].fetch_together(&locks, Mode::Shared, &|| false), 0);
    drop(c.nodes[1].acquire(locks[7], Mode::Shared, Local::Shared).unwrap());
    assert_eq!(
        (c.nodes[1].stats().caws, c.nodes[1].stats().reads),
        (after[1].caws, after[1].reads)
    );
    drop(c.nodes[0].acquire(locks[7], Mode::Exclusive, Local::Exclusive).unwrap());
    assert_eq!(c.nodes[1].held(locks[7]), Mode::Unlocked);
}

#[test]
fn what_is_fetched_together_keeps_nobody_from_anything() {
    let c = Cluster::plain(2);
    let locks: Vec<LockNo> = (0..3).map(|n| LockNo(640 + n)).collect();
    held_by_another(&c, &locks);
    let used = c.nodes[0].acquire(locks[2], Mode::Exclusive, Local::Exclusive).unwrap();
    let fetched = std::thread::scope(|s| {
        let fetches = s.spawn(|| c.nodes[1].fetch_together(&locks, Mode::Shared, &|| false));
        while c.nodes[1].held(locks[1]) == Mode::Unlocked && !fetches.is_finished() {
            std::thread::yield_now();
        }
        // Against the order of locks: were the other thread let into one, this could wait for it for ever.
        drop(c.nodes[0].acquire(locks[1], Mode::Exclusive, Local::Exclusive).unwrap());
        fetches.join().unwrap()
    });
    assert_eq!(fetched, 2);
    drop(used);
    // Whoever wants it gets it, whatever became of that ask.
    for lock in &locks {
        drop(c.nodes[1].acquire(*lock, Mode::Shared, Local::Shared).unwrap());
    }
}

#[test]
fn messages_that_are_lost_end_what_is_fetched_together_in_time() {
    /// Asks do not arrive.
    struct Lossy(TestPeers);
    impl Peers for Lossy {
        fn liveness(&self, lock: LockNo, life: Life) -> Liveness {
            self.0.liveness(lock, life)
        }
        fn hint(&self, _: Life, _: LockNo, _: &Hint) {}
        fn reaches(&self, _: Life) -> bool {
            true
        }
    }
    let c = Cluster::plain(2).deaf(Duration::from_millis(5));
    let locks: Vec<LockNo> = (0..20).map(|n| LockNo(640 + n)).collect();
    for lock in &locks {
        drop(c.nodes[0].acquire(*lock, Mode::Exclusive, Local::Exclusive).unwrap());
    }
    let peers = Lossy(TestPeers { me: me(2), net: c.net.clone() });
    let options = ManagerOptions::default();
    let (store, ops) = (Arc::new(c.unsure.clone()), Arc::new(Plain::default()));
    let lossy = LockManager::new(me(2), store, Arc::new(peers), ops, options).unwrap();
    let began = Instant::now();
    let wish = |lock: LockNo| c.nodes[0].wish(lock, Mode::Shared);
    std::thread::scope(|s| {
        let first = s.spawn(|| lossy.acquire(locks[0], Mode::Shared, Local::Shared));
        while !first.is_finished() {
            wish(locks[0]);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(lossy.fetch_together(&locks, Mode::Shared, &|| false), 19);
    });
    // Soon they are nobody's wish any more.
    while !lossy.wishes(24).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(locks[1..].iter().all(|lock| lossy.held(*lock) == Mode::Unlocked));
    assert!(locks[1..].iter().all(|lock| c.nodes[0].held(*lock) == Mode::Exclusive));
}

#[test]
fn cached_lock_needs_no_io() {
    let c = Cluster::plain(1);
    drop(c.nodes[0].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap());
    let before = c.nodes[0].stats();
    for _ in 0..1000 {
        let g = c.nodes[0].acquire(LOCK, Mode::Shared, Local::Shared).unwrap();
        assert_eq!((g.mode(), g.first(), g.lock()), (Mode::Shared, false, LOCK));
    }
    let after = c.nodes[0].stats();
    assert_eq!((after.caws, after.reads), (before.caws, before.reads));
    assert_eq!(after.cached - before.cached, 1000);
}

#[test]
fn grants_are_told_before_anybody_is_let_in_and_only_once() {
    #[derive(Default)]
    struct Told(Mutex<Vec<Mode>>);
    impl GlockOps for Told {
        fn granted(&self, lock: LockNo, mode: Mode) {
            assert_eq!(lock, LOCK);
            self.0.lock().push(mode);
        }
        fn demote(&self, _: &Demoting<'_>) -> Result<Demoted, DemoteFailed> {
            Ok(Demoted::default())
        }
    }
    let told = Arc::new(Told::default());
    let ops: Arc<dyn GlockOps> = told.clone();
    let c = Cluster::new(2, &[ops], &ManagerOptions::default());
    let (shared, exclusive) = (Mode::Shared, Mode::Exclusive);
    for (mode, expected) in [
        (shared, vec![shared]),
        (exclusive, vec![shared, exclusive]),
        (shared, vec![shared, exclusive]),
        (exclusive, vec![shared, exclusive]),
    ] {
        let guard = c.nodes[0].acquire(LOCK, mode, Local::Exclusive).unwrap();
        assert_eq!(*told.0.lock(), expected);
        drop(guard);
    }
    // Taken away and granted again.
    drop(c.nodes[1].acquire(LOCK, exclusive, Local::Exclusive).unwrap());
    let _guard = c.nodes[0].acquire(LOCK, exclusive, Local::Exclusive).unwrap();
    assert_eq!(*told.0.lock(), vec![shared, exclusive, exclusive]);
}

#[test]
fn uncontended_acquire_is_one_read_and_one_write() {
    let c = Cluster::plain(1);
    let g = c.nodes[0].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap();
    assert!(g.first());
    let s = c.nodes[0].stats();
    assert_eq!((s.reads, s.caws), (1, 1));
    assert_eq!(c.record(LOCK).holders, vec![me(0)]);
}

#[test]
fn exclusive_moves_and_version_counts_it() {
    let c = Cluster::plain(2);
    for round in 0..20_u64 {
        for node in &c.nodes {
            let g = node.acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap();
            assert!(g.first());
            assert_eq!(c.record(LOCK).holders, vec![node.me()]);
            if round > 0 {
                assert!(g.version() >= round);
            }
        }
    }
}

#[test]
fn readers_share_and_a_writer_makes_them_go() {
    let c = Cluster::plain(3);
    let guards: Vec<_> =
        c.nodes.iter().map(|n| n.acquire(LOCK, Mode::Shared, Local::Shared).unwrap()).collect();
    assert_eq!(c.record(LOCK).holders.len(), 3);
    drop(guards);
    drop(c.nodes[1].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap());
    assert_eq!(c.nodes[0].held(LOCK), Mode::Unlocked);
    assert_eq!(c.nodes[1].held(LOCK), Mode::Exclusive);
    drop(c.nodes[0].acquire(LOCK, Mode::Shared, Local::Shared).unwrap());
    assert_eq!(c.nodes[1].held(LOCK), Mode::Shared);
}

#[test]
fn openers_are_recorded_and_the_dead_left_out() {
    struct Open;
    impl GlockOps for Open {
        fn demote(&self, _: &Demoting<'_>) -> Result<Demoted, DemoteFailed> {
            Ok(Demoted { opened: true, ..Demoted::default() })
        }
    }
    let open: Arc<dyn GlockOps> = Arc::new(Open);
    let c = Cluster::new(2, &[open], &ManagerOptions::default());
    drop(c.nodes[0].acquire(LOCK, Mode::Shared, Local::Shared).unwrap());
    let g = c.nodes[1].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap();
    assert_eq!(g.openers(), vec![me(0)]);
    c.net.dead.lock().insert(me(0));
    assert_eq!(g.openers(), vec![]);
}

#[test]
fn a_dead_holder_is_broken_only_once_recovered() {
    let c = Cluster::plain(2);
    drop(c.nodes[0].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap());
    c.nodes[0].withdraw();
    let taken = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let g = c.nodes[1].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap();
            taken.store(true, Ordering::Release);
            drop(g);
        });
        std::thread::sleep(Duration::from_millis(150));
        assert!(!taken.load(Ordering::Acquire), "taken before recovery");
        c.net.dead.lock().insert(me(0));
        c.nodes[1].node_gone();
    });
    assert_eq!(c.record(LOCK).holders, vec![me(1)]);
    assert_eq!(c.record(LOCK).version, 1);
}

#[test]
fn adopted_locks_are_held_from_birth() {
    let c = Cluster::plain(2);
    let locks = || (1000..1064).map(LockNo);
    for lock in locks() {
        c.store.put(&LockRecord::born(lock, me(0), 9));
    }
    c.nodes[0].adopt(locks(), 9);
    for lock in locks() {
        drop(c.nodes[0].acquire(lock, Mode::Exclusive, Local::Exclusive).unwrap());
    }
    assert_eq!(c.nodes[0].stats().caws, 0);
    drop(c.nodes[1].acquire(LockNo(1003), Mode::Shared, Local::Shared).unwrap());
    assert_eq!(c.record(LockNo(1003)).holders, vec![me(0), me(1)]);
    // The next one is asked of the same node at once, which knows its record without having read it.
    let before = c.nodes[1].stats();
    drop(c.nodes[1].acquire(LockNo(1004), Mode::Shared, Local::Shared).unwrap());
    assert_eq!(c.record(LockNo(1004)).holders, vec![me(0), me(1)]);
    let after = c.nodes[1].stats();
    assert_eq!((after.reads, after.caws, after.asks), (before.reads, before.caws, before.asks + 1));
    assert_eq!((c.nodes[0].stats().reads, c.nodes[0].stats().caws), (0, 2));
}

#[test]
fn idle_locks_are_bounded() {
    let c = Cluster::plain(1);
    for n in 0..500 {
        drop(c.nodes[0].acquire(LockNo(n), Mode::Exclusive, Local::Exclusive).unwrap());
    }
    let used = c.nodes[0].acquire(LockNo(7), Mode::Exclusive, Local::Exclusive).unwrap();
    c.nodes[0].drop_idle(100);
    assert_eq!(c.nodes[0].count(), 100);
    c.nodes[0].drop_idle(0);
    assert_eq!(c.nodes[0].count(), 1);
    assert_eq!(c.nodes[0].held(LockNo(7)), Mode::Exclusive);
    assert_eq!(c.record(LockNo(8)).mode, Mode::Unlocked);
    drop(used);
    drop(c.nodes[0].acquire(LockNo(8), Mode::Exclusive, Local::Exclusive).unwrap());
}

#[test]
fn the_bound_holds_by_itself() {
    let options = ManagerOptions { locks_max: 200, ..ManagerOptions::default() };
    let c = Cluster::new(1, &[], &options);
    for n in 0..2000 {
        drop(c.nodes[0].acquire(LockNo(n), Mode::Exclusive, Local::Exclusive).unwrap());
    }
    let until = Instant::now() + Duration::from_mins(1);
    while c.nodes[0].count() > 200 {
        assert!(Instant::now() < until, "{} locks", c.nodes[0].count());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The demotion waits for a page fill that asks for the lock only when the demotion has begun: as
/// a kernel that must have a page to give it up.
struct WaitsForFill {
    asked: (Mutex<u32>, Condvar),
    filled: (Mutex<bool>, Condvar),
    dropped: Mutex<Vec<ToDrop>>,
}
impl GlockOps for WaitsForFill {
    fn demote(&self, what: &Demoting<'_>) -> Result<Demoted, DemoteFailed> {
        while let Some(next) = what.pages.next(&Vec::new) {
            self.dropped.lock().push(next);
            *self.asked.0.lock() += 1;
            self.asked.1.notify_all();
            let mut filled = self.filled.0.lock();
            while !*filled {
                self.filled.1.wait(&mut filled);
            }
        }
        Ok(Demoted::default())
    }
}

#[test]
fn a_fill_is_admitted_into_a_demotion_that_waits_for_it() {
    for held in [Mode::Shared, Mode::Exclusive] {
        let mut grew = false;
        let ops = Arc::new(WaitsForFill {
            asked: (Mutex::new(0), Condvar::new()),
            filled: (Mutex::new(false), Condvar::new()),
            dropped: Mutex::default(),
        });
        let as_ops: Arc<dyn GlockOps> = ops.clone();
        let c = Cluster::new(2, &[as_ops], &ManagerOptions::default());
        drop(c.nodes[0].acquire(LOCK, held, Local::Shared).unwrap());
        std::thread::scope(|s| {
            s.spawn(|| {
                let g = c.nodes[1].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap();
                assert_eq!(c.nodes[0].held(LOCK), Mode::Unlocked);
                drop(g);
            });
            let mut asked = ops.asked.0.lock();
            while *asked == 0 {
                ops.asked.1.wait(&mut asked);
            }
            drop(asked);
            let fill = (Held::Filled(4096, 8192), Duration::from_millis(2));
            let g = c.nodes[0].acquire_fill(LOCK, Mode::Exclusive, Local::Shared, fill).unwrap();
            // A fill may get less than it asked for. It may also get it all: the other node asks by a message, and
            // stands behind whoever takes the lock by the record.
            assert!(g.mode().covers(held) && c.nodes[0].held(LOCK) == g.mode());
            grew = g.mode() != held;
            *ops.filled.0.lock() = true;
            ops.filled.1.notify_all();
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(c.nodes[0].held(LOCK), g.mode(), "released under a fill");
            drop(g);
        });
        let dropped = ops.dropped.lock();
        let (first, again) = dropped.split_at(2);
        assert_eq!(first, [ToDrop::All, ToDrop::Pages(4096, 8192)]);
        // Of what more is held everything is dropped.
        assert_eq!(again, if grew { &[ToDrop::All][..] } else { &[] });
    }
}

/// A step of a test that others wait for.
#[derive(Default)]
struct Step(Mutex<bool>, Condvar);
impl Step {
    fn done(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }
    fn wait(&self) {
        let mut done = self.0.lock();
        while !*done {
            self.1.wait(&mut done);
        }
    }
}

/// Makes everything stable, and then takes its time the first time.
#[derive(Default)]
struct MakesStable {
    drops: Step,
    let_in: Step,
    stable: Step,
    changed: Step,
    dirty: AtomicBool,
    calls: AtomicUsize,
}
impl GlockOps for MakesStable {
    fn demote(&self, what: &Demoting<'_>) -> Result<Demoted, DemoteFailed> {
        while what.pages.next(&Vec::new).is_some() {
            self.drops.done();
            self.let_in.wait();
        }
        self.dirty.store(false, Ordering::SeqCst);
        self.stable.done();
        self.changed.wait();
        self.calls.fetch_add(1, Ordering::SeqCst);
        Ok(Demoted::default())
    }
    fn forget(&self, _: LockNo) {
        assert!(!self.dirty.load(Ordering::SeqCst), "forgotten before it was stable");
    }
}

#[test]
fn what_a_truncation_changes_late_is_made_stable_before_the_lock_is_given_up() {
    let ops = Arc::new(MakesStable::default());
    let as_ops: Arc<dyn GlockOps> = ops.clone();
    let c = Cluster::new(2, &[as_ops], &ManagerOptions::default());
    drop(c.nodes[0].acquire(LOCK, Mode::Exclusive, Local::Shared).unwrap());
    std::thread::scope(|s| {
        s.spawn(|| {
            drop(c.nodes[1].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap());
            assert!(!ops.dirty.load(Ordering::SeqCst));
        });
        ops.drops.wait();
        let cut = (Held::Cut, Duration::from_millis(2));
        let guard = c.nodes[0].acquire_fill(LOCK, Mode::Exclusive, Local::Exclusive, cut).unwrap();
        ops.let_in.done();
        ops.stable.wait();
        ops.dirty.store(true, Ordering::SeqCst);
        drop(guard);
        ops.changed.done();
    });
    assert_eq!(ops.calls.load(Ordering::SeqCst), 2);
}

#[test]
fn a_failed_demotion_withdraws_and_keeps_the_lock() {
    struct Fails;
    impl GlockOps for Fails {
        fn demote(&self, _: &Demoting<'_>) -> Result<Demoted, DemoteFailed> {
            Err(DemoteFailed)
        }
    }
    let fails: Arc<dyn GlockOps> = Arc::new(Fails);
    let c = Cluster::new(2, &[fails], &ManagerOptions::default());
    drop(c.nodes[0].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap());
    std::thread::scope(|s| {
        let waits = s.spawn(|| c.nodes[1].acquire(LOCK, Mode::Shared, Local::Shared));
        let began = Instant::now();
        while !c.nodes[0].has_withdrawn() {
            assert!(began.elapsed() < Duration::from_mins(1), "it does not withdraw");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(c.record(LOCK).holders, vec![me(0)]);
        let refused = c.nodes[0].acquire(LockNo(1), Mode::Shared, Local::Shared);
        assert!(matches!(refused, Err(LockError::Withdrawn)));
        c.nodes[1].withdraw();
        assert!(matches!(waits.join().unwrap(), Err(LockError::Withdrawn)));
    });
}

#[test]
fn a_damaged_record_is_an_error_not_a_hang() {
    let c = Cluster::plain(1);
    let outside = LockNo(77);
    c.store.put(&LockRecord::unlocked(outside, 0));
    let mut bytes = c.store.read(outside).unwrap();
    let good = bytes.clone();
    bytes[20] ^= 1;
    c.store.compare_and_write(outside, &good, &bytes).unwrap();
    for _ in 0..3 {
        let refused = c.nodes[0].acquire(outside, Mode::Shared, Local::Shared);
        assert!(matches!(refused, Err(LockError::Record { .. })), "{refused:?}");
    }
    c.store.put(&LockRecord::unlocked(outside, 0));
    drop(c.nodes[0].acquire(outside, Mode::Shared, Local::Shared).unwrap());
}

#[test]
fn shutdown_demotes_what_is_held_and_leaves_the_records() {
    let ops = Arc::new(Plain::default());
    let as_ops: Arc<dyn GlockOps> = ops.clone();
    let c = Cluster::new(1, &[as_ops], &ManagerOptions::default());
    for n in 0..50 {
        drop(c.nodes[0].acquire(LockNo(n), Mode::Exclusive, Local::Exclusive).unwrap());
    }
    let writes = c.nodes[0].stats().caws;
    c.nodes[0].shutdown().unwrap();
    assert_eq!(ops.calls.load(Ordering::Relaxed), 50);
    assert_eq!(c.nodes[0].stats().caws, writes);
    let refused = c.nodes[0].acquire(LockNo(1), Mode::Shared, Local::Shared);
    assert!(matches!(refused, Err(LockError::ShutDown)));
}

/// Who gives up leaves no trace in the queue, here or in the record, and keeps nobody from the lock.
#[test]
fn a_cancelled_wait_ends_and_others_go_on() {
    let c = Cluster::plain(3);
    let held = c.nodes[0].acquire(LOCK, Mode::Exclusive, Local::Exclusive).unwrap();
    let asked = AtomicUsize::new(0);
    let cancelled = || asked.fetch_add(1, Ordering::Relaxed) == 1;
    let given_up =
        c.nodes[1].acquire_unless(LOCK, Mode::Exclusive, Local::Exclusive, &cancelled).unwrap();
    assert!(given_up.is_none());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    let others: Vec<_> = [1, 2]
        .map(|n| {
            let node = c.nodes[n].clone();
            std::thread::spawn(move || {
                let never = || false;
                // Let go at once: the other one may be asked for first.
                let taken = node.acquire_unless(LOCK, Mode::Exclusive, Local::Exclusive, &never);
                taken.unwrap().is_some()
            })
        })
        .into_iter()
        .collect();
    drop(held);
    for other in others {
        assert!(other.join().unwrap());
    }
    assert!(c.record(LOCK).waiters.is_empty());
}

/// Counts who is inside.
struct Checker {
    /// Per lock, users that rely on an exclusive hold: node 0 counts up, node 1 down.
    strong: Vec<AtomicI32>,
    /// Per lock and node, local users; an exclusive one counts a thousand.
    local: Vec<AtomicI32>,
}

fn hammer(c: &Cluster, threads: usize, rounds: usize, locks: u64) {
    let check = Checker {
        strong: (0..locks).map(|_| AtomicI32::new(0)).collect(),
        local: (0..locks * 2).map(|_| AtomicI32::new(0)).collect(),
    };
    let began = Instant::now();
    std::thread::scope(|s| {
        for t in 0..threads {
            let (check, c) = (&check, &c);
            s.spawn(move || {
                let mut random = 0x1234_5678_u64 + t as u64 * 7919;
                for _ in 0..rounds {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let r = random >> 33;
                    let n = t % c.nodes.len();
                    one(check, &c.nodes[n], n, r, locks);
                }
            });
        }
    });
    let stats: Vec<_> = c.nodes.iter().map(|n| n.stats()).collect();
    println!("{threads} threads x {rounds}: {:?} {stats:?}", began.elapsed());
}

fn one(check: &Checker, node: &Arc<LockManager>, n: usize, r: u64, locks: u64) {
    let at = usize::try_from(r % locks).unwrap();
    let cluster = if r & 0x100 == 0 { Mode::Shared } else { Mode::Exclusive };
    let local = if r & 0x600 == 0 { Local::Exclusive } else { Local::Shared };
    let lock = LockNo(at as u64);
    let guard = if r & 0x7800 == 0 {
        let fill = (Held::Filled(0, 4096), Duration::from_micros(100));
        node.acquire_fill(lock, cluster, local, fill).unwrap()
    } else {
        node.acquire(lock, cluster, local).unwrap()
    };
    let (strong, inside) = (&check.strong[at], &check.local[at * 2 + n]);
    let sign = if n == 0 { 1 } else { -1 };
    let exclusive = guard.mode() == Mode::Exclusive;
    let now = strong.fetch_add(if exclusive { sign } else { 0 }, Ordering::SeqCst);
    assert!(now == 0 || now.signum() == sign, "exclusive on another node");
    let weight = if local == Local::Exclusive { 1000 } else { 1 };
    let before = inside.fetch_add(weight, Ordering::SeqCst);
    assert!(if weight == 1 { before < 1000 } else { before == 0 }, "local exclusion: {before}");
    if r & 0x8000 == 0 {
        std::thread::yield_now();
    }
    let now = strong.load(Ordering::SeqCst);
    assert!(now == 0 || now.signum() == sign, "exclusive on another node");
    inside.fetch_sub(weight, Ordering::SeqCst);
    strong.fetch_sub(if exclusive { sign } else { 0 }, Ordering::SeqCst);
    drop(guard);
}

#[test]
fn sixty_four_threads_two_nodes_with_hints() {
    hammer(&Cluster::plain(2), 128, 150, 8);
}

#[test]
fn sixty_four_threads_two_nodes_all_hints_lost() {
    let options = ManagerOptions { poll_max: Duration::from_millis(5), ..Default::default() };
    let c = Cluster::new(2, &[], &options).deaf(Duration::from_millis(2));
    hammer(&c, 128, 40, 8);
}

#[test]
fn two_nodes_with_unknown_outcomes() {
    let options = ManagerOptions { poll_max: Duration::from_millis(5), ..Default::default() };
    let c = Cluster::new(2, &[], &options).deaf(Duration::from_millis(2));
    c.net.deaf.store(false, Ordering::Relaxed);
    c.unsure.fail_every(5);
    hammer(&c, 32, 50, 4);
}

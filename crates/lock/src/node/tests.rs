use std::sync::Arc;
use std::time::Instant;

use braid_format::node::{DamagedPart, Heartbeat, SlotRecord};
use braid_format::{BlockNo, BlockSize, Bytes, Incarnation};
use braid_pool::EpochTag;
use braid_testkit::wait_until;
use parking_lot::Mutex;

use super::*;
use crate::glock::{DemoteFailed, Demoted, Demoting, GlockOps, Local, LockManager, ManagerOptions};
use crate::peers::Peers;
use crate::store::{CawOutcome, MemoryStore};
use crate::{LockError, Mode};

mod fence;
mod hints;

#[derive(Default)]
struct Log {
    recovered: Mutex<Vec<(Life, Instant)>>,
    fail: Mutex<u32>,
    damage: Mutex<Option<SlotDamage>>,
    /// Recoveries wait for it.
    held: Mutex<()>,
}
impl Recover for Log {
    fn recover(&self, dead: Life, _: Life) -> Result<(), NotRecovered> {
        drop(self.held.lock());
        let mut fail = self.fail.lock();
        if *fail > 0 {
            *fail -= 1;
            return Err(NotRecovered::Failed("injected".into()));
        }
        if let Some(damage) = *self.damage.lock() {
            return Err(NotRecovered::Damaged { damage, source: "spoiled".into() });
        }
        self.recovered.lock().push((dead, Instant::now()));
        Ok(())
    }
}

struct Plain;
impl GlockOps for Plain {
    fn demote(&self, _: &Demoting<'_>) -> Result<Demoted, DemoteFailed> {
        Ok(Demoted::default())
    }
}

fn options() -> JoinOptions {
    JoinOptions { timing: Timing::of_beat(Duration::from_millis(50)), ..JoinOptions::default() }
}

struct Node {
    nodes: MemoryNodes,
    member: Arc<Membership>,
    manager: Arc<LockManager>,
    log: Arc<Log>,
}
fn node(all: &MemoryNodes, locks: &MemoryStore) -> Node {
    node_of(all.process(), locks)
}
fn node_of(nodes: MemoryNodes, locks: &MemoryStore) -> Node {
    node_by(nodes, locks, options())
}
fn node_by(nodes: MemoryNodes, locks: &MemoryStore, options: JoinOptions) -> Node {
    let log = Arc::new(Log::default());
    let member = Membership::join(Arc::new(nodes.clone()), options, log.clone()).unwrap();
    let manager = LockManager::new(
        member.me(),
        Arc::new(locks.clone()),
        member.clone(),
        Arc::new(Plain),
        ManagerOptions::default(),
    )
    .unwrap();
    member.attach(&manager).unwrap();
    Node { nodes, member, manager, log }
}
impl Node {
    /// As SIGKILL: nothing more is issued, liveness lock gone.
    fn kill(&self) {
        self.manager.withdraw();
        self.nodes.kill();
    }
}
#[test]
fn nodes_join_beat_and_leave() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let a = node(&all, &locks);
    let b = node(&all, &locks);
    assert_eq!(a.member.me().slot, NodeId(0));
    assert_eq!(b.member.me().slot, NodeId(1));
    let deltas = Deltas { free: -5, inodes: 2, meta: -7 };
    a.member.publish(deltas);
    wait_until("deltas", || b.member.others_deltas() == deltas);
    wait_until("two nodes", || a.member.nodes().iter().filter(|n| n.beating).count() == 2);
    let first = a.member.me();
    a.manager.shutdown().unwrap();
    a.member.leave().unwrap();
    wait_until("seen to be gone", || b.member.liveness(first) == Liveness::Dead);
    wait_until("deltas without it", || b.member.others_deltas() == Deltas::default());
    let c = node(&all, &locks);
    assert_eq!(c.member.me().slot, NodeId(0));
    assert_eq!(c.member.me().incarnation.0, first.incarnation.0 + 1);
    assert!(b.log.recovered.lock().is_empty(), "a node that left needs no recovery");
}

/// Whoever has just joined sees it, too.
#[test]
fn nodes_say_which_features_of_the_format_they_know() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let few = Features::of_label(1);
    let older = node_by(all.process(), &locks, JoinOptions { knows: few, ..options() });
    let me = older.member.me();
    let beats = || Heartbeat::decode(&all.read_heartbeats().unwrap()[..512], me.slot).is_ok();
    wait_until("its first heartbeat", beats);
    let eyes = |me| PeerObserver::new(Arc::new(all.process()), me, &options());
    let new = eyes(Life { slot: NodeId(1), incarnation: Incarnation(1) });
    assert_eq!(new.who_lacks(Features::KNOWN).unwrap(), [me.slot]);
    assert_eq!(new.who_lacks(few).unwrap(), []);
    assert_eq!(eyes(me).who_lacks(Features::KNOWN).unwrap(), [], "itself does not count");
    older.manager.shutdown().unwrap();
    older.member.leave().unwrap();
    assert_eq!(new.who_lacks(Features::KNOWN).unwrap(), []);
}

/// In ten beats two nodes wrote 20 heartbeats and read 40 times while each look was of its own beat.
#[test]
fn nodes_that_do_nothing_cost_little_and_a_death_is_noticed_nevertheless() {
    let (all, locks, beat) = (MemoryNodes::new(4), MemoryStore::new(), options().timing.beat());
    let (a, b) = (node(&all, &locks), node(&all, &locks));
    wait_until("both seen", || a.member.nodes().len() == 2 && b.member.nodes().len() == 2);
    let quiet = || {
        let before = all.requests();
        std::thread::sleep(beat * 10);
        all.requests() - before
    };
    let mut least = u64::MAX;
    wait_until("quiet", || {
        least = least.min(quiet());
        least <= 24
    });
    // What one has to say is heard at once.
    let deltas = Deltas { free: -5, inodes: 2, meta: -7 };
    a.member.publish(deltas);
    wait_until("deltas", || b.member.others_deltas() == deltas);
    assert!(quiet() > least, "news is followed by more looks");
    wait_until("quiet again", || quiet() <= 24);
    let dead = b.member.me();
    b.kill();
    wait_until("recovered", || a.member.liveness(dead) == Liveness::Dead);
}

/// Else a proof, a key or a lock record of the first would be taken for the second's.
#[test]
fn a_name_that_died_while_it_took_a_slot_over_is_not_given_again() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let a = node(&all, &locks);
    let first = a.member.me();
    a.kill();
    let dying = all.process();
    let log = Arc::new(Log { fail: Mutex::new(1), ..Log::default() });
    let taking = JoinOptions { slot: Some(first.slot), ..options() };
    let failed = Membership::join(Arc::new(dying.clone()), taking, log);
    assert!(matches!(failed, Err(LockError::Recovery { .. })));
    dying.kill();
    let b = node(&all, &locks);
    wait_until("the slot is free again", || b.member.nodes().len() == 1);
    let c = node(&all, &locks);
    assert_eq!((c.member.me().slot, c.member.me().incarnation.0), (first.slot, 3));
}

#[test]
fn locks_of_a_node_that_left_are_broken_lazily() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let a = node(&all, &locks);
    let b = node(&all, &locks);
    drop(a.manager.acquire(LockNo(5), Mode::Exclusive, Local::Exclusive).unwrap());
    a.manager.shutdown().unwrap();
    a.member.leave().unwrap();
    let began = Instant::now();
    drop(b.manager.acquire(LockNo(5), Mode::Exclusive, Local::Exclusive).unwrap());
    let silence = Duration::from_millis(options().timing.milliseconds().into());
    assert!(began.elapsed() < silence, "it waited for a silence");
    assert!(b.log.recovered.lock().is_empty(), "a node that left needs no recovery");
}

#[test]
fn a_killed_node_is_recovered_and_its_locks_move_on() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let a = node(&all, &locks);
    let b = node(&all, &locks);
    *b.log.fail.lock() = 1;
    drop(a.manager.acquire(LockNo(5), Mode::Exclusive, Local::Exclusive).unwrap());
    let began = Instant::now();
    a.kill();
    drop(b.manager.acquire(LockNo(5), Mode::Exclusive, Local::Exclusive).unwrap());
    println!("killed to taken, beat 50 ms, first recovery failing: {:?}", began.elapsed());
    let recovered = b.log.recovered.lock().clone();
    assert_eq!(recovered.len(), 1);
    assert_eq!(recovered[0].0, a.member.me());
}

#[test]
fn a_recoverer_that_dies_is_recovered_too() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let a = node(&all, &locks);
    let b = node(&all, &locks);
    *b.log.fail.lock() = u32::MAX;
    a.kill();
    wait_until("b recovers a", || {
        b.member.nodes().iter().any(|n| n.recoverer == Some(b.member.me()))
    });
    let c = node(&all, &locks);
    b.kill();
    wait_until("c recovers both", || c.log.recovered.lock().len() == 2);
    wait_until("slots free", || c.member.nodes().len() == 1);
}

fn damage(replayed: bool) -> SlotDamage {
    SlotDamage { block: BlockNo(9), part: DamagedPart::Journal, replayed }
}

#[test]
fn what_a_lost_node_held_is_refused_until_its_journal_is_replayed_and_all_else_goes_on() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let [a, b, c] = [(); 3].map(|()| node(&all, &locks));
    for n in [&b, &c] {
        *n.log.damage.lock() = Some(damage(false));
    }
    let take = |n: &Node, lock| {
        n.manager.acquire(LockNo(lock), Mode::Exclusive, Local::Exclusive).map(drop)
    };
    take(&a, 5).unwrap();
    take(&b, 6).unwrap();
    a.kill();
    // Whoever has been waiting is told, whichever node it is on.
    std::thread::scope(|s| {
        for n in [&b, &c] {
            s.spawn(move || {
                let refused = take(n, 5);
                assert!(
                    matches!(refused, Err(LockError::Lost { block: BlockNo(9), .. })),
                    "{refused:?}"
                );
            });
        }
    });
    assert!(matches!(take(&c, 5), Err(LockError::Lost { .. })));
    let record = |n: &Node| n.member.nodes().into_iter().find(|v| v.life == a.member.me());
    for n in [&b, &c] {
        take(n, 6).unwrap();
        wait_until("seen by all", || record(n).is_some_and(|r| r.damage == Some(damage(false))));
    }
    // Nobody gets its slot.
    let joined = JoinOptions { slot: Some(a.member.me().slot), ..options() };
    let log = Arc::new(Log::default());
    let refused = Membership::join(Arc::new(all.process()), joined, log.clone());
    assert!(matches!(refused, Err(LockError::Damaged { node, .. }) if node == a.member.me()));
    // A later attempt gets past the journal.
    for n in [&b, &c] {
        *n.log.damage.lock() = Some(damage(true));
    }
    wait_until("replayed", || record(&c).is_some_and(|r| r.damage == Some(damage(true))));
    for n in [&c, &b] {
        wait_until("taken", || take(n, 5).is_ok());
    }
    assert_eq!(record(&c).unwrap().state, SlotState::Recovering);
    for n in [&b, &c] {
        *n.log.damage.lock() = None;
    }
    wait_until("recovered", || record(&c).is_none());
    for n in [b, c] {
        n.manager.shutdown().unwrap();
        n.member.leave().unwrap();
    }
}

#[test]
fn whoever_waited_behind_a_lost_node_gets_what_that_never_held() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let [a, b, c] = [(); 3].map(|()| node(&all, &locks));
    for n in [&b, &c] {
        *n.log.damage.lock() = Some(damage(false));
    }
    let guard = b.manager.acquire(LockNo(5), Mode::Exclusive, Local::Exclusive).unwrap();
    let waiting = a.manager.clone();
    let first = std::thread::spawn(move || {
        waiting.acquire(LockNo(5), Mode::Exclusive, Local::Exclusive).map(drop)
    });
    let waits = |n: &Node| {
        let record = crate::store::read_record(&locks, LockNo(5)).unwrap().unwrap();
        record.waiters.iter().any(|w| w.life == n.member.me())
    };
    wait_until("a waits", || waits(&a));
    a.kill();
    assert!(first.join().unwrap().is_err());
    wait_until("a is lost", || b.member.lost(a.member.me()).is_some());
    wait_until("everywhere", || c.member.lost(a.member.me()).is_some());
    let next = c.manager.clone();
    let second = std::thread::spawn(move || {
        next.acquire(LockNo(5), Mode::Exclusive, Local::Exclusive).map(drop)
    });
    wait_until("c waits", || waits(&c));
    drop(guard);
    second.join().unwrap().unwrap();
}

#[test]
fn another_slot_will_do_for_who_joins_beside_a_damaged_one() {
    let all = MemoryNodes::new(2);
    let join = |spoiled: bool| {
        let nodes = all.process();
        let log = Log::default();
        *log.damage.lock() = spoiled.then(|| damage(false));
        Membership::join(Arc::new(nodes.clone()), options(), Arc::new(log)).map(|m| (m, nodes))
    };
    let (a, first) = join(false).unwrap();
    let (b, second) = join(false).unwrap();
    first.kill();
    let refused = join(true);
    assert!(matches!(refused.map(drop), Err(LockError::Damaged { node, .. }) if node == a.me()));
    b.leave().unwrap();
    drop(second);
    let (c, _third) = join(true).unwrap();
    assert_eq!(c.me().slot, NodeId(1));
    let noted = c.nodes().into_iter().find(|n| n.life == a.me()).unwrap();
    assert_eq!((noted.state, noted.damage), (SlotState::Recovering, Some(damage(false))));
}

#[test]
fn one_slot_has_one_winner() {
    for _ in 0..20 {
        let all = MemoryNodes::new(1);
        let joined: Vec<_> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let nodes = Arc::new(all.process());
                    s.spawn(move || Membership::join(nodes, options(), Arc::new(Log::default())))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(joined.iter().filter(|j| j.is_ok()).count(), 1);
        for refused in joined.iter().filter_map(|j| j.as_ref().err()) {
            assert!(matches!(refused, LockError::NoFreeSlot { slots: 1 }), "{refused}");
        }
    }
}

#[test]
fn a_slot_asked_for_must_exist_and_be_free() {
    let all = MemoryNodes::new(2);
    let join = |slot| {
        let options = JoinOptions { slot: Some(NodeId(slot)), ..options() };
        Membership::join(Arc::new(all.process()), options, Arc::new(Log::default()))
    };
    let a = join(1).unwrap();
    assert_eq!(a.me().slot, NodeId(1));
    assert!(matches!(join(1), Err(LockError::SlotTaken { slot: NodeId(1), .. })));
    assert!(matches!(join(2), Err(LockError::NoSuchSlot { slots: 2, .. })));
}

#[test]
fn the_only_slot_of_a_dead_node_is_taken_after_recovery() {
    let all = MemoryNodes::new(1);
    let first = all.process();
    let a = Membership::join(Arc::new(first.clone()), options(), Arc::new(Log::default())).unwrap();
    first.kill();
    let fails = Arc::new(Log::default());
    *fails.fail.lock() = 1;
    let refused = Membership::join(Arc::new(all.process()), options(), fails);
    assert!(matches!(refused, Err(LockError::Recovery { node, .. }) if node == a.me()));
    let log = Arc::new(Log::default());
    let b = Membership::join(Arc::new(all.process()), options(), log.clone()).unwrap();
    assert_eq!(log.recovered.lock()[0].0, a.me());
    assert!(b.me().incarnation > a.me().incarnation);
    // Its heartbeats are later than those of while it took the slot over.
    let beat = || Heartbeat::decode(&all.read_heartbeats().unwrap(), NodeId(0));
    wait_until("it beats", || beat().is_ok_and(|h| h.life == b.me() && h.sequence > 1 << 32));
}

#[test]
fn who_joins_waits_for_the_slot_of_a_node_that_another_is_recovering() {
    for slot in [None, Some(NodeId(1))] {
        let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
        let (a, b) = (node(&all, &locks), node(&all, &locks));
        let held = a.log.held.lock();
        b.kill();
        let recoverer = || SlotRecord::decode(&all.read_slot(NodeId(1)).unwrap(), NodeId(1));
        wait_until("it is being recovered", || {
            recoverer().unwrap().recoverer == Some(a.member.me())
        });
        let joining = JoinOptions { slot, ..options() };
        let process = Arc::new(all.process());
        let join = std::thread::spawn(move || {
            Membership::join(process, joining, Arc::new(Log::default()))
        });
        std::thread::sleep(options().timing.beat() * 2);
        drop(held);
        assert_eq!(join.join().unwrap().unwrap().me().slot, NodeId(1));
    }
}

#[test]
fn an_earlier_boot_of_this_host_is_recovered_after_silence_and_another_host_is_not() {
    let identity = |boot, host: &str| {
        Some(HostIdentity { boot_id: [boot; 16], machine_id: [1; 16], host: host.to_owned() })
    };
    let join = |all: &MemoryNodes, id| {
        let nodes = all.process();
        let options = JoinOptions { identity: id, ..options() };
        let log = Arc::new(Log::default());
        Membership::join(Arc::new(nodes.clone()), options, log.clone()).map(|m| (m, nodes, log))
    };
    let all = MemoryNodes::new(1);
    let (_a, first, _) = join(&all, identity(1, "here")).unwrap();
    first.kill();
    assert!(matches!(join(&all, identity(2, "there")), Err(LockError::NoFreeSlot { .. })));
    let began = Instant::now();
    let (_b, _, log) = join(&all, identity(2, "here")).unwrap();
    assert_eq!(log.recovered.lock().len(), 1);
    assert!(began.elapsed() >= options().timing.fence_after(), "as long as a clone could write");
}

#[test]
fn a_damaged_slot_keeps_nobody_from_being_recovered_nor_from_joining() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let (a, b) = (node(&all, &locks), node(&all, &locks));
    all.spoil(NodeId(2));
    wait_until("said", || a.member.nodes().iter().any(|n| n.unreadable.is_some()));
    let dead = b.member.me();
    b.kill();
    wait_until("recovered", || a.member.liveness(dead) == Liveness::Dead);
    let (c, d) = (node(&all, &locks), node(&all, &locks));
    // In any order: the dead node's slot is free a moment after it is recovered.
    let mut taken = [c.member.me().slot, d.member.me().slot];
    taken.sort_unstable();
    assert_eq!(taken, [NodeId(1), NodeId(3)]);
    let asked = JoinOptions { slot: Some(NodeId(2)), ..options() };
    let asked = Membership::join(Arc::new(all.process()), asked, Arc::new(Log::default()));
    assert!(matches!(asked, Err(LockError::Slot { slot: NodeId(2), .. })));
    // What a life of it holds stands.
    let life = Life { slot: NodeId(2), incarnation: braid_format::Incarnation(1) };
    assert_eq!(d.member.liveness(life), Liveness::Alive);
}

#[test]
fn a_change_of_the_pool_need_not_wait_for_a_slot_that_was_long_seen_to_be_nobodys() {
    let (all, options) = (MemoryNodes::new(2), options());
    let a = node_by(all.process(), &MemoryStore::new(), options.clone());
    all.spoil(NodeId(1));
    wait_until("seen", || a.member.nodes().iter().any(|n| n.unreadable.is_some()));
    std::thread::sleep(options.timing.fence_after() + options.timing.beat() * 4);
    // Its regular looks have counted the time before anybody asked.
    let asked = PeerObserver::new(Arc::new(a.nodes.clone()), a.member.me(), &options);
    assert!(asked.all_use(EpochTag { epoch: 1, change: 0 }));
    a.manager.shutdown().unwrap();
    a.member.leave().unwrap();
}

#[test]
fn a_dead_node_that_served_clients_is_recovered_when_they_rely_on_nothing_any_more() {
    let (all, locks) = (MemoryNodes::new(3), MemoryStore::new());
    let a = node(&all, &locks);
    let b = node_by(all.process(), &locks, JoinOptions { serves: true, ..options() });
    let (dead, killed) = (b.member.me(), Instant::now());
    b.kill();
    wait_until("recovered", || a.member.liveness(dead) == Liveness::Dead);
    assert!(killed.elapsed() >= SERVED_WAIT);
    // Whoever takes the slot of one over waits, too.
    let c = node_by(all.process(), &locks, JoinOptions { serves: true, ..options() });
    let (slot, killed) = (Some(c.member.me().slot), Instant::now());
    [&a, &c].iter().for_each(|node| node.kill());
    node_by(all.process(), &locks, JoinOptions { slot, ..options() });
    assert!(killed.elapsed() >= SERVED_WAIT);
}

#[test]
fn what_a_node_knew_of_a_slot_before_it_was_damaged_still_counts() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    let (a, b) = (node(&all, &locks), node(&all, &locks));
    let left = b.member.me();
    b.manager.shutdown().unwrap();
    b.member.leave().unwrap();
    wait_until("seen to have left", || a.member.liveness(left) == Liveness::Dead);
    all.spoil(left.slot);
    wait_until("said", || a.member.nodes().iter().any(|n| n.unreadable.is_some()));
    assert_eq!(a.member.liveness(left), Liveness::Dead);
}

#[test]
fn a_node_that_lives_mends_its_own_slot() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    let (a, b) = (node(&all, &locks), node(&all, &locks));
    all.spoil(NodeId(0));
    let said = || {
        let slot = all.read_slot(NodeId(0)).unwrap();
        SlotRecord::decode(&slot, NodeId(0)).is_ok_and(|r| r.life == a.member.me())
    };
    wait_until("mended", said);
    wait_until("seen again", || b.member.nodes().iter().all(|n| n.unreadable.is_none()));
    a.manager.shutdown().unwrap();
    a.member.leave().unwrap();
}

/// As two containers, each with device nodes of its own for one disk: neither sees the other's locks.
#[test]
fn a_living_node_whose_lock_is_not_seen_keeps_its_slot() {
    let all = MemoryNodes::new(2);
    let join = |nodes: &MemoryNodes, slot| {
        let options = JoinOptions { slot: Some(NodeId(slot)), ..options() };
        Membership::join(Arc::new(nodes.clone()), options, Arc::new(Log::default()))
    };
    let first = all.process();
    let a = join(&first, 0).unwrap();
    let other = all.process();
    other.lock_elsewhere(7);
    assert!(
        matches!(join(&other, 0), Err(LockError::SlotTaken { holder, .. }) if holder == a.me())
    );
    // Nor does its silence change that: it may only be slow.
    first.hush(true);
    assert!(matches!(join(&other, 0), Err(LockError::SlotTaken { .. })));
    first.hush(false);
    // And one that sees the lock, or should, believes heartbeats rather than its absence.
    all.lose_lock(NodeId(0));
    assert!(matches!(join(&all.process(), 0), Err(LockError::SlotTaken { .. })));
    a.leave().unwrap();
}

#[test]
fn nodes_that_compare_by_locks_which_the_other_does_not_see_are_refused() {
    let all = MemoryNodes::new(4);
    all.compare_by_lock();
    let join = |nodes: &MemoryNodes, identity: Option<HostIdentity>| {
        let options = JoinOptions { identity, ..options() };
        Membership::join(Arc::new(nodes.clone()), options, Arc::new(Log::default()))
    };
    let first = all.process();
    let a = join(&first, None).unwrap();
    let other = all.process();
    other.lock_elsewhere(7);
    let refused = join(&other, None);
    assert!(
        matches!(&refused, Err(LockError::ForeignLocks { node, here: true, .. }) if *node == a.me())
    );
    let elsewhere = HostIdentity { boot_id: [9; 16], machine_id: [9; 16], host: "x".to_owned() };
    let refused = join(&other, Some(elsewhere.clone()));
    assert!(matches!(refused, Err(LockError::ForeignLocks { here: false, .. })));
    // One that is gone keeps nobody away, though it is not known to be dead.
    first.kill();
    assert_eq!(join(&other, Some(elsewhere)).unwrap().me().slot, NodeId(1));
}

#[test]
fn two_that_compare_by_different_locks_do_not_live_side_by_side() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    let a = node(&all, &locks);
    let other = all.process();
    other.lock_elsewhere(7);
    let b = node_of(other, &locks);
    // One of the members is a disk that does not compare by itself from now on.
    all.compare_by_lock();
    // Whoever sees it first leaves, and the other one goes on alone.
    wait_until("withdrawn", || a.member.has_ended() || b.member.has_ended());
}

/// As when the member that carries the locks is replaced by another.
#[test]
fn a_node_whose_locks_move_is_not_foreign_to_itself() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    all.compare_by_lock();
    let a = node(&all, &locks);
    let said = || {
        let slot = all.read_slot(NodeId(0)).unwrap();
        SlotRecord::decode(&slot, NodeId(0)).unwrap().lock_places
    };
    a.nodes.lock_elsewhere(7);
    wait_until("said", || said() == a.nodes.lock_places());
    assert!(!a.member.has_ended());
    a.manager.shutdown().unwrap();
    a.member.leave().unwrap();
}

#[test]
fn a_slot_says_where_the_lock_is_now() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    let a = node(&all, &locks);
    let said = || {
        let slot = all.read_slot(NodeId(0)).unwrap();
        SlotRecord::decode(&slot, NodeId(0)).unwrap().lock_places
    };
    assert_eq!(said(), a.nodes.lock_places());
    a.nodes.lock_elsewhere(7);
    wait_until("said", || said() == a.nodes.lock_places());
    a.manager.shutdown().unwrap();
    a.member.leave().unwrap();
}

#[test]
fn a_node_that_cannot_beat_withdraws() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    let a = node(&all, &locks);
    a.nodes.kill();
    wait_until("withdrawn", || {
        let refused = a.manager.acquire(LockNo(1), Mode::Shared, Local::Shared);
        matches!(refused, Err(LockError::Withdrawn))
    });
}

/// What was said of a lease.
#[derive(Default)]
struct Heard(Mutex<Vec<&'static str>>);
impl OnLease for Heard {
    fn over(&self, for_good: bool, _: Duration, _: Duration) {
        self.0.lock().push(if for_good { "withdrawn" } else { "over" });
    }
    fn regained(&self) {
        self.0.lock().push("regained");
    }
}

#[test]
fn the_end_of_a_lease_is_said_while_the_heartbeat_hangs() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    let a = node(&all, &locks);
    let heard = Arc::<Heard>::default();
    a.member.watch_lease(heard.clone()).unwrap();
    for _ in 0..2 {
        a.nodes.hush(true);
        wait_until("over", || heard.0.lock().last() == Some(&"over"));
        a.nodes.hush(false);
        wait_until("regained", || heard.0.lock().last() == Some(&"regained"));
    }
    assert_eq!(*heard.0.lock(), ["over", "regained", "over", "regained"]);
    a.manager.shutdown().unwrap();
    a.member.leave().unwrap();
}

/// It uses an epoch in which a member has failed, and the other one does not: perhaps that one looks for heartbeats
/// where there are none, and fences it.
#[test]
fn what_a_node_serves_ends_if_others_do_not_follow_its_epoch() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    let (a, b) = (node(&all, &locks), node(&all, &locks));
    let heard = Arc::<Heard>::default();
    a.member.watch_lease(heard.clone()).unwrap();
    wait_until("it sees the other", || a.member.nodes().iter().all(|n| n.last_beat.is_some()));
    let next = EpochTag { epoch: 7, change: 1 };
    a.nodes.use_epoch(next);
    wait_until("over", || heard.0.lock().last() == Some(&"over"));
    std::thread::sleep(options().timing.lease());
    assert_eq!(*heard.0.lock(), ["over"], "for as long as that is so");
    b.nodes.use_epoch(next);
    wait_until("regained", || heard.0.lock().last() == Some(&"regained"));
    for node in [a, b] {
        node.manager.shutdown().unwrap();
        node.member.leave().unwrap();
    }
}

/// Its last heartbeat lands after the lease that it began is over, and there is no next one.
#[test]
fn a_node_whose_last_beat_was_slow_leaves() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    let a = node(&all, &locks);
    a.manager.shutdown().unwrap();
    a.nodes.hush(true);
    std::thread::sleep(options().timing.beat() * 4);
    let member = a.member.clone();
    let leaving = std::thread::spawn(move || member.leave());
    std::thread::sleep(options().timing.lease());
    a.nodes.hush(false);
    wait_until("left", || leaving.is_finished());
    leaving.join().unwrap().unwrap();
    let slot = all.read_slot(NodeId(0)).unwrap();
    assert_eq!(SlotRecord::decode(&slot, NodeId(0)).unwrap().state, SlotState::Free);
}

#[test]
fn pool_areas_hold_slots_and_beats() {
    let pool = braid_pool::Pool::for_tests(2, Bytes(8 << 20));
    let areas = NodeAreas {
        block_size: BlockSize::DEFAULT,
        lock_sector: Bytes(512),
        node_slots: 16,
        slot_area: BlockNo(100),
        heartbeat_area: BlockNo(110),
        fs_uuid: uuid::Uuid::new_v4(),
    };
    let mut bytes = vec![0; 16 * 512];
    areas.encode_free_slots(&mut bytes);
    pool.write(areas.block_size.offset_of(areas.slot_area), &bytes).unwrap();
    let nodes = PoolNodes::new(pool, areas);
    for (slot, sector) in (0..16).zip(nodes.read_slots().unwrap().chunks(512)) {
        assert_eq!(SlotRecord::decode(sector, NodeId(slot)), Ok(SlotRecord::free(NodeId(slot))));
    }
    nodes.write_heartbeat(NodeId(3), &[7; 512]).unwrap();
    let beats = nodes.read_heartbeats().unwrap();
    assert_eq!(beats[3 * 512], 7);
    assert_eq!(beats.iter().filter(|b| **b != 0).count(), 512);
}

/// Who follows a change waits for requests that may take long: the dead are seen all the same.
#[test]
fn a_node_that_waits_to_follow_a_change_still_watches_the_others() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let a = node(&all, &locks);
    let store = Arc::new(all.process());
    store.use_epoch(EpochTag { epoch: 7, change: 7 });
    let log = Arc::new(Log::default());
    let member = Membership::join(store.clone(), options(), log.clone()).unwrap();
    let manager = LockManager::new(
        member.me(),
        Arc::new(locks.clone()),
        member.clone(),
        Arc::new(Plain),
        ManagerOptions::default(),
    )
    .unwrap();
    member.attach(&manager).unwrap();
    store.stall(true);
    let before = store.follows();
    wait_until("it follows", || store.follows() > before);
    a.kill();
    wait_until("the dead one is recovered", || !log.recovered.lock().is_empty());
    store.stall(false);
    member.end_tasks();
    member.leave().unwrap();
}

/// A flipped bit in one copy of slots: they are had from the other one, and can be changed; what was
/// damaged is sound then.
#[test]
fn a_damaged_copy_of_a_slot_is_gone_around_and_mended() {
    for damaged in 0..2 {
        let device = |i| {
            let name = format!("m{i}");
            braid_device::MemoryDevice::new(&name, Bytes(16 << 20), Bytes(512))
                as Arc<dyn braid_device::Device>
        };
        let redundancy = braid_pool::layout::Redundancy::Mirror(2);
        let options =
            braid_pool::CreateOptions { redundancy, ..braid_pool::CreateOptions::new("mirrored") };
        let pool = braid_pool::Pool::create((0..2).map(device).collect(), &options).unwrap();
        let areas = NodeAreas {
            block_size: BlockSize::DEFAULT,
            lock_sector: Bytes(512),
            node_slots: 16,
            slot_area: BlockNo(1700),
            heartbeat_area: BlockNo(1710),
            fs_uuid: uuid::Uuid::new_v4(),
        };
        let mut bytes = vec![0; 16 * 512];
        areas.encode_free_slots(&mut bytes);
        let at = areas.block_size.offset_of(areas.slot_area);
        pool.write(at, &bytes).unwrap();
        let mut bad = bytes.clone();
        (0..16).for_each(|slot| bad[slot * 512 + 40] ^= 1);
        let start = pool.label().members[damaged].data_start + Bytes(at.0);
        pool.devices()[damaged].write(start, &bad).unwrap();
        let nodes = PoolNodes::new(pool.clone(), areas);
        assert!(nodes.read_slots().unwrap() == bytes, "copy {damaged}");
        for slot in (0..16).map(NodeId) {
            let was = nodes.read_slot(slot).unwrap();
            assert_eq!(SlotRecord::decode(&was, slot), Ok(SlotRecord::free(slot)));
            let mut new = vec![0; 512];
            SlotRecord { nonce: 7, ..SlotRecord::free(slot) }.encode(&mut new);
            let outcome = nodes.compare_and_write_slot(slot, &was, &new).unwrap();
            assert_eq!(outcome, CawOutcome::Written, "copy {damaged}, slot {slot:?}");
            for (member, device) in pool.label().members.iter().zip(pool.devices()) {
                let place = member.data_start + Bytes(at.0) + Bytes(u64::from(slot.0) * 512);
                let mut there = vec![0; 512];
                device.read(place, &mut there).unwrap();
                assert!(there == new, "copy {damaged}, slot {slot:?}");
            }
        }
    }
}

use std::sync::Arc;
use std::time::Instant;

use braid_format::node::SlotRecord;
use braid_format::{BlockNo, BlockSize, Bytes};
use parking_lot::Mutex;

use super::*;
use crate::glock::{DemoteFailed, Demoted, GlockOps, Local, LockManager, ManagerOptions};
use crate::store::MemoryStore;
use crate::{LockError, Mode};

#[derive(Default)]
struct Log {
    recovered: Mutex<Vec<(Me, Instant)>>,
    fail: Mutex<u32>,
}
impl Recover for Log {
    fn recover(&self, dead: Me) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut fail = self.fail.lock();
        if *fail > 0 {
            *fail -= 1;
            return Err("injected".into());
        }
        self.recovered.lock().push((dead, Instant::now()));
        Ok(())
    }
}

struct Plain;
impl GlockOps for Plain {
    fn demote(&self, _: LockNo, _: Mode, _: Mode) -> Result<Demoted, DemoteFailed> {
        Ok(Demoted::default())
    }
}

fn options() -> JoinOptions {
    JoinOptions { beat: Duration::from_millis(50), ..JoinOptions::default() }
}

struct Node {
    nodes: MemoryNodes,
    member: Arc<Membership>,
    manager: Arc<LockManager>,
    log: Arc<Log>,
}
fn node(all: &MemoryNodes, locks: &MemoryStore) -> Node {
    let nodes = all.process();
    let log = Arc::new(Log::default());
    let member = Membership::join(Arc::new(nodes.clone()), options(), log.clone()).unwrap();
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
fn until(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    began.elapsed()
}

#[test]
fn nodes_join_beat_and_leave() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let a = node(&all, &locks);
    let b = node(&all, &locks);
    assert_eq!(a.member.me().slot, NodeId(0));
    assert_eq!(b.member.me().slot, NodeId(1));
    a.member.publish(-5, 2);
    until("deltas", || b.member.others_deltas() == (-5, 2));
    until("two nodes", || a.member.nodes().iter().filter(|n| n.beating).count() == 2);
    let first = a.member.me();
    a.manager.shutdown().unwrap();
    a.member.leave().unwrap();
    until("seen to be gone", || b.member.liveness(first) == Liveness::Dead);
    until("deltas without it", || b.member.others_deltas() == (0, 0));
    let c = node(&all, &locks);
    assert_eq!(c.member.me().slot, NodeId(0));
    assert_eq!(c.member.me().incarnation.0, first.incarnation.0 + 1);
    assert!(b.log.recovered.lock().is_empty(), "a node that left needs no recovery");
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
    assert!(began.elapsed() < Duration::from_secs(1));
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
    until("b recovers a", || b.member.nodes().iter().any(|n| n.recoverer == Some(b.member.me())));
    let c = node(&all, &locks);
    b.kill();
    until("c recovers both", || c.log.recovered.lock().len() == 2);
    until("slots free", || c.member.nodes().len() == 1);
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
    let (_b, _, log) = join(&all, identity(2, "here")).unwrap();
    assert_eq!(log.recovered.lock().len(), 1);
}

#[test]
fn a_node_that_cannot_beat_withdraws() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    let a = node(&all, &locks);
    a.nodes.kill();
    until("withdrawn", || {
        let refused = a.manager.acquire(LockNo(1), Mode::Shared, Local::Shared);
        matches!(refused, Err(LockError::Withdrawn))
    });
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

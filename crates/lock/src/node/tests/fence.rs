//! Nodes of several hosts, on areas in memory that know reservations.

use super::super::fencer::Fencer;
use super::*;

fn me(slot: u16, incarnation: u32) -> Life {
    Life { slot: NodeId(slot), incarnation: braid_format::Incarnation(incarnation) }
}

/// A node as if on its own host, with its manager.
fn on(host: u8, all: &MemoryNodes, locks: &MemoryStore, fence: FenceOptions) -> Node {
    let nodes = all.process();
    let log = Arc::new(Log::default());
    let identity =
        HostIdentity { boot_id: [host; 16], machine_id: [host; 16], host: format!("host{host}") };
    let options = JoinOptions { identity: Some(identity), fence, ..options() };
    let member = Membership::join(Arc::new(nodes.clone()), options, log.clone()).unwrap();
    let (locks, ops) = (Arc::new(locks.clone()), Arc::new(Plain));
    let managed =
        LockManager::new(member.me(), locks, member.clone(), ops, ManagerOptions::default());
    let manager = managed.unwrap();
    member.attach(&manager).unwrap();
    Node { nodes, member, manager, log }
}

fn own() -> HostIdentity {
    HostIdentity { boot_id: [9; 16], machine_id: [9; 16], host: "own".to_owned() }
}

fn view(of: &Node, life: Life) -> Option<NodeView> {
    of.member.nodes().into_iter().find(|n| n.life == life)
}

#[test]
fn a_silent_node_of_another_host_is_fenced_and_recovered() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    all.with_reservations();
    let a = on(1, &all, &locks, FenceOptions::default());
    let b = on(2, &all, &locks, FenceOptions::default());
    let dead = a.member.me();
    assert_eq!(all.keys().len(), 2);
    wait_until("seen", || view(&b, dead).is_some_and(|n| n.beating && n.key != 0));
    assert_eq!(view(&b, dead).unwrap().fence, FenceMethod::Reservation);
    drop(a.manager.acquire(LockNo(5), Mode::Exclusive, Local::Exclusive).unwrap());
    // A fence that fails is tried again, and until then nothing is recovered.
    all.deafen(true);
    a.nodes.kill();
    wait_until("silent", || view(&b, dead).is_some_and(|n| !n.beating));
    std::thread::sleep(Duration::from_millis(200));
    assert!(b.log.recovered.lock().is_empty() && b.member.liveness(dead) == Liveness::Alive);
    all.deafen(false);
    drop(b.manager.acquire(LockNo(5), Mode::Exclusive, Local::Exclusive).unwrap());
    assert_eq!(b.log.recovered.lock()[0].0, dead);
    wait_until("one key", || all.keys().len() == 1);
    b.manager.shutdown().unwrap();
    b.member.leave().unwrap();
    assert!(all.keys().is_empty());
}

#[test]
fn a_node_that_is_fenced_withdraws_at_once() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    all.with_reservations();
    let a = on(1, &all, &locks, FenceOptions::default());
    let b = on(2, &all, &locks, FenceOptions::default());
    let key = view(&a, a.member.me()).unwrap().key;
    let how = braid_pool::FenceHow {
        prove: true,
        reset: false,
        epoch_seen: braid_format::Epoch(u64::MAX),
    };
    b.nodes.fence(key, how).unwrap();
    wait_until("withdrawn", || a.manager.has_withdrawn());
    assert!(!b.manager.has_withdrawn());
}

/// A program that is said to turn hosts off.
struct Program {
    dir: tempfile::TempDir,
    /// Which host's slot in which life, a line each call.
    called: std::path::PathBuf,
}
impl Program {
    /// One that ends with `code`.
    fn new(code: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let called = dir.path().join("called");
        let this = Self { dir, called };
        this.ends_with(code);
        this
    }
    fn ends_with(&self, code: u8) {
        self.runs(":", code);
    }
    /// It does something before it ends with `code`.
    fn runs(&self, what: &str, code: u8) {
        let called = self.called.display();
        let text = format!("#!/bin/sh\necho \"$@\" >> {called}\n{what}\nexit {code}\n");
        // Written anew beside it: a file that is open for writing cannot be run.
        let new = self.dir.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::process::Command::new("chmod").arg("+x").arg(&new).status().unwrap();
        std::fs::rename(&new, self.dir.path().join("off")).unwrap();
    }
    fn options(&self) -> FenceOptions {
        FenceOptions { command: Some(self.dir.path().join("off")), reset: false }
    }
    fn was_called(&self) -> bool {
        self.called.exists()
    }
}

#[test]
fn who_is_fenced_itself_calls_no_program() {
    let all = MemoryNodes::new(4);
    all.with_reservations();
    let [one, two] = [1, 2].map(|slot| me(slot, 1));
    let nodes = [one, two].map(|life| {
        let nodes = all.process();
        nodes.register(key_of(all.fs_uuid(), life)).unwrap();
        nodes
    });
    let how = braid_pool::FenceHow {
        prove: true,
        reset: false,
        epoch_seen: braid_format::Epoch(u64::MAX),
    };
    nodes[0].fence(key_of(all.fs_uuid(), two), how).unwrap();
    let program = Program::new(0);
    let options = program.options();
    let key = key_of(all.fs_uuid(), two);
    let (timing, identity) = (Timing::default(), own());
    let fencer = Fencer { store: &nodes[1], options: &options, timing, key, identity: &identity };
    let mut record = SlotRecord::free(one.slot);
    (record.life, record.state) = (one, SlotState::Active);
    record.fence_key = key_of(all.fs_uuid(), one);
    let refused = fencer.fence(&record, &|| true);
    assert!(matches!(&refused, Err(NotFenced::Reservation(e)) if e.is_fenced()), "{refused:?}");
    assert!(!program.was_called());
    // Nor does one that may not act any more once the reservations have failed.
    all.deafen(true);
    let fencer = Fencer { store: &nodes[0], key: record.fence_key, ..fencer };
    let refused = fencer.fence(&record, &|| false);
    assert!(matches!(refused, Err(NotFenced::MayNotAct)) && !program.was_called(), "{refused:?}");
    assert!(matches!(fencer.fence(&record, &|| true), Ok(FenceMethod::Command)));
}

/// Nodes of a host that share its path to the disks have one key.
#[test]
fn a_dead_nodes_key_that_is_its_hosts_is_left() {
    let all = MemoryNodes::new(4);
    all.with_reservations();
    let (dead, nodes) = (me(1, 1), all.process());
    let key = nodes.register(key_of(all.fs_uuid(), dead)).unwrap();
    let mut record = SlotRecord::free(dead.slot);
    (record.life, record.state, record.fence_key) = (dead, SlotState::Active, key);
    let options = FenceOptions::default();
    let (timing, identity) = (Timing::default(), own());
    let fencer = Fencer { store: &nodes, options: &options, timing, key, identity: &identity };
    // Nor is one of another host shut out by it, should two hosts share a path.
    assert_eq!(fencer.means().first_for(&record), FenceMethod::Operator);
    fencer.forget(&record);
    assert_eq!(all.keys().as_slice(), [key]);
    let other = Fencer { key: key_of(all.fs_uuid(), me(2, 1)), ..fencer };
    assert_eq!(other.means().first_for(&record), FenceMethod::Reservation);
    other.forget(&record);
    assert!(all.keys().is_empty());
}

#[test]
fn who_cannot_say_that_it_lives_fences_nobody() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let program = Program::new(0);
    let a = on(1, &all, &locks, FenceOptions::default());
    let b = on(2, &all, &locks, program.options());
    let dead = a.member.me();
    b.nodes.hush(true);
    a.nodes.kill();
    wait_until("silent", || view(&b, dead).is_some_and(|n| !n.beating));
    std::thread::sleep(Duration::from_millis(400));
    let called = program.was_called();
    b.nodes.hush(false);
    assert!(!called);
    wait_until("it lives, and recovers", || b.log.recovered.lock().iter().any(|r| r.0 == dead));
}

#[test]
fn a_program_fences_where_there_are_no_reservations() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let program = Program::new(1);
    let a = on(1, &all, &locks, FenceOptions::default());
    let b = on(2, &all, &locks, program.options());
    let dead = a.member.me();
    assert_eq!(view(&b, dead).map(|n| n.fence), Some(FenceMethod::Command));
    a.nodes.kill();
    wait_until("called", || program.was_called());
    assert!(b.log.recovered.lock().is_empty());
    program.ends_with(0);
    wait_until("recovered", || b.log.recovered.lock().iter().any(|r| r.0 == dead));
    let said = std::fs::read_to_string(&program.called).unwrap();
    assert!(said.lines().count() >= 2 && said.lines().all(|l| l == "host1 0 1"), "{said}");
}

/// A program that turns a host off may take minutes. Whoever leaves meanwhile waits for it, and is gone then.
#[test]
fn a_node_that_leaves_while_it_fences_another_is_gone_when_that_has_ended() {
    for code in [0, 1] {
        let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
        let program = Program::new(code);
        let goes_on = program.dir.path().join("on");
        program.runs(&format!("until [ -e {} ]; do sleep 0.01; done", goes_on.display()), code);
        let a = on(1, &all, &locks, FenceOptions::default());
        let b = on(2, &all, &locks, program.options());
        let (dead, leaves) = (a.member.me(), b.member.me());
        a.nodes.kill();
        wait_until("called", || program.was_called());
        std::thread::scope(|scope| {
            let leaving = scope.spawn(|| {
                b.member.end_recoveries();
                b.manager.shutdown().unwrap();
                b.member.end_tasks();
                b.member.leave().unwrap();
            });
            std::thread::sleep(options().timing.beat() * 6);
            assert!(!leaving.is_finished(), "its fence is under way");
            std::fs::write(&goes_on, "").unwrap();
            wait_until("it has left", || leaving.is_finished());
        });
        // Whatever it has left to others is done by who comes next. It has left nothing of its own.
        program.ends_with(0);
        let c = on(3, &all, &locks, program.options());
        let recovered =
            |life| [&b, &c].iter().any(|n| n.log.recovered.lock().iter().any(|r| r.0 == life));
        wait_until("recovered", || recovered(dead));
        assert!(!recovered(leaves));
    }
}

/// Who died while it took a slot over had an incarnation of which the slot says nothing any more: the
/// next one there has it again.
#[test]
fn a_proof_of_death_is_of_one_node_whatever_the_next_one_is_called() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let (mut free, mut taken) = (vec![0; 512], vec![0; 512]);
    let mut record = SlotRecord::free(NodeId(0));
    record.encode(&mut free);
    (record.life, record.state) = (me(0, 1), SlotState::Recovering);
    (record.recoverer, record.node_uuid) = (Some(me(0, 2)), [9; 16]);
    (record.boot_id, record.io_timeout) = ([1; 16], options().timing.milliseconds());
    record.encode(&mut taken);
    all.compare_and_write_slot(NodeId(0), &free, &taken).unwrap();
    let program = Program::new(0);
    let b = on(2, &all, &locks, program.options());
    wait_until("fenced and recovered", || b.log.recovered.lock().iter().any(|r| r.0 == me(0, 1)));
    wait_until("free", || b.member.nodes().len() == 1);
    let said = std::fs::read_to_string(&program.called).unwrap();
    assert!(said.ends_with("0 2\n"), "{said}");
    let c = on(3, &all, &locks, FenceOptions::default());
    assert_eq!(c.member.me(), me(0, 2));
    wait_until("seen", || view(&b, c.member.me()).is_some_and(|n| n.last_beat.is_some()));
    std::thread::sleep(options().timing.beat() * 6);
    assert_eq!(b.log.recovered.lock().len(), 1);
    assert!(!c.manager.has_withdrawn());
    assert_eq!(view(&b, c.member.me()).map(|n| n.state), Some(SlotState::Active));
}

#[test]
fn a_persons_word_is_taken_for_silent_nodes_of_other_hosts_only() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let a = on(1, &all, &locks, FenceOptions::default());
    let b = on(2, &all, &locks, FenceOptions::default());
    let (here, free) = (b.member.me().slot, NodeId(3));
    for slot in [a.member.me().slot, here, free] {
        let refused = b.member.vouch(slot);
        assert!(matches!(refused, Err(LockError::NotDead { .. })), "{slot}: {refused:?}");
    }
    let dead = a.member.me();
    assert_eq!(view(&b, dead).map(|n| n.fence), Some(FenceMethod::Operator));
    a.nodes.kill();
    wait_until("the word is taken", || b.member.vouch(dead.slot).is_ok());
    wait_until("recovered", || b.log.recovered.lock().iter().any(|r| r.0 == dead));
}

#[test]
fn keys_of_lives_that_are_over_are_swept_by_who_joins() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    all.with_reservations();
    let a = on(1, &all, &locks, FenceOptions::default());
    let other = all.process();
    // Slot 3 is being taken over, and another may try that again.
    let (mut free, mut taken) = (vec![0; 512], vec![0; 512]);
    let mut record = SlotRecord::free(NodeId(3));
    record.encode(&mut free);
    (record.life, record.state) = (me(3, 1), SlotState::Recovering);
    (record.recoverer, record.boot_id) = (Some(me(3, 4)), [9; 16]);
    record.encode(&mut taken);
    all.compare_and_write_slot(NodeId(3), &free, &taken).unwrap();
    // Somebody else's, an old life's, and two who join just now.
    let of = |life| key_of(all.fs_uuid(), life);
    let joining = [of(me(2, 1)), of(me(3, 5))];
    for key in [77, of(me(0, 0)), of(me(3, 2))].into_iter().chain(joining) {
        other.register(key).unwrap();
    }
    let b = on(2, &all, &locks, FenceOptions::default());
    let kept = [&a, &b].map(|n| view(n, n.member.me()).unwrap().key);
    let (mut keys, mut expected) = (all.keys(), [kept, joining].concat());
    keys.sort_unstable();
    expected.sort_unstable();
    assert_eq!(keys, expected);
}

#[test]
fn who_cannot_join_is_told_what_the_device_said() {
    let all = MemoryNodes::new(4);
    all.freeze();
    let refused = Membership::join(Arc::new(all), options(), Arc::new(Log::default()));
    let said = refused.err().unwrap().to_string();
    assert!(said.contains("no such command"), "{said}");
}

/// Its recovery waits for what a node of another host holds, as that of a redundancy log may.
struct Needs {
    other: NodeId,
    nodes: MemoryNodes,
    proofs: Proofs,
}
impl Recover for Needs {
    fn recover(&self, _: Life, _: Life) -> Result<(), NotRecovered> {
        wait_until("the other one is fenced", || {
            let sector = self.nodes.read_slot(self.other).unwrap();
            SlotRecord::decode(&sector, self.other).is_ok_and(|r| self.proofs.of(&r).is_some())
        });
        Ok(())
    }
}

/// Two hosts lose power; one comes back, and no slot is free but by a recovery. There is no watcher yet.
#[test]
fn who_joins_fences_a_silent_node_that_its_recovery_waits_for() {
    let (all, locks) = (MemoryNodes::new(2), MemoryStore::new());
    all.with_reservations();
    let a = on(1, &all, &locks, FenceOptions::default());
    let b = on(2, &all, &locks, FenceOptions::default());
    let (mine, other) = (a.member.me(), b.member.me());
    a.kill();
    b.kill();
    let (nodes, proofs) = (all.process(), Proofs::default());
    let identity = HostIdentity { boot_id: [1; 16], machine_id: [1; 16], host: "host1".to_owned() };
    let options = JoinOptions { identity: Some(identity), proofs: proofs.clone(), ..options() };
    let recover = Needs { other: other.slot, nodes: nodes.clone(), proofs };
    let member = Membership::join(Arc::new(nodes), options, Arc::new(recover)).unwrap();
    assert_eq!(member.me().slot, mine.slot);
    assert_eq!(all.keys().len(), 1, "the other's key is taken");
    member.leave().unwrap();
}

#[test]
fn a_persons_word_stands_in_the_slot_for_everybody() {
    let (all, locks) = (MemoryNodes::new(4), MemoryStore::new());
    let a = on(1, &all, &locks, FenceOptions::default());
    let b = on(2, &all, &locks, FenceOptions::default());
    let (dead, outside) = (a.member.me(), all.process());
    for slot in [dead.slot, NodeId(3), NodeId(9)] {
        assert!(super::super::vouch(&outside, slot).is_err(), "{slot} lives, is free, is none");
    }
    a.kill();
    assert_eq!(super::super::vouch(&outside, dead.slot).unwrap(), FenceMethod::Operator);
    wait_until("it is recovered", || b.log.recovered.lock().iter().any(|r| r.0 == dead));
    // One that lives all the same has no slot any more.
    let living = b.member.me();
    let stands = outside.read_slot(living.slot).unwrap();
    let record = SlotRecord::decode(&stands, living.slot).unwrap();
    let mut sector = vec![0; outside.sector_len()];
    SlotRecord { vouched: true, ..record }.encode(&mut sector);
    let written = outside.compare_and_write_slot(living.slot, &stands, &sector).unwrap();
    assert_eq!(written, CawOutcome::Written);
    wait_until("it withdraws", || b.manager.has_withdrawn());
}

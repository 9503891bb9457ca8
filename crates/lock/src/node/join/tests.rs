use std::collections::HashSet;
use std::time::Duration;

use braid_format::node::{DamagedPart, LockPlace, SlotDamage};
use braid_format::{BlockNo, Incarnation, NodeId};

use super::*;
use crate::Life;
use crate::error::StoreError;
use crate::node::life::freed;
use crate::node::slot_write::Outcome;
use crate::node::{HostIdentity, NotRecovered, Timing};

const LEN: usize = 512;
const BEAT: Duration = Duration::from_millis(250);
const OWN_KEY: u64 = 77;

fn life(slot: u16, incarnation: u32) -> Life {
    Life { slot: NodeId(slot), incarnation: Incarnation(incarnation) }
}
fn identity(boot: u8) -> HostIdentity {
    HostIdentity { boot_id: [boot; 16], machine_id: [7; 16], host: "h".to_owned() }
}
fn place() -> LockPlace {
    LockPlace { kernel: 1, device: 2, inode: 3 }
}
/// A node in its slot, of this machine's boot `boot`: this process is of boot 1.
fn active(slot: u16, boot: u8) -> SlotRecord {
    SlotRecord {
        life: life(slot, 1),
        state: SlotState::Active,
        boot_id: [boot; 16],
        machine_id: [7; 16],
        host: "h".to_owned(),
        lock_places: vec![place()],
        ..SlotRecord::free(NodeId(slot))
    }
}

/// What a join meets: does what it says, and keeps what that was.
struct World {
    now: Time,
    slots: Vec<SlotRecord>,
    /// Slots whose liveness lock another process has.
    locked: HashSet<NodeId>,
    /// Slots whose nodes beat.
    beating: HashSet<NodeId>,
    beats: u8,
    by_lock: bool,
    /// A fence succeeds.
    fences: bool,
    /// Slots whose nodes are known to be fenced.
    fenced: HashSet<NodeId>,
    /// How the recovery of a dead node ends.
    recovers: fn(&mut World, Life) -> Result<(), NotRecovered>,
    /// From this action on, counted from one, the store fails once.
    fail_at: Option<usize>,
    done: Vec<String>,
    /// It has a liveness lock, a registered key.
    has: (bool, bool),
}

impl World {
    fn new(slots: Vec<SlotRecord>) -> Self {
        Self {
            now: Time::ZERO,
            slots,
            locked: HashSet::new(),
            beating: HashSet::new(),
            beats: 0,
            by_lock: false,
            fences: true,
            fenced: HashSet::new(),
            recovers: |_, _| Ok(()),
            fail_at: None,
            done: Vec::new(),
            has: (false, false),
        }
    }
    fn joiner(&self, slot: Option<NodeId>) -> Joiner {
        Joiner {
            identity: identity(1),
            timing: Timing::of_beat(BEAT),
            slot,
            slots: u16::try_from(self.slots.len()).unwrap(),
            sector_len: LEN,
            fs: uuid::Uuid::from_u128(9),
        }
    }
    /// The whole join.
    fn join(&mut self, slot: Option<NodeId>) -> Result<Joined, LockError> {
        let mut join = Join::new(self.joiner(slot));
        let mut event = Event::Begin;
        for _ in 0..10_000 {
            let action = join.step(self.now, event);
            if let Action::End(how) = action {
                return how;
            }
            let name = format!("{action:?}");
            self.done.push(name.split([' ', '(', '{']).next().unwrap().to_owned());
            event = if self.fail_at == Some(self.done.len()) {
                let why = std::sync::Arc::new(std::io::Error::other("the device failed"));
                Event::Failed(LockError::NodeStore(StoreError::Device(why)))
            } else {
                self.perform(action)
            };
        }
        panic!("it does not end: {:?}", self.done);
    }
    fn slot(&mut self, slot: NodeId) -> &mut SlotRecord {
        &mut self.slots[usize::from(slot.0)]
    }
    fn look(&self, records: Vec<SlotRecord>) -> Event {
        Event::Slots(Look { records, places: vec![place()], by_lock: self.by_lock })
    }
    fn heartbeats(&mut self) -> Vec<u8> {
        self.beats = self.beats.wrapping_add(1);
        let sector = |n: usize| {
            let beats = self.beating.contains(&NodeId(u16::try_from(n).unwrap()));
            vec![if beats { self.beats } else { 0 }; LEN]
        };
        (0..self.slots.len()).flat_map(sector).collect()
    }
    fn perform(&mut self, action: Action) -> Event {
        match action {
            Action::ReadSlots => self.look(self.slots.clone()),
            Action::ReadSlot(slot) => {
                let record = self.slot(slot).clone();
                self.look(vec![record])
            }
            Action::ReadHeartbeats => Event::Heartbeats(self.heartbeats()),
            Action::ReadHeartbeatCopies => {
                let copy = self.heartbeats();
                Event::Copies(vec![copy.clone(), copy])
            }
            Action::IsLifeLocked(slot) => Event::Is(self.locked.contains(&slot)),
            Action::IsLifePartlyLocked(_) | Action::IsBehind(_) => Event::Is(false),
            Action::IsFenced(record) => Event::Is(self.fenced.contains(&record.life.slot)),
            Action::Sleep(pause) | Action::AwaitSlot { pause, .. } => {
                self.now += pause;
                Event::Done
            }
            Action::LockLife(slot) => {
                self.has.0 = !self.locked.contains(&slot);
                Event::Is(self.has.0)
            }
            Action::AwaitBehind { .. } | Action::Confirm | Action::TakeKey(..) | Action::Follow => {
                Event::Done
            }
            Action::Prepare(life) => {
                let other = active(life.slot.0, 1);
                let node_uuid = uuid::Uuid::new_v4().into_bytes();
                Event::Prepared(Box::new(SlotRecord { life, node_uuid, nonce: 1000, ..other }))
            }
            Action::Register(_) => {
                assert!(self.has.0, "a key without a liveness lock");
                self.has.1 = true;
                Event::Registered(OWN_KEY)
            }
            Action::Fence(_, own) => {
                assert_eq!(own, OWN_KEY);
                Event::Is(self.fences)
            }
            Action::Write { expected, new } => {
                assert_eq!(self.has, (true, true), "the slot names who has no lock or key");
                let slot = self.slot(new.life.slot);
                if *slot != *expected {
                    return Event::Wrote(Outcome::Lost);
                }
                *slot = *new;
                Event::Wrote(Outcome::Committed)
            }
            Action::Recover { dead, mine } => {
                let dead = dead.life;
                let record = self.slot(dead.slot);
                assert_eq!(record.recoverer, Some(mine.life));
                assert_eq!((record.state, record.life), (SlotState::Recovering, dead));
                Event::Recovered((self.recovers)(self, dead))
            }
            Action::LetGo { registered } => {
                assert_eq!(registered, self.has.1);
                self.has = (false, false);
                Event::Done
            }
            Action::End(_) => unreachable!(),
        }
    }
    fn done(&self, what: &str) -> usize {
        self.done.iter().filter(|d| *d == what).count()
    }
}

#[test]
fn a_free_slot_is_taken_in_this_order() {
    let mut world = World::new(vec![SlotRecord::free(NodeId(0)), SlotRecord::free(NodeId(1))]);
    let joined = world.join(None).unwrap();
    assert_eq!(joined.life, life(0, 1));
    assert_eq!(world.slots[0], *joined);
    let reads = ["ReadSlots"; 3];
    let order = ["LockLife", "Confirm", "Prepare", "Register", "Write"];
    assert_eq!(world.done, [&reads[..], &order].concat());
}

#[test]
fn a_slot_whose_lock_is_held_is_left_alone() {
    let mut world = World::new(vec![SlotRecord::free(NodeId(0)), SlotRecord::free(NodeId(1))]);
    world.locked.insert(NodeId(0));
    assert_eq!(world.join(None).unwrap().life, life(1, 1));
}

#[test]
fn a_dead_node_of_this_boot_is_recovered_after_three_beats() {
    let mut world = World::new(vec![active(0, 1)]);
    let joined = world.join(None).unwrap();
    assert_eq!((joined.life, world.now), (life(0, 2), BEAT * 3));
    let last = &world.done[world.done.len() - 5..];
    assert_eq!(last, ["Write", "TakeKey", "Follow", "Recover", "Write"]);
    assert_eq!(world.done("Fence"), 0);
}

#[test]
fn a_node_that_lives_keeps_its_slot() {
    let taken = |mut world: World| {
        let refused = world.join(None);
        assert!(matches!(refused, Err(LockError::NoFreeSlot { slots: 1 })), "{refused:?}");
        assert_eq!((world.done("Write"), world.done("Recover")), (0, 0));
        let asked = world.join(Some(NodeId(0)));
        assert!(matches!(asked, Err(LockError::SlotTaken { holder, .. }) if holder == life(0, 1)));
    };
    let with = |record, locked: bool, beats: bool| {
        let mut world = World::new(vec![record]);
        world.locked.extend(locked.then_some(NodeId(0)));
        world.beating.extend(beats.then_some(NodeId(0)));
        world
    };
    // Its lock is there; its heartbeats are; it is of another machine; of an earlier boot, and beats.
    taken(with(active(0, 1), true, false));
    taken(with(active(0, 1), false, true));
    taken(with(SlotRecord { machine_id: [8; 16], ..active(0, 2) }, false, false));
    taken(with(active(0, 2), false, true));
    // The same boot, but where it locks nobody looks.
    taken(with(SlotRecord { lock_places: Vec::new(), ..active(0, 1) }, false, false));
}

#[test]
fn an_earlier_boot_is_fenced_before_it_is_recovered_if_it_can_be() {
    let registered = SlotRecord { fence_key: 5, ..active(0, 2) };
    let mut world = World::new(vec![registered.clone()]);
    assert_eq!(world.join(None).unwrap().life, life(0, 2));
    assert!(world.now >= Timing::of_beat(BEAT).fence_after(), "as long as a clone could write");
    let fenced = world.done.iter().position(|d| d == "Fence").unwrap();
    let written = world.done.iter().position(|d| d == "Write").unwrap();
    assert!(fenced < written);
    // A fence that fails: the slot stays as it is.
    let mut world = World { fences: false, ..World::new(vec![registered.clone()]) };
    assert!(matches!(world.join(None), Err(LockError::NoFreeSlot { .. })));
    assert_eq!((world.slots[0].clone(), world.has), (registered, (false, false)));
    // Nobody can fence it, or it shares this node's path.
    for fence_key in [0, OWN_KEY] {
        let mut world = World::new(vec![SlotRecord { fence_key, ..active(0, 2) }]);
        world.join(None).unwrap();
        assert_eq!(world.done("Fence"), 0);
    }
}

#[test]
fn a_persons_word_needs_no_silence() {
    let vouched = SlotRecord { vouched: true, machine_id: [8; 16], fence_key: 5, ..active(0, 2) };
    let mut world = World::new(vec![vouched]);
    world.join(None).unwrap();
    // Only the look for copies of members takes time.
    assert_eq!((world.now, world.done("Fence")), (BEAT * 4, 0));
}

#[test]
fn what_fails_leaves_neither_lock_nor_key_behind() {
    let free = || World::new(vec![SlotRecord::free(NodeId(0))]);
    let dead = || World::new(vec![SlotRecord { fence_key: 5, ..active(0, 2) }]);
    for begin in [&free as &dyn Fn() -> World, &dead] {
        let mut whole = begin();
        whole.join(None).unwrap();
        for at in 1..=whole.done.len() {
            let mut world = World { fail_at: Some(at), ..begin() };
            let failed = world.join(None);
            assert!(matches!(failed, Err(LockError::NodeStore(_))), "{at}: {failed:?}");
            assert_eq!(world.has, (false, false), "{at}: {:?}", world.done);
            // Nothing was held before.
            let locked = world.done.iter().any(|d| d == "LockLife")
                && world.done.last().is_some_and(|d| d != "LockLife");
            assert_eq!(world.done("LetGo"), usize::from(locked), "{at}: {:?}", world.done);
        }
    }
}

#[test]
fn damage_is_noted_and_another_slot_will_do() {
    let damage = SlotDamage { block: BlockNo(9), part: DamagedPart::Journal, replayed: false };
    let recovers = |_: &mut World, _| {
        let damage = SlotDamage { block: BlockNo(9), part: DamagedPart::Journal, replayed: false };
        Err(NotRecovered::Damaged { damage, source: "spoiled".into() })
    };
    let mut world = World { recovers, ..World::new(vec![active(0, 1)]) };
    let refused = world.join(None);
    assert!(matches!(refused, Err(LockError::Damaged { node, .. }) if node == life(0, 1)));
    assert_eq!((world.slots[0].damage, world.has), (Some(damage), (false, false)));
    // The second one has nothing left in its journal: it is another's to recover, and then free.
    let second = SlotRecord { vouched: true, ..active(1, 2) };
    let mut world =
        World { recovers: |_, _| Ok(()), ..World::new(vec![world.slots[0].clone(), second]) };
    world.beating.insert(NodeId(0));
    assert_eq!(world.join(None).unwrap().life.slot, NodeId(1));
    // What another node has found is said where no slot can be had.
    let other = SlotRecord {
        state: SlotState::Recovering,
        recoverer: Some(life(5, 1)),
        damage: Some(damage),
        ..active(0, 1)
    };
    let mut world = World::new(vec![other]);
    assert!(matches!(world.join(None), Err(LockError::Damaged { .. })));
    assert_eq!(world.done("LockLife"), 0);
}

fn kept_by_dead() -> Result<(), NotRecovered> {
    Err(NotRecovered::Failed("another dead one holds what it needs".into()))
}

/// What the dead node of slot 0 needs another dead one holds, of another host, which was fenced meanwhile.
#[test]
fn who_was_fenced_for_the_recovery_of_another_is_recovered_too() {
    let other = SlotRecord { machine_id: [8; 16], fence_key: 5, ..active(1, 2) };
    let recovers = |world: &mut World, dead: Life| match dead.slot {
        NodeId(0) => {
            world.fenced.insert(NodeId(1));
            kept_by_dead()
        }
        _ => Ok(()),
    };
    let mut world = World { recovers, ..World::new(vec![active(0, 1), other.clone()]) };
    assert_eq!(world.join(None).unwrap().life.slot, NodeId(1));
    // Nothing has fenced it.
    let recovers = |_: &mut World, _| kept_by_dead();
    let mut world = World { recovers, ..World::new(vec![active(0, 1), other.clone()]) };
    let refused = world.join(None);
    assert!(matches!(refused, Err(LockError::Recovery { node, .. }) if node == life(0, 1)));
    assert_eq!((world.done("Recover"), world.slots[1].clone()), (1, other));
    assert_eq!(world.has, (false, false));
}

/// Two join at once, and what is in the way of both is in one slot: only one of them gets that.
#[test]
fn who_cannot_recover_a_slot_looks_again_once_others_have_changed_one() {
    // The other one has slot 1 at first: what is in the way of this one.
    let recovers = |world: &mut World, dead: Life| {
        let is_there = world.slots[1].state != SlotState::Active;
        match dead.slot {
            NodeId(0) if is_there => kept_by_dead(),
            _ => Ok(()),
        }
    };
    let joins = SlotRecord {
        state: SlotState::Recovering,
        recoverer: Some(life(1, 2)),
        node_uuid: [9; 16],
        ..active(1, 1)
    };
    let world = || {
        let mut world = World { recovers, ..World::new(vec![active(0, 1), joins.clone()]) };
        world.locked.insert(NodeId(1));
        world
    };
    // It never gets it.
    let mut stuck = world();
    assert!(matches!(stuck.join(None), Err(LockError::Recovery { .. })));
    assert_eq!(stuck.done("Recover"), 1);
    // It has it by then.
    let mut later = world();
    let mut join = Join::new(later.joiner(None));
    let mut event = Event::Begin;
    let joined = loop {
        match join.step(later.now, event) {
            Action::End(how) => break how.unwrap(),
            action => {
                if matches!(action, Action::LetGo { .. }) {
                    later.slots[1] = SlotRecord { node_uuid: [9; 16], ..active(1, 1) };
                }
                event = later.perform(action);
            }
        }
    };
    assert_eq!(joined.life.slot, NodeId(0));
    // It dies: its slot can be had.
    let mut dies = World {
        recovers: |world, dead| match dead.slot {
            NodeId(0) => {
                world.locked.clear();
                kept_by_dead()
            }
            _ => Ok(()),
        },
        ..world()
    };
    assert_eq!(dies.join(None).unwrap().life.slot, NodeId(1));
    assert_eq!(dies.done("Recover"), 2);
    // The slot that was asked for is the only one.
    let mut asked = World { recovers: |_, _| kept_by_dead(), ..world() };
    assert!(matches!(asked.join(Some(NodeId(0))), Err(LockError::Recovery { .. })));
    assert_eq!(asked.done("Recover"), 1);
}

#[test]
fn who_finds_no_slot_waits_while_another_node_frees_one() {
    let recovering =
        SlotRecord { state: SlotState::Recovering, recoverer: Some(life(5, 1)), ..active(0, 1) };
    let mut world = World::new(vec![recovering.clone()]);
    assert!(matches!(world.join(None), Err(LockError::NoFreeSlot { .. })));
    assert!(world.now >= Timing::of_beat(BEAT).fence_after());
    assert!(world.done("AwaitSlot") > 10);
    // It is free at last.
    let mut join = Join::new(world.joiner(None));
    let mut event = Event::Begin;
    world.done.clear();
    let joined = loop {
        match join.step(world.now, event) {
            Action::End(how) => break how.unwrap(),
            action => {
                if matches!(action, Action::AwaitSlot { .. }) {
                    world.slots[0] = freed(&recovering, 9);
                }
                event = world.perform(action);
            }
        }
    };
    assert_eq!(joined.life, life(0, 2));
}

/// A recovery may take long. As long as who is at it shows heartbeats, it is waited for.
#[test]
fn who_finds_no_slot_waits_for_a_recovery_that_is_at_work() {
    let timing = Timing::of_beat(BEAT);
    let recovering =
        SlotRecord { state: SlotState::Recovering, recoverer: Some(life(1, 1)), ..active(0, 1) };
    let world = || {
        let mut world = World::new(vec![recovering.clone(), active(1, 1)]);
        world.locked.insert(NodeId(1));
        world.beating.insert(NodeId(1));
        world
    };
    // It is free after a long time.
    let mut world_now = world();
    let mut join = Join::new(world_now.joiner(None));
    let mut event = Event::Begin;
    let joined = loop {
        if world_now.now >= timing.fence_after() * 5 {
            world_now.slots[0] = freed(&recovering, 9);
        }
        match join.step(world_now.now, event) {
            Action::End(how) => break how.unwrap(),
            action => event = world_now.perform(action),
        }
    };
    assert_eq!(joined.life, life(0, 2));
    // It never ends.
    let mut world_now = world();
    assert!(matches!(world_now.join(None), Err(LockError::NoFreeSlot { .. })));
    assert!(world_now.now >= longest_wait(timing));
    assert!(world_now.now < longest_wait(timing) + timing.fence_after());
    // Whoever is at it falls silent.
    let mut world_now = world();
    world_now.beating.clear();
    assert!(matches!(world_now.join(None), Err(LockError::NoFreeSlot { .. })));
    assert!(world_now.now < timing.fence_after() * 2);
}

#[test]
fn a_beating_node_with_foreign_locks_keeps_others_out_and_a_silent_one_does_not() {
    let foreign = SlotRecord { boot_id: [3; 16], lock_places: Vec::new(), ..active(0, 3) };
    let begin = || World {
        by_lock: true,
        ..World::new(vec![foreign.clone(), SlotRecord::free(NodeId(1))])
    };
    let mut world = begin();
    world.beating.insert(NodeId(0));
    let refused = world.join(None);
    assert!(
        matches!(refused, Err(LockError::ForeignLocks { node, here: false, .. }) if node == life(0, 1))
    );
    assert_eq!(world.done("LockLife"), 0);
    let mut world = begin();
    assert_eq!(world.join(None).unwrap().life, life(1, 1));
    assert!(world.now >= BEAT * 8);
    // One that compares under kernel locks, and here the device does that.
    let by_lock = SlotRecord { emulates_compare_and_write: true, ..foreign };
    let mut world = World::new(vec![by_lock, SlotRecord::free(NodeId(1))]);
    world.beating.insert(NodeId(0));
    assert!(matches!(world.join(None), Err(LockError::ForeignLocks { .. })));
}

/// Two copies of the heartbeats, of which only one goes on: a device is not the one it looks like.
#[test]
fn a_copy_of_a_member_is_refused() {
    let world = World::new(vec![active(0, 1), SlotRecord::free(NodeId(1))]);
    let run = |beats: [bool; 2]| {
        let mut check = CopyCheck::new(&world.joiner(None));
        let (mut event, mut beat) = (None, 0);
        loop {
            let action = match check.step(event) {
                Ok(Step::End(_)) => return Ok(beat),
                Ok(Step::Do(action)) => action,
                Err(e) => return Err(e),
            };
            event = Some(match action {
                Action::ReadSlots => world.look(world.slots.clone()),
                Action::IsLifeLocked(_) => Event::Is(true),
                Action::IsLifePartlyLocked(_) => Event::Is(false),
                Action::ReadHeartbeatCopies => {
                    beat += 1;
                    let copy = |on: bool| vec![if on { beat } else { 0 }; 2 * LEN];
                    Event::Copies(beats.map(copy).to_vec())
                }
                Action::Sleep(_) => Event::Done,
                other => panic!("{other:?}"),
            });
        }
    };
    assert_eq!(run([true, true]).unwrap(), 2, "one beat is enough");
    assert_eq!(run([false, false]).unwrap(), 5, "nobody beats: nothing to compare");
    assert!(matches!(run([true, false]), Err(LockError::CopiedMember { .. })));
}

/// Its liveness lock is on the members of the epoch that it uses: it is waited for, and no new member is
/// taken for a copy. What only looks so is refused.
#[test]
fn a_node_that_uses_another_epoch_shows_no_copy() {
    let world = World::new(vec![active(0, 1), SlotRecord::free(NodeId(1))]);
    // Whether it uses another epoch, and at which look its lock is on all members.
    let run = |behind: bool, follows: Option<u32>| {
        let mut check = CopyCheck::new(&world.joiner(None));
        let (mut event, mut looks, mut told) = (None, 0_u32, 0);
        loop {
            let action = match check.step(event) {
                Ok(Step::End(_)) => return Ok((looks, told)),
                Ok(Step::Do(action)) => action,
                Err(e) => return Err(e),
            };
            event = Some(match action {
                Action::ReadSlots => world.look(world.slots.clone()),
                Action::IsLifeLocked(_) => Event::Is(true),
                Action::IsLifePartlyLocked(_) => {
                    looks += 1;
                    Event::Is(follows.is_none_or(|at| looks < at))
                }
                Action::IsBehind(_) => Event::Is(behind),
                Action::AwaitBehind { slot, pid, .. } => {
                    assert_eq!(slot, NodeId(0));
                    told += u32::from(pid.is_some());
                    Event::Done
                }
                Action::ReadHeartbeatCopies => Event::Copies(vec![vec![0; 2 * LEN]]),
                Action::Sleep(_) => Event::Done,
                other => panic!("{other:?}"),
            });
        }
    };
    assert!(matches!(run(false, None), Err(LockError::CopiedMember { .. })));
    assert_eq!(run(true, Some(30)).unwrap(), (30, 1));
    assert!(
        matches!(run(true, None), Err(LockError::Behind { .. })),
        "it is not waited for for ever"
    );
}

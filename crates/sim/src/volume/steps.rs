//! A run is some eras in succession. An *era* begins when the pool is assembled and ends when its nodes
//! have done what they were to do, or with a power cut.

use std::sync::Arc;

use braid_format::ByteOffset;
use braid_pool::device::Device;
use braid_pool::{Pool, PoolError};

use super::acts::{Node, step};
use super::concurrent::verify_shared;
use super::node::{Port, Wire};
use super::shape::{SLOTS, Shape};
use super::verify::{Seals, heal, scrub, verify};
use super::world::{Node as Place, World};

/// Runs everything.
pub(super) fn run(world: &Arc<World>, shape: &Shape) {
    world.open_lanes(1);
    {
        let mut state = world.state();
        (state.contended, state.split) = (shape.contended, shape.split);
    }
    if let Err(error) = make(world, shape) {
        return world.state().fail(format!("{shape:?}: {error}"));
    }
    let mut crashed = false;
    for era in 0..shape.eras {
        world.state().tell(format!("era {era}: {shape:?}"));
        if !boot(world, crashed) {
            return;
        }
        crashed = live(world, shape);
        if world.state().failure.is_some() {
            return;
        }
        if crashed {
            crash(world);
        }
    }
    if boot(world, crashed) {
        finish(world, shape);
    }
}

/// All disks as node `me` reaches them, but for those that are gone for good.
fn wires(world: &Arc<World>, me: usize) -> Vec<Arc<dyn Device>> {
    let lost: Vec<bool> = world.state().disks.iter().map(|d| d.lost).collect();
    let there = lost.iter().enumerate().filter(|(_, lost)| !**lost);
    there.filter_map(|(i, _)| Wire::of(world, me, i)).collect()
}

fn make(world: &Arc<World>, shape: &Shape) -> Result<(), PoolError> {
    for size in &shape.sizes {
        world.make_disk(*size);
    }
    let pool = Pool::create(wires(world, 0), &shape.options())?;
    for _ in 0..shape.spares {
        let most = shape.sizes.iter().max().copied().unwrap_or(0);
        let spare = world.make_disk(most);
        if let Some(wire) = Wire::of(world, 0, spare) {
            pool.add_spare(wire, false)?;
        }
    }
    pool.flush()
}

/// Puts the pool together from what is on the disks, as a search for it would. `alone`: no other
/// node has it, so members that are gone are lost.
fn assemble(world: &Arc<World>, me: usize, alone: bool) -> Result<Pool, PoolError> {
    let mut devices = wires(world, me);
    let mut degraded = false;
    loop {
        let assembled = if degraded {
            Pool::assemble_degraded(devices.clone())
        } else {
            Pool::assemble(devices.clone())
        };
        let error = match assembled {
            Ok(pool) if degraded => {
                pool.commit_degraded()?;
                let mut state = world.state();
                state.tell("assembled without what is gone".to_owned());
                state.report.degraded += 1;
                return Ok(pool);
            }
            Ok(pool) => return Ok(pool),
            Err(error) => error,
        };
        let leave = match &error {
            // Never in the pool, or no longer.
            PoolError::LabelsLost { lost, .. } => {
                devices.retain(|d| !lost.iter().any(|m| m.path == d.info().name));
                continue;
            }
            PoolError::NotAMember { path, .. }
            | PoolError::Removed { path, .. }
            | PoolError::LabelsDamaged { path, .. } => path.clone(),
            PoolError::Missing { .. }
                if alone && !degraded && world.state().disks.iter().any(|d| d.lost) =>
            {
                degraded = true;
                continue;
            }
            _ => return Err(error),
        };
        devices.retain(|d| d.info().name != leave);
    }
}

/// Begins an era: the pool is assembled, and what its nodes left is recovered. `crashed`: by a power
/// cut.
fn boot(world: &Arc<World>, crashed: bool) -> bool {
    loop {
        world.open_lanes(1);
        {
            let mut state = world.state();
            let state = &mut *state;
            state.off = false;
            state.power = None;
            state.switching = 0;
            state.busy.clear();
            state.regions = crate::regions::Regions::default();
            state.exchanged.clear();
            for disk in &mut state.disks {
                disk.faulty.heal();
                disk.suspect = false;
            }
            for node in &mut state.nodes {
                *node = Place { incarnation: node.incarnation + 1, ..Place::default() };
            }
            if crashed && state.rng.below(4) == 0 {
                state.power = Some(state.rng.below(60));
            }
        }
        match recover(world, crashed) {
            Ok(()) => {
                let state = world.state();
                return state.failure.is_none();
            }
            Err(error) => {
                let mut state = world.state();
                if !state.off || state.failure.is_some() {
                    state.fail(format!("after a crash: {error}"));
                    return false;
                }
            }
        }
        world.state().tell("power is cut in the recovery".to_owned());
        crash(world);
    }
}

fn recover(world: &Arc<World>, crashed: bool) -> Result<(), PoolError> {
    let pool = Arc::new(assemble(world, 0, true)?);
    let port = Port::new(world, 0);
    pool.simulate(port.clone());
    port.serve(&pool);
    pool.heal_labels()?;
    for slot in (0..SLOTS).filter_map(|s| u16::try_from(s).ok()) {
        let rotten = world.state().rotten;
        let recovered =
            if rotten { pool.recover_log_with(slot, &Seals)? } else { pool.recover_log(slot)? };
        world.state().tell(format!("log {slot} recovered: {recovered:?}"));
    }
    {
        let mut state = world.state();
        state.power = None;
        if state.off {
            return Err(PoolError::Closed);
        }
    }
    heal(world, 0, &pool);
    verify(world, 0, &pool, crashed);
    verify_shared(world, 0, &pool, crashed);
    scrub(world, 0, &pool, false);
    Ok(())
}

/// Power is cut and comes back: of what was not flushed some stays.
pub(super) fn crash(world: &Arc<World>) {
    let mut state = world.state();
    state.report.power_cuts += 1;
    state.tell("power is cut".to_owned());
    let now = state.model.now();
    state.model.shared.die(|_| true, now);
    for i in 0..state.disks.len() {
        let seed = state.rng.word();
        if let Some(disk) = state.disks.get_mut(i) {
            disk.faulty.crash(seed).ok();
            disk.suspect = false;
        }
    }
}

/// Nodes use the pool; whether it ended by a power cut.
fn live(world: &Arc<World>, shape: &Shape) -> bool {
    world.open_lanes(shape.nodes);
    {
        let mut state = world.state();
        state.steps = shape.steps;
        state.switching = match shape.nodes {
            1 => 0,
            _ if shape.contended => *state.rng.pick(&[5, 20, 100]),
            _ => *state.rng.pick(&[20, 100, 400]),
        };
        if !shape.contended && state.rng.below(3) == 0 {
            state.power = Some(state.rng.below(3000));
        }
    }
    if shape.nodes == 1 {
        lane(world, 0, shape);
    } else {
        std::thread::scope(|s| {
            for me in 0..shape.nodes {
                s.spawn(move || {
                    let _drawn = world.draw_identities();
                    world.first_turn(me);
                    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        lane(world, me, shape);
                    }));
                    if let Err(panic) = done {
                        let text = crate::lane::text_of(&*panic);
                        world.state().fail(format!("node {me}: {text}"));
                    }
                    world.leave_lanes(me);
                });
            }
        });
    }
    let state = world.state();
    state.off
}

/// One node, in several lives.
fn lane(world: &Arc<World>, me: usize, shape: &Shape) {
    loop {
        let Some(node) = join(world, me, shape) else {
            let mut state = world.state();
            let over = state.steps == 0 || state.off;
            if over || shape.nodes == 1 {
                return;
            }
            if state.nodes.get(me).is_some_and(|n| n.dead) {
                drop(state);
                bury(world, me);
            } else {
                let nobody = !state.nodes.iter().any(|n| n.joined || n.recovers.is_some());
                if nobody && state.disks.iter().any(|d| d.lost || d.faulty.is_gone()) {
                    // Only the operator can say that a member which is gone is lost.
                    state.tell("nobody lives, and a member is gone".to_owned());
                    state.off = true;
                }
                drop(state);
            }
            if world.wait(me).is_err() && world.state().off {
                return;
            }
            continue;
        };
        while step(&node, shape) {}
        if world.state().off {
            return;
        }
        if world.state().nodes.get(me).is_some_and(|n| n.dead) {
            drop(node);
            bury(world, me);
            continue;
        }
        return end(&node);
    }
}

/// A dead node has nothing in flight any more.
fn bury(world: &Arc<World>, me: usize) {
    let mut state = world.state();
    state.tell(format!("node {me} is dead"));
    state.report.deaths += 1;
    state.busy.retain(|b| b.0 != me);
    let now = state.model.now();
    state.model.shared.die(|node| node == me, now);
    if let Some(node) = state.nodes.get_mut(me) {
        *node = Place {
            incarnation: node.incarnation + 1,
            unrecovered: node.unrecovered,
            ..Place::default()
        };
    }
}

/// A node begins to use the pool.
fn join(world: &Arc<World>, me: usize, shape: &Shape) -> Option<Node> {
    let free = |world: &World| {
        let state = world.state();
        !state.nodes.iter().enumerate().any(|(i, n)| i != me && n.recovers.is_some())
    };
    if !free(world) {
        return None;
    }
    let port = Port::new(world, me);
    let pool = match assemble(world, me, shape.nodes == 1) {
        Ok(pool) => Arc::new(pool),
        Err(error) => {
            world.state().tell(format!("node {me} cannot assemble: {error}"));
            return None;
        }
    };
    pool.simulate(port.clone());
    port.serve(&pool);
    if !free(world) {
        return None;
    }
    if shape.nodes > 1 {
        port.share(&pool);
        {
            let mut state = world.state();
            let node = state.nodes.get_mut(me)?;
            node.tag = pool.epoch_tag();
            node.joined = true;
            node.recovers = Some(me);
        }
        // Whoever changed the epoch before did not wait for this node.
        let followed = pool.follow();
        if let Err(error) = followed {
            return refuse(world, me, &format!("follows: {error}"));
        }
    }
    if let Err(error) = pool.heal_labels() {
        return refuse(world, me, &format!("heals labels: {error}"));
    }
    let attached = pool.attach(u16::try_from(me).ok()?);
    let mut state = world.state();
    let ended = state.has_ended(me);
    let aborted = state.nodes.get(me).is_some_and(|n| n.aborted);
    let tag = pool.epoch_tag();
    if let Some(node) = state.nodes.get_mut(me) {
        node.recovers = None;
        if attached.is_ok() {
            node.unrecovered = true;
            node.tag = tag;
        }
    }
    match attached {
        Ok(recovered) => {
            if shape.nodes > 1 {
                state.regions.forget(me);
            }
            state.tell(format!("node {me} joins: {recovered:?}"));
            drop(state);
            Some(Node { world: world.clone(), me, pool, port })
        }
        Err(error) => {
            if !ended && !aborted {
                state.fail(format!("node {me} cannot attach its log: {error}"));
            }
            if let Some(node) = state.nodes.get_mut(me).filter(|n| !n.dead) {
                (node.joined, node.aborted) = (false, false);
            }
            None
        }
    }
}

fn refuse(world: &Arc<World>, me: usize, what: &str) -> Option<Node> {
    let mut state = world.state();
    if !state.has_ended(me) {
        state.fail(format!("node {me} {what}"));
    }
    None
}

/// A node leaves in good order: all use one epoch then.
fn end(node: &Node) {
    let (world, me) = (&node.world, node.me);
    if let Some(n) = world.state().nodes.get_mut(me) {
        n.finished = true;
    }
    loop {
        node.port.duties();
        {
            let state = world.state();
            let mine = node.pool.epoch_tag();
            let mut joined = state.nodes.iter().filter(|n| n.joined);
            if joined.all(|n| n.finished && n.tag == mine) || state.nodes.len() == 1 {
                break;
            }
        }
        if world.wait(me).is_err() {
            if !world.state().off {
                bury(world, me);
            }
            return;
        }
    }
    if node.world.state().nodes.len() > 1 {
        let idle = world.state().regions.idle(me, true);
        for (region, exclusive) in idle {
            node.port.give_up(&node.pool, region, exclusive);
        }
    }
    let from = world.state().model.now();
    let left = node.pool.detach();
    node.pool.unshare();
    let mut state = world.state();
    match left {
        Ok(()) => {
            // Without redundancy there is no log to end, and nothing is flushed for it.
            if node.pool.info().redundant {
                state.model.flushed(from);
            }
            state.tell(format!("node {me} leaves"));
            if let Some(n) = state.nodes.get_mut(me) {
                (n.joined, n.unrecovered) = (false, false);
            }
            state.regions.forget(me);
        }
        Err(error) => {
            let excused = state.has_ended(me) || !state.suspects().is_empty();
            if !excused {
                state.fail(format!("node {me} cannot detach: {error}"));
            }
            if let Some(n) = state.nodes.get_mut(me) {
                n.joined = false;
            }
        }
    }
}

/// The end: all faults cease, what can be filled or moved is, and everything is as it should be.
fn finish(world: &Arc<World>, shape: &Shape) {
    let alone = Shape { nodes: 1, ..shape.clone() };
    {
        let mut state = world.state();
        for disk in &mut state.disks {
            disk.faulty.heal();
            disk.bad.clear();
            disk.suspect = false;
        }
    }
    let Some(node) = join(world, 0, &alone) else {
        return world.state().fail("the pool cannot be opened at the end".to_owned());
    };
    let failed = |what: &str, error: PoolError| world.state().fail(format!("{what}: {error}"));
    let lost = world.state().disks.iter().any(|d| d.lost);
    if !lost {
        if let Err(error) = node.pool.evacuate(&|_| true) {
            return failed("the last move", error);
        }
        if shape.offline {
            node.bring_online();
        }
        while let Some(member) = node.pool.rebuilding() {
            if let Err(error) = node.pool.rebuild(member, &|_| true) {
                return failed("the last filling", error);
            }
        }
    }
    scrub(world, 0, &node.pool, false);
    verify(world, 0, &node.pool, false);
    verify_shared(world, 0, &node.pool, false);
    if shape.overload {
        overload(&node, shape);
    }
}

/// Fails more members than the redundancy can spare: nothing may panic or hang.
fn overload(node: &Node, shape: &Shape) {
    {
        let mut state = node.world.state();
        state.report.overloaded = true;
        state.steps = 20;
        let count = state.disks.len() as u64;
        for _ in 0..state.rng.below(3) + 2 {
            let which = usize::try_from(state.rng.below(count)).unwrap_or(0);
            if let Some(disk) = state.disks.get_mut(which) {
                disk.lost = true;
            }
        }
        state.tell("more fails than can be spared".to_owned());
    }
    while step(node, shape) {}
    let mut byte = vec![0; 512];
    node.pool.read(ByteOffset(0), &mut byte).ok();
    node.pool.detach().ok();
}

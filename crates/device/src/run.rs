//! Many requests at once.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use braid_format::Bytes;

use crate::engine::{Flight, Transfer, Wait, engine_kind};
use crate::iscsi::{Gathered, ToUnit, UnitTransfer};
use crate::tasks::{self, Awaited, DeviceKey};
use crate::traffic::IoCounters;
use crate::{DeviceError, Op, Request, RingTarget, Route};

thread_local! {
    static FLIGHT: RefCell<Option<Flight>> = const { RefCell::new(None) };
}

/// Issues all requests at once on this thread's ring and waits for all of them; each `result` says
/// how its request ended. There is no order among the requests of a batch: a flush covers only
/// writes that had completed before the call. Requests side by side on a device become one call, and
/// those larger than it takes at once several; each fails by itself all the same. Devices without a
/// descriptor are served one after the other meanwhile; modelled disks all at once, in the time of their
/// model.
///
/// Returns, or unwinds, only when the kernel holds none of the requests' memory.
pub fn run(requests: &mut [Request<'_>]) {
    // One request gains nothing from a ring: the module `engine` has the figures.
    if let [only] = requests {
        return inline(only);
    }
    let _waits = tasks::wait(Awaited::Device(DeviceKey::SEVERAL));
    for r in requests.iter_mut() {
        if let Op::Read(buf) = &r.op
            && let Some(below) = r.device.unchanged(r.at, Bytes::from(buf.len()))
        {
            r.device = below;
        }
    }
    let mut by_ring = false;
    for r in requests.iter() {
        match r.device.route() {
            Route::Unit(_) => return with_units(requests),
            Route::Ring(_) => by_ring = true,
            Route::Submit | Route::Timed(..) | Route::Threads(..) => {}
        }
    }
    // Nothing for a ring: none is made.
    if !by_ring {
        return by_submit(requests.iter_mut());
    }
    let ran = FLIGHT.try_with(|flight| {
        let Ok(mut flight) = flight.try_borrow_mut() else { return false };
        if flight.as_ref().is_none_or(|f| !f.is_ours()) {
            *flight = Some(Flight::new(engine_kind()));
        }
        let Some(flight) = flight.as_mut() else { return false };
        run_on(flight, requests);
        true
    });
    // A thread at its end, or a device whose own method runs a batch.
    if ran != Ok(true) {
        by_submit(requests.iter_mut());
    }
}

/// Requests of which some go to units of targets: all of those at once, and the others meanwhile.
fn with_units(requests: &mut [Request<'_>]) {
    let (mut units, others): (Vec<_>, Vec<_>) =
        requests.iter_mut().partition(|r| unit_of(r).is_some());
    let begun = Instant::now();
    let commands = start_units(&mut units);
    by_submit(others.into_iter());
    finish_units(&mut units, commands, begun);
}

fn unit_of<'a>(r: &Request<'a>) -> Option<ToUnit<'a>> {
    match r.device.route() {
        Route::Unit(unit) => Some(unit),
        _ => None,
    }
}

/// Starts requests on units, all at once; a flush is done when this returns. What is returned must be
/// dropped, or given to [`finish_units`], before the requests' memory is used again.
fn start_units(requests: &mut [&mut Request<'_>]) -> Vec<UnitTransfer> {
    let mut gathered = Gathered::default();
    for (owner, r) in (0_u32..).zip(requests.iter_mut()) {
        r.result = Ok(());
        let Some(to) = unit_of(r) else { continue };
        let (write, memory) = match &mut r.op {
            Op::Read(buf) => (false, (buf.as_mut_ptr(), buf.len())),
            Op::Write(buf) => (true, (buf.as_ptr().cast_mut(), buf.len())),
            Op::Flush => continue,
        };
        // SAFETY: borrowed by the request; `run` drops the commands before it returns or unwinds.
        r.result = unsafe { gathered.add(owner, to, write, r.at, memory) }.map(|_| ());
    }
    let (commands, refused) = gathered.issue(false);
    for (owner, e) in refused {
        requests[owner as usize].result = Err(e);
    }
    for r in requests.iter_mut().filter(|r| matches!(r.op, Op::Flush)) {
        r.result = r.device.flush();
    }
    commands
}

/// Waits for requests on units, which were issued when they `begun`.
fn finish_units(requests: &mut [&mut Request<'_>], commands: Vec<UnitTransfer>, begun: Instant) {
    for command in commands {
        let Some(to) = unit_of(requests[command.owner() as usize]) else { continue };
        to.finish(command, begun, |owner, ended| {
            let r = &mut *requests[owner as usize];
            r.result = std::mem::replace(&mut r.result, Ok(())).and(ended);
        });
    }
}

/// Serves requests by their devices' own calls, one after the other; those on modelled disks, and on
/// devices with threads of their own, begin at the same time.
fn by_submit<'r, 'a: 'r>(requests: impl Iterator<Item = &'r mut Request<'a>>) {
    let (mut tickets, mut under_way) = (Vec::new(), Vec::new());
    for r in requests {
        match r.device.route() {
            Route::Timed(disk, counters) => {
                let op = again(&mut r.op);
                count(counters, &op);
                r.result = disk.start(r.at, op).map(|ticket| tickets.push(ticket));
                if let Some(counters) = counters {
                    counters.failed_if(&r.result);
                }
            }
            Route::Threads(device, counters) => {
                count(counters, &r.op);
                under_way.push((device.start(r.at, &r.op), r, counters, Instant::now()));
            }
            Route::Submit | Route::Ring(_) | Route::Unit(_) => inline(r),
        }
    }
    for (request, r, counters, begun) in under_way {
        r.result = request.finish(&mut r.op);
        let Some(counters) = counters else { continue };
        if !matches!(r.op, Op::Flush) {
            counters.took(matches!(r.op, Op::Write(_)), begun.elapsed());
        }
        counters.failed_if(&r.result);
    }
    for ticket in tickets {
        ticket.wait();
    }
}

/// The same once more.
fn again<'a>(op: &'a mut Op<'_>) -> Op<'a> {
    match op {
        Op::Read(buf) => Op::Read(buf),
        Op::Write(buf) => Op::Write(buf),
        Op::Flush => Op::Flush,
    }
}

/// Counts a request that goes past its device's [`Device::submit`](crate::Device::submit).
fn count(counters: Option<&IoCounters>, op: &Op<'_>) {
    let Some(counters) = counters else { return };
    match op {
        Op::Read(buf) => counters.transfer(false, buf.len()),
        Op::Write(buf) => counters.transfer(true, buf.len()),
        Op::Flush => counters.flush(),
    }
}

fn inline(r: &mut Request<'_>) {
    r.result = match &mut r.op {
        Op::Read(buf) => r.device.read(r.at, buf),
        Op::Write(buf) => r.device.write(r.at, buf),
        Op::Flush => r.device.flush(),
    };
}

/// Waits for the kernel even if the stack is unwound.
struct Landing<'f>(&'f mut Flight);
impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.0.drain();
    }
}

pub(crate) fn run_on(flight: &mut Flight, requests: &mut [Request<'_>]) {
    let flight = Landing(flight);
    for (owner, r) in (0_u32..).zip(requests.iter_mut()) {
        let Route::Ring(target) = r.device.route() else { continue };
        r.result = transfer(owner, target, r).map(|transfer| {
            // SAFETY: the memory and the device are borrowed by `requests`, whose operations are
            // not touched again before `Landing` has waited for everything.
            unsafe { flight.0.start(transfer) };
        });
    }
    if flight.0.pending() > 0 {
        flight.0.reap(Wait::No, |owner, result| settle(requests, owner, result));
    }
    by_submit(requests.iter_mut().filter(|r| !matches!(r.device.route(), Route::Ring(_))));
    flight.0.reap(Wait::All, |owner, result| settle(requests, owner, result));
}

fn transfer(
    owner: u32,
    target: RingTarget<'_>,
    r: &mut Request<'_>,
) -> Result<Transfer, DeviceError> {
    Ok(match &mut r.op {
        Op::Read(buf) => {
            r.device.info().check(r.at, Bytes::from(buf.len()))?;
            target.intact.was_intact()?;
            Transfer::read(owner, target, r.at.get(), buf.as_mut_ptr(), buf.len())
        }
        Op::Write(buf) => {
            r.device.info().check_write(target.poisoned, r.at, Bytes::from(buf.len()))?;
            target.intact.intact()?;
            Transfer::write(owner, target, r.at.get(), buf.as_ptr(), buf.len())
        }
        Op::Flush => {
            r.device.info().check_poison(target.poisoned)?;
            target.intact.intact()?;
            Transfer::flush(owner, target)
        }
    })
}

/// Takes in how a request, or a call that it was cut into, ended.
fn settle(requests: &mut [Request<'_>], owner: u32, result: io::Result<()>) {
    let r = &mut requests[owner as usize];
    let Err(e) = result else { return };
    let operation = match r.op {
        Op::Read(_) => "read",
        Op::Write(_) => "write",
        Op::Flush => "flush",
    };
    if let (Op::Flush, Route::Ring(RingTarget { poisoned: Some(poisoned), .. })) =
        (&r.op, r.device.route())
    {
        poisoned.store(true, Ordering::Release);
    }
    r.result = Err(r.device.info().io_error(operation, r.at, e));
}

#[cfg(test)]
mod tests;

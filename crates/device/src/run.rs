//! Many requests at once.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use braid_format::Bytes;

use crate::engine::{Flight, Transfer, Wait, engine_kind};
use crate::request::{Op, Request, check_poison, check_write, io_error};
use crate::{DeviceError, RingTarget};

thread_local! {
    static FLIGHT: RefCell<Option<Flight>> = const { RefCell::new(None) };
}

/// Issues all requests at once on this thread's ring and waits for all of them; each `result` says
/// how its request ended. There is no order among the requests of a batch: a flush covers only
/// writes that had completed before the call. Requests side by side on a device become one call, and
/// those larger than it takes at once several; each fails by itself all the same. Devices without a descriptor are served by their own
/// methods meanwhile; modelled disks all at once, in the time of their model.
///
/// Returns, or unwinds, only when the kernel holds none of the requests' memory.
pub fn run(requests: &mut [Request<'_>]) {
    // One request gains nothing from a ring: the module `engine` has the figures.
    if let [only] = requests {
        return inline(only);
    }
    for r in requests.iter_mut() {
        if let Op::Read(buf) = &r.op
            && let Some(below) = r.device.unchanged(r.at, Bytes::from(buf.len()))
        {
            r.device = below;
        }
    }
    if requests.iter().any(|r| r.device.initiator().is_some()) {
        return with_units(requests);
    }
    // Nothing for a ring: none is made.
    if requests.iter().all(|r| r.device.ring_target().is_none()) {
        return by_methods(requests.iter_mut());
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
        by_methods(requests.iter_mut());
    }
}

/// Requests of which some go to units of targets: all of those at once, and the others meanwhile.
fn with_units(requests: &mut [Request<'_>]) {
    let (mut units, others): (Vec<_>, Vec<_>) =
        requests.iter_mut().partition(|r| r.device.initiator().is_some());
    // Their transfers are counted by the commands that they become.
    for r in units.iter().filter(|r| matches!(r.op, Op::Flush)) {
        count(r);
    }
    let begun = Instant::now();
    let commands = crate::iscsi::start_all(&mut units);
    by_methods(others.into_iter());
    crate::iscsi::finish_all(&mut units, commands, begun);
}

/// Serves requests by their devices' methods, one after the other; those on modelled disks begin at
/// the same time.
fn by_methods<'r, 'a: 'r>(requests: impl Iterator<Item = &'r mut Request<'a>>) {
    let mut tickets = Vec::new();
    for r in requests {
        let Some(disk) = r.device.modelled() else {
            inline(r);
            continue;
        };
        count(r);
        let started = match &mut r.op {
            Op::Read(buf) => disk.start_read(r.at, buf),
            Op::Write(buf) => disk.start_write(r.at, buf),
            Op::Flush => disk.start_flush(),
        };
        r.result = started.map(|ticket| tickets.push(ticket));
    }
    for ticket in tickets {
        ticket.wait();
    }
}

/// Counts a request that goes past its device's methods.
fn count(r: &Request<'_>) {
    let Some(counters) = r.device.counters() else { return };
    match &r.op {
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
        let Some(target) = r.device.ring_target() else { continue };
        r.result = transfer(owner, target, r).map(|transfer| {
            // SAFETY: the memory and the device are borrowed by `requests`, whose operations are
            // not touched again before `Landing` has waited for everything.
            unsafe { flight.0.start(transfer) };
        });
    }
    if flight.0.pending() > 0 {
        flight.0.reap(Wait::No, |owner, result| settle(requests, owner, result));
    }
    by_methods(requests.iter_mut().filter(|r| r.device.ring_target().is_none()));
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
            Transfer::read(owner, target, r.at.get(), buf.as_mut_ptr(), buf.len())
        }
        Op::Write(buf) => {
            check_write(r.device, target.poisoned, r.at, Bytes::from(buf.len()))?;
            Transfer::write(owner, target, r.at.get(), buf.as_ptr(), buf.len())
        }
        Op::Flush => {
            check_poison(r.device, target.poisoned)?;
            r.device.intact()?;
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
    let poisoned = r.device.ring_target().and_then(|t| t.poisoned);
    if let (Op::Flush, Some(poisoned)) = (&r.op, poisoned) {
        poisoned.store(true, Ordering::Release);
    }
    r.result = Err(io_error(r.device, operation, r.at, e));
}

#[cfg(test)]
mod tests;

//! Disks, buses and what is under way on them: a state machine in virtual time.
//!
//! ```text
//!            host        bus          controller   bus           mechanism     bus
//!  read:   waiting --> command -----> overhead -----------------> bursts ----> bursts --> done
//!  write:  waiting --> command -----> overhead --> bursts ------> bursts ---------------> done
//!                                                    `- write cache: done
//! ```
//! A disk holds up to [`DiskModel::tags`] commands. The mechanism takes one at a time and passes
//! over it burst by burst: a read's burst goes on the bus when it has been read, a write's burst
//! must have come over the bus before. Disks without a bus move bytes in no time.
//!
//! Events of the same instant happen in the order in which they were brought about, so a run
//! depends on nothing but what is submitted, and when.

use std::collections::{BTreeMap, VecDeque};

use braid_format::Bytes;

use super::bus::{Bus, BusState, BusStats, Job, Use};
use super::disk::{DiskModel, Order};
use super::mechanism::{Access, Mechanism, MechanismStats};
use super::time::Time;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Passes bytes under the head.
    Access(Access),
    /// Waits until what the write cache has acknowledged is on the medium.
    Flush,
}

/// What a disk has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Requests that were given to it.
    pub requests: u64,
    /// Commands they became: fewer when adjoining ones were joined.
    pub commands: u64,
    /// Bytes read and written.
    pub moved: Bytes,
    /// The mechanism's time.
    pub mechanism: MechanismStats,
}

#[derive(Debug)]
struct Waiting {
    request: u64,
    work: Work,
}

#[derive(Debug)]
struct Command {
    disk: usize,
    work: Work,
    requests: Vec<u64>,
    /// Order of issue.
    number: u64,
    /// Bytes of a write that have come over the bus.
    arrived: u64,
    /// Bytes that have passed under the head.
    passed: u64,
    /// Bytes of a read that have gone over the bus.
    sent: u64,
    /// A write whose requests are complete although it is only in the cache.
    acknowledged: bool,
}
impl Command {
    /// What is to be read or written; a flush has nothing.
    fn access(&self) -> Access {
        match self.work {
            Work::Access(access) => access,
            Work::Flush => Access { write: false, at: 0, len: 0 },
        }
    }
}

#[derive(Debug)]
struct Disk {
    model: DiskModel,
    bus: Option<usize>,
    mechanism: Mechanism,
    waiting: VecDeque<Waiting>,
    /// A dispatch is among the events.
    dispatching: bool,
    tagged: u32,
    /// When the controller is done with the commands it has.
    controller: Time,
    /// Writes whose bytes come over the bus: one after the other, in order of issue.
    receiving: VecDeque<usize>,
    /// Commands for the mechanism, in order of issue.
    ready: Vec<usize>,
    current: Option<usize>,
    /// The current write waits for its next burst.
    starved: bool,
    /// End of the last access, for the elevator.
    position: u64,
    /// Bytes in the write cache.
    cached: u64,
    /// Writes that wait for room in it.
    for_cache: VecDeque<usize>,
    flushes: Vec<usize>,
    stats: DiskStats,
}

#[derive(Debug)]
enum Event {
    Arrive { disk: usize, request: u64, work: Work },
    Dispatch { disk: usize },
    Processed { command: usize },
    Bus { bus: usize },
    Passed { disk: usize, len: u64 },
}

/// The machine.
#[derive(Debug, Default)]
pub(super) struct Machine {
    now: Time,
    disks: Vec<Disk>,
    buses: Vec<BusState>,
    commands: Vec<Option<Command>>,
    free: Vec<usize>,
    events: BTreeMap<(Time, u64), Event>,
    /// Events so far.
    number: u64,
    requests: u64,
    issued: u64,
    /// Requests that were cut, and their pieces not complete.
    cut: BTreeMap<u64, u64>,
    /// Requests complete, not yet taken out.
    pub complete: Vec<u64>,
}

impl Machine {
    pub const fn now(&self) -> Time {
        self.now
    }
    pub fn add_bus(&mut self, bus: Bus) -> usize {
        self.buses.push(BusState::new(bus));
        self.buses.len() - 1
    }
    pub fn add_disk(&mut self, model: DiskModel, size: u64, bus: Option<usize>) -> usize {
        self.disks.push(Disk {
            model,
            bus,
            mechanism: Mechanism::new(&model, size),
            waiting: VecDeque::new(),
            dispatching: false,
            tagged: 0,
            controller: Time(0),
            receiving: VecDeque::new(),
            ready: Vec::new(),
            current: None,
            starved: false,
            position: 0,
            cached: 0,
            for_cache: VecDeque::new(),
            flushes: Vec::new(),
            stats: DiskStats::default(),
        });
        self.disks.len() - 1
    }
    pub fn disk_stats(&self, disk: usize) -> DiskStats {
        self.disks.get(disk).map_or_else(DiskStats::default, |d| DiskStats {
            mechanism: d.mechanism.stats(),
            ..d.stats
        })
    }
    pub fn bus_stats(&self, bus: usize) -> BusStats {
        self.buses.get(bus).map_or_else(BusStats::default, BusState::stats)
    }

    /// A request comes to `disk` at `at`, or now if that is past; returns its number.
    pub fn submit(&mut self, at: Time, disk: usize, work: Work) -> u64 {
        self.requests += 1;
        let request = self.requests;
        self.at(at, Event::Arrive { disk, request, work });
        request
    }
    /// When something happens next.
    pub fn next(&self) -> Option<Time> {
        self.events.keys().next().map(|(time, _)| *time)
    }
    /// Lets the next thing happen; false: there is none.
    pub fn step(&mut self) -> bool {
        let Some(((time, _), event)) = self.events.pop_first() else { return false };
        self.now = time;
        match event {
            Event::Arrive { disk, request, work } => self.arrive(disk, request, work),
            Event::Dispatch { disk } => self.dispatch(disk),
            Event::Processed { command } => self.processed(command),
            Event::Bus { bus } => self.bus_ended(bus),
            Event::Passed { disk, len } => self.passed(disk, len),
        }
        true
    }
    /// Lets happen what happens until `until`, and makes that now.
    pub fn run_until(&mut self, until: Time) {
        while self.next().is_some_and(|time| time <= until) {
            self.step();
        }
        self.now = self.now.max(until);
    }

    fn at(&mut self, time: Time, event: Event) {
        self.number += 1;
        self.events.insert((time.max(self.now), self.number), event);
    }
    fn disk(&mut self, disk: usize) -> &mut Disk {
        self.disks.get_mut(disk).expect("disks are never taken away")
    }
    fn command(&mut self, command: usize) -> &mut Command {
        let place = self.commands.get_mut(command).and_then(Option::as_mut);
        place.expect("a command lives until it is complete")
    }

    fn arrive(&mut self, disk: usize, request: u64, work: Work) {
        let d = self.disk(disk);
        d.stats.requests += 1;
        let most = if d.model.transfer_max.0 == 0 { u64::MAX } else { d.model.transfer_max.0 };
        match work {
            Work::Access(a) if a.len > most => {
                let end = a.at + a.len;
                let mut at = a.at;
                while at < end {
                    let len = most.min(end - at);
                    let work = Work::Access(Access { at, len, ..a });
                    d.waiting.push_back(Waiting { request, work });
                    at += len;
                }
                self.cut.insert(request, a.len.div_ceil(most));
            }
            _ => d.waiting.push_back(Waiting { request, work }),
        }
        self.dispatch_soon(disk);
    }
    /// Not at once: what comes at the same instant is seen together, as behind a plug.
    fn dispatch_soon(&mut self, disk: usize) {
        let d = self.disk(disk);
        if !std::mem::replace(&mut d.dispatching, true) {
            self.at(self.now, Event::Dispatch { disk });
        }
    }
    fn dispatch(&mut self, disk: usize) {
        self.disk(disk).dispatching = false;
        loop {
            let d = self.disk(disk);
            if d.tagged >= d.model.tags {
                return;
            }
            let Some((work, requests)) = d.take() else { return };
            d.tagged += 1;
            d.stats.commands += 1;
            let bus = d.bus;
            self.issued += 1;
            let command = self.keep(Command {
                disk,
                work,
                requests,
                number: self.issued,
                arrived: 0,
                passed: 0,
                sent: 0,
                acknowledged: false,
            });
            match bus {
                Some(bus) => self.ask(bus, Job { command, what: Use::Command }),
                None => self.process(command),
            }
        }
    }
    fn keep(&mut self, command: Command) -> usize {
        if let Some(free) = self.free.pop()
            && let Some(place) = self.commands.get_mut(free)
        {
            *place = Some(command);
            return free;
        }
        self.commands.push(Some(command));
        self.commands.len() - 1
    }

    fn ask(&mut self, bus: usize, job: Job) {
        if let Some(b) = self.buses.get_mut(bus) {
            b.ask(job);
        }
        self.grant(bus);
    }
    fn grant(&mut self, bus: usize) {
        let now = self.now;
        if let Some(end) = self.buses.get_mut(bus).and_then(|b| b.grant(now)) {
            self.at(end, Event::Bus { bus });
        }
    }
    fn bus_ended(&mut self, bus: usize) {
        let Some(job) = self.buses.get_mut(bus).and_then(BusState::ended) else { return };
        match job.what {
            Use::Command => self.process(job.command),
            Use::Burst(len) => self.burst_ended(job.command, len),
        }
        self.grant(bus);
    }

    /// The controller takes a command when it is done with the ones before.
    fn process(&mut self, command: usize) {
        let (now, disk) = (self.now, self.command(command).disk);
        let d = self.disk(disk);
        let begins = if d.model.overhead.is_zero() { now } else { d.controller.max(now) };
        let done = begins + d.model.overhead;
        d.controller = done;
        self.at(done, Event::Processed { command });
    }
    fn processed(&mut self, command: usize) {
        let c = self.command(command);
        let (disk, work, access) = (c.disk, c.work, c.access());
        if work == Work::Flush {
            self.disk(disk).flushes.push(command);
            return self.end_flushes(disk);
        }
        self.disk(disk).ready.push(command);
        match self.disk(disk).bus {
            Some(_) if access.write => {
                let d = self.disk(disk);
                d.receiving.push_back(command);
                if d.receiving.len() == 1 {
                    self.ask_for_burst(command);
                }
            }
            _ => {
                self.command(command).arrived = access.len;
                if access.write {
                    self.offer_to_cache(command);
                }
            }
        }
        self.move_on(disk);
    }
    /// The next burst of a write.
    fn ask_for_burst(&mut self, command: usize) {
        let c = self.command(command);
        let (disk, left) = (c.disk, c.access().len - c.arrived);
        let Some(bus) = self.disk(disk).bus else { return };
        let burst = self.buses.get(bus).map_or(left, BusState::burst).min(left);
        self.ask(bus, Job { command, what: Use::Burst(burst) });
    }
    fn burst_ended(&mut self, command: usize, len: u64) {
        let c = self.command(command);
        let (disk, access) = (c.disk, c.access());
        if !access.write {
            c.sent += len;
            if c.sent == access.len {
                self.complete(command);
            }
            return;
        }
        c.arrived += len;
        if c.arrived < access.len {
            self.ask_for_burst(command);
        } else {
            let d = self.disk(disk);
            d.receiving.pop_front();
            let next = d.receiving.front().copied();
            if let Some(next) = next {
                self.ask_for_burst(next);
            }
            self.offer_to_cache(command);
        }
        self.move_on(disk);
    }

    /// A write whose bytes are all in the disk may be complete by that.
    fn offer_to_cache(&mut self, command: usize) {
        let c = self.command(command);
        let (disk, len) = (c.disk, c.access().len);
        let d = self.disk(disk);
        if len <= d.model.write_cache.0 {
            d.for_cache.push_back(command);
            self.fill_cache(disk);
        }
    }
    fn fill_cache(&mut self, disk: usize) {
        while let Some(command) = self.disk(disk).for_cache.front().copied() {
            let len = self.command(command).access().len;
            let d = self.disk(disk);
            if d.cached + len > d.model.write_cache.0 {
                return;
            }
            d.cached += len;
            d.for_cache.pop_front();
            self.command(command).acknowledged = true;
            self.acknowledge(command);
        }
    }
    fn end_flushes(&mut self, disk: usize) {
        let d = self.disk(disk);
        let (flushes, ready) = (std::mem::take(&mut d.flushes), d.ready.clone());
        let mut oldest = u64::MAX;
        for write in ready {
            let c = self.command(write);
            if c.acknowledged {
                oldest = oldest.min(c.number);
            }
        }
        for flush in flushes {
            if self.command(flush).number < oldest {
                self.complete(flush);
            } else {
                self.disk(disk).flushes.push(flush);
            }
        }
    }

    /// Gives the mechanism something to do, if it is idle or starved and there is something.
    fn move_on(&mut self, disk: usize) {
        let d = self.disk(disk);
        if d.current.is_some() && !d.starved {
            return;
        }
        if d.current.is_none() {
            let Some(next) = self.next_command(disk) else { return };
            self.disk(disk).current = Some(next);
        }
        let Some(command) = self.disk(disk).current else { return };
        let now = self.now;
        let bus = self.disk(disk).bus;
        let burst = bus.and_then(|b| self.buses.get(b)).map_or(u64::MAX, BusState::burst);
        let c = self.command(command);
        let access = c.access();
        let len = burst.min(access.len - c.passed);
        let starved = access.write && c.arrived < c.passed + len;
        let at = access.at + c.passed;
        let d = self.disk(disk);
        d.starved = starved;
        if !starved {
            let end = d.mechanism.serve(now, Access { at, len, ..access });
            self.at(end, Event::Passed { disk, len });
        }
    }
    /// The command whose turn it is, if it may begin.
    fn next_command(&mut self, disk: usize) -> Option<usize> {
        let d = self.disk(disk);
        let (order, position, fill) = (d.model.order, d.position, d.model.write_fill.0);
        let ready = d.ready.clone();
        let may_begin = |c: &Command| {
            let access = c.access();
            !access.write || c.arrived >= fill.min(access.len)
        };
        match order {
            Order::Fifo => {
                let first = ready.first().copied()?;
                may_begin(self.command(first)).then_some(first)
            }
            Order::Elevator => {
                let mut able: Vec<(bool, u64, usize)> = Vec::with_capacity(ready.len());
                for command in ready {
                    let c = self.command(command);
                    let at = c.access().at;
                    if may_begin(c) {
                        able.push((at < position, at, command));
                    }
                }
                able.into_iter().min_by_key(|(below, at, _)| (*below, *at)).map(|(.., c)| c)
            }
        }
    }
    fn passed(&mut self, disk: usize, len: u64) {
        let Some(command) = self.disk(disk).current else { return };
        let c = self.command(command);
        c.passed += len;
        let access = c.access();
        let (whole, acknowledged) = (c.passed == access.len, c.acknowledged);
        let d = self.disk(disk);
        d.position = access.at + access.len;
        d.stats.moved = Bytes(d.stats.moved.0 + len);
        let bus = d.bus;
        if whole {
            d.current = None;
            d.ready.retain(|c| *c != command);
            d.for_cache.retain(|c| *c != command);
        } else {
            d.starved = true;
        }
        match bus {
            Some(bus) if !access.write => {
                self.ask(bus, Job { command, what: Use::Burst(len) });
            }
            _ if whole && acknowledged => {
                self.disk(disk).cached -= access.len;
                self.forget(command);
                self.fill_cache(disk);
                self.end_flushes(disk);
            }
            _ if whole => {
                self.complete(command);
                self.fill_cache(disk);
            }
            _ => {}
        }
        self.move_on(disk);
    }

    /// The command's requests are complete: the host may send another command.
    fn acknowledge(&mut self, command: usize) {
        let (now, c) = (self.now, self.command(command));
        let (disk, requests) = (c.disk, std::mem::take(&mut c.requests));
        for request in requests {
            match self.cut.get_mut(&request) {
                Some(left) if *left > 1 => *left -= 1,
                _ => {
                    self.cut.remove(&request);
                    self.complete.push(request);
                }
            }
        }
        let d = self.disk(disk);
        d.tagged -= 1;
        if let Some(bus) = d.bus {
            if let Some(b) = self.buses.get_mut(bus) {
                b.release(command, now);
            }
            self.grant(bus);
        }
        self.dispatch_soon(disk);
    }
    fn complete(&mut self, command: usize) {
        self.acknowledge(command);
        self.forget(command);
    }
    fn forget(&mut self, command: usize) {
        if let Some(place) = self.commands.get_mut(command) {
            *place = None;
            self.free.push(command);
        }
    }
}

impl Disk {
    /// The next command for the disk, out of what waits in the host.
    fn take(&mut self) -> Option<(Work, Vec<u64>)> {
        let at = |w: &Waiting| match w.work {
            Work::Access(a) => a.at,
            Work::Flush => 0,
        };
        let position = self.position;
        let place = match self.model.order {
            Order::Fifo => 0,
            Order::Elevator => {
                let key = |(i, w): (usize, &Waiting)| ((at(w) < position, at(w)), i);
                self.waiting.iter().enumerate().map(key).min()?.1
            }
        };
        let first = self.waiting.remove(place)?;
        let Work::Access(mut joined) = first.work else {
            return Some((first.work, vec![first.request]));
        };
        let mut requests = vec![first.request];
        let most = self.model.transfer_max.0;
        loop {
            let adjoins = |w: &Waiting| match w.work {
                Work::Access(a) => {
                    a.write == joined.write
                        && a.at == joined.at + joined.len
                        && joined.len + a.len <= most
                }
                Work::Flush => false,
            };
            let Some(next) = self.waiting.iter().position(adjoins) else { break };
            let Some(Waiting { request, work: Work::Access(a) }) = self.waiting.remove(next) else {
                break;
            };
            joined.len += a.len;
            requests.push(request);
        }
        Some((Work::Access(joined), requests))
    }
}

//! Mirrors, parity and rebuilding on modelled disks, in virtual time and against closed forms.
//! `cargo test -p braid-pool --test modelled_redundancy -- --nocapture` prints the tables.
//!
//! The real pool runs, on devices that take note of what they are asked for, one request at a time.
//! What it asked for is then played on the models: each request's steps one after the other, as
//! many requests at a time as the workload says. No run depends on the machine.

#![expect(clippy::unwrap_used, reason = "a failing step is a failing test")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use braid_format::{ByteOffset, Bytes, MemberIndex};
use braid_pool::device::model::{DiskModel, ModelClock, Rate, Time, presets};
use braid_pool::device::modelled::{Client, ModelDevice, Outcome, Touch, drive};
use braid_pool::device::{AlignedBuf, CommandKind, Device, MemoryDevice, Rule, ScriptedDevice};
use braid_pool::layout::{Redundancy, parse};
use braid_pool::{CreateOptions, Pace, Pool};
use parking_lot::Mutex;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MEMBER: u64 = 80 * MIB;
/// Of a request.
const REQUEST: u64 = MIB;
/// Bytes of a stream.
const TOTAL: u64 = 32 * MIB;

/// A disk of today that turns: 200 MB/s, 7200 rpm. A shape, no particular product.
const TURNING: DiskModel = DiskModel {
    heads: 8,
    cylinders: 300_000,
    seek: braid_pool::device::model::Seek {
        track_to_track: Duration::from_micros(600),
        average: Duration::from_micros(8500),
        full_stroke: Duration::from_millis(17),
    },
    overhead: Duration::from_micros(100),
    read_ahead: Bytes(1 << 20),
    write_cache: Bytes(16 << 20),
    ..DiskModel::spinning(7200, Bytes(1_666_560))
};

/// Something a device was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Access {
        member: usize,
        write: bool,
        at: u64,
        len: u64,
    },
    Flush,
    /// The end of a piece of work.
    End,
}

type Log = Arc<Mutex<Vec<(ThreadId, Event)>>>;

fn note(log: &Log, event: Event) {
    log.lock().push((std::thread::current().id(), event));
}

/// A step: what is asked for at the same time. An access is member, write, place, length.
type Step = Vec<(usize, bool, u64, u64)>;
/// A request's steps.
type Script = Vec<Step>;

/// Reads, writes and flushes of one batch are under way together; the pool never mixes them in one
/// but waits in between.
fn script(events: &[Event]) -> Script {
    let mut steps: Vec<(Option<bool>, Step)> = Vec::new();
    for event in events {
        let Event::Access { member, write, at, len } = *event else {
            steps.push((None, Vec::new()));
            continue;
        };
        match steps.last_mut() {
            Some((Some(kind), step)) if *kind == write => step.push((member, write, at, len)),
            _ => steps.push((Some(write), vec![(member, write, at, len)])),
        }
    }
    steps.into_iter().map(|(_, step)| step).filter(|s| !s.is_empty()).collect()
}

/// A pool whose devices take note.
struct Fixture {
    pool: Pool,
    log: Log,
    /// The pool's byte where its data begins.
    data: u64,
}

impl Fixture {
    fn device(log: &Log, member: usize) -> Arc<dyn Device> {
        let inner = MemoryDevice::new(&format!("disk{member}"), Bytes(MEMBER), Bytes(512));
        let device = ScriptedDevice::over(inner);
        let log = log.clone();
        device.add(Rule::all().calls(move |at, command| {
            let write = match command.kind() {
                CommandKind::Read => false,
                CommandKind::Write | CommandKind::CompareAndWrite => true,
                CommandKind::Flush => return note(&log, Event::Flush),
                _ => return,
            };
            note(&log, Event::Access { member, write, at: at.0, len: command.len().0 });
        }));
        device
    }
    fn new(members: usize, layout: Option<&str>) -> Self {
        let log = Log::default();
        let devices = (0..members).map(|i| Self::device(&log, i)).collect();
        let mut options = CreateOptions::new("model").stripe_unit(Bytes(256 * KIB)).unwrap();
        options.redundancy = Redundancy::None;
        options.layout = layout.map(|text| parse::layout(text, &BTreeMap::new()).unwrap());
        let pool = Pool::create(devices, &options).unwrap();
        pool.attach(0).unwrap();
        let data = pool.label().segments.last().map_or(0, |s| s.start.0);
        Self { pool, log, data }
    }
    fn one() -> Self {
        Self::new(1, None)
    }
    fn mirror() -> Self {
        Self::new(2, Some("mirror(all)"))
    }
    fn parity() -> Self {
        Self::new(5, Some("metadata = mirror+1(all[8M]); data = parity+1(all)"))
    }
    /// What the pool asks for when `len` bytes at `from` of the data are read or written.
    fn stream(&self, write: bool, from: u64, len: u64) -> Vec<Script> {
        let mut buf = AlignedBuf::zeroed(Bytes(REQUEST).to_usize());
        let mut ask = |at: u64| {
            self.log.lock().clear();
            let at = ByteOffset(self.data + from + at);
            if write { self.pool.write(at, &buf) } else { self.pool.read(at, &mut buf) }.unwrap();
            script(&self.log.lock().drain(..).map(|(_, e)| e).collect::<Vec<_>>())
        };
        (0..len / REQUEST).map(|i| ask(i * REQUEST)).collect()
    }
    /// Puts an empty device in place of a member.
    fn replace(&self, member: u16) {
        let new = Self::device(&self.log, usize::from(member));
        self.pool.replace(MemberIndex(member), new, false).unwrap();
    }
    /// What filling a member asks for, piece by piece in order of place; and the bytes filled.
    fn rebuild(&self, member: u16) -> (Vec<Script>, u64) {
        self.log.lock().clear();
        let pace = |_| {
            self.log.lock().push((std::thread::current().id(), Event::End));
            true
        };
        assert!(self.pool.rebuild(MemberIndex(member), &pace).unwrap());
        let mut threads: HashMap<ThreadId, Vec<Event>> = HashMap::new();
        let mut pieces: Vec<Script> = Vec::new();
        for (thread, event) in self.log.lock().drain(..) {
            let events = threads.entry(thread).or_default();
            if event == Event::End {
                pieces.push(script(&std::mem::take(events)));
            } else {
                events.push(event);
            }
        }
        // What one member holds is in order of place, whoever filled it.
        let place = |piece: &Script| piece.last().and_then(|s| s.last()).map_or(0, |a| a.2);
        pieces.sort_by_key(place);
        let written = |s: &Script| -> u64 { s.iter().flatten().filter(|a| a.1).map(|a| a.3).sum() };
        let bytes = pieces.iter().map(written).sum();
        (pieces, bytes)
    }
}

/// Modelled disks to play on.
struct Stage {
    clock: ModelClock,
    disks: Vec<Arc<ModelDevice>>,
}

/// A workload: so many clients, each with one request at a time.
#[derive(Clone, Copy)]
struct Play<'a> {
    scripts: &'a [Script],
    clients: usize,
    /// How often it is played.
    times: usize,
    /// Gives way to the others, as maintenance does.
    gives_way: bool,
}

fn play(scripts: &[Script], clients: usize) -> Play<'_> {
    Play { scripts, clients, times: 1, gives_way: false }
}

/// Requests of those who do not give way, as the pool counts them.
type Others = Rc<Cell<u64>>;

/// What the threads of a workload have in common.
struct Shared<'a> {
    requests: Rc<RefCell<Box<dyn Iterator<Item = &'a Script> + 'a>>>,
    pace: Rc<RefCell<Pace>>,
}

impl Stage {
    fn new(members: usize, model: DiskModel) -> Self {
        let clock = ModelClock::virtual_time();
        let disk = |i: usize| {
            let inner = MemoryDevice::new(&format!("model{i}"), Bytes(MEMBER), Bytes(512));
            ModelDevice::new(&clock, inner, model, None).unwrap()
        };
        let disks = (0..members).map(disk).collect();
        Self { clock, disks }
    }
    /// Plays workloads side by side, those that give way last. What each client did.
    fn run(&self, plays: &[Play<'_>]) -> Vec<Vec<Outcome>> {
        let others = Others::default();
        let mut clients = Vec::new();
        for play in plays {
            let all = play.scripts.len() * play.times;
            let shared = Shared {
                requests: Rc::new(RefCell::new(Box::new(play.scripts.iter().cycle().take(all)))),
                pace: Rc::new(RefCell::new(Pace::new(0))),
            };
            clients.extend((0..play.clients).map(|_| self.client(*play, &shared, &others)));
        }
        let mut outcomes = drive(&self.clock, clients).unwrap().into_iter();
        plays.iter().map(|p| outcomes.by_ref().take(p.clients).collect()).collect()
    }
    /// One of the threads of a workload: whoever is free takes the next request.
    fn client<'a>(&'a self, play: Play<'a>, shared: &Shared<'a>, others: &Others) -> Client<'a> {
        let touch = |(member, write, at, len): &(usize, bool, u64, u64)| Touch {
            device: &self.disks[*member],
            write: *write,
            at: ByteOffset(*at),
            len: Bytes(*len),
        };
        // What is left of the request it is at.
        let left = Rc::new(Cell::new([].iter()));
        let (requests, rest) = (shared.requests.clone(), left.clone());
        let steps = std::iter::from_fn(move || {
            let mut steps = rest.take();
            if steps.len() == 0 {
                steps = requests.borrow_mut().next()?.iter();
            }
            let step = steps.next()?.iter().map(touch).collect();
            rest.set(steps);
            Some(step)
        });
        let (others, pace) = (others.clone(), shared.pace.clone());
        let since = |t: Time| t - Time(0);
        let mut began = None;
        let pause = move |submitted: Time, done: Time| {
            let began = began.get_or_insert(submitted);
            let steps = left.take();
            let ended = steps.len() == 0;
            left.set(steps);
            if !ended {
                return Duration::ZERO;
            }
            if !play.gives_way {
                others.set(others.get() + 1);
                return Duration::ZERO;
            }
            let next = pace.borrow_mut().next(since(*began), since(done), others.get());
            *began = Time(0) + next;
            next.saturating_sub(since(done))
        };
        Client { pause: Some(Box::new(pause)), ..Client::new(1, steps) }
    }
    /// MB/s of `bytes` moved by one workload alone.
    fn rate(members: usize, model: DiskModel, play: Play<'_>, bytes: u64) -> f64 {
        let stage = Self::new(members, model);
        rate(&stage.run(&[play])[0], bytes)
    }
}

fn rate(clients: &[Outcome], bytes: u64) -> f64 {
    let began = clients.iter().map(|o| o.began).min().unwrap();
    let ended = clients.iter().map(|o| o.ended).max().unwrap();
    Rate::of(Bytes(bytes), ended - began).megabytes()
}

/// The models everything is shown on: one that only moves bytes, one of 2000, one of today.
fn models() -> [(&'static str, DiskModel); 3] {
    let flat =
        DiskModel { overhead: Duration::from_micros(20), ..DiskModel::flat(Rate::mega(200)) };
    [("flat", flat), ("of 2000", presets::BARRACUDA_50), ("turning", TURNING)]
}

fn show(what: &str, expected: f64, measured: f64, goal: f64) {
    println!("{what:<58} {expected:>6.2} {measured:>6.3}  goal {goal:.2}");
    assert!(measured >= goal, "{what}: {measured:.3}, the goal is {goal}");
}

#[test]
fn a_mirror_reads_as_fast_as_its_copies_together() {
    let (one, mirror) = (Fixture::one(), Fixture::mirror());
    let single = one.stream(false, 0, TOTAL);
    let whole = mirror.stream(false, 0, TOTAL);
    let [left, right, turned] =
        [0, 40 * MIB, 44 * MIB].map(|from| mirror.stream(false, from, TOTAL / 2));
    let other = one.stream(false, 40 * MIB, TOTAL / 2);
    for (name, model) in models() {
        for depth in [4, 8] {
            let alone = Stage::rate(1, model, play(&single, depth), TOTAL);
            let both = Stage::rate(2, model, play(&whole, depth), TOTAL);
            // A disk with tracks of half a turn of the copies, or near it, waits for its next turn about
            // as long as it would have read.
            let goal = if name == "turning" { 1.4 } else { 1.8 };
            show(&format!("{name}: one stream, {depth} under way"), 2.0, both / alone, goal);
        }
        // Two streams, against the same two on one disk, which goes to and fro between them. With
        // few requests under way both may be at the same copy all the time, or never.
        let two = |members: usize, a: &[Script], b: &[Script], depth| {
            let all = Stage::new(members, model).run(&[play(a, depth), play(b, depth)]).concat();
            rate(&all, TOTAL)
        };
        let alone = two(1, &single[..single.len() / 2], &other, 4);
        let concurrent = two(2, &left, &right, 4);
        show(&format!("{name}: two streams, 4 under way each"), 2.0, concurrent / alone, 1.8);
        let alone = two(1, &single[..single.len() / 2], &other, 1);
        for (from, second) in [("in step", &right), ("in turns", &turned)] {
            let concurrent = two(2, &left, second, 1);
            show(&format!("{name}: two streams, 1 each, {from}"), 2.0, concurrent / alone, 0.95);
        }
    }
}

#[test]
fn parity_4_1_writes_whole_rows_as_fast_as_a_stripe_of_4() {
    let (stripe, parity) = (Fixture::new(4, None), Fixture::parity());
    // The first time each region is written that is noted; the second time it is noted already.
    let plain = stripe.stream(true, 0, TOTAL);
    let first = parity.stream(true, 0, TOTAL);
    let again = parity.stream(true, 0, TOTAL);
    assert!(again.iter().all(|s| s.len() == 1), "whole rows read nothing and wait for nothing");
    for (name, model) in models() {
        let base = Stage::rate(4, model, play(&plain, 4), TOTAL);
        let noted = Stage::rate(5, model, play(&again, 4), TOTAL);
        show(&format!("{name}: regions noted already"), 1.0, noted / base, 0.9);
        let fresh = Stage::rate(5, model, play(&first, 4), TOTAL);
        show(&format!("{name}: regions noted now"), 1.0, fresh / base, 0.9);
    }
}

/// Filling a member alone, and beside a stream.
fn rebuild(what: &str, fixture: &Fixture, members: usize, member: u16) {
    fixture.replace(member);
    let reads = fixture.stream(false, 0, TOTAL);
    let (writes, rows) = (fixture.stream(true, 0, TOTAL), fixture.stream(true, 0, TOTAL));
    assert!(writes.len() == rows.len());
    let (pieces, bytes) = fixture.rebuild(member);
    assert!(bytes > 60 * MIB, "all of it is filled");
    for (name, model) in models() {
        let one = model.sequential_rate().megabytes();
        let alone = Stage::rate(members, model, play(&pieces, 4), bytes);
        show(&format!("{what}, {name}: filled, of one member"), 1.0, alone / one, 0.8);
        for (verb, scripts) in [("reads", &reads), ("writes", &rows)] {
            for depth in [1, 4] {
                let job = Play { times: 16, ..play(scripts, depth) };
                let undisturbed = Stage::rate(members, model, job, 16 * TOTAL);
                let filling = Play { gives_way: true, ..play(&pieces, 4) };
                let ran = Stage::new(members, model).run(&[job, filling]);
                let concurrent = rate(&ran[0], 16 * TOTAL);
                let row = format!("{what}, {name}: {verb}, {depth} at a time, beside filling");
                println!("   filled beside it: {:.3}", rate(&ran[1], bytes) / one);
                show(&row, 1.0, concurrent / undisturbed, 0.7);
            }
        }
    }
}

#[test]
fn a_member_of_a_mirror_is_filled_at_its_speed_and_leaves_room_for_others() {
    rebuild("mirror", &Fixture::mirror(), 2, 1);
}

#[test]
fn a_member_of_a_parity_group_is_filled_at_its_speed_and_leaves_room_for_others() {
    rebuild("parity 4+1", &Fixture::parity(), 5, 2);
}

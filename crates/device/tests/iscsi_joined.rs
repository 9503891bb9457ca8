//! Requests side by side on a unit, which go to it together: what is moved, how often the unit is asked,
//! and what each request is told when not all goes well. Against `braid-iscsi-target` in this process, by
//! libiscsi.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::{
    AlignedBuf, CommandKind, CountedDevice, Device, DeviceError, IoQueue, IscsiDevice, Issued,
    MemoryDevice, Op, OpenOptions, OwnedOp, Part, Request, ReservationKind, Rule, ScriptedDevice,
    run,
};
use braid_format::{ByteOffset, Bytes};
use braid_iscsi_target::{Chap, LunOptions, Target, TargetOptions};
use braid_testkit::pattern;
use proptest::prelude::*;

const NAME: &str = "iqn.2026-11.org.braid:joined-test";
const SIZE: Bytes = Bytes(16 << 20);
const KIND: ReservationKind = ReservationKind::WriteExclusiveRegistrants;
const UNIT: u64 = 256 << 10;
/// Longer than anything takes, on a machine that does much else.
const LONG: Duration = Duration::from_mins(1);

/// A target, what its units stand on, and the units.
struct San {
    target: Target,
    disks: Vec<Arc<dyn Device>>,
    units: Vec<Arc<dyn Device>>,
}

impl San {
    fn over(disks: Vec<Arc<dyn Device>>) -> Self {
        let disks: Vec<_> = disks.into_iter().map(CountedDevice::over).collect();
        let unit = |device| LunOptions { device, identity: None, reservations: None };
        let luns: Vec<_> = disks.iter().cloned().map(unit).collect();
        let count = luns.len();
        let options = TargetOptions { name: NAME.into(), luns, chap: Chap::default() };
        let target = Target::start(TcpListener::bind("127.0.0.1:0").unwrap(), options).unwrap();
        let units = (0..count).map(|lun| CountedDevice::over(open(&target, lun))).collect();
        Self { target, disks, units }
    }
    fn memory(units: usize, sector: Bytes) -> Self {
        Self::over((0..units).map(|_| MemoryDevice::new("disk", SIZE, sector) as _).collect())
    }
    /// Commands to the disks, and what the units' own counters say.
    fn counts(&self) -> (Vec<Issued>, Vec<Issued>) {
        let of = |d: &[Arc<dyn Device>]| {
            d.iter().map(|d| d.abilities().counters.unwrap().now()).collect()
        };
        (of(&self.disks), of(&self.units))
    }
    /// What stands on a disk, past the target.
    fn stands(&self, disk: usize, at: u64, len: u64) -> Vec<u8> {
        let mut found = vec![0; Bytes(len).to_usize()];
        self.disks[disk].read(ByteOffset(at), &mut found).unwrap();
        found
    }
}

fn open(target: &Target, lun: usize) -> Arc<IscsiDevice> {
    let name = format!("iscsi://{}/{NAME}/{lun}", target.address());
    let unit = IscsiDevice::open(&name, OpenOptions::default()).unwrap();
    unit.abilities().session.unwrap().lease(Instant::now() + LONG);
    unit
}

fn contents(seed: u64, len: u64) -> Vec<u8> {
    pattern(seed, Bytes(len).to_usize())
}

/// Requests with the memory of each somewhere else, at once: how each ended.
fn batch(unit: &Arc<dyn Device>, write: bool, all: &mut [(u64, Vec<u8>)]) -> Vec<bool> {
    let mut requests: Vec<Request<'_>> = Vec::new();
    for (at, data) in all {
        let op = if write { Op::Write(data) } else { Op::Read(data) };
        requests.push(Request::new(&**unit, ByteOffset(*at), op));
    }
    run(&mut requests);
    requests.iter().map(|r| r.result.is_ok()).collect()
}

/// Four requests of one command, from 1 MiB on.
fn four(seed: u64) -> Vec<(u64, Vec<u8>)> {
    (0..4).map(|n| ((4 + n) * UNIT, contents(seed + n, UNIT))).collect()
}

fn parts(units: &[Arc<dyn Device>], at: u64, len: u64) -> Vec<Part> {
    let count = units.len() as u64;
    let part = |n: u64| Part {
        device: units[Bytes(n % count).to_usize()].clone(),
        at: ByteOffset(at / count + n / count * UNIT),
        len: Bytes(UNIT),
    };
    (0..len / UNIT).map(part).collect()
}

#[test]
fn a_large_request_is_few_commands_on_each_unit() {
    let san = San::memory(2, Bytes(512));
    let parts = parts(&san.units, 0, 4 << 20);
    let mut queue = IoQueue::new(1).unwrap();
    let mut buf = AlignedBuf::zeroed(4 << 20);
    buf.copy_from_slice(&contents(1, 4 << 20));
    let (disks, units) = san.counts();
    queue.submit_parts(0, OwnedOp::Write(buf), &parts).unwrap();
    let (_, mut buf, result) = queue.complete();
    result.unwrap();
    let written = contents(1, 4 << 20);
    for (n, piece) in written.chunks(Bytes(UNIT).to_usize()).enumerate() {
        assert!(san.stands(n % 2, n as u64 / 2 * UNIT, UNIT) == piece, "stripe unit {n}");
    }
    let (after, own) = san.counts();
    for n in 0..2 {
        let (at_disk, at_unit) = (after[n].since(&disks[n]), own[n].since(&units[n]));
        assert_eq!((at_disk.writes.requests(), at_disk.writes.bytes), (2, Bytes(2 << 20)));
        assert_eq!(
            (at_unit.writes, at_unit.writes.ended()),
            (at_disk_sizes(&at_unit, &at_disk), 2)
        );
    }
    // Reading, both ways.
    buf.fill(0);
    let (disks, units) = san.counts();
    queue.submit_parts(0, OwnedOp::Read(buf), &parts).unwrap();
    let (_, buf, result) = queue.complete();
    result.unwrap();
    assert!(buf[..] == written[..]);
    let mut back = vec![0; 4 << 20];
    let mut requests: Vec<Request<'_>> = parts
        .iter()
        .zip(back.chunks_mut(Bytes(UNIT).to_usize()))
        .map(|(p, piece)| Request::new(&*p.device, p.at, Op::Read(piece)))
        .collect();
    run(&mut requests);
    assert!(requests.iter().all(|r| r.result.is_ok()));
    assert!(back == written);
    let (after, own) = san.counts();
    for n in 0..2 {
        let (at_disk, at_unit) = (after[n].since(&disks[n]), own[n].since(&units[n]));
        assert_eq!((at_disk.reads.requests(), at_disk.reads.mean()), (4, Bytes(1 << 20)));
        assert_eq!((at_unit.reads.sizes, at_unit.reads.ended()), (at_disk.reads.sizes, 4));
    }
}

/// What the unit's counters are to say of writes: the sizes that came to the disk.
fn at_disk_sizes(unit: &Issued, disk: &Issued) -> braid_device::Traffic {
    braid_device::Traffic { bytes: disk.writes.bytes, sizes: disk.writes.sizes, ..unit.writes }
}

#[test]
fn what_is_larger_than_a_command_is_several_however_it_is_issued() {
    let san = San::memory(1, Bytes(4096));
    let unit = &san.units[0];
    let len = (3 << 20) + 8192;
    let data = contents(5, len);
    let four = |count: &braid_device::Traffic| (count.requests(), count.bytes, count.ended());
    let (_, before) = san.counts();
    unit.write(ByteOffset(4096), &data).unwrap();
    let mut all = [(4096, data.clone()), (4096 + len, contents(6, 4096))];
    // The rest of the first and the second go together.
    assert_eq!(batch(unit, true, &mut all), [true; 2]);
    let (disks, after) = san.counts();
    let issued = after[0].since(&before[0]);
    assert_eq!(four(&issued.writes), (8, Bytes(2 * len + 4096), 8));
    assert_eq!(disks[0].writes.sizes, issued.writes.sizes);
    assert!(san.stands(0, 4096, len) == data && san.stands(0, 4096 + len, 4096) == all[1].1);
}

#[test]
fn an_error_falls_on_the_request_that_it_is_of() {
    let inner = MemoryDevice::new("disk", SIZE, Bytes(512));
    let place = 5 * UNIT + 4096..5 * UNIT + 4608;
    let disk = ScriptedDevice::over(inner.clone());
    disk.add(Rule::on(&[CommandKind::Read, CommandKind::Write]).overlapping(place).fails());
    let san = San::over(vec![disk]);
    let unit = &san.units[0];
    for seed in [10, 20] {
        let mut all = four(seed);
        let (before, _) = san.counts();
        assert_eq!(batch(unit, true, &mut all), [true, false, true, true]);
        // Together, and each by itself.
        let (after, own) = san.counts();
        assert_eq!(after[0].since(&before[0]).writes.requests(), 5);
        assert_eq!(own[0].writes.sizes, after[0].writes.sizes);
        for (n, (at, data)) in all.iter().enumerate().filter(|(n, _)| *n != 1) {
            let mut found = vec![0; data.len()];
            inner.read(ByteOffset(*at), &mut found).unwrap();
            assert!(found == *data, "request {n}");
        }
        let expected = all.clone();
        for (_, data) in &mut all {
            data.fill(0);
        }
        assert_eq!(batch(unit, false, &mut all), [true, false, true, true]);
        for n in [0, 2, 3] {
            assert!(all[n] == expected[n], "request {n}");
        }
    }
    // By a window: it names the place.
    let mut queue = IoQueue::new(2).unwrap();
    let parts = parts(&san.units, 4 * UNIT, 4 * UNIT);
    for op in [OwnedOp::Read as fn(AlignedBuf) -> OwnedOp, OwnedOp::Write] {
        queue.submit_parts(0, op(AlignedBuf::zeroed(1 << 20)), &parts).unwrap();
        let (_, _, result) = queue.complete();
        let Err(DeviceError::Io { at, .. }) = result else { panic!("{result:?}") };
        assert_eq!(at, ByteOffset(5 * UNIT));
    }
}

#[test]
fn what_failed_together_once_is_done_by_itself() {
    let san = San::memory(1, Bytes(512));
    for (write, what) in [(true, "write"), (false, "read")] {
        san.target.faults().add(&format!("{what} fail times=1")).unwrap();
        let mut all = four(30);
        assert_eq!(batch(&san.units[0], write, &mut all), [true; 4], "{what}");
        for (n, (at, data)) in all.iter().enumerate() {
            assert!(san.stands(0, *at, UNIT) == *data && *data == contents(30 + n as u64, UNIT));
        }
    }
    san.target.faults().add("write fail times=2").unwrap();
    assert_eq!(batch(&san.units[0], true, &mut four(40)), [false, true, true, true]);
}

#[test]
fn a_session_that_is_cut_is_gone_on_with_by_the_next() {
    let san = San::memory(2, Bytes(512));
    for (round, how) in ["cut", "cut-after"].iter().enumerate() {
        for (write, what) in [(true, "write"), (false, "read")] {
            san.target.faults().clear();
            san.target.faults().add(&format!("{what} {how} every=3 times=4")).unwrap();
            let seed = 50 + round as u64;
            let mut all: Vec<_> = (0..16).map(|n| (n * UNIT, contents(seed + n, UNIT))).collect();
            assert_eq!(batch(&san.units[0], write, &mut all), [true; 16], "{what} {how}");
            for (n, (at, data)) in all.iter().enumerate() {
                let expected = contents(seed + n as u64, UNIT);
                assert!(*data == expected && san.stands(0, *at, UNIT) == expected, "{what} {how}");
            }
        }
    }
    san.target.faults().clear();
    // By windows, over both units, while somebody cuts.
    let parts = parts(&san.units, 0, 4 << 20);
    san.target.faults().add("any delay=3").unwrap();
    let mut queue = IoQueue::new(4).unwrap();
    let mut buf = AlignedBuf::zeroed(4 << 20);
    for round in 0..6 {
        let data = contents(60 + round, 4 << 20);
        buf.copy_from_slice(&data);
        queue.submit_parts(0, OwnedOp::Write(buf), &parts).unwrap();
        san.target.cut("");
        let (_, mut read, result) = queue.complete();
        result.unwrap();
        read.fill(0);
        queue.submit_parts(0, OwnedOp::Read(read), &parts).unwrap();
        san.target.cut("");
        let (_, read, result) = queue.complete();
        result.unwrap();
        assert!(read[..] == data[..], "round {round}");
        buf = read;
    }
}

/// What was under way when its session broke does not come after what followed.
#[test]
fn a_late_command_of_several_does_not_come_after_what_followed_it() {
    const LATE: Duration = Duration::from_millis(1200);
    let san = San::memory(1, Bytes(512));
    san.target.faults().add(&format!("write late={} times=1", LATE.as_millis())).unwrap();
    std::thread::scope(|s| {
        let first = s.spawn(|| batch(&san.units[0], true, &mut four(70)));
        while san.target.running() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(san.target.cut(""), 1);
        assert_eq!(first.join().unwrap(), [true; 4]);
    });
    let mut all = four(80);
    assert_eq!(batch(&san.units[0], true, &mut all), [true; 4]);
    std::thread::sleep(LATE * 2);
    for (at, data) in &all {
        assert!(san.stands(0, *at, UNIT) == *data);
    }
}

#[test]
fn who_was_fenced_is_told_so_of_every_request_and_tries_none_again() {
    let san = San::memory(1, Bytes(512));
    let (victim, other) = (&san.units[0], open(&san.target, 0));
    let (of_victim, of_other) =
        (victim.abilities().reservations.unwrap(), other.abilities().reservations.unwrap());
    of_victim.register(0, 0xa).unwrap();
    of_other.register(0, 0xb).unwrap();
    of_victim.reserve(0xa, KIND).unwrap();
    san.target.faults().add("write delay=20000 times=1").unwrap();
    let fenced = |mut all: Vec<(u64, Vec<u8>)>| {
        let mut requests: Vec<Request<'_>> = Vec::new();
        for (at, data) in &mut all {
            requests.push(Request::new(&**victim, ByteOffset(*at), Op::Write(data)));
        }
        run(&mut requests);
        requests.iter().all(|r| matches!(r.result, Err(DeviceError::Fenced { .. })))
    };
    std::thread::scope(|s| {
        let under_way = s.spawn(|| fenced(four(90)));
        while san.target.running() == 0 {
            std::thread::yield_now();
        }
        of_other.preempt_and_abort(0xb, 0xa, KIND).unwrap();
        assert!(under_way.join().unwrap());
    });
    // What the unit still has to tell of the preemption, it tells here and not to a write.
    assert_eq!(of_victim.keys().unwrap(), [0xb]);
    san.target.faults().add("write delay=0").unwrap();
    assert!(fenced(four(91)));
    let met = san.target.faults().list();
    assert!(met.iter().any(|m| m.contains("delay=0 (1 commands met it)")), "{met:?}");
    assert!(san.stands(0, 0, SIZE.get()).iter().all(|b| *b == 0));
    assert_eq!(san.disks[0].abilities().counters.unwrap().now().writes.requests(), 0);
}

/// A session that ends for good says so to every request.
#[test]
fn the_end_of_all_sessions_is_told_to_every_request() {
    let san = San::memory(1, Bytes(512));
    san.target.faults().add("write drop").unwrap();
    std::thread::scope(|s| {
        let under_way = s.spawn(|| batch(&san.units[0], true, &mut four(95)));
        while !san.target.faults().list()[0].contains("(1 commands") {
            std::thread::yield_now();
        }
        san.units[0].abilities().session.unwrap().sever();
        assert_eq!(under_way.join().unwrap(), [false; 4]);
    });
    assert_eq!(batch(&san.units[0], false, &mut four(96)), [false; 4]);
}

/// One step: through a window or at once; writing or reading; requests as (unit, first sector, sectors).
type Step = (bool, bool, Vec<(usize, u64, u64)>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Many that follow one another, some not; some larger than a command.
    let len = prop_oneof![6 => 1..600_u64, 1 => 2000..4500_u64];
    let request =
        (0..2_usize, prop_oneof![3 => Just(None), 1 => (0..30_000_u64).prop_map(Some)], len);
    let list = prop::collection::vec(request, 1..24).prop_map(|all| {
        let mut next = [0, 7];
        let mut placed = Vec::new();
        for (unit, jump, len) in all {
            let at = jump.unwrap_or(next[unit]);
            let len = len.min(SIZE.get() / 512 - at);
            let at = if len == 0 { 0 } else { at };
            let len = len.max(1);
            next[unit] = at + len;
            placed.push((unit, at, len));
        }
        placed
    });
    prop::collection::vec((any::<bool>(), any::<bool>(), list), 1..10)
}

/// What is written at once in one place has no order: only the first of those stays.
fn apart(list: &[(usize, u64, u64)]) -> Vec<(usize, u64, u64)> {
    let mut kept: Vec<(usize, u64, u64)> = Vec::new();
    for &(unit, at, len) in list {
        if kept.iter().all(|k| k.0 != unit || k.1 + k.2 <= at || at + len <= k.1) {
            kept.push((unit, at, len));
        }
    }
    kept
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn whatever_is_joined_the_bytes_are_those_of_each_request(steps in steps()) {
        let san = San::memory(2, Bytes(512));
        let mut model = vec![vec![0; SIZE.to_usize()]; 2];
        let mut queue = IoQueue::new(2).unwrap();
        for (seed, (window, write, list)) in (0_u64..).zip(&steps) {
            let list = apart(list);
            let place = |at: u64, len: u64| Bytes(at * 512).to_usize()..Bytes((at + len) * 512).to_usize();
            let mut data: Vec<_> = (seed..).zip(&list).map(|(s, r)| contents(s, r.2 * 512)).collect();
            if *write {
                for ((unit, at, len), data) in list.iter().zip(&data) {
                    model[*unit][place(*at, *len)].copy_from_slice(data);
                }
            }
            if *window {
                let part = |&(unit, at, len): &(usize, u64, u64)| Part {
                    device: san.units[unit].clone(), at: ByteOffset(at * 512), len: Bytes(len * 512),
                };
                let parts: Vec<_> = list.iter().map(part).collect();
                let mut buf = AlignedBuf::zeroed(data.iter().map(Vec::len).sum());
                buf.copy_from_slice(&data.concat());
                let op = if *write { OwnedOp::Write(buf) } else { OwnedOp::Read(buf) };
                queue.submit_parts(seed, op, &parts).unwrap();
                let (_, buf, result) = queue.complete();
                prop_assert!(result.is_ok());
                let mut rest = &buf[..];
                for data in &mut data {
                    let (own, more) = rest.split_at(data.len());
                    data.copy_from_slice(own);
                    rest = more;
                }
            } else {
                let mut requests: Vec<Request<'_>> = Vec::new();
                for ((unit, at, _), data) in list.iter().zip(&mut data) {
                    let op = if *write { Op::Write(data) } else { Op::Read(data) };
                    requests.push(Request::new(&*san.units[*unit], ByteOffset(at * 512), op));
                }
                run(&mut requests);
                prop_assert!(requests.iter().all(|r| r.result.is_ok()));
            }
            for ((unit, at, len), data) in list.iter().zip(&data) {
                prop_assert!(model[*unit][place(*at, *len)] == data[..], "step {seed}");
            }
        }
        for (unit, model) in model.iter().enumerate() {
            prop_assert!(san.stands(unit, 0, SIZE.get()) == *model, "unit {unit}");
        }
    }
}

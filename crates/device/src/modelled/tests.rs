use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::{ByteOffset, Bytes};
use proptest::prelude::*;

use super::*;
use crate::model::*;
use crate::{AlignedBuf, Device, IoQueue, MemoryDevice, Op, OwnedOp, Part, Request, run};

const TRACK: u64 = 100 << 10;
/// 7200 rpm.
const ROTATION: u64 = 8_333_333;

fn plain() -> DiskModel {
    DiskModel::spinning(7200, Bytes(TRACK))
}
fn read(at: u64, len: u64) -> Access {
    Access { write: false, at, len }
}
fn write(at: u64, len: u64) -> Access {
    Access { write: true, at, len }
}
fn disk(clock: &ModelClock, model: DiskModel, bus: Option<&ModelBus>) -> Arc<ModelDevice> {
    let inner = MemoryDevice::new("m", Bytes(64 << 20), Bytes(512));
    ModelDevice::new(clock, inner, model, bus).unwrap()
}
/// Reads or writes `count` times `len` one after the other, `depth` at a time.
fn stream(
    clock: &ModelClock,
    d: &ModelDevice,
    access: Access,
    count: u64,
    depth: usize,
) -> Outcome {
    let touch = move |i| {
        let at = ByteOffset(access.at + i * access.len);
        vec![Touch { device: d, write: access.write, at, len: Bytes(access.len) }]
    };
    drive(clock, vec![Client::new(depth, (0..count).map(touch))]).unwrap().remove(0)
}

#[test]
fn an_access_that_continues_another_loses_nothing_and_one_that_is_late_loses_a_rotation() {
    let mut m = Mechanism::new(&plain(), 1 << 30);
    let mut now = Time(0);
    for i in 0..1000_u64 {
        now = m.serve(now, read(i * 4096, 4096));
        // Exactly where a single long transfer would be.
        assert_eq!(now.0, (i + 1) * 4096 * ROTATION / TRACK);
    }
    assert_eq!(m.stats().rotating, Duration::ZERO);
    let late = m.serve(Time(now.0 + 1), write(4_096_000, 4096));
    let due = now.0 + ROTATION + 4096 * ROTATION / TRACK;
    assert!(late.0.abs_diff(due) <= 1, "{late:?} {due}");
}

#[test]
fn skew_hides_switches_and_the_sequential_rate_is_the_closed_form() {
    let model = presets::IBM_2GB_OUTER;
    let mut m = Mechanism::new(&model, 1 << 31);
    let cylinder = model.track.0 * model.heads;
    let end = m.serve(Time(0), read(0, 100 * cylinder));
    assert_eq!(m.stats().rotating.as_millis(), 0, "{:?}", m.stats());
    // 100 cylinders with 99 seeks; the formula counts one for each.
    let expected = model.sequential_rate().time_for(Bytes(100 * cylinder));
    let measured = end - Time(0) + Duration::from_micros(2600);
    let off = measured.abs_diff(expected);
    assert!(off < Duration::from_millis(1), "{measured:?} {expected:?}");
}

#[test]
fn interleave_and_gaps_give_the_media_rate_that_was_told() {
    for (rate, takes) in [(6_144_000, 2 * ROTATION), (24_576_000, ROTATION / 2)] {
        let model = DiskModel { media_rate: Some(Rate(rate)), ..plain() };
        let end = Mechanism::new(&model, 1 << 30).serve(Time(0), read(0, TRACK));
        assert!(end.0.abs_diff(takes) < 200, "{end:?} {takes}");
        let long = Mechanism::new(&model, 1 << 30).serve(Time(0), read(0, 50 * TRACK));
        assert!(long.0.abs_diff(50 * takes) < 10_000, "{long:?}");
    }
}

#[test]
fn the_seek_curve_meets_its_three_numbers() {
    let s = presets::BARRACUDA_50.seek;
    let all = 12_000_u64;
    assert_eq!(s.time(0, all), Duration::ZERO);
    assert_eq!(s.time(1, all), s.track_to_track);
    let full = s.time(all - 1, all);
    assert!(full.abs_diff(s.full_stroke) < Duration::from_micros(50), "{full:?}");
    assert_eq!(s.time(10 * all, all), s.full_stroke);
    // Mean over random pairs: distance d has weight 2 (C - d).
    let (mut sum, mut weights) = (0_u128, 0_u128);
    for d in 1..all {
        let w = u128::from(all - d);
        sum += s.time(d, all).as_nanos() * w;
        weights += w;
    }
    let mean = Duration::from_nanos(u64::try_from(sum / weights).unwrap());
    assert!(mean.abs_diff(s.average) < s.average / 50, "{mean:?}");
    let rises = (1..all - 1).all(|d| s.time(d, all) <= s.time(d + 1, all));
    assert!(rises);
}

#[test]
fn reading_ahead_hides_the_overhead_and_is_given_up_for_others() {
    let overhead = Duration::from_micros(300);
    let ahead = DiskModel { overhead, read_ahead: Bytes(1 << 20), ..plain() };
    for (model, per_request) in
        [(DiskModel { read_ahead: Bytes(0), ..ahead }, 2 * ROTATION), (ahead, ROTATION)]
    {
        let clock = ModelClock::virtual_time();
        let d = disk(&clock, model, None);
        let out = stream(&clock, &d, read(0, TRACK), 100, 1);
        let expected = Duration::from_nanos(100 * per_request);
        let measured = out.ended - out.began;
        // The first request waits for another part of a rotation than the others.
        assert!(measured.abs_diff(expected) <= Duration::from_nanos(ROTATION), "{measured:?}");
    }
    // A pause: what was read ahead is there at once, and reading goes on after it.
    let mut m = Mechanism::new(&ahead, 1 << 30);
    let end = m.serve(Time(0), read(0, TRACK));
    let later = Time(end.0 + 100 * ROTATION);
    assert_eq!(m.serve(later, read(TRACK, TRACK)), later);
    let end = m.serve(later, read(2 * TRACK, 1 << 20));
    assert!(end > later && end.0 < later.0 + 2 * ROTATION, "{end:?} {later:?}");
    // Something else: positioned from where the heads are, and the buffer is forgotten.
    let end = m.serve(end, write(0, 4096));
    assert!(m.serve(end, read(1 << 20, 4096)) > end);
}

#[test]
fn a_batch_on_several_disks_begins_at_once_in_virtual_time() {
    let clock = ModelClock::virtual_time();
    let disks: Vec<_> = (0..4).map(|_| disk(&clock, plain(), None)).collect();
    let data = vec![7_u8; Bytes(TRACK).to_usize()];
    let mut batch: Vec<Request> = disks
        .iter()
        .map(|d| Request::new(&**d as &dyn Device, ByteOffset(0), Op::Write(&data)))
        .collect();
    run(&mut batch);
    assert!(batch.iter().all(|r| r.result.is_ok()));
    assert_eq!(clock.now(), Time(ROTATION), "all four in one rotation");
    // One after the other they take four: each begins where the last left the platters.
    let mut back = vec![0_u8; Bytes(TRACK).to_usize()];
    for d in &disks {
        d.read(ByteOffset(0), &mut back).unwrap();
        assert_eq!(back, data);
    }
    assert!(clock.now().0.abs_diff(5 * ROTATION) < 5, "{:?}", clock.now());
    // What is wrong takes no time and is said.
    let before = clock.now();
    let outside = disks[0].read(ByteOffset(64 << 20), &mut back[..512]);
    assert!(matches!(outside, Err(crate::DeviceError::OutOfRange { .. })));
    assert_eq!(clock.now(), before);
}

#[test]
fn a_queue_keeps_its_window_under_way_and_gives_back_what_is_due_first() {
    let clock = ModelClock::virtual_time();
    let slow: Arc<dyn Device> = disk(&clock, DiskModel::flat(Rate::mega(1)), None);
    let fast: Arc<dyn Device> = disk(&clock, DiskModel::flat(Rate::mega(10)), None);
    let plain: Arc<dyn Device> = MemoryDevice::new("p", Bytes(1 << 20), Bytes(512));
    let mut queue = IoQueue::new(4).unwrap();
    let buf = || OwnedOp::Write(AlignedBuf::zeroed(8192));
    queue.submit(1, slow.clone(), ByteOffset(0), buf()).unwrap();
    queue.submit(2, fast.clone(), ByteOffset(0), buf()).unwrap();
    let both = [(slow, 4096), (fast, 4096)].map(|(device, len)| Part {
        device,
        at: ByteOffset(8192),
        len: Bytes(len),
    });
    queue.submit_parts(3, buf(), &both).unwrap();
    queue.submit(4, plain, ByteOffset(0), buf()).unwrap();
    let order: Vec<(u64, u64)> = (0..4)
        .map(|_| {
            let (token, _, result) = queue.complete();
            result.unwrap();
            (token, clock.now().0 / 1000)
        })
        .collect();
    assert_eq!(order, [(4, 0), (2, 819), (1, 8192), (3, 12_288)]);
    // A queue that is dropped forgets what it has under way.
    let d: Arc<dyn Device> = disk(&clock, DiskModel::flat(Rate::mega(1)), None);
    queue.submit(5, d, ByteOffset(0), buf()).unwrap();
    drop(queue);
    clock.pass(Duration::from_secs(1));
}

#[test]
fn a_bus_is_shared_and_without_disconnect_held() {
    let fast = DiskModel::flat(Rate::mega(10));
    for (bus, together) in [
        (Bus::of_rate(Rate::mega(100)), 10.0 * 4.0),
        (Bus::of_rate(Rate::mega(20)), 20.0),
        (Bus { disconnect: false, ..Bus::of_rate(Rate::mega(100)) }, 10.0),
    ] {
        let clock = ModelClock::virtual_time();
        let shared = clock.bus(bus);
        let disks: Vec<_> = (0..4).map(|_| disk(&clock, fast, Some(&shared))).collect();
        for write in [false, true] {
            let client = |d| {
                let touch = move |i: u64| {
                    let at = ByteOffset(i << 20);
                    vec![Touch { device: d, write, at, len: Bytes(1 << 20) }]
                };
                Client::new(2, (0..20_u64).map(touch))
            };
            let clients = disks.iter().map(|d| client(&**d)).collect();
            let outcomes = drive(&clock, clients).unwrap();
            let ended = outcomes.iter().map(|o| o.ended).max().unwrap();
            let rate = Rate::of(Bytes(80 << 20), ended - outcomes[0].began).megabytes();
            assert!((0.97..1.01).contains(&(rate / together)), "{bus:?} {write} {rate}");
        }
        assert_eq!(shared.stats().moved, Bytes(160 << 20));
        assert!(shared.stats().busy <= clock.now() - Time(0));
    }
}

#[test]
fn a_bus_of_another_clock_and_models_without_sense_are_refused() {
    let (a, b) = (ModelClock::virtual_time(), ModelClock::virtual_time());
    let bus = b.bus(presets::FAST_WIDE_SCSI);
    let new = |model, bus| {
        let inner = MemoryDevice::new("m", Bytes(1 << 20), Bytes(512));
        ModelDevice::new(&a, inner, model, bus).unwrap_err()
    };
    assert_eq!(new(plain(), Some(&bus)), ModelError::OtherClock);
    assert_eq!(
        new(DiskModel { tags: 0, ..plain() }, None),
        ModelError::Zero { what: "number of tags" }
    );
    assert_eq!(new(DiskModel { rotation: Duration::ZERO, ..plain() }, None), ModelError::NoRate);
    let ms = Duration::from_millis;
    let seek = Seek { track_to_track: ms(3), average: ms(2), full_stroke: ms(9) };
    assert_eq!(new(DiskModel { seek, ..plain() }, None), ModelError::SeekOrder);
    for preset in [
        presets::NASA_SCSI_1992,
        presets::NASA_IPI_1992,
        presets::BDSPRO_TRACK_100K,
        presets::BDSPRO_5MB,
        presets::IBM_2GB_INNER,
        presets::IBM_2GB_OUTER,
        presets::BARRACUDA_50,
        presets::CIPRICO_RF7000,
    ] {
        preset.check().unwrap();
    }
}

#[test]
fn presets_have_the_rates_of_their_documents() {
    for (model, documented) in [
        (presets::NASA_SCSI_1992, 2.5),
        (presets::NASA_IPI_1992, 6.0),
        (presets::BDSPRO_5MB, 5.0),
        (presets::IBM_2GB_INNER, 5.0),
        (presets::IBM_2GB_OUTER, 7.0),
        (presets::CIPRICO_RF7000, 96.0),
    ] {
        let rate = model.media_rate().megabytes();
        assert!((0.99..1.01).contains(&(rate / documented)), "{rate} {documented}");
    }
}

#[test]
fn the_elevator_takes_waiting_requests_in_order_and_is_faster() {
    let places: Vec<u64> = (0..64).map(|i| (i * 37 % 64) << 20).collect();
    let mut times = Vec::new();
    for order in [Order::Fifo, Order::Elevator] {
        let clock = ModelClock::virtual_time();
        let d = disk(&clock, DiskModel { order, cylinders: 160, ..presets::IBM_2GB_OUTER }, None);
        let touch = |at: &u64| {
            vec![Touch { device: &d, write: false, at: ByteOffset(*at), len: Bytes(4096) }]
        };
        let client = Client::new(64, places.iter().map(touch));
        let outcome = drive(&clock, vec![client]).unwrap().remove(0);
        assert_eq!(outcome.latencies.len(), 64);
        times.push(outcome.ended - outcome.began);
    }
    assert!(times[1] < times[0] * 8 / 10, "{times:?}");
}

#[test]
fn long_requests_are_cut_and_adjoining_ones_joined() {
    let clock = ModelClock::virtual_time();
    let model = DiskModel { tags: 1, transfer_max: Bytes(1 << 20), ..plain() };
    let d = disk(&clock, model, None);
    let out = stream(&clock, &d, write(0, 4 << 20), 1, 1);
    assert_eq!((out.latencies.len(), d.stats().commands, d.stats().requests), (1, 4, 1));
    assert_eq!(d.stats().moved, Bytes(4 << 20));
    // All 64 come at the same instant: four commands of sixteen.
    stream(&clock, &d, write(8 << 20, 64 << 10), 64, 64);
    assert_eq!((d.stats().commands, d.stats().requests), (8, 65));
    assert_eq!(d.stats().moved, Bytes(8 << 20));
}

#[test]
fn a_write_cache_answers_at_once_and_a_flush_waits_for_it() {
    let clock = ModelClock::virtual_time();
    let model = DiskModel { write_cache: Bytes(1 << 20), ..plain() };
    let d = disk(&clock, model, None);
    d.write(ByteOffset(0), &vec![1; 512 << 10]).unwrap();
    assert_eq!(clock.now(), Time(0), "in the cache");
    // Does not fit beside the first, which takes five rotations.
    d.write(ByteOffset(512 << 10), &vec![1; 768 << 10]).unwrap();
    assert!(clock.now() >= Time(5 * ROTATION), "{:?}", clock.now());
    let before = clock.now();
    d.flush().unwrap();
    assert!(clock.now() >= before + Duration::from_nanos(7 * ROTATION), "{:?}", clock.now());
    let before = clock.now();
    d.flush().unwrap();
    assert_eq!(clock.now(), before, "nothing to wait for");
    // Longer than the cache: written through.
    d.write(ByteOffset(0), &vec![1; 2 << 20]).unwrap();
    assert!(clock.now() >= before + Duration::from_nanos(20 * ROTATION));
}

#[test]
fn in_real_time_a_batch_takes_as_long_as_its_slowest_member() {
    let clock = ModelClock::real_time();
    let disks: Vec<_> =
        (0..4).map(|_| disk(&clock, DiskModel::flat(Rate::mega(1)), None)).collect();
    let began = Instant::now();
    let data = vec![3_u8; 50 * 1024];
    let mut batch: Vec<Request> = disks
        .iter()
        .map(|d| Request::new(&**d as &dyn Device, ByteOffset(0), Op::Write(&data)))
        .collect();
    run(&mut batch);
    // Never early; how late depends on the machine.
    assert!(began.elapsed() >= Duration::from_micros(51_200));
    let before = clock.now();
    let mut queue = IoQueue::new(2).unwrap();
    for token in 0..2 {
        let op = OwnedOp::Read(AlignedBuf::zeroed(20 * 1024));
        queue.submit(token, disks[0].clone(), ByteOffset(token * 20 * 1024), op).unwrap();
    }
    for token in 0..2 {
        let (t, buf, result) = queue.complete();
        result.unwrap();
        assert!(t == token && buf.iter().all(|b| *b == 3));
        let due = before + Duration::from_micros((token + 1) * 20_480);
        assert!(clock.now() >= due);
    }
}

#[test]
fn threads_in_real_time_wait_for_their_own_requests() {
    let clock = ModelClock::real_time();
    let d = disk(&clock, DiskModel::flat(Rate::mega(1)), None);
    let began = Instant::now();
    std::thread::scope(|s| {
        for i in 0..4_u64 {
            let d = &d;
            s.spawn(move || d.write(ByteOffset(i << 20), &[0; 10 * 1024]).unwrap());
        }
    });
    // One disk: one after the other.
    assert!(began.elapsed() >= Duration::from_micros(40_960));
    assert_eq!(d.stats().requests, 4);
}

fn models() -> impl Strategy<Value = DiskModel> {
    let sizes = prop_oneof![Just(0_u64), Just(64 << 10), Just(1 << 20)];
    (
        prop_oneof![
            Just(plain()),
            Just(presets::IBM_2GB_OUTER),
            Just(presets::NASA_SCSI_1992),
            Just(DiskModel::flat(Rate::mega(7)))
        ],
        prop_oneof![Just(Order::Fifo), Just(Order::Elevator)],
        1..9_u32,
        [sizes.clone(), sizes.clone(), sizes.clone(), sizes],
    )
        .prop_map(
            |(model, order, tags, [transfer_max, write_fill, read_ahead, write_cache])| DiskModel {
                order,
                tags,
                transfer_max: Bytes(transfer_max),
                write_fill: Bytes(write_fill),
                read_ahead: Bytes(read_ahead),
                write_cache: Bytes(write_cache),
                overhead: Duration::from_micros(100),
                ..model
            },
        )
}
fn buses() -> impl Strategy<Value = Option<Bus>> {
    prop_oneof![
        Just(None),
        Just(Some(presets::FAST_WIDE_SCSI)),
        Just(Some(presets::NASA_SCSI_BUS_1992)),
        Just(Some(Bus::of_rate(Rate::mega(3)))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is asked of whatever disks: every request ends, all bytes move, no time is used
    /// twice, and the same again gives the same nanoseconds.
    #[test]
    fn every_request_ends_and_a_run_is_a_function_of_its_input(
        list in proptest::collection::vec(models(), 1..4),
        bus in buses(),
        work in proptest::collection::vec((any::<bool>(), 0..4_usize, 0..2000_u64, 1..700_u64), 1..60),
        depth in 1..9_usize,
    ) {
        let go = || {
            let clock = ModelClock::virtual_time();
            let bus = bus.map(|b| clock.bus(b));
            let disks: Vec<_> = list.iter().map(|m| disk(&clock, *m, bus.as_ref())).collect();
            let client = |half: usize| {
                let touch = |(write, d, at, len): &(bool, usize, u64, u64)| vec![Touch {
                    device: &disks[d % disks.len()],
                    write: *write,
                    at: ByteOffset(at * 16_384),
                    len: Bytes(len * 512),
                }];
                let mine = work.iter().skip(half).step_by(2);
                let client = Client::new(depth, mine.map(touch).collect::<Vec<_>>().into_iter());
                Client { think: Duration::from_micros(50), ..client }
            };
            let outcomes = drive(&clock, vec![client(0), client(1)]).unwrap();
            for d in &disks {
                d.flush().unwrap();
            }
            let stats: Vec<_> = disks.iter().map(|d| d.stats()).collect();
            (outcomes, stats, bus.map(|b| b.stats()), clock.now())
        };
        let (outcomes, stats, bus, end) = go();
        let bytes: u64 = work.iter().map(|w| w.3 * 512).sum();
        prop_assert_eq!(outcomes.iter().map(|o| o.latencies.len()).sum::<usize>(), work.len());
        prop_assert_eq!(outcomes.iter().map(|o| o.moved.0).sum::<u64>(), bytes);
        prop_assert_eq!(stats.iter().map(|s| s.moved.0).sum::<u64>(), bytes);
        for s in &stats {
            prop_assert!(s.mechanism.busy <= end - Time(0), "{:?} {:?}", s, end);
        }
        if let Some(b) = &bus {
            prop_assert_eq!(b.moved.0, bytes);
            prop_assert!(b.busy <= end - Time(0));
        }
        prop_assert_eq!(go(), (outcomes, stats, bus, end));
    }
}

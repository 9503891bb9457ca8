//! The engine on small files: nothing here depends on how fast it is.

#![allow(clippy::large_stack_arrays, reason = "tests")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use braid_pool::device::AlignedBuf;
use proptest::prelude::*;

use super::*;

const KIB: u64 = 1 << 10;

fn open(path: &Path, write: bool) -> Arc<Target> {
    Target::open(path, OpenMode { write, overwrite: true, ..OpenMode::default() }).unwrap()
}

fn stream(target: &Arc<Target>, pattern: Pattern, depth: usize) -> Stream {
    let content = Content::Verified { run: 7, generation: 3 };
    Stream { target: target.clone(), pattern, depth, pace: None, content, flush: false }
}

fn go(streams: &[Stream]) -> Outcome {
    run(streams, &Limits::default()).unwrap()
}

#[test]
fn what_is_written_is_read_at_every_depth_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    for depth in [1, 2, 7, 64] {
        let path = dir.path().join(format!("f{depth}"));
        let write = Pattern::sequential(4 * KIB, 300 * KIB, 4 * KIB, false);
        let done = go(&[stream(&open(&path, true), write, depth)]).ok().unwrap();
        assert_eq!((done.all.bytes, done.all.ops, done.all.ops_read), (300 * KIB, 75, 0));
        assert_eq!(done.all.latency().percentiles().count, 75);
        assert_eq!(done.all.series.bytes.iter().sum::<u64>(), 300 * KIB);
        let read = Pattern::sequential(4 * KIB, 300 * KIB, 4 * KIB, true).ordered(Order::Random);
        let done = go(&[stream(&open(&path, false), read, depth)]).ok().unwrap();
        assert_eq!((done.all.bytes_read, done.all.ops_read), (300 * KIB, 75));
        assert!(done.mb_per_s() > 0.0 && done.seconds > 0.0);
    }
}

#[test]
fn one_wrong_bit_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let pattern = |read| Pattern::sequential(0, 64 * KIB, 4 * KIB, read);
    go(&[stream(&open(&path, true), pattern(false), 4)]).ok().unwrap();
    for at in [0_u64, 8, 511, 512, 40_000, 65_535] {
        let mut bytes = std::fs::read(&path).unwrap();
        let place = usize::try_from(at).unwrap();
        bytes[place] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        let done = go(&[stream(&open(&path, false), pattern(true), 4)]);
        assert_eq!(done.all.mismatches, 1, "{at}");
        assert_eq!(done.all.mismatch.unwrap().at, at / 8 * 8);
        assert!(done.ok().unwrap_err().to_string().contains("not as written"));
        bytes[place] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
    }
}

#[test]
fn the_end_of_a_file_ends_the_stream_with_what_it_did_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("short");
    std::fs::write(&path, vec![0; 10_000]).unwrap();
    for depth in [1, 4] {
        let mut s =
            stream(&open(&path, false), Pattern::sequential(0, 64 * KIB, 4 * KIB, true), depth);
        s.content = Content::Random;
        let done = go(&[s]);
        assert_eq!(done.all.bytes, 8192, "depth {depth}");
        let said = done.ok().unwrap_err().to_string();
        assert!(said.contains("the file ends before"), "{said}");
    }
}

#[test]
fn streams_share_a_start_and_the_time_together_is_not_longer_than_all() {
    let dir = tempfile::tempdir().unwrap();
    let streams: Vec<_> = (1..=3)
        .map(|n| {
            let target = open(&dir.path().join(format!("f{n}")), true);
            stream(&target, Pattern::sequential(0, n * 256 * KIB, 4 * KIB, false), 2)
        })
        .collect();
    let done = go(&streams).ok().unwrap();
    assert_eq!(done.all.bytes, 6 * 256 * KIB);
    assert!(done.all.bytes_together <= done.all.bytes);
    assert!(done.seconds_together <= done.seconds);
}

#[test]
fn what_came_through_before_all_had_begun_was_not_done_together() {
    let dir = tempfile::tempdir().unwrap();
    let target = open(&dir.path().join("f"), true);
    let stream = stream(&target, Pattern::sequential(0, 64 * KIB, 4 * KIB, false), 2);
    for (many, together) in [(1, 64 * KIB), (2, 0)] {
        let shared = Shared {
            barrier: StartBarrier::of(1),
            began: std::sync::OnceLock::new(),
            many,
            started: AtomicUsize::new(0),
            first_end: AtomicU64::new(u64::MAX),
            limits: &Limits::default(),
            progress: None,
            stop: None,
        };
        let done = worker::work(&stream, &shared).unwrap();
        assert_eq!((done.bytes, done.bytes_together), (64 * KIB, together), "of {many}");
    }
}

#[test]
fn a_time_limit_and_a_stop_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let target = open(&dir.path().join("f"), true);
    let mut endless = Pattern::sequential(0, 64 * KIB, 4 * KIB, false);
    endless.count = u64::MAX;
    let limits = Limits { time: Some(Duration::from_millis(20)), ..Limits::default() };
    let done = run(&[stream(&target, endless, 4)], &limits).unwrap().ok().unwrap();
    assert!(done.all.to >= Duration::from_millis(20));
    let stop = Arc::new(AtomicBool::new(true));
    let limits = Limits { stop: Some(stop), ..Limits::default() };
    let done = run(&[stream(&target, endless, 4)], &limits).unwrap().ok().unwrap();
    assert_eq!(done.all.ops, 0);
}

#[test]
fn a_paced_stream_waits_for_no_request_that_will_not_be_begun() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, [0; 64 << 10]).unwrap();
    let mut s = stream(&open(&path, false), Pattern::sequential(0, 64 * KIB, 4 * KIB, true), 1);
    s.content = Content::Random;
    s.pace = Some(Pace { interval: Duration::from_hours(1), first: Duration::ZERO });
    let time = Some(Duration::from_millis(50));
    let done = run(&[s.clone()], &Limits { time, ..Limits::default() }).unwrap();
    assert_eq!(done.all.ops, 1);
    // Nor is one waited for when all are told to stop.
    let stop = Arc::new(AtomicBool::new(false));
    let limits = Limits { stop: Some(stop.clone()), ..Limits::default() };
    let done = std::thread::scope(|scope| {
        let running = scope.spawn(move || run(&[s], &limits));
        std::thread::sleep(Duration::from_millis(50));
        stop.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    assert!(done.map_or(true, |done| done.all.ops <= 1));
}

#[test]
fn paced_requests_are_not_early_and_late_ones_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let target = open(&dir.path().join("f"), true);
    let mut s = stream(&target, Pattern::sequential(0, 40 * KIB, 4 * KIB, false), 1);
    s.pace = Some(Pace { interval: Duration::from_millis(3), first: Duration::ZERO });
    let done = run(&in_turns(&s, 3), &Limits::default()).unwrap().ok().unwrap();
    assert_eq!(done.all.ops, 10);
    assert!(done.all.to >= Duration::from_millis(27), "{:?}", done.all.to);
    let limits = Limits { deadline: Some(Duration::ZERO), every: true, ..Limits::default() };
    let done = run(&[s], &limits).unwrap();
    assert_eq!((done.all.late, done.streams[0].every.len()), (10, 10));
}

/// A layer whose first request takes a while, and all others no time.
#[derive(Debug)]
struct Stalls(std::sync::atomic::AtomicU64);
impl Calls for Stalls {
    fn read(&self, _: u64, _: &mut AlignedBuf) -> Result<(), String> {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn a_stall_counts_for_the_requests_that_it_held_up_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let info = open(&dir.path().join("f"), true).layer.device().unwrap().info().clone();
    let stalls = Layer::Calls(Arc::new(Stalls(std::sync::atomic::AtomicU64::new(0))));
    let target = Target::over(stalls, "stalls", &info);
    let mut pattern = Pattern::sequential(0, 64 * KIB, 4 * KIB, true);
    pattern.count = u64::MAX;
    let pace = Some(Pace { interval: Duration::from_millis(10), first: Duration::ZERO });
    let s = Stream { content: Content::Random, pace, ..stream(&target, pattern, 1) };
    // The stall is longer than the time: 20 requests are due, one is begun.
    let deadline = Some(Duration::from_millis(50));
    let limits = Limits { time: Some(Duration::from_millis(200)), deadline, ..Limits::default() };
    let done = run(&[s], &limits).unwrap();
    assert_eq!((done.all.ops, done.all.held, done.all.late), (1, 19, 20));
    let latency = done.all.latency().percentiles();
    assert_eq!(latency.count, 20);
    // The last of them was due 10 ms before the end, which was 100 ms before the stall's.
    assert!(latency.min >= 109_000.0 && latency.max >= 299_000.0, "{latency:?}");
}

#[test]
fn a_pace_is_kept_however_many_requests_there_are() {
    let first = Duration::from_millis(7);
    let pace = Pace { interval: Duration::from_micros(2), first };
    let due = pace.due(1 << 40);
    assert_eq!(due, first + Duration::from_micros(2 << 40));
    assert_eq!(Pace { interval: Duration::MAX, first }.due(u64::MAX), Duration::MAX);
}

#[test]
fn more_threads_or_memory_than_there_is_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let target = open(&dir.path().join("f"), true);
    let one = stream(&target, Pattern::sequential(0, 64 * KIB, 4 * KIB, false), 1);
    let said = |streams: &[Stream]| run(streams, &Limits::default()).unwrap_err().to_string();
    assert!(said(&vec![one.clone(); STREAMS_MAX + 1]).contains("threads are too many"));
    let huge = Stream { depth: usize::MAX, ..one };
    assert!(said(&[huge]).contains("bytes of memory"));
}

#[test]
fn where_one_stream_panics_the_others_end_with_its_error() {
    #[derive(Debug)]
    struct Panics;
    impl Calls for Panics {
        fn read(&self, _: u64, _: &mut AlignedBuf) -> Result<(), String> {
            panic!("on purpose")
        }
        fn write(&self, _: u64, _: &[u8]) -> Result<(), String> {
            panic!("on purpose")
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let good = open(&dir.path().join("f"), true);
    let info = good.layer.device().unwrap().info().clone();
    let bad = Target::over(Layer::Calls(Arc::new(Panics)), "panics", &info);
    let pattern = Pattern::sequential(0, 64 * KIB, 4 * KIB, false);
    let said = run(&[stream(&good, pattern, 1), stream(&bad, pattern, 1)], &Limits::default());
    assert_eq!(said.unwrap_err().to_string(), "a thread panicked");
}

#[test]
fn a_mixed_stream_reads_and_writes_its_share() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let mut pattern = Pattern::sequential(0, 1 << 20, 4 * KIB, true).ordered(Order::Random);
    (pattern.reads, pattern.count) = (70, 4000);
    let mut s = stream(&open(&path, true), pattern, 8);
    s.content = Content::Random;
    let done = go(&[s]).ok().unwrap();
    let part = 100 * done.all.ops_read / done.all.ops;
    assert!((65..=75).contains(&part), "{part} %");
}

#[test]
fn what_cannot_be_measured_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    std::fs::write(&file, vec![0; 8192]).unwrap();
    let said = |r: Result<Arc<Target>, Refusal>| r.unwrap_err().to_string();
    let read = OpenMode::default();
    assert!(said(Target::open(&dir.path().join("no"), read)).contains("no such file"));
    assert!(said(Target::open(dir.path(), read)).contains("a directory"));
    assert!(said(Target::open(Path::new("/dev/null"), read)).contains("neither a block device"));
    let write = OpenMode { write: true, ..OpenMode::default() };
    assert!(said(Target::open(&file, write)).contains("holds 8192 bytes"));
    assert!(Target::open(&file, OpenMode { force: true, ..write }).is_ok());
    assert!(Target::open(&file, OpenMode { overwrite: true, ..write }).is_ok());
    let new = dir.path().join("new");
    drop(Target::open(&new, write).unwrap());
    assert!(new.exists(), "what was made stays");
    let t = open(&file, true);
    let said = |r: Result<(), Refusal>| r.unwrap_err().to_string();
    assert!(said(t.check(0, 0, 0, true)).contains("request size"));
    assert!(said(t.check(2 << 30, 0, 0, true)).contains("request size"));
    assert!(said(t.check(4096, 0, 8193, true)).contains("has 8192 bytes, 8193"));
    t.check(1000, 7, 1 << 40, false).unwrap();
}

#[test]
fn direct_requests_are_whole_sectors() {
    // Where the tests' directory has direct I/O.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, vec![0; 1 << 16]).unwrap();
    let how = OpenMode { direct: true, ..OpenMode::default() };
    let target = Target::open(&path, how).ok().filter(|target| target.sector() > 1);
    let Some(target) = target else {
        return braid_testkit::skip("the directory for temporary files has no direct I/O");
    };
    let said = |r: Result<(), Refusal>| r.unwrap_err().to_string();
    assert!(said(target.check(1000, 0, 1000, true)).contains("direct I/O goes in multiples"));
    assert!(said(target.check(4096, 100, 4196, true)).contains("the first byte is 100"));
    target.check(4096, 4096, 8192, true).unwrap();
}

#[test]
fn series_of_any_length_have_few_points() {
    let mut long = Series::default();
    for second in 0..10_000 {
        long.add(Duration::from_secs(second), 1);
    }
    assert!(long.bytes.len() <= 600, "{}", long.bytes.len());
    let mut short = Series::default();
    short.add(Duration::from_millis(25), 5);
    assert_eq!((short.interval_ms, short.bytes.clone()), (10, vec![0, 0, 5]));
    short.merge(&long);
    assert_eq!(short.bytes.iter().sum::<u64>(), 10_005);
    assert_eq!(short.interval_ms, long.interval_ms);
}

#[test]
fn percentiles_are_within_a_thousandth() {
    let mut l = Latency::default();
    for us in 1..=10_000 {
        l.add(Duration::from_micros(us));
    }
    let p = l.percentiles();
    assert_eq!(p.count, 10_000);
    for (found, expected) in
        [(p.p50, 5000.0), (p.p90, 9000.0), (p.p99, 9900.0), (p.p99_9, 9990.0), (p.max, 10_000.0)]
    {
        assert!((found / expected - 1.0).abs() < 2e-3, "{found} {expected}");
    }
}

#[test]
fn latencies_of_all_rounds_are_one_distribution() {
    // Each round alone has its own tail: the third has none.
    let mut all = Latencies::default();
    let mut whole = Latency::default();
    for (count, us) in [(90_000, 10), (2_000, 500), (8_000, 20)] {
        let mut round = Latency::default();
        for _ in 0..count {
            round.add(Duration::from_micros(us));
            whole.add(Duration::from_micros(us));
        }
        all.add(&round);
    }
    let (p, expected) = (all.percentiles(), whole.percentiles());
    assert_eq!(p.count, 100_000);
    for (found, expected) in [(p.p50, expected.p50), (p.p90, expected.p90), (p.p99, expected.p99)] {
        assert!((found / expected - 1.0).abs() < 2e-3, "{found} {expected}");
    }
    assert!((p.p99 / 500.0 - 1.0).abs() < 2e-3, "{p:?}");
}

#[test]
fn percentiles_are_told_when_enough_requests_are_beyond_them() {
    let known = |count| {
        let p = Percentiles { count, ..Percentiles::default() };
        p.known().map(|(_, value)| value.is_some())
    };
    assert_eq!(known(0), [false; 4]);
    assert_eq!(known(999), [true, false, false, false]);
    assert_eq!(known(1000), [true, true, false, false]);
    assert_eq!(known(10_000), [true, true, true, false]);
    assert_eq!(known(99_999), [true, true, true, false]);
    assert_eq!(known(100_000), [true; 4]);
}

proptest! {
    #[test]
    fn sequential_requests_cover_a_range_once(request in 1_u64..5000, count in 1_u64..200) {
        let p = Pattern::sequential(77, request * count, request, true);
        let mut places: Vec<_> = (0..count).map(|i| p.at(i).0).collect();
        places.sort_unstable();
        prop_assert!(places.iter().zip(0..).all(|(at, n)| *at == 77 + n * request));
        prop_assert_eq!(p.at(count).0, 77);
    }
    #[test]
    fn every_order_stays_in_its_range(
        order in prop_oneof![
            Just(Order::Sequential), Just(Order::Random), Just(Order::Same),
            (1_u64..100_000).prop_map(Order::Stride),
        ],
        span in 1_u64..1_000_000, request in 1_u64..10_000, i in any::<u32>(),
    ) {
        let p = Pattern::sequential(13, span.max(request), request, true).ordered(order);
        let (at, _) = p.at(i.into());
        prop_assert!(at >= 13 && at + request <= 13 + span.max(request));
    }
    #[test]
    fn streams_in_turns_make_the_same_requests(parts in 1_u64..9, count in 0_u64..100) {
        let p = Pattern::sequential(0, 4096 * 50, 4096, true).ordered(Order::Random);
        let whole: std::collections::BTreeSet<_> = (0..count).map(|i| p.at(i).0).collect();
        let mut n = 0;
        let mut split = std::collections::BTreeSet::new();
        for part in 0..parts {
            let mine = count.saturating_sub(part).div_ceil(parts);
            let q = p.every(parts, part, mine);
            split.extend((0..mine).map(|i| q.at(i).0));
            n += mine;
        }
        prop_assert_eq!(n, count);
        prop_assert_eq!(split, whole);
    }
    #[test]
    fn content_is_found_as_it_was_filled(
        at in (0_u64..1000).prop_map(|n| n * 512), pieces in 1_usize..9, flip in any::<usize>(),
        run in any::<u64>(), generation in any::<u64>(),
    ) {
        for content in [Content::Words, Content::Verified { run, generation }] {
            let mut buf = vec![0; pieces * 512];
            content.fill(at, &mut buf);
            prop_assert_eq!(content.check(at, &buf), None);
            prop_assert!(content.check(at + 512, &buf).is_some());
            let place = flip % buf.len();
            buf[place] ^= 1;
            let found = content.check(at, &buf).unwrap().at;
            prop_assert!((at + place as u64).abs_diff(found) < 8);
        }
    }
}

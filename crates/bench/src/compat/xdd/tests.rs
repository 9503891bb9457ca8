//! xdd's options and output.

use super::*;

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}
fn xdd(line: &str) -> Result<ExitCode> {
    run(&words(line))
}
fn same(code: ExitCode, other: ExitCode) -> bool {
    format!("{code:?}") == format!("{other:?}")
}

#[test]
fn options_for_all_targets_and_for_one() {
    let o = Options::parse(&words(
        "-targets 2 A B -op read -op target 1 write -reqsize 1024 -blocksize 512 -mbytes 256 \
         -passes 3 -queuedepth 4 -dio -rwratio target 0 70 -seek random -seek range 5000 \
         -seek target 1 stagger -startoffset 8 -targetoffset 100 -throttle target 0 ops 50 \
         -heartbeat 2 -ts output T -deskew -csvout C -id text -verify target 1 contents",
    ))
    .unwrap();
    assert_eq!((o.jobs.len(), o.passes, o.heartbeat, o.deskew), (2, 3, Some(2.0), true));
    let [a, b] = o.jobs.as_slice() else { panic!("two jobs") };
    assert_eq!((a.reads, b.reads, a.block, request(a)), (70, 0, 512, 512 << 10));
    assert_eq!((a.depth, a.direct, a.range, a.seek), (4, true, Some(5000), Seek::Random));
    assert_eq!((b.seek, b.verify, b.content), (Seek::Stagger(None), true, options::SEQUENCED));
    assert_eq!((a.start, b.start), (8, 108));
    assert_eq!(a.throttle, Some(Throttle::Ops(50.0)));
    assert_eq!((o.id.as_str(), o.csv.is_some(), o.stamps.is_some()), ("text", true, true));
    let o = Options::parse(&words("-targets -3 /x -numreqs 5")).unwrap();
    assert_eq!(o.jobs.len(), 3);
    assert!(o.jobs.iter().all(|j| j.path.as_os_str() == "/x" && j.requests == Some(5)));
}

#[test]
fn what_makes_no_sense_is_refused() {
    for bad in [
        "",
        "x",
        "-",
        "-targets",
        "-targets 2 A",
        "-targets 0",
        "-targets x A",
        "-target A",
        "-target A -mbytes",
        "-target A -mbytes x",
        "-target A -mbytes 1 -op copy",
        "-target A -mbytes 1 -rwratio 101",
        "-target A -mbytes 1 -queuedepth 0",
        "-target A -mbytes 1 -passes 0",
        "-target A -mbytes 1 -reqsize 0",
        "-target A -mbytes 1 -reqsize 99999999",
        "-target A -mbytes 1 -op target 1 read",
        "-target A -mbytes 1 -seek sideways",
        "-target A -mbytes 1 -throttle 0",
        "-target A -mbytes 1 -throttle ops -1",
        "-target A -mbytes 1 -heartbeat 0",
        "-target A -mbytes 1 -nonsense",
        "-target A -mbytes 1 -verify maybe",
        "-target A -mbytes 1 -runtime NaN",
    ] {
        assert!(Options::parse(&words(bad)).is_err(), "{bad}");
    }
}

#[test]
fn places_of_all_orders() {
    let job = |seek, range| Job {
        seek,
        range,
        block: 1024,
        request_blocks: 4,
        requests: Some(8),
        start: 2,
        pass_offset: 16,
        ..Job::usual()
    };
    let at = |j: &Job, pass| (0..8).map(|i| places(j, pass).at(i).0).collect::<Vec<_>>();
    let sequential = job(Seek::Sequential, None);
    assert_eq!(at(&sequential, 0), (0..8).map(|i| 2048 + i * 4096).collect::<Vec<_>>());
    assert_eq!(at(&sequential, 1)[0], (2 + 16) * 1024);
    assert_eq!(at(&job(Seek::None, None), 0), vec![2048; 8]);
    // Eight requests of 4 KiB spread evenly over 128 KiB.
    let stagger = at(&job(Seek::Stagger(None), Some(128)), 0);
    let steps: Vec<_> = stagger.windows(2).map(|w| w[1] - w[0]).collect();
    assert_eq!(steps, vec![15 * 1024; 7]);
    let random = at(&job(Seek::Random, Some(128)), 0);
    assert!(random.iter().all(|a| (2048..2048 + (128 << 10)).contains(a)));
    assert!(random.iter().collect::<std::collections::BTreeSet<_>>().len() > 3);
}

#[test]
fn written_verified_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    let two = format!("-targets 2 {d}/a {d}/b");
    let job = "-reqsize 4 -mbytes 1 -queuedepth 4 -verify contents";
    let done = xdd(&format!("-op write {two} {job} -passes 2")).unwrap();
    assert!(same(done, ExitCode::SUCCESS));
    assert_eq!(std::fs::metadata(dir.path().join("b")).unwrap().len(), 1 << 20);
    let line = format!(
        "-op read {two} {job} -seek random -deskew -csvout {d}/csv -ts output {d}/ts -output {d}/out \
         -combinedout {d}/combined -id hello -throttle 400"
    );
    assert!(same(xdd(&line).unwrap(), ExitCode::SUCCESS));
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let csv = read("csv");
    let lines: Vec<_> = csv.lines().collect();
    // A head, two passes, two averages, all.
    assert_eq!(lines.len(), 6, "{csv}");
    assert!(lines[5].starts_with("combined,2,4,2097152,512,"), "{csv}");
    assert_eq!(read("ts").lines().count(), 1 + 512);
    let out = read("out");
    for part in ["TARGET   PASS0001", "TARGET   Average", "COMBINED Combined", "hello", "Deskewed"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_eq!(read("combined").lines().count(), 1);
    // One bit.
    let path = dir.path().join("a");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[70_000] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    assert!(same(xdd(&format!("-op read {two} {job}")).unwrap(), ExitCode::FAILURE));
    assert!(same(
        xdd(&format!("-op read -target {d}/b {job} -deletefile")).unwrap(),
        ExitCode::SUCCESS
    ));
    assert!(!dir.path().join("b").exists());
}

#[test]
fn the_table_is_xdds_and_the_csv_has_the_same_columns() {
    let mut table = Table::default();
    let job = Job { depth: 4, request_blocks: 4, ..Job::usual() };
    let done = crate::engine::StreamResult::default();
    let outcome = Outcome::new(vec![done], 0, crate::run::load::Metered::default(), None);
    table.add(0, Line::of(0, &job, &outcome.streams, &outcome));
    let options = Options { jobs: vec![job], ..Options::default() };
    let csv = table.csv(&options);
    let fields: Vec<_> = csv.lines().map(|l| l.split(',').count()).collect();
    assert_eq!(fields, [12; 4], "{csv}");
    assert!(csv.starts_with("what,target,queue,bytes,ops,seconds,MB/s,iops,latency_ms,cpu_percent,op,request\npass 1,0,4,0,0,0.000000,0.000,"));
    let head = Table::header();
    let line = table.average(0).unwrap().text("Average");
    assert_eq!(
        line,
        "TARGET   Average     0    4              0         0     0.000      0.000       0.000    0.0000    0.00  read       4096\n"
    );
    assert!(head.lines().all(|l| l.len() + 1 == line.len()), "{head}{line}");
}

#[test]
fn a_target_that_is_too_short_or_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    assert!(xdd(&format!("-op read -target {d}/none -mbytes 1")).is_err());
    std::fs::write(dir.path().join("short"), [0; 1000]).unwrap();
    let said = xdd(&format!("-op read -target {d}/short -mbytes 1")).unwrap_err().to_string();
    assert!(said.contains("has 1000 bytes, 1048576 are asked for"), "{said}");
}

#[test]
fn numbers_beyond_anything_are_refused_and_nothing_panics() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    std::fs::write(dir.path().join("f"), [0; 8192]).unwrap();
    let most = u64::MAX;
    for (op, words) in [
        ("read", format!("-numreqs 1 -startoffset {most}")),
        ("write", format!("-numreqs 1 -startoffset {most}")),
        ("write", format!("-numreqs {most}")),
        ("write", format!("-mbytes {most} -startoffset 1")),
        ("write", format!("-numreqs 1 -passes 2 -passoffset {most}")),
        ("write", format!("-numreqs 1 -passes {most} -passoffset 2")),
        ("write", format!("-numreqs 1 -seek random -seek range {most}")),
        ("write", format!("-numreqs 1 -seek stagger {most} -seek range {most}")),
        ("write", format!("-numreqs 1 -targetoffset {most} -startoffset 1 -reqsize 1048577")),
        ("read", "-numreqs 8 -reqsize 1 -seek range 9".to_owned()),
        ("read", "-numreqs 1 -reqsize 1 -passes 9 -passoffset 1".to_owned()),
        // Nothing to move.
        ("read", "-numreqs 0".to_owned()),
        ("write", "-bytes 8192 -reqsize 9".to_owned()),
        // Threads and memory.
        ("read", "-numreqs 1 -reqsize 1 -throttle 1 -qd 4097".to_owned()),
        ("read", "-numreqs 8 -reqsize 1048576 -qd 4096".to_owned()),
    ] {
        let said = xdd(&format!("-op {op} -target {d}/f {words}")).unwrap_err().to_string();
        assert!(!said.contains("panicked"), "{words}: {said}");
    }
    let many = format!("-op read -targets -1024 {d}/f -reqsize 1 -numreqs 8 -throttle 1 -qd 8");
    let said = xdd(&many).unwrap_err().to_string();
    assert!(said.contains("8192 threads are too many"), "{said}");
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), [0; 8192]);
}

#[test]
fn what_could_never_fit_is_not_begun() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    // 1,000 TB, and a range of as much of which little is written.
    let said = xdd(&format!("-op write -target {d}/f -mbytes 1000000000")).unwrap_err().to_string();
    assert!(said.contains("do not fit"), "{said}");
    assert!(!dir.path().join("f").exists());
    let sparse = "-numreqs 2 -reqsize 1 -seek random -seek range 1000000000";
    xdd(&format!("-op write -target {d}/f {sparse}")).unwrap();
}

#[test]
fn a_dry_run_says_what_would_be_done() {
    let dir = tempfile::tempdir().unwrap();
    let f = dir.path().join("f");
    std::fs::write(&f, [7; 8192]).unwrap();
    xdd(&format!("-op write -target {} -reqsize 4 -numreqs 2 -dryrun", f.display())).unwrap();
    assert_eq!(std::fs::read(f).unwrap(), [7; 8192]);
}

#[test]
fn a_delay_between_passes_ends_with_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let f = dir.path().join("f");
    std::fs::write(&f, [0; 8192]).unwrap();
    let passes = "-numreqs 1 -reqsize 1 -passes 9 -passdelay 3600 -runtime 0.05";
    assert!(same(
        xdd(&format!("-op read -target {} {passes}", f.display())).unwrap(),
        ExitCode::SUCCESS
    ));
}

#[test]
fn heartbeats_say_how_far() {
    let said = heartbeat(50_000_000, 200_000_000, 5.0);
    assert_eq!(said, "+0005.0 s, 50.0 MB, 10.00 MB/s, 25.0 %, 15 s to go");
}

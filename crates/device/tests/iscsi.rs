//! Units of targets as devices: against `braid-iscsi-target` in this process, by libiscsi (Debian's
//! `libiscsi7`, which `make test` installs).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::{
    AlignedBuf, CawOutcome, CountedDevice, Device, DeviceError, FileDevice, IoQueue, IscsiDevice,
    MemoryDevice, Op, OpenOptions, OwnedOp, Part, Request, ReservationKind, run,
};
use braid_format::{ByteOffset, Bytes};
use braid_iscsi_target::{Chap, LunOptions, Secret, Target, TargetOptions};
use braid_testkit::pattern;

const NAME: &str = "iqn.2026-11.org.braid:device-test";
const SIZE: Bytes = Bytes(64 << 20);
const KIND: ReservationKind = ReservationKind::WriteExclusiveRegistrants;

fn memory() -> Arc<dyn Device> {
    MemoryDevice::new("memory", SIZE, Bytes(512))
}

fn serve_with(devices: Vec<Arc<dyn Device>>, chap: Chap) -> Target {
    let unit = |device| LunOptions { device, identity: None, reservations: None };
    let luns = devices.into_iter().map(unit).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Target::start(listener, TargetOptions { name: NAME.into(), luns, chap }).unwrap()
}

fn serve(devices: Vec<Arc<dyn Device>>) -> Target {
    serve_with(devices, Chap::default())
}

fn url(target: &Target, lun: u8) -> String {
    format!("iscsi://{}/{NAME}/{lun}", target.address())
}

fn open(target: &Target, lun: u8) -> Arc<IscsiDevice> {
    IscsiDevice::open(&url(target, lun), OpenOptions::default()).unwrap()
}

fn fenced<T>(result: Result<T, DeviceError>) {
    let result = result.map(|_| ());
    assert!(matches!(&result, Err(DeviceError::Fenced { .. })), "{result:?}");
}

#[test]
fn a_unit_is_a_device() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(SIZE.get()).unwrap();
    let file = FileDevice::open(&path, OpenOptions::default()).unwrap();
    let large = MemoryDevice::new("4096", SIZE, Bytes(4096));
    let target = serve(vec![memory(), file, large]);
    for lun in 0..3 {
        let unit = open(&target, lun);
        let info = unit.info();
        assert_eq!((info.size, info.engine), (SIZE, "iscsi"));
        assert_eq!(info.caps.compare_and_write, Bytes(4096));
        assert!(unit.abilities().reservations.is_some());
        assert!(info.caps.discard && info.caps.write_zeroes && !info.read_only);
        for len in [4096, 65536, 1 << 20, (5 << 20) + 4096] {
            let (at, data) = (ByteOffset(1 << 20), pattern(lun.into(), len));
            unit.write(at, &data).unwrap();
            let mut back = vec![0; len];
            unit.read(at, &mut back).unwrap();
            assert!(back == data, "unit {lun}, {len} bytes");
        }
        unit.flush().unwrap();
        unit.write_zeroes(ByteOffset(1 << 20), Bytes(3 << 20)).unwrap();
        let mut back = vec![1; 4 << 20];
        unit.read(ByteOffset(1 << 20), &mut back).unwrap();
        assert!(back[..3 << 20].iter().all(|b| *b == 0) && back[3 << 20..].iter().any(|b| *b != 0));
        unit.discard(ByteOffset(4 << 20), Bytes(1 << 20)).unwrap();
        assert!(info.caps.deallocate);
        unit.write(ByteOffset(0), &vec![5; 48 << 20]).unwrap();
        assert!(unit.deallocate(ByteOffset(4096), Bytes(40 << 20)).unwrap());
        let mut back = vec![1; 48 << 20];
        unit.read(ByteOffset(0), &mut back).unwrap();
        let (gone, stays) = (4096..4096 + (40 << 20), 4096 + (40 << 20)..);
        assert!(back[gone].iter().all(|b| *b == 0));
        assert!(back[..4096].iter().chain(&back[stays]).all(|b| *b == 5));
        let past = unit.write(ByteOffset(SIZE.get()), &[0; 4096]);
        assert!(matches!(past, Err(DeviceError::OutOfRange { .. })));
    }
}

#[test]
fn compare_and_write_is_of_one_sector_to_a_page() {
    let target = serve(vec![memory()]);
    let (a, b) = (open(&target, 0), open(&target, 0));
    for len in [512, 4096] {
        let (zero, one, two) = (vec![0; len], pattern(1, len), pattern(2, len));
        let at = ByteOffset(8192 * len as u64 / 512);
        assert_eq!(a.compare_and_write(at, &zero, &one).unwrap(), CawOutcome::Written);
        assert_eq!(
            b.compare_and_write(at, &zero, &two).unwrap(),
            CawOutcome::Mismatch(one.clone())
        );
        assert_eq!(b.compare_and_write(at, &one, &two).unwrap(), CawOutcome::Written);
    }
}

#[test]
fn many_requests_are_under_way_by_every_way_of_issuing() {
    let target = serve(vec![memory(), memory()]);
    let units: Vec<Arc<dyn Device>> =
        (0..2).map(|n| CountedDevice::over(open(&target, n) as Arc<dyn Device>)).collect();
    let plain = memory();
    // Together they take as long as one.
    target.faults().add("write delay=1000").unwrap();
    let data: Vec<Vec<u8>> = (0..16).map(|n| pattern(n, 65536)).collect();
    let began = Instant::now();
    let mut requests: Vec<Request<'_>> = data
        .iter()
        .enumerate()
        .map(|(n, d)| Request::new(&*units[n % 2], ByteOffset(n as u64 * 65536), Op::Write(d)))
        .collect();
    requests.push(Request::new(&*plain, ByteOffset(0), Op::Write(&data[0])));
    run(&mut requests);
    assert!(requests.iter().all(|r| r.result.is_ok()));
    assert!(began.elapsed() < Duration::from_secs(8), "one after the other");
    let began = Instant::now();
    let mut queue = IoQueue::new(16).unwrap();
    for n in 0..16_u64 {
        let part = |lun: usize, at| Part {
            device: units[lun].clone(),
            at: ByteOffset(at),
            len: Bytes(65536),
        };
        let parts = [part(0, (16 + n) << 17), part(1, (16 + n) << 17)];
        let mut buf = AlignedBuf::zeroed(131_072);
        buf.fill(u8::try_from(n).unwrap());
        queue.submit_parts(n, OwnedOp::Write(buf), &parts).unwrap();
    }
    for _ in 0..16 {
        queue.complete().2.unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(8), "one after the other");
    target.faults().clear();
    for n in 0..16_u64 {
        queue
            .submit(
                n,
                units[1].clone(),
                ByteOffset((16 + n) << 17),
                OwnedOp::Read(AlignedBuf::zeroed(65536)),
            )
            .unwrap();
    }
    for _ in 0..16 {
        let (n, buf, result) = queue.complete();
        result.unwrap();
        assert!(buf.iter().all(|b| u64::from(*b) == n));
    }
    let issued = units[0].abilities().counters.unwrap().now();
    assert_eq!(issued.writes.requests(), 8 + 16);
}

#[test]
fn a_slow_unit_is_known_by_its_own_time_however_its_requests_were_issued() {
    const SLOW: Duration = Duration::from_secs(3);
    let target = serve(vec![memory(), memory()]);
    let units: Vec<Arc<dyn Device>> =
        (0..2).map(|n| CountedDevice::over(open(&target, n) as Arc<dyn Device>)).collect();
    target.faults().add(&format!("write delay={} lun=1", SLOW.as_millis())).unwrap();
    let times = |before: &[braid_device::Issued]| {
        let now = units.iter().map(|u| u.abilities().counters.unwrap().now());
        let writes = now.zip(before).map(|(now, before)| now.since(before).writes);
        writes.map(|w| (w.ended(), w.latency().unwrap())).collect::<Vec<_>>()
    };
    let counted =
        || units.iter().map(|u| u.abilities().counters.unwrap().now()).collect::<Vec<_>>();
    let slow_is_named = |times: &[(u64, Duration)], ended: u64| {
        assert_eq!([times[0].0, times[1].0], [ended; 2]);
        // Whoever is waited for behind the slow one would take as long as that.
        assert!(times[1].1 >= SLOW && times[0].1 < SLOW / 2, "{times:?}");
    };
    let data = pattern(1, 65536);
    // The slow one's first: it is waited for first.
    let before = counted();
    let mut requests: Vec<Request<'_>> = (0..8)
        .map(|n| Request::new(&*units[(n + 1) % 2], ByteOffset(n as u64 * 65536), Op::Write(&data)))
        .collect();
    run(&mut requests);
    assert!(requests.iter().all(|r| r.result.is_ok()));
    slow_is_named(&times(&before), 4);
    let before = counted();
    let mut queue = IoQueue::new(8).unwrap();
    for n in 0..8 {
        let device = units[(n + 1) % 2].clone();
        let mut buf = AlignedBuf::zeroed(65536);
        buf.copy_from_slice(&data);
        queue.submit(n as u64, device, ByteOffset(n as u64 * 65536), OwnedOp::Write(buf)).unwrap();
    }
    for _ in 0..8 {
        queue.complete().2.unwrap();
    }
    slow_is_named(&times(&before), 4);
}

#[test]
fn threads_share_a_session() {
    let target = serve(vec![memory()]);
    let unit = open(&target, 0);
    std::thread::scope(|s| {
        for t in 0..8_u8 {
            let unit = &unit;
            s.spawn(move || {
                let at = ByteOffset(u64::from(t) << 20);
                let mut back = vec![0; 8192];
                for round in 0..200_u8 {
                    let data = pattern((t ^ round).into(), 8192);
                    unit.write(at, &data).unwrap();
                    unit.read(at, &mut back).unwrap();
                    assert!(back == data);
                }
            });
        }
    });
}

#[test]
fn a_fenced_holder_is_refused_and_what_it_had_under_way_does_not_land() {
    let target = serve(vec![memory()]);
    let (victim, other) = (open(&target, 0), open(&target, 0));
    let (of_victim, of_other) =
        (victim.abilities().reservations.unwrap(), other.abilities().reservations.unwrap());
    of_victim.register(0, 0xa).unwrap();
    of_other.register(0, 0xb).unwrap();
    of_victim.reserve(0xa, KIND).unwrap();
    assert_eq!(of_other.keys().unwrap(), [0xa, 0xb]);
    let held = of_other.reservation().unwrap().unwrap();
    assert_eq!((held.key, held.kind), (0xa, KIND));
    other.write(ByteOffset(0), &[1; 512]).unwrap();
    let stranger = open(&target, 0);
    fenced(stranger.write(ByteOffset(0), &[9; 512]));
    fenced(stranger.abilities().reservations.unwrap().reserve(7, KIND));
    stranger.read(ByteOffset(0), &mut [0; 512]).unwrap();
    // A write that would land in ten minutes, of somebody who is fenced at once.
    target.faults().add("write delay=600000 times=1").unwrap();
    let began = Instant::now();
    std::thread::scope(|s| {
        let under_way = s.spawn(|| victim.write(ByteOffset(4096), &[7; 512]));
        while target.running() == 0 {
            std::thread::yield_now();
        }
        of_other.preempt_and_abort(0xb, 0xa, KIND).unwrap();
        let mut now = [0; 512];
        other.read(ByteOffset(4096), &mut now).unwrap();
        assert_eq!(now, [0; 512]);
        assert!(under_way.join().unwrap().is_err());
    });
    assert!(began.elapsed() < Duration::from_mins(9), "it was waited for, not ended");
    fenced(victim.write(ByteOffset(4096), &[7; 512]));
    fenced(victim.compare_and_write(ByteOffset(4096), &[0; 512], &[7; 512]));
    fenced(of_victim.register(0xa, 0xc));
    assert_eq!(of_other.keys().unwrap(), [0xb]);
    other.write(ByteOffset(0), &[2; 512]).unwrap();
    of_other.reset().unwrap();
    of_other.clear(0xb).unwrap();
    assert_eq!((of_other.keys().unwrap(), of_other.reservation().unwrap()), (vec![], None));
    victim.write(ByteOffset(0), &[3; 512]).unwrap();
}

/// What late landing is: the session is gone, its write comes all the same, unless it is fenced.
#[test]
fn a_write_may_land_after_its_session_but_not_after_a_fence() {
    for fence in [false, true] {
        let target = serve(vec![memory()]);
        let (victim, other) = (open(&target, 0), open(&target, 0));
        let (of_victim, of_other) =
            (victim.abilities().reservations.unwrap(), other.abilities().reservations.unwrap());
        of_victim.register(0, 1).unwrap();
        of_other.register(0, 2).unwrap();
        of_victim.reserve(1, KIND).unwrap();
        // Time enough to cut and to fence before it lands.
        let late = if fence { "write late=600000 times=1" } else { "write late=3000 times=1" };
        target.faults().add(late).unwrap();
        std::thread::scope(|s| {
            let under_way = s.spawn(|| victim.write(ByteOffset(0), &[7; 512]));
            while target.running() == 0 {
                std::thread::yield_now();
            }
            if fence {
                of_other.preempt_and_abort(2, 1, KIND).unwrap();
            }
            // Nothing is taken up again after that.
            victim.abilities().session.unwrap().lease(Instant::now());
            target.cut("");
            assert!(under_way.join().unwrap().is_err(), "its outcome is unknown");
        });
        assert!(victim.write(ByteOffset(0), &[8; 512]).is_err());
        assert!(victim.read(ByteOffset(0), &mut [0; 512]).is_err());
        let again = open(&target, 0);
        let landed = || {
            let mut now = [0; 512];
            again.read(ByteOffset(0), &mut now).unwrap();
            now == [7; 512]
        };
        // What is under way no more does not land.
        let began = Instant::now();
        while target.running() != 0 {
            assert!(began.elapsed() < Duration::from_mins(1), "it neither lands nor is ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(landed(), !fence);
    }
}

#[test]
fn a_session_that_breaks_ends_what_is_under_way() {
    let target = serve(vec![memory()]);
    let unit = open(&target, 0);
    unit.abilities().session.unwrap().lease(Instant::now());
    target.faults().add("read drop").unwrap();
    std::thread::scope(|s| {
        let under_way: Vec<_> =
            (0..4).map(|_| s.spawn(|| unit.read(ByteOffset(0), &mut [0; 4096]))).collect();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(target.cut(""), 1);
        for read in under_way {
            assert!(read.join().unwrap().is_err());
        }
    });
    assert!(unit.flush().is_ok(), "no cache, nothing to lose");
    drop(target);
    let refused = open_error("iscsi://127.0.0.1:1/iqn.2026-11.org.braid:none/0");
    assert!(refused.contains("log in"), "{refused}");
}

/// Whichever of its first commands fails.
#[test]
fn a_unit_that_cannot_say_what_it_is_is_not_opened_as_less() {
    let target = serve(vec![memory()]);
    let whole = format!("{:?}", open(&target, 0).info());
    let mut refused = 0;
    for n in 1..24 {
        target.faults().add(&format!("any fail every={n} times=1")).unwrap();
        match IscsiDevice::open(&url(&target, 0), OpenOptions::default()) {
            Ok(unit) => assert_eq!(format!("{:?}", unit.info()), whole, "command {n} failed"),
            Err(_) => refused += 1,
        }
        target.faults().clear();
    }
    assert!(refused > 5, "{refused} commands were asked");
}

fn open_error(name: &str) -> String {
    IscsiDevice::open(name, OpenOptions::default()).unwrap_err().to_string()
}

#[test]
fn secrets_are_asked_for_both_ways() {
    let secret = |name: &str, secret: &str| Secret { name: name.into(), secret: secret.into() };
    let chap = Chap { initiator: Some(secret("braid", "longersecret")), target: None };
    let target = serve_with(vec![memory()], chap);
    let at = target.address();
    let good = format!("iscsi://braid%longersecret@{at}/{NAME}/0");
    let unit = IscsiDevice::open(&good, OpenOptions::default()).unwrap();
    assert!(!unit.info().name.contains("longer"), "{}", unit.info().name);
    // Under the name it shows it is opened again.
    let shown = unit.info().name.clone();
    IscsiDevice::open(&shown, OpenOptions::default()).unwrap();
    for bad in [
        format!("iscsi://braid%wrongsecret1@{at}/{NAME}/0"),
        format!("iscsi://other%longersecret@{at}/{NAME}/0"),
        format!("iscsi://{at}/{NAME}/0"),
    ] {
        let said = open_error(&bad);
        assert!(said.contains("log in") && !said.contains("secret"), "{said}");
    }
    assert!(open_error(&format!("iscsi://braid%longersecret@{at}/{NAME}/9")).contains("log in"));
    assert!(
        open_error(&format!("iscsi://braid%longersecret@{at}/iqn.2026-11.org:x/0"))
            .contains("log in")
    );
}

#[test]
fn mutual_chap_is_spoken() {
    // The other side's secret comes from the environment: a process of its own.
    let secret = |name: &str, secret: &str| Secret { name: name.into(), secret: secret.into() };
    let chap = Chap {
        initiator: Some(secret("braid", "longersecret")),
        target: Some(secret("lun", "othersecret12")),
    };
    let target = serve_with(vec![memory()], chap);
    let name = format!("iscsi://braid%longersecret@{}/{NAME}/0", target.address());
    for (theirs, works) in [("othersecret12", true), ("othersecret13", false)] {
        let mut command = child("open", &name);
        command.env("LIBISCSI_CHAP_TARGET_USERNAME", "lun");
        command.env("LIBISCSI_CHAP_TARGET_PASSWORD", theirs);
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(said.contains("opened"), works, "{said}");
    }
}

const TASK: &str = "BRAID_ISCSI_TEST_TASK";
const UNIT: &str = "BRAID_ISCSI_TEST_UNIT";
const ROUNDS: u64 = 100;

fn child(task: &str, unit: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child_process", "--exact", "--nocapture"]).env(TASK, task).env(UNIT, unit);
    command.stdout(Stdio::piped());
    command
}

/// What a process is when the environment says so; otherwise nothing.
#[test]
fn child_process() {
    let (Ok(task), Ok(name)) = (std::env::var(TASK), std::env::var(UNIT)) else { return };
    let unit = IscsiDevice::open(&name, OpenOptions::default()).unwrap();
    match task.as_str() {
        "open" => println!("\nopened"),
        "count" => {
            let mut sector = vec![0; 512];
            for _ in 0..ROUNDS {
                loop {
                    unit.read(ByteOffset(0), &mut sector).unwrap();
                    let count = u64::from_le_bytes(sector[..8].try_into().unwrap());
                    let mut new = sector.clone();
                    new[..8].copy_from_slice(&(count + 1).to_le_bytes());
                    if unit.compare_and_write(ByteOffset(0), &sector, &new).unwrap()
                        == CawOutcome::Written
                    {
                        break;
                    }
                }
            }
        }
        _ => panic!("no such task"),
    }
}

#[test]
fn four_processes_count_exactly() {
    let target = serve(vec![memory()]);
    let name = url(&target, 0);
    let mut children: Vec<_> =
        (0..4).map(|_| child("count", &name).stdout(Stdio::null()).spawn().unwrap()).collect();
    for c in &mut children {
        assert!(c.wait().unwrap().success());
    }
    let mut sector = [0; 512];
    open(&target, 0).read(ByteOffset(0), &mut sector).unwrap();
    assert_eq!(u64::from_le_bytes(sector[..8].try_into().unwrap()), 4 * ROUNDS);
}

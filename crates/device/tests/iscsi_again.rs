//! Sessions that break: because the target is started anew, or because somebody cuts them. Against
//! `braid-iscsi-target` in this process, by libiscsi.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(clippy::needless_pass_by_value, reason = "what a call returned is checked and done with")]

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::{
    CawOutcome, Device, DeviceError, FaultPlan, FaultyDevice, FileDevice, IscsiDevice,
    MemoryDevice, OpenOptions, ReservationKind,
};
use braid_format::{ByteOffset, Bytes};
use braid_iscsi_target::{Chap, LunOptions, Secret, Target, TargetOptions};

const NAME: &str = "iqn.2026-11.org.braid:again-test";
const SIZE: Bytes = Bytes(16 << 20);
const KIND: ReservationKind = ReservationKind::WriteExclusiveAll;
const AT: ByteOffset = ByteOffset(4096);
/// Longer than a target takes to be there again, on a machine that does much else.
const LONG: Duration = Duration::from_mins(1);

/// What outlives a target.
struct San {
    device: Arc<dyn Device>,
    identity: &'static str,
    chap: Chap,
    kept: Option<PathBuf>,
    at: SocketAddr,
    target: Option<Target>,
    _dir: tempfile::TempDir,
}

impl San {
    fn new(device: Arc<dyn Device>) -> Self {
        Self::with_chap(device, Chap::default())
    }
    fn with_chap(device: Arc<dyn Device>, chap: Chap) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kept = Some(dir.path().join("reservations"));
        let (identity, at) = ("unit", "127.0.0.1:0".parse().unwrap());
        let mut san = Self { device, identity, chap, kept, at, target: None, _dir: dir };
        san.start();
        san
    }
    fn memory() -> Self {
        Self::new(MemoryDevice::new("memory", SIZE, Bytes(512)))
    }
    fn start(&mut self) {
        let unit = LunOptions {
            device: self.device.clone(),
            identity: Some(self.identity.to_owned()),
            reservations: self.kept.clone(),
        };
        let listener = TcpListener::bind(self.at).unwrap();
        self.at = listener.local_addr().unwrap();
        let options =
            TargetOptions { name: NAME.into(), luns: vec![unit], chap: self.chap.clone() };
        self.target = Some(Target::start(listener, options).unwrap());
    }
    fn restart(&mut self) {
        self.target = None;
        self.start();
    }
    fn target(&self) -> &Target {
        self.target.as_ref().unwrap()
    }
    fn fault(&self, words: &str) {
        self.target().faults().add(words).unwrap();
    }
    /// Waits until so many commands have met a fault.
    fn met(&self, count: u32) {
        let met = format!("({count} commands met it)");
        while !self.target().faults().list().iter().any(|fault| fault.contains(&met)) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    fn open(&self) -> Arc<IscsiDevice> {
        self.open_as("")
    }
    fn open_as(&self, login: &str) -> Arc<IscsiDevice> {
        let name = format!("iscsi://{login}{}/{NAME}/0", self.at);
        let unit = IscsiDevice::open(&name, OpenOptions::default()).unwrap();
        unit.abilities().session.unwrap().lease(Instant::now() + LONG);
        unit
    }
    /// What stands in the place of these tests, past the target.
    fn stands(&self) -> u8 {
        let mut sector = [0; 512];
        self.device.read(AT, &mut sector).unwrap();
        assert!(sector.iter().all(|b| *b == sector[0]), "torn");
        sector[0]
    }
}

fn unknown(result: Result<CawOutcome, DeviceError>) {
    assert!(matches!(result, Err(DeviceError::Unknown { .. })), "{result:?}");
}

fn fenced<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
    assert!(matches!(result, Err(DeviceError::Fenced { .. })), "{result:?}");
}

fn refused<T: std::fmt::Debug>(result: Result<T, DeviceError>, why: &str) {
    let said = result.unwrap_err().to_string();
    assert!(said.contains(why), "{said}");
}

#[test]
fn what_may_be_done_twice_is_issued_again() {
    let san = San::memory();
    let unit = san.open();
    unit.write(AT, &[1; 512]).unwrap();
    for how in ["cut", "cut-after"] {
        for (n, what) in ["read", "write"].iter().enumerate() {
            let value = 10 + u8::try_from(n).unwrap();
            san.fault(&format!("{what} {how} times=1"));
            unit.write(AT, &[value; 512]).unwrap();
            let mut found = [0; 512];
            unit.read(AT, &mut found).unwrap();
            assert_eq!((found, san.stands()), ([value; 512], value), "{what} {how}");
        }
    }
    // Many at once.
    san.fault("write cut every=7");
    let data: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    std::thread::scope(|s| {
        for n in 0..4_u64 {
            let (unit, data) = (&unit, &data);
            s.spawn(move || unit.write(ByteOffset((1 + n) * (3 << 20)), data).unwrap());
        }
    });
    san.target().faults().clear();
    for n in 0..4_u64 {
        let mut found = vec![0; data.len()];
        unit.read(ByteOffset((1 + n) * (3 << 20)), &mut found).unwrap();
        assert!(found == data);
    }
}

/// What was under way in the old session is over before anything is issued in the next.
#[test]
fn a_late_write_does_not_come_after_what_followed_it() {
    const LATE: Duration = Duration::from_millis(1500);
    let san = San::memory();
    let unit = san.open();
    san.fault(&format!("write late={} times=1", LATE.as_millis()));
    std::thread::scope(|s| {
        let first = s.spawn(|| unit.write(AT, &[1; 512]));
        while san.target().running() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(san.target().cut(""), 1);
        first.join().unwrap().unwrap();
    });
    assert_eq!(san.stands(), 1);
    unit.write(AT, &[2; 512]).unwrap();
    std::thread::sleep(LATE * 2);
    assert_eq!(san.stands(), 2);
}

#[test]
fn a_compare_and_write_without_an_answer_is_for_its_caller_to_settle() {
    let san = San::memory();
    let unit = san.open();
    san.fault("caw cut times=1");
    unknown(unit.compare_and_write(AT, &[0; 512], &[1; 512]));
    assert_eq!(san.stands(), 0, "it did not run");
    assert_eq!(unit.compare_and_write(AT, &[0; 512], &[1; 512]).unwrap(), CawOutcome::Written);
    san.fault("caw cut-after times=1");
    unknown(unit.compare_and_write(AT, &[1; 512], &[2; 512]));
    assert_eq!(san.stands(), 2, "it ran");
    // Somebody puts back what it compared with: it is not done again behind its caller's back.
    san.device.write(AT, &[1; 512]).unwrap();
    let mut found = [0; 512];
    unit.read(AT, &mut found).unwrap();
    assert_eq!((found, san.stands()), ([1; 512], 1));
    let found = unit.compare_and_write(AT, &[2; 512], &[3; 512]).unwrap();
    assert_eq!(found, CawOutcome::Mismatch(vec![1; 512]));
}

#[test]
fn a_target_that_is_started_anew_is_gone_on_with() {
    let mut san = San::memory();
    let unit = san.open();
    let reservations = unit.abilities().reservations.unwrap();
    reservations.register(0, 0xa).unwrap();
    reservations.reserve(0xa, KIND).unwrap();
    unit.write(AT, &[1; 512]).unwrap();
    san.restart();
    unit.write(AT, &[2; 512]).unwrap();
    san.restart();
    // That the session is gone is seen by what is sent in it, at the latest.
    unit.read(AT, &mut [0; 512]).unwrap();
    assert_eq!(unit.compare_and_write(AT, &[2; 512], &[3; 512]).unwrap(), CawOutcome::Written);
    // While it is away, and with requests under way.
    san.fault("any drop");
    std::thread::scope(|s| {
        let read = s.spawn(|| {
            let mut found = [0; 512];
            unit.read(AT, &mut found).map(|()| found)
        });
        san.met(1);
        let at = san.target.take().map(|t| t.address());
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(at, Some(san.at));
        san.start();
        assert_eq!(read.join().unwrap().unwrap(), [3; 512]);
    });
    assert_eq!(reservations.keys().unwrap(), [0xa]);
    assert_eq!(reservations.reservation().unwrap().unwrap().kind, KIND);
    // Who is not registered is kept out as before.
    fenced(san.open().write(AT, &[9; 512]));
}

#[test]
fn who_was_fenced_does_not_come_back_by_a_login() {
    for restarted in [false, true] {
        let mut san = San::memory();
        let (victim, other) = (san.open(), san.open());
        let of_other = other.abilities().reservations.unwrap();
        victim.abilities().reservations.unwrap().register(0, 0xa).unwrap();
        of_other.register(0, 0xb).unwrap();
        of_other.reserve(0xb, KIND).unwrap();
        of_other.preempt_and_abort(0xb, 0xa, KIND).unwrap();
        // Now nothing at the unit stands in anybody's way.
        of_other.clear(0xb).unwrap();
        if restarted {
            san.restart();
        } else {
            san.target().cut("");
        }
        fenced(victim.write(AT, &[7; 512]));
        fenced(victim.read(AT, &mut [0; 512]));
        fenced(victim.compare_and_write(AT, &[0; 512], &[7; 512]));
        assert_eq!(
            (san.stands(), san.open().abilities().reservations.unwrap().keys().unwrap()),
            (0, vec![])
        );
    }
}

/// It could not be fenced any more.
#[test]
fn who_is_not_registered_any_more_does_not_write() {
    for kept in [false, true] {
        let mut san = San::memory();
        if !kept {
            san.kept = None;
            san.restart();
        }
        let unit = san.open();
        let reservations = unit.abilities().reservations.unwrap();
        reservations.register(0, 0xa).unwrap();
        reservations.reserve(0xa, KIND).unwrap();
        unit.write(AT, &[1; 512]).unwrap();
        san.restart();
        if kept {
            unit.write(AT, &[2; 512]).unwrap();
        } else {
            fenced(unit.write(AT, &[2; 512]));
        }
        assert_eq!(san.stands(), if kept { 2 } else { 1 });
        let keys = san.open().abilities().reservations.unwrap().keys().unwrap();
        assert_eq!(keys, if kept { vec![0xa] } else { vec![] }, "it registers nothing by itself");
    }
}

#[test]
fn another_unit_under_the_name_is_refused() {
    let mut san = San::memory();
    let unit = san.open();
    unit.write(AT, &[1; 512]).unwrap();
    san.identity = "another";
    san.restart();
    refused(unit.write(AT, &[2; 512]), "another unit");
    assert_eq!(san.stands(), 1);
    let unit = san.open();
    san.device = MemoryDevice::new("memory", Bytes(SIZE.get() * 2), Bytes(512));
    san.restart();
    refused(unit.write(AT, &[2; 512]), "another size");
    assert_eq!(san.stands(), 0);
    // What was refused once stays so.
    san.device = MemoryDevice::new("memory", SIZE, Bytes(512));
    san.restart();
    refused(unit.read(AT, &mut [0; 512]), "another size");
}

#[test]
fn secrets_are_asked_for_again() {
    let secret = |secret: &str| Secret { name: "braid".into(), secret: secret.into() };
    let chap = |said: &str| Chap { initiator: Some(secret(said)), target: None };
    let mut san =
        San::with_chap(MemoryDevice::new("memory", SIZE, Bytes(512)), chap("longersecret"));
    let unit = san.open_as("braid%longersecret@");
    san.restart();
    unit.write(AT, &[1; 512]).unwrap();
    san.chap = chap("othersecret1");
    san.restart();
    // Time enough for a login that is refused.
    unit.abilities().session.unwrap().lease(Instant::now() + Duration::from_millis(1500));
    refused(unit.write(AT, &[2; 512]), "login");
    assert_eq!(san.stands(), 1);
}

#[test]
fn nobody_logs_in_again_after_the_lease() {
    let mut san = San::memory();
    let (unit, over) = (san.open(), san.open());
    over.abilities().session.unwrap().lease(Instant::now());
    san.target = None;
    assert!(over.read(AT, &mut [0; 512]).is_err());
    let (began, lease) = (Instant::now(), Duration::from_millis(500));
    unit.abilities().session.unwrap().lease(began + lease);
    assert!(unit.write(AT, &[1; 512]).is_err());
    assert!(began.elapsed() >= lease);
    san.start();
    for late in [&unit, &over] {
        assert!(late.write(AT, &[1; 512]).is_err());
        assert!(late.read(AT, &mut [0; 512]).is_err());
    }
    assert_eq!(san.stands(), 0);
    assert_eq!(san.target().sessions().len(), 0);
}

/// A unit that is asked what it is at the next login need not ever answer.
#[test]
fn who_gives_up_does_not_wait_for_a_unit_that_was_logged_in_to_again() {
    let san = San::memory();
    let unit = san.open();
    // Not one of the first, which belong to the login.
    san.fault("any drop every=5");
    assert_eq!(san.target().cut(""), 1);
    let (said, answer) = std::sync::mpsc::channel();
    let waits = unit.clone();
    std::thread::spawn(move || said.send(waits.write(AT, &[1; 512])));
    san.met(5);
    unit.abilities().session.unwrap().sever();
    let answer = answer.recv_timeout(LONG).expect("it waits for ever");
    refused(answer, "given up");
    refused(unit.read(AT, &mut [0; 512]), "given up");
    assert_eq!(san.stands(), 0);
}

/// Of a file: it says that it has a cache, and what keeps that one.
#[test]
fn what_was_not_flushed_is_kept_by_the_host_of_the_target() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(SIZE.get()).unwrap();
    let file = FileDevice::open(&path, OpenOptions::default()).unwrap();
    let mut san = San::new(file);
    let unit = san.open();
    unit.write(AT, &[1; 512]).unwrap();
    san.restart();
    unit.flush().unwrap();
    unit.write(AT, &[2; 512]).unwrap();
    san.fault("flush cut-after times=1");
    unit.flush().unwrap();
    assert_eq!(san.stands(), 2);
}

/// A unit whose writes are lost by a loss of power until they are flushed.
fn volatile() -> (Arc<FaultyDevice>, San) {
    let plan = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
    let disk = FaultyDevice::new(MemoryDevice::new("memory", SIZE, Bytes(512)), plan);
    (disk.clone(), San::new(disk))
}

/// It keeps its sessions, as a unit does whose target is another machine.
fn lose_power(disk: &FaultyDevice, san: &San) {
    // With this seed nothing survives that was not flushed.
    disk.crash(0).unwrap();
    san.target().lose_power();
}

#[test]
fn a_compare_and_write_survives_a_loss_of_power_in_which_sessions_stay() {
    for (fault, times) in [("", ""), ("caw refuse-fua", ""), ("caw refuse-fua", " times=1")] {
        let (disk, san) = volatile();
        let unit = san.open();
        if !fault.is_empty() {
            san.fault(&format!("{fault}{times}"));
        }
        for n in 0..3 {
            let written = unit.compare_and_write(AT, &[n; 512], &[n + 1; 512]).unwrap();
            assert_eq!(written, CawOutcome::Written);
        }
        let flushes = disk.counts().flushes;
        assert_eq!(flushes, 3, "{fault}: one each");
        lose_power(&disk, &san);
        assert_eq!(san.stands(), 3, "{fault}");
        // Nothing was lost, so the unit goes on, in a session of its own.
        let found = unit.compare_and_write(AT, &[9; 512], &[9; 512]).or_else(|e| {
            assert!(matches!(e, DeviceError::Unknown { .. }), "{e}");
            unit.compare_and_write(AT, &[9; 512], &[9; 512])
        });
        let flushes_only = !fault.is_empty();
        if flushes_only {
            // A compare-and-write without FUA counts as unflushed until the next flush of all.
            refused(found, "may be lost");
        } else {
            assert_eq!(found.unwrap(), CawOutcome::Mismatch(vec![3; 512]));
        }
    }
}

#[test]
fn a_loss_of_power_in_a_session_is_the_end_of_a_unit_only_if_something_is_lost() {
    type Next = fn(&IscsiDevice) -> Result<(), DeviceError>;
    let nexts: [Next; 4] = [
        |unit| unit.read(AT, &mut [0; 512]),
        |unit| unit.write(AT, &[2; 512]),
        IscsiDevice::flush,
        |unit| match unit.compare_and_write(AT, &[7; 512], &[2; 512]) {
            Err(DeviceError::Unknown { .. }) => unit.read(AT, &mut [0; 512]),
            other => other.map(|_| ()),
        },
    ];
    for next in nexts {
        for flushed in [true, false] {
            let (disk, san) = volatile();
            let unit = san.open();
            unit.write(AT, &[1; 512]).unwrap();
            if flushed {
                unit.flush().unwrap();
            }
            lose_power(&disk, &san);
            if flushed {
                next(&unit).unwrap();
                unit.flush().unwrap();
            } else {
                refused(next(&unit), "may be lost");
                assert_eq!(san.stands(), 0);
                refused(unit.flush(), "");
                assert!(unit.write(AT, &[3; 512]).is_err());
            }
        }
    }
    // Where nothing is volatile nothing is lost.
    let san = San::memory();
    let unit = san.open();
    unit.write(AT, &[1; 512]).unwrap();
    san.target().lose_power();
    unit.write(AT, &[2; 512]).unwrap();
    assert_eq!((san.stands(), san.target().sessions().len()), (2, 1));
}

/// What the unit said of its cache at first is not true any more then.
#[test]
fn a_connection_may_be_cut_after_a_loss_of_power_that_was_outlived() {
    let (disk, san) = volatile();
    let unit = san.open();
    unit.write(AT, &[1; 512]).unwrap();
    unit.flush().unwrap();
    lose_power(&disk, &san);
    unit.read(AT, &mut [0; 512]).unwrap();
    unit.write(AT, &[2; 512]).unwrap();
    assert_eq!(san.target().cut(""), 1);
    unit.flush().unwrap();
    assert_eq!(san.stands(), 2);
    unit.write(AT, &[3; 512]).unwrap();
    lose_power(&disk, &san);
    refused(unit.flush(), "may be lost");
}

/// A command that runs and is never answered: its session is ended, and it is issued again.
#[test]
fn a_command_without_an_answer_is_issued_again_in_another_session() {
    let san = San::memory();
    let mut found = [0; 512];
    for (n, what) in ["write", "read"].iter().enumerate() {
        let unit = san.open();
        unit.abilities().bound.unwrap().answers_within(Duration::from_secs(2));
        let value = 30 + u8::try_from(n).unwrap();
        san.fault(&format!("{what} mute times=1"));
        unit.write(AT, &[value; 512]).unwrap();
        unit.read(AT, &mut found).unwrap();
        assert_eq!((found, san.stands()), ([value; 512], value), "{what}");
        san.target().faults().clear();
    }
}

/// A unit that has to answer within the shortest time there is, of a target that keeps one answer back.
fn unanswering(fault: &str) -> (Arc<FaultyDevice>, San, Arc<IscsiDevice>) {
    let (disk, san) = volatile();
    let unit = san.open();
    unit.abilities().bound.unwrap().answers_within(Duration::from_secs(2));
    unit.write(AT, &[1; 512]).unwrap();
    san.fault(&format!("{fault} times=1"));
    (disk, san, unit)
}

/// A flush without an answer is issued again in another session, whether or not it ran. A compare-and-write ends
/// with an unknown outcome, which its caller has to settle, and does not run later.
#[test]
fn a_flush_or_compare_and_write_without_an_answer_does_not_hang() {
    const BOTH: [&str; 2] = ["mute", "drop"];
    // Longer than any of them may be without an answer, twice.
    const LONGEST: Duration = Duration::from_secs(40);
    let begun = Instant::now();
    std::thread::scope(|s| {
        for how in BOTH {
            s.spawn(move || {
                let (disk, san, unit) = unanswering(&format!("flush {how}"));
                unit.flush().unwrap();
                san.met(1);
                // With this seed nothing survives that was not flushed.
                disk.crash(0).unwrap();
                assert_eq!(san.stands(), 1, "{how}");
            });
            s.spawn(move || {
                let (_, san, unit) = unanswering(&format!("caw {how}"));
                unknown(unit.compare_and_write(AT, &[1; 512], &[2; 512]));
                let ran = if how == "mute" { 2 } else { 1 };
                assert_eq!(san.stands(), ran, "{how}");
                let mut found = [0; 512];
                unit.read(AT, &mut found).unwrap();
                assert_eq!(found, [ran; 512], "{how}");
                let done = unit.compare_and_write(AT, &[ran; 512], &[3; 512]).unwrap();
                assert_eq!((done, san.stands()), (CawOutcome::Written, 3), "{how}");
            });
        }
    });
    assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
}

/// What may take a unit long has five times the bound: a discard, zeros, a reservation. None hangs.
#[test]
fn a_discard_or_a_reservation_without_an_answer_does_not_hang() {
    const LONGEST: Duration = Duration::from_mins(1);
    let begun = Instant::now();
    std::thread::scope(|s| {
        for what in ["discard", "zero", "register"] {
            s.spawn(move || {
                let kind = if what == "register" { "reserve" } else { "write" };
                let (_, san, unit) = unanswering(&format!("{kind} mute"));
                let asked = Instant::now();
                match what {
                    "discard" => drop(unit.deallocate(AT, Bytes(512))),
                    "zero" => unit.write_zeroes(AT, Bytes(512)).unwrap(),
                    _ => drop(unit.abilities().reservations.unwrap().register_anyhow(7)),
                }
                assert!(
                    asked.elapsed() >= Duration::from_secs(10),
                    "{what}: {:?}",
                    asked.elapsed()
                );
                san.met(1);
            });
        }
    });
    assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
}

/// A unit that stays silent is given up after two sessions, and what it was sent lands no more.
#[test]
fn a_unit_that_answers_no_command_is_given_up() {
    let san = San::memory();
    let unit = san.open();
    unit.abilities().bound.unwrap().answers_within(Duration::from_secs(2));
    unit.write(AT, &[1; 512]).unwrap();
    // They would run after the unit was given up.
    let late = Duration::from_secs(12);
    san.fault("write late=12000");
    let begun = Instant::now();
    refused(unit.write(AT, &[2; 512]), "not answered");
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
    refused(unit.read(AT, &mut [0; 512]), "not answered");
    // The port logs in once more, which ends what is to run late.
    std::thread::sleep(late);
    assert_eq!(san.stands(), 1);
}

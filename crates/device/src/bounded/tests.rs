use std::sync::atomic::AtomicUsize;

use parking_lot::{Condvar, Mutex};

use braid_format::Bytes;

use super::*;
use crate::{CawOutcome, CountedDevice, MemoryDevice, Request, run};

const NEVER: Duration = Duration::from_hours(1);
const SOON: Duration = Duration::from_millis(300);

/// Answers nothing while it is mute.
#[derive(Debug)]
struct Mute {
    inner: Arc<dyn Device>,
    mute: Mutex<bool>,
    heard: Condvar,
    asked: AtomicUsize,
}

impl Mute {
    fn new(mute: bool) -> Arc<Self> {
        let inner = MemoryDevice::new("m", Bytes(1 << 20), Bytes(512));
        Arc::new(Self {
            inner,
            mute: Mutex::new(mute),
            heard: Condvar::new(),
            asked: AtomicUsize::new(0),
        })
    }
    fn asked(&self) -> &dyn Device {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut mute = self.mute.lock();
        self.heard.wait_while(&mut mute, |mute| *mute);
        &*self.inner
    }
    fn answer(&self) {
        *self.mute.lock() = false;
        self.heard.notify_all();
    }
}

impl Device for Mute {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        match command {
            Command::Read(_) | Command::Write(_) | Command::Flush => {
                self.asked().submit(at, command)
            }
            _ => self.inner.submit(at, command),
        }
    }
    fn abilities(&self) -> Abilities<'_> {
        self.inner.abilities()
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_silent<T: std::fmt::Debug>(result: &Result<T, DeviceError>) {
    assert!(matches!(result, Err(DeviceError::Silent { .. })), "{result:?}");
}

#[test]
fn a_device_that_answers_is_as_it_was() {
    let device = BoundedDevice::over(MemoryDevice::new("m", Bytes(1 << 20), Bytes(512)), NEVER);
    let mut buf = [0; 4096];
    for byte in 1..5 {
        device.write(ByteOffset(4096), &[byte; 4096]).unwrap();
        device.read(ByteOffset(4096), &mut buf).unwrap();
        assert_eq!(buf, [byte; 4096]);
    }
    let caw =
        |expected, new| device.compare_and_write(ByteOffset(0), &[expected; 512], &[new; 512]);
    assert_eq!(caw(0, 7).unwrap(), CawOutcome::Written);
    assert_eq!(caw(0, 8).unwrap(), CawOutcome::Mismatch(vec![7; 512]));
    device.write_zeroes(ByteOffset(4096), Bytes(4096)).unwrap();
    device.discard(ByteOffset(0), Bytes(512)).unwrap();
    device.flush().unwrap();
    device.read(ByteOffset(4096), &mut buf).unwrap();
    assert_eq!(buf, [0; 4096]);
    assert!(device.read(ByteOffset(1 << 20), &mut buf).is_err());
    assert!(device.abilities().bound.unwrap().given_up().is_none());
}

#[test]
fn a_device_that_answers_nothing_is_given_up_and_what_it_was_told_may_still_land() {
    let mute = Mute::new(true);
    let device = BoundedDevice::over(mute.clone(), SOON);
    is_silent(&device.write(ByteOffset(0), &[7; 512]));
    assert!(device.abilities().bound.unwrap().given_up().is_some());
    is_silent(&device.read(ByteOffset(0), &mut [0; 512]));
    is_silent(&device.flush());
    assert_eq!(mute.asked.load(Ordering::SeqCst), 1, "it is asked nothing any more");
    mute.answer();
    until("the write lands late", || {
        let mut now = [0; 512];
        mute.inner.read(ByteOffset(0), &mut now).unwrap();
        now == [7; 512]
    });
    is_silent(&device.read(ByteOffset(0), &mut [0; 512]));
}

#[test]
fn who_waits_longer_hears_of_it_too() {
    let mute = Mute::new(true);
    let device = BoundedDevice::over(mute.clone(), SOON);
    std::thread::scope(|scope| {
        // A flush has five times the bound.
        let flush = scope.spawn(|| device.flush());
        until("the flush is under way", || mute.asked.load(Ordering::SeqCst) == 1);
        is_silent(&device.read(ByteOffset(0), &mut [0; 512]));
        is_silent(&flush.join().unwrap());
    });
    mute.answer();
}

#[test]
fn a_liveness_byte_is_held_until_nothing_can_land_any_more() {
    let mute = Mute::new(true);
    let device = BoundedDevice::over(mute.clone(), SOON);
    let held = device.abilities().locks.lock_byte(3).unwrap().unwrap();
    is_silent(&device.write(ByteOffset(0), &[7; 512]));
    drop(held);
    assert!(mute.abilities().locks.byte_locked(3).unwrap());
    drop(device);
    assert!(mute.abilities().locks.byte_locked(3).unwrap());
    mute.answer();
    until("the byte is let go", || !mute.abilities().locks.byte_locked(3).unwrap());
    // Without anything under way it goes at once.
    let device = BoundedDevice::over(mute.clone(), NEVER);
    drop(device.abilities().locks.lock_byte(3).unwrap().unwrap());
    assert!(!mute.abilities().locks.byte_locked(3).unwrap());
}

#[test]
fn requests_of_a_batch_are_under_way_together() {
    let devices = [(); 3].map(|()| Mute::new(true));
    let bounded = devices.clone().map(|d| CountedDevice::over(BoundedDevice::over(d, NEVER)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buf = [0; 512];
            let mut requests = [
                Request::new(&*bounded[0], ByteOffset(0), Op::Write(&[7; 512])),
                Request::new(&*bounded[1], ByteOffset(0), Op::Read(&mut buf)),
                Request::new(&*bounded[2], ByteOffset(0), Op::Flush),
            ];
            run(&mut requests);
            assert!(requests.iter().all(|r| r.result.is_ok()));
        });
        for device in &devices {
            until("all are asked", || device.asked.load(Ordering::SeqCst) == 1);
        }
        devices.iter().for_each(|device| device.answer());
    });
    let issued = bounded.map(|d| d.abilities().counters.unwrap().now());
    assert_eq!((issued[0].writes.ended, issued[1].reads.ended, issued[2].flushes), (1, 1, 1));
}

use braid_format::Bytes;
use braid_testkit::wait_until;

use super::*;
use crate::{
    CawOutcome, CommandKind, CountedDevice, MemoryDevice, Request, Rule, ScriptedDevice, run,
};

const NEVER: Duration = Duration::from_hours(1);
const SOON: Duration = Duration::from_millis(300);

/// A device that answers nothing that goes through a worker until the rule is released.
fn mute() -> (Arc<ScriptedDevice>, Arc<Rule>) {
    let device = ScriptedDevice::over(MemoryDevice::new("m", Bytes(1 << 20), Bytes(512)));
    let bounded = [CommandKind::Read, CommandKind::Write, CommandKind::Flush];
    let asked = device.add(Rule::on(&bounded).holds());
    (device, asked)
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
    let (mute, asked) = mute();
    let device = BoundedDevice::over(mute.clone(), SOON);
    is_silent(&device.write(ByteOffset(0), &[7; 512]));
    assert!(device.abilities().bound.unwrap().given_up().is_some());
    is_silent(&device.read(ByteOffset(0), &mut [0; 512]));
    is_silent(&device.flush());
    assert_eq!(asked.hits(), 1, "it is asked nothing any more");
    asked.release();
    wait_until("the write lands late", || {
        let mut now = [0; 512];
        mute.inner().read(ByteOffset(0), &mut now).unwrap();
        now == [7; 512]
    });
    is_silent(&device.read(ByteOffset(0), &mut [0; 512]));
}

#[test]
fn who_waits_longer_hears_of_it_too() {
    let (mute, asked) = mute();
    let device = BoundedDevice::over(mute.clone(), SOON);
    std::thread::scope(|scope| {
        // A flush has five times the bound.
        let flush = scope.spawn(|| device.flush());
        wait_until("the flush is under way", || asked.hits() == 1);
        is_silent(&device.read(ByteOffset(0), &mut [0; 512]));
        is_silent(&flush.join().unwrap());
    });
    asked.release();
}

#[test]
fn a_liveness_byte_is_held_until_nothing_can_land_any_more() {
    let (mute, asked) = mute();
    let device = BoundedDevice::over(mute.clone(), SOON);
    let held = device.abilities().locks.lock_byte(3).unwrap().unwrap();
    is_silent(&device.write(ByteOffset(0), &[7; 512]));
    drop(held);
    assert!(mute.abilities().locks.byte_locked(3).unwrap());
    drop(device);
    assert!(mute.abilities().locks.byte_locked(3).unwrap());
    asked.release();
    wait_until("the byte is let go", || !mute.abilities().locks.byte_locked(3).unwrap());
    // Without anything under way it goes at once.
    let device = BoundedDevice::over(mute.clone(), NEVER);
    drop(device.abilities().locks.lock_byte(3).unwrap().unwrap());
    assert!(!mute.abilities().locks.byte_locked(3).unwrap());
}

#[test]
fn requests_of_a_batch_are_under_way_together() {
    let devices = [(); 3].map(|()| mute());
    let over = |(device, _): &(Arc<ScriptedDevice>, _)| {
        CountedDevice::over(BoundedDevice::over(device.clone(), NEVER))
    };
    let bounded = devices.each_ref().map(over);
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
        for (_, asked) in &devices {
            wait_until("all are asked", || asked.hits() == 1);
        }
        devices.iter().for_each(|(_, asked)| asked.release());
    });
    let issued = bounded.map(|d| d.abilities().counters.unwrap().now());
    assert_eq!((issued[0].writes.ended(), issued[1].reads.ended(), issued[2].flushes), (1, 1, 1));
}

#![allow(clippy::needless_pass_by_value, reason = "what a call returned is checked and done with")]

use braid_format::{ByteOffset, Bytes};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use braid_testkit::wait_until;

use super::*;
use crate::{CawOutcome, CommandKind, MemoryDevice};

use CommandKind::{CompareAndWrite, Deallocate, Flush, Read, Write};

fn memory() -> Arc<MemoryDevice> {
    MemoryDevice::new("m", Bytes(1 << 20), Bytes(512))
}
fn scripted() -> Arc<ScriptedDevice> {
    ScriptedDevice::over(memory())
}
/// The first byte of a sector, as the device below has it.
fn stands(device: &ScriptedDevice, sector: u64) -> u8 {
    let mut now = [0; 512];
    device.inner().read(ByteOffset(sector * 512), &mut now).unwrap();
    now[0]
}
fn is_injected<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
    assert!(matches!(result, Err(DeviceError::Injected { .. })), "{result:?}");
}

#[test]
fn without_a_rule_it_is_the_device_below() {
    let device = scripted();
    assert_eq!(device.info(), device.inner().info());
    device.write(ByteOffset(512), &[7; 1024]).unwrap();
    let compared = device.compare_and_write(ByteOffset(512), &[7; 512], &[8; 512]).unwrap();
    assert_eq!(compared, CawOutcome::Written);
    device.write_zeroes(ByteOffset(1024), Bytes(512)).unwrap();
    let mut back = [1; 1536];
    device.read(ByteOffset(0), &mut back).unwrap();
    assert_eq!([back[0], back[512], back[1024]], [0, 8, 0]);
    assert!(device.deallocate(ByteOffset(0), Bytes(4096)).unwrap());
    device.flush().unwrap();
    let guard = device.abilities().locks.lock_byte(3).unwrap();
    assert!(guard.is_some() && device.inner().abilities().locks.byte_locked(3).unwrap());
}

#[test]
fn a_rule_is_about_kinds_ranges_conditions_and_times() {
    let device = scripted();
    let covering = device.add(Rule::on(&[Write]).covering(ByteOffset(4096)).fails());
    is_injected(device.write(ByteOffset(3584), &[1; 1024]));
    device.write(ByteOffset(3584), &[1; 512]).unwrap();
    device.write(ByteOffset(4608), &[1; 512]).unwrap();
    device.read(ByteOffset(4096), &mut [0; 512]).unwrap();
    assert_eq!((covering.hits(), covering.bytes()), (1, Bytes(1024)));
    covering.enable(false);
    device.write(ByteOffset(4096), &[1; 512]).unwrap();

    let overlapping = device.add(Rule::on(&[Read]).overlapping(1000..1024).fails());
    is_injected(device.read(ByteOffset(512), &mut [0; 512]));
    is_injected(device.read(ByteOffset(0), &mut [0; 4096]));
    device.read(ByteOffset(0), &mut [0; 512]).unwrap();
    device.read(ByteOffset(1024), &mut [0; 512]).unwrap();
    assert_eq!(overlapping.hits(), 2);
    overlapping.enable(false);

    let beginning = device.add(Rule::all().beginning(ByteOffset(8192)).fails());
    is_injected(device.read(ByteOffset(8192), &mut [0; 512]));
    device.read(ByteOffset(7680), &mut [0; 1024]).unwrap();
    beginning.enable(false);

    device.add(Rule::all().writing(|bytes| bytes.iter().all(|b| *b == 9)).fails());
    is_injected(device.write(ByteOffset(0), &[9; 512]));
    device.write(ByteOffset(0), &[8; 512]).unwrap();

    let second = device.add(Rule::on(&[Flush]).after_first(1).once().fails());
    device.flush().unwrap();
    is_injected(device.flush());
    device.flush().unwrap();
    second.strike_after(2);
    let ended = [(); 4].map(|()| device.flush().is_ok());
    assert_eq!((ended, second.hits()), ([true, true, false, false], 3));

    let later = device.add(Rule::on(&[CompareAndWrite]).disabled().fails());
    device.compare_and_write(ByteOffset(0), &[8; 512], &[7; 512]).unwrap();
    later.enable(true);
    is_injected(device.compare_and_write(ByteOffset(0), &[7; 512], &[6; 512]));
    assert_eq!(stands(&device, 0), 7);
}

#[test]
fn what_is_struck_ends_as_the_rule_says() {
    let device = scripted();
    let mut rules = [
        Rule::on(&[Write]).fails(),
        Rule::on(&[Write]).fails_done(),
        Rule::on(&[Write]).tears(Bytes(1000)),
        Rule::on(&[Write]).loses(),
        Rule::on(&[Write]).keeps(),
    ]
    .into_iter();
    let mut write = |byte: u8| {
        let rule = device.add(rules.next().unwrap());
        let done = device.write(ByteOffset(0), &[byte; 1024]);
        rule.enable(false);
        (done.is_ok(), [stands(&device, 0), stands(&device, 1)], rule)
    };
    for (byte, ok, expected) in
        [(1, false, [0, 0]), (2, false, [2, 2]), (3, false, [3, 2]), (4, true, [3, 2])]
    {
        let (done, now, rule) = write(byte);
        assert_eq!((done, now, rule.hits()), (ok, expected, 1), "{rule:?}");
    }
    let (done, now, kept) = write(5);
    assert_eq!((done, now), (false, [3, 2]));
    device.write(ByteOffset(512), &[6; 512]).unwrap();
    assert_eq!(kept.land_kept().unwrap(), 1);
    assert_eq!([stands(&device, 0), stands(&device, 1)], [5, 5]);
    assert_eq!(kept.land_kept().unwrap(), 0, "it lands once");

    device.add(Rule::on(&[Deallocate]).is_unsupported());
    assert!(!device.deallocate(ByteOffset(0), Bytes(4096)).unwrap());
    assert_eq!(stands(&device, 0), 5);
    device.add(Rule::on(&[Flush]).fails_with(|_| DeviceError::Poisoned { device: "x".into() }));
    assert!(matches!(device.flush(), Err(DeviceError::Poisoned { .. })));
}

#[test]
fn the_first_rule_that_does_not_let_pass_decides() {
    let device = scripted();
    let noted = device.add(Rule::all().notes());
    device.add(Rule::on(&[Write]).loses());
    let fails = device.add(Rule::on(&[Write]).fails());
    device.write(ByteOffset(512), &[1; 512]).unwrap();
    device.flush().unwrap();
    assert_eq!((stands(&device, 1), fails.hits()), (0, 1));
    let note = |kind, at, len| Noted { kind, at: ByteOffset(at), len: Bytes(len) };
    assert_eq!(noted.noted(), [note(Write, 512, 512), note(Flush, 0, 0)]);
}

#[test]
fn a_command_that_is_delayed_or_held_is_not_done_before() {
    let device = scripted();
    let slow = device.add(Rule::on(&[Flush]).once().delays(Duration::from_millis(20)));
    let begun = Instant::now();
    device.flush().unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(20));
    assert_eq!((slow.hits(), slow.most_at_once()), (1, 1));

    let held = device.add(Rule::on(&[Write]).holds());
    std::thread::scope(|scope| {
        for sector in 0..2 {
            let device = &device;
            scope.spawn(move || device.write(ByteOffset(sector * 512), &[1; 512]).unwrap());
        }
        wait_until("both are under way", || held.hits() == 2);
        assert_eq!([stands(&device, 0), stands(&device, 1)], [0, 0]);
        held.release();
    });
    assert_eq!([stands(&device, 0), stands(&device, 1)], [1, 1]);
    device.write(ByteOffset(0), &[2; 512]).unwrap();
    assert_eq!((held.hits(), held.most_at_once()), (3, 2));
}

#[test]
fn what_a_rule_calls_uses_the_device_and_sees_before_and_after() {
    let device = scripted();
    let seen = Arc::new(RwLock::new(Vec::new()));
    let look = {
        let (below, seen) = (device.inner().clone(), seen.clone());
        move |at: ByteOffset, command: &Command<'_>| {
            let mut now = [0; 512];
            below.read(at, &mut now).unwrap();
            seen.write().push((command.kind(), now[0]));
        }
    };
    let then = look.clone();
    device.add(Rule::on(&[Write]).calls(look).then_calls(move |at, command, done| {
        assert!(done.is_ok());
        then(at, command);
    }));
    device.write(ByteOffset(0), &[7; 512]).unwrap();
    assert_eq!(*seen.read(), [(Write, 0), (Write, 7)]);

    let token = Arc::new(());
    let calls = {
        let (token, device) = (token.clone(), device.clone());
        move || {
            drop(token);
            device.add(Rule::on(&[Flush]).fails());
        }
    };
    let once = device.add(Rule::on(&[Read]).calls_once(calls));
    device.read(ByteOffset(0), &mut [0; 512]).unwrap();
    device.read(ByteOffset(0), &mut [0; 512]).unwrap();
    assert_eq!((once.hits(), Arc::strong_count(&token)), (1, 1));
    is_injected(device.flush());
}

#[test]
fn a_panic_in_a_rule_leaves_nothing_under_way() {
    let device = scripted();
    let bomb = device.add(Rule::all().once().calls(|_, command| panic!("{command:?}")));
    assert!(catch_unwind(AssertUnwindSafe(|| device.flush())).is_err());
    device.flush().unwrap();
    bomb.strike_after(0);
    assert!(catch_unwind(AssertUnwindSafe(|| device.flush())).is_err());
    assert_eq!((bomb.hits(), bomb.most_at_once()), (2, 1));
}

#[test]
fn devices_share_a_rule_and_power() {
    let devices = [(); 2].map(|()| scripted());
    let third = devices[0].add(Rule::on(&[Write]).after_first(2).once().fails());
    devices[1].add(third.clone());
    let ended = [0, 1, 1, 0].map(|n: usize| devices[n].write(ByteOffset(0), &[1; 512]).is_ok());
    assert_eq!((ended, third.hits()), ([true, true, false, true], 1));

    let power = Power::on();
    let devices = [(); 2].map(|()| ScriptedDevice::powered(memory(), &power));
    devices[0].flush().unwrap();
    power.cut_after(2);
    devices[0].write(ByteOffset(0), &[1; 512]).unwrap();
    devices[1].read(ByteOffset(0), &mut [0; 512]).unwrap();
    assert!(power.is_on());
    devices[1].flush().unwrap();
    assert!(!power.is_on());
    is_injected(devices[0].flush());
    is_injected(devices[1].read(ByteOffset(0), &mut [0; 512]));
    is_injected(devices[1].write(ByteOffset(0), &[1; 512]));
    devices[0].discard(ByteOffset(0), Bytes(512)).unwrap();
    power.cut_after(1);
    devices[0].flush().unwrap();
}

#[test]
fn it_is_what_it_is_described_as() {
    let small = ScriptedDevice::described(memory(), |info| info.size = Bytes(4096));
    assert_eq!(small.info().size, Bytes(4096));
    small.write(ByteOffset(3584), &[1; 512]).unwrap();
    let beyond = small.read(ByteOffset(4096), &mut [0; 512]);
    assert!(matches!(beyond, Err(DeviceError::OutOfRange { .. })), "{beyond:?}");
}

#[test]
fn it_refuses_locks_when_told_to() {
    let device = scripted();
    device.refuse_locks();
    is_injected(device.abilities().locks.lock_byte(1));
    assert!(!device.abilities().locks.byte_locked(1).unwrap());
    let guard = device.inner().abilities().locks.lock_byte(1).unwrap();
    assert!(guard.is_some() && device.abilities().locks.byte_locked(1).unwrap());
}

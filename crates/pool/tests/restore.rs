//! Labels brought back: from the other members, or from one that was kept; and everything that is
//! refused.

#![expect(clippy::unwrap_used, reason = "a failing step is a failing test")]

use std::sync::Arc;

use braid_format::label::Label;
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex};
use braid_pool::device::{Device, MemoryDevice};
use braid_pool::labels::{Found, write_epoch};
use braid_pool::restore::{Restore, RestoreError, Source, Target, Which};
use braid_pool::{CreateOptions, Pool, PoolError};
use uuid::Uuid;

const MIB: u64 = 1 << 20;

fn memory(name: &str, mib: u64) -> Arc<dyn Device> {
    MemoryDevice::new(name, Bytes(mib * MIB), Bytes(512))
}

/// Pool "p" on d0, d1 (8 MiB) and d2 (12 MiB) with a byte pattern on all of it.
fn pool(n: usize) -> (Vec<Arc<dyn Device>>, Pool, Vec<u8>) {
    let sizes = [8, 8, 12, 8];
    let devices: Vec<_> = (0..n).map(|i| memory(&format!("d{i}"), sizes[i % 4])).collect();
    let pool = Pool::create(devices.clone(), &CreateOptions::new("p")).unwrap();
    let data: Vec<u8> = (0..pool.info().size.0).map(|i| (i / 512 % 251).to_le_bytes()[0]).collect();
    pool.write(ByteOffset(0), &data).unwrap();
    (devices, pool, data)
}
fn wipe(device: &Arc<dyn Device>) {
    let zeros = vec![0; Label::LEN_MAX];
    let second = Label::copy1_at(device.info().size).unwrap();
    for at in [Label::COPY0_AT, second] {
        device.write(at, &zeros).unwrap();
    }
    assert!(Found::read(device.clone()).newest().is_none());
}
fn at(index: u16, device: &Arc<dyn Device>) -> Target {
    Target { which: Which::Index(MemberIndex(index)), device: device.clone() }
}
#[track_caller]
fn whole(devices: &[Arc<dyn Device>], data: &[u8]) {
    let again = Pool::assemble(devices.to_vec()).unwrap();
    let mut back = vec![0; data.len()];
    again.read(ByteOffset(0), &mut back).unwrap();
    assert!(back == data);
}
/// The refusal, which names the device and says what to do, and has changed nothing.
#[track_caller]
fn refused(source: Source, others: &[Arc<dyn Device>], targets: &[Target]) -> RestoreError {
    let labels =
        |d: &Arc<dyn Device>| -> Vec<Label> { Found::read(d.clone()).labels().cloned().collect() };
    let all = || others.iter().chain(targets.iter().map(|t| &t.device)).map(labels);
    let before: Vec<_> = all().collect();
    let error = Restore::plan(source, others.to_vec(), targets, false).unwrap_err();
    assert!(all().eq(before));
    let text = error.to_string();
    let named = targets.iter().any(|t| text.contains(&t.device.info().name));
    assert!(named || text.contains("pool"), "{text}");
    error
}

#[test]
fn both_labels_of_a_member_come_back_from_any_other() {
    for lost in 0..3_u16 {
        let (devices, made, data) = pool(3);
        wipe(&devices[usize::from(lost)]);
        let error = Pool::assemble(devices.clone()).unwrap_err();
        assert!(error.to_string().contains(&format!("d{lost}")), "{error}");
        let uuid = made.info().members[usize::from(lost)].uuid;
        for which in [Which::Index(MemberIndex(lost)), Which::Uuid(uuid)] {
            wipe(&devices[usize::from(lost)]);
            let target = Target { which, device: devices[usize::from(lost)].clone() };
            let plan = Restore::plan(Source::Members, devices.clone(), &[target], false).unwrap();
            // Looking has written nothing.
            assert!(Found::read(devices[usize::from(lost)].clone()).newest().is_none());
            assert_eq!((plan.steps[0].index.0, plan.steps[0].member.uuid), (lost, uuid));
            plan.write().unwrap();
            whole(&devices, &data);
        }
        let copies = Found::read(devices[usize::from(lost)].clone()).copies;
        assert!(copies.iter().all(Result::is_ok));
    }
}

#[test]
fn one_of_two_members_is_enough_and_several_come_back_at_once() {
    let (devices, _, data) = pool(2);
    wipe(&devices[1]);
    let plan = Restore::plan(Source::Members, devices.clone(), &[at(1, &devices[1])], false);
    plan.unwrap().write().unwrap();
    whole(&devices, &data);

    let (devices, _, data) = pool(4);
    let targets = [1, 3, 0].map(|i: u16| at(i, &devices[usize::from(i)]));
    targets.iter().for_each(|t| wipe(&t.device));
    let plan = Restore::plan(Source::Members, devices.clone(), &targets, false).unwrap();
    plan.write().unwrap();
    whole(&devices, &data);
}

#[test]
fn a_whole_pool_comes_back_from_a_kept_label() {
    let (devices, made, data) = pool(3);
    let kept = Source::Kept(Box::new(made.label()));
    devices.iter().for_each(wipe);
    let targets: Vec<_> = (0_u16..).zip(&devices).map(|(i, d)| at(i, d)).collect();
    let none = Restore::plan(Source::Members, devices.clone(), &targets, false).unwrap_err();
    assert!(matches!(none, RestoreError::NoSource), "{none}");
    Restore::plan(kept, devices.clone(), &targets, false).unwrap().write().unwrap();
    whole(&devices, &data);
}

/// What its own label said of it is lost: a new one would say that it went in good order.
#[test]
fn a_member_that_is_offline_gets_no_label() {
    let devices: Vec<_> = (0..2).map(|i| memory(&format!("d{i}"), 64)).collect();
    let options = CreateOptions {
        redundancy: braid_pool::layout::Redundancy::Mirror(2),
        ..CreateOptions::new("p")
    };
    let made = Pool::create(devices.clone(), &options).unwrap();
    made.attach(0).unwrap();
    assert!(made.take_offline(MemberIndex(1)).unwrap());
    let kept = Source::Kept(Box::new(made.label()));
    wipe(&devices[1]);
    for source in [Source::Members, kept] {
        let error = refused(source, &devices, &[at(1, &devices[1])]);
        assert!(matches!(error, RestoreError::Offline { .. }), "{error}");
        assert!(error.to_string().contains("braid replace p 1 d1"), "{error}");
    }
}

/// Only what was noted is filled: whatever else stands on another device would be in use afterwards.
#[test]
fn a_member_that_catches_up_gets_no_label() {
    let devices: Vec<_> = (0..2).map(|i| memory(&format!("d{i}"), 64)).collect();
    let options = CreateOptions {
        redundancy: braid_pool::layout::Redundancy::Mirror(2),
        ..CreateOptions::new("p")
    };
    let made = Pool::create(devices.clone(), &options).unwrap();
    made.attach(0).unwrap();
    assert!(made.take_offline(MemberIndex(1)).unwrap());
    made.bring_online(MemberIndex(1), &devices[1]).unwrap();
    assert!(made.label().members[1].offline);
    let kept = Source::Kept(Box::new(made.label()));
    drop(made);
    wipe(&devices[1]);
    for source in [Source::Members, kept] {
        for force in [false, true] {
            let target = at(1, &devices[1]);
            let error = Restore::plan(source.clone(), devices.clone(), &[target], force);
            let error = error.unwrap_err();
            assert!(matches!(error, RestoreError::Offline { .. }), "{error}");
            assert!(error.to_string().contains("braid replace p 1 d1"), "{error}");
        }
    }
    // As the message says.
    let pool = Pool::assemble_degraded(vec![devices[0].clone()]).unwrap();
    pool.attach(0).unwrap();
    assert!(!pool.label().members[1].offline);
    pool.replace(MemberIndex(1), devices[1].clone(), true).unwrap();
    assert!(pool.rebuild(MemberIndex(1), &|_| true).unwrap());
}

#[test]
fn a_kept_label_older_than_a_member_is_refused() {
    let (devices, made, data) = pool(3);
    let kept = Source::Kept(Box::new(made.label()));
    let mut next = made.label();
    (next.epoch, next.change_id) = (Epoch(next.epoch.0 + 1), Uuid::new_v4());
    write_epoch(&devices, &next).unwrap();
    wipe(&devices[0]);
    let error = refused(kept, &devices, &[at(0, &devices[0])]);
    assert!(
        matches!(error, RestoreError::Outdated { epoch, .. } if epoch == next.epoch),
        "{error}"
    );
    // The members know better.
    let plan = Restore::plan(Source::Members, devices.clone(), &[at(0, &devices[0])], false);
    let plan = plan.unwrap();
    assert_eq!(plan.label.epoch, next.epoch);
    plan.write().unwrap();
    whole(&devices, &data);
}

#[test]
fn what_is_not_the_lost_member_is_refused() {
    let (devices, made, _) = pool(4);
    wipe(&devices[2]);
    let others = &devices[..2];
    let refused = |index, device: &Arc<dyn Device>| {
        let mut all = others.to_vec();
        all.push(devices[3].clone());
        refused(Source::Members, &all, &[at(index, device)])
    };
    // Truncated, or another device altogether.
    let error = refused(2, &memory("small", 8));
    assert!(matches!(error, RestoreError::Pool(PoolError::Truncated { .. })), "{error}");
    let error = refused(2, &memory("large", 16));
    assert!(matches!(error, RestoreError::Larger { .. }), "{error}");
    // Something else is on it: another pool, or another file system.
    let other = memory("other", 12);
    Pool::create(vec![other.clone()], &CreateOptions::new("q")).unwrap();
    let error = refused(2, &other);
    assert!(matches!(error, RestoreError::Pool(PoolError::BelongsToPool { .. })), "{error}");
    let foreign = memory("foreign", 12);
    let mut ext4 = vec![0; 4096];
    ext4[1024 + 0x38..1024 + 0x3a].copy_from_slice(&[0x53, 0xef]);
    foreign.write(ByteOffset(0), &ext4).unwrap();
    let error = refused(2, &foreign);
    assert!(matches!(error, RestoreError::Pool(PoolError::Foreign { .. })), "{error}");
    // A member that is there, or another one.
    let error = refused(0, &memory("copy", 8));
    assert!(matches!(error, RestoreError::NotMissing { .. }), "{error}");
    let error = refused(2, &devices[1]);
    let is = matches!(error, RestoreError::OtherMember { is: MemberIndex(1), .. });
    assert!(is || matches!(error, RestoreError::Pool(PoolError::Truncated { .. })), "{error}");
    let error = refused(9, &devices[2]);
    assert!(matches!(error, RestoreError::NoMember { .. }), "{error}");
    let all = [&devices[0], &devices[1], &devices[3]].map(Clone::clone);
    let twice = Restore::plan(
        Source::Members,
        all.to_vec(),
        &[at(2, &devices[2]), at(2, &memory("b", 12))],
        true,
    );
    assert!(matches!(twice, Err(RestoreError::MemberTwice { .. })), "{twice:?}");
    // Forced, but only onto what it would have overwritten, and then it is that member.
    let plan = Restore::plan(Source::Members, all.to_vec(), &[at(2, &other)], true).unwrap();
    assert!(plan.steps[0].overwrites.as_ref().unwrap().contains("\"q\""));
    plan.write().unwrap();
    let label = Found::read(other).newest().unwrap().clone();
    assert_eq!((label.pool, label.member), (made.info().uuid, MemberIndex(2)));
}

#[test]
fn a_stale_member_is_not_made_current() {
    let (devices, made, _) = pool(3);
    let mut next = made.label();
    (next.epoch, next.change_id) = (Epoch(next.epoch.0 + 1), Uuid::new_v4());
    for i in [0, 1] {
        for copy in [0, 1] {
            braid_pool::labels::write_copies(&devices, &next, copy, &[i]).unwrap();
        }
    }
    // Its data has missed what the others saw: its label must go on saying so.
    let error = refused(Source::Members, &devices[..2], &[at(2, &devices[2])]);
    assert!(matches!(error, RestoreError::Pool(PoolError::Stale { .. })), "{error}");
}

#[test]
fn a_minority_is_not_taken_for_the_pool() {
    let (devices, _, _) = pool(4);
    // d0 alone of four, and one to be restored: two more may know a later epoch.
    wipe(&devices[1]);
    let error = refused(Source::Members, &devices[..1], &[at(1, &devices[1])]);
    assert!(matches!(error, RestoreError::Pool(PoolError::NoMajority { .. })), "{error}");
}

#[test]
fn nothing_is_written_when_something_has_changed_since() {
    let (devices, made, _) = pool(3);
    wipe(&devices[1]);
    let target = at(1, &devices[1]);
    let plan = Restore::plan(Source::Members, devices.clone(), &[target], false).unwrap();
    let mut next = made.label();
    (next.epoch, next.change_id) = (Epoch(next.epoch.0 + 1), Uuid::new_v4());
    for i in [0, 2] {
        for copy in [0, 1] {
            braid_pool::labels::write_copies(&devices, &next, copy, &[i]).unwrap();
        }
    }
    assert!(matches!(plan.write(), Err(RestoreError::Changed { .. })));
    assert!(Found::read(devices[1].clone()).newest().is_none());
}

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_device::{
    BoundedDevice, CommandKind, Device, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On, Rule,
    ScriptedDevice,
};
use braid_format::label::MemberState;
use braid_format::redundancy::LogPlace;
use braid_format::{ByteOffset, Bytes, MemberIndex};

use super::*;
use crate::labels::{next_epoch, write_copies};
use crate::pool::Pool;
use crate::redundancy::tests::{Layout, consistent, devices, failed, pool};

const SECTOR: u64 = 512;

fn fresh(name: &str, like: &Arc<FaultyDevice>) -> Arc<FaultyDevice> {
    let memory = MemoryDevice::new(name, like.info().size, Bytes(SECTOR)) as Arc<dyn Device>;
    FaultyDevice::new(memory, FaultPlan::default())
}

fn fill_all(pool: &Pool, salt: u8) -> Vec<u8> {
    let bytes: Vec<u8> = (0..2_000_000_usize / 512 * 512)
        .map(|i| u8::try_from(i / 3 % 249).unwrap() ^ salt)
        .collect();
    pool.write(ByteOffset(0), &bytes).unwrap();
    bytes
}

fn expect(pool: &Pool, bytes: &[u8]) {
    let mut back = vec![0; bytes.len()];
    pool.read(ByteOffset(0), &mut back).unwrap();
    assert!(back == bytes);
}

const GO: &(dyn Fn(Progress) -> bool + Sync) = &|_| true;

#[test]
fn a_failed_member_is_replaced_and_filled_under_load() {
    for layout in [Layout::Mirror, Layout::StripedMirrors, Layout::Parity(1), Layout::Parity(2)] {
        let mut all = devices(4, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        let mut bytes = fill_all(&pool, 0);
        pool.fail_member(MemberIndex(2)).unwrap();
        assert_eq!(failed(&pool), [2]);
        expect(&pool, &bytes);
        let new = fresh("new", &all[2]);
        all[2] = new.clone();
        pool.replace(MemberIndex(2), new, false).unwrap();
        assert_eq!(pool.rebuilding(), Some(MemberIndex(2)));
        let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|s| {
            let load = s.spawn(|| {
                let mut i = 0;
                while !stop.load(Ordering::Relaxed) || i < 50 {
                    let at = usize::try_from(i * 7919 % 3000).unwrap() * 512;
                    bytes[at..at + 1024].fill(u8::try_from(i % 251).unwrap());
                    pool.write(ByteOffset(at as u64), &bytes[at..at + 1024]).unwrap();
                    i += 1;
                }
                writes.store(i, Ordering::Relaxed);
            });
            let seen = AtomicU64::new(0);
            let pace = |p: Progress| {
                seen.fetch_max(p.done.0, Ordering::Relaxed);
                assert!(p.done.0 <= p.total.0);
                true
            };
            assert!(pool.rebuild(MemberIndex(2), &pace).unwrap());
            assert!(seen.into_inner() > 0);
            stop.store(true, Ordering::Relaxed);
            load.join().unwrap();
        });
        assert_eq!(failed(&pool), [0; 0]);
        expect(&pool, &bytes);
        consistent(&pool, &all);
        // Another may fail now.
        pool.fail_member(MemberIndex(3)).unwrap();
        expect(&pool, &bytes);
    }
}

#[test]
fn what_a_pool_says_of_itself_follows_the_epoch() {
    let all = devices(2, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Mirror);
    let (before, handle) = (pool.info(), pool.clone());
    pool.add_spare(fresh("spare", &all[0]), false).unwrap();
    let now = handle.info();
    assert_eq!((now.epoch.0, now.members.len()), (before.epoch.0 + 1, 3));
    assert_eq!((now.size, &now.zones), (before.size, &before.zones));
    assert_eq!(now.members[2].path, "spare");
    pool.fail_member(MemberIndex(1)).unwrap();
    assert_eq!(handle.info().epoch.0, before.epoch.0 + 2);
}

#[test]
fn a_spare_steps_in() {
    let mut all = devices(3, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    let bytes = fill_all(&pool, 7);
    let small = MemoryDevice::new("small", Bytes(3 << 20), Bytes(SECTOR)) as Arc<dyn Device>;
    pool.add_spare(small, false).unwrap();
    let spare = fresh("spare", &all[0]);
    assert_eq!(pool.add_spare(spare.clone(), false).unwrap(), MemberIndex(4));
    assert_eq!(pool.use_spare().unwrap(), None, "nobody has failed");
    pool.fail_member(MemberIndex(0)).unwrap();
    assert_eq!(pool.use_spare().unwrap(), Some(MemberIndex(0)), "the small one is too small");
    assert!(pool.rebuild(MemberIndex(0), GO).unwrap());
    let states: Vec<MemberState> = pool.member_states().into_iter().map(|(_, s)| s).collect();
    use MemberState::{Active, Failed, Spare};
    assert_eq!(states, [Active, Active, Active, Spare, Failed]);
    all[0] = spare;
    expect(&pool, &bytes);
    consistent(&pool, &all);
    // From the labels alone, without the member that failed.
    let again = Pool::assemble(pool.devices().into_iter().take(4).collect()).unwrap();
    expect(&again, &bytes);
}

#[test]
fn a_rebuild_that_is_broken_off_begins_again() {
    let mut all = devices(3, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Mirror);
    let bytes = fill_all(&pool, 1);
    let new = fresh("new", &all[1]);
    all[1] = new.clone();
    pool.replace(MemberIndex(1), new.clone(), false).unwrap();
    assert!(!pool.rebuild(MemberIndex(1), &|_| false).unwrap());
    assert_eq!(pool.rebuilding(), Some(MemberIndex(1)), "not in use yet");
    let again = Pool::assemble(pool.devices()).unwrap();
    assert_eq!(again.rebuilding(), Some(MemberIndex(1)));
    expect(&again, &bytes);
    // The new one fails as well: the pool is as it was.
    new.arm(On::Write, 1, FaultKind::Gone);
    assert!(again.rebuild(MemberIndex(1), GO).is_err());
    assert_eq!(failed(&again), [1]);
    expect(&again, &bytes);
}

#[test]
fn what_cannot_be_spared_is_not_taken_out() {
    let all = devices(3, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    pool.fail_member(MemberIndex(0)).unwrap();
    let epoch = pool.label().epoch;
    let error = pool.fail_member(MemberIndex(1)).unwrap_err();
    assert!(matches!(&error, PoolError::TooManyLost { lost, .. } if lost.len() == 2), "{error}");
    assert_eq!(pool.label().epoch, epoch);
    let striped = Pool::for_tests(2, Bytes(4 << 20));
    assert!(striped.fail_member(MemberIndex(0)).is_err());
    assert!(matches!(
        striped.fail_member(MemberIndex(9)),
        Err(PoolError::NoSuchMember { member: MemberIndex(9) })
    ));
    // A replacement that is a member, or too small, is refused.
    let twice = pool.replace(MemberIndex(0), pool.devices()[1].clone(), true);
    let twice = twice.unwrap_err().to_string();
    assert!(twice.contains("m1 is member 1 of this pool already, and is active"), "{twice}");
    let small = MemoryDevice::new("small", Bytes(4 << 20), Bytes(SECTOR)) as Arc<dyn Device>;
    let small = pool.replace(MemberIndex(0), small, true);
    assert!(matches!(small, Err(PoolError::TooSmall { .. })), "{small:?}");
}

#[test]
fn a_pool_is_opened_without_a_member_only_when_told() {
    for layout in [Layout::Mirror, Layout::Parity(1)] {
        let all = devices(3, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        let bytes = fill_all(&pool, 3);
        let rest = || vec![all[2].inner().clone(), all[0].inner().clone()];
        assert!(matches!(Pool::assemble(rest()), Err(PoolError::Missing { .. })));
        let degraded = Pool::assemble_degraded(rest()).unwrap();
        expect(&degraded, &bytes);
        let refused = degraded.write(ByteOffset(0), &[0; 512]);
        assert!(matches!(refused, Err(PoolError::Provisional { .. })), "{refused:?}");
        assert!(degraded.is_provisional());
        degraded.commit_degraded().unwrap();
        degraded.write(ByteOffset(0), &bytes[..512]).unwrap();
        // Now the labels say it, and the one that comes back is not believed.
        let back = Pool::assemble(all.iter().map(|d| d.inner().clone()).collect()).unwrap();
        assert_eq!(failed(&back), [1]);
        let alone = Pool::assemble_degraded(vec![all[1].inner().clone()]);
        assert!(alone.is_err() || layout == Layout::Mirror, "parity needs more");
        expect(&back, &bytes);
    }
}

/// Two copies that were each used without the other hold two histories: neither may be taken for
/// the pool by chance.
#[test]
fn copies_that_were_used_without_each_other_are_not_put_together() {
    let all = devices(2, |_| FaultPlan::default());
    let bytes = fill_all(&pool(&all, Layout::Mirror), 3);
    let device = |i: usize| all[i].inner().clone();
    let use_alone = |i: usize| {
        let alone = Pool::assemble_degraded(vec![device(i)]).unwrap();
        alone.commit_degraded().unwrap();
        alone.write(ByteOffset(0), &[u8::try_from(i).unwrap(); 512]).unwrap();
    };
    use_alone(0);
    // A label that stayed behind only makes its device a failed member.
    assert_eq!(failed(&Pool::assemble(vec![device(1), device(0)]).unwrap()), [1]);
    use_alone(1);
    for order in [[0, 1], [1, 0]] {
        for open in [Pool::assemble, Pool::assemble_degraded] {
            let both = open(order.map(device).to_vec());
            assert!(matches!(both, Err(PoolError::Diverged { .. })), "{both:?}");
        }
    }
    for i in 0..2 {
        let one = Pool::assemble(vec![device(i)]).unwrap();
        let mut back = vec![0; 1024];
        one.read(ByteOffset(0), &mut back).unwrap();
        assert_eq!(back[..512], [u8::try_from(i).unwrap(); 512]);
        assert_eq!(back[512..], bytes[512..1024]);
    }
}

/// A node dies when the label of a change is written on one member only, and then that member is gone for a while:
/// nobody knows of that change, and the pool goes on by another one of the same number, or a lower one.
#[test]
fn a_member_with_the_label_of_an_unfinished_change_has_failed() {
    for changes in [1, 2] {
        let all = devices(2, |_| FaultPlan::default());
        let pool = pool(&all, Layout::Mirror);
        let bytes = fill_all(&pool, 3);
        let mut label = pool.label();
        drop(pool);
        let device = |i: usize| all[i].inner().clone();
        for _ in 0..changes {
            label = next_epoch(&label);
            write_copies(&[device(0), device(1)], &label, 0, &[0]).unwrap();
        }
        let other = Pool::assemble_degraded(vec![device(1)]).unwrap();
        other.commit_degraded().unwrap();
        assert!(other.label().epoch <= label.epoch);
        drop(other);
        let both = Pool::assemble(vec![device(0), device(1)]).unwrap();
        assert_eq!(failed(&both), [0]);
        expect(&both, &bytes);
        drop(both);
        // In its second place the label is in force, whatever became of the others.
        write_copies(&[device(0), device(1)], &label, 1, &[0]).unwrap();
        let refused = Pool::assemble(vec![device(0), device(1)]);
        let apart =
            |e: &PoolError| matches!(e, PoolError::Diverged { .. } | PoolError::Ahead { .. });
        assert!(refused.as_ref().is_err_and(apart), "{refused:?}");
    }
}

#[test]
fn a_rebuild_that_cannot_read_the_others_leaves_the_new_member_in_its_place() {
    for layout in [Layout::Mirror, Layout::Parity(1)] {
        let n = if layout == Layout::Mirror { 2 } else { 3 };
        let mut all = devices(n, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        let bytes = fill_all(&pool, 5);
        let new = fresh("new", &all[1]);
        all[1] = new.clone();
        pool.replace(MemberIndex(1), new, false).unwrap();
        let start = pool.label().members[0].data_start.0;
        all[0].spoil(ByteOffset(start + 4096), Bytes(SECTOR));
        let error = pool.rebuild(MemberIndex(1), GO).unwrap_err();
        assert!(error.to_string().contains("m0"), "{error}");
        assert_eq!(pool.rebuilding(), Some(MemberIndex(1)), "{layout:?}");
        pool.write(ByteOffset(0), &bytes).unwrap();
        assert!(pool.rebuild(MemberIndex(1), GO).unwrap());
        expect(&pool, &bytes);
        consistent(&pool, &all);
    }
}

/// Its old contents are not believed, nor is its old label; a redundancy log of before it failed is not either.
#[test]
fn a_failed_members_own_device_is_filled_again_in_its_place() {
    for layout in [Layout::Mirror, Layout::StripedMirrors, Layout::Parity(1)] {
        let all = devices(4, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        fill_all(&pool, 0);
        let device = pool.devices()[1].clone();
        let say =
            |force| pool.replace(MemberIndex(1), device.clone(), force).unwrap_err().to_string();
        assert!(say(true).contains("`braid fail POOL 1`"), "{}", say(true));
        // It answers errors, and comes back.
        all[1].arm(On::Write, 0, FaultKind::Gone);
        let bytes = fill_all(&pool, 9);
        assert_eq!(failed(&pool), [1]);
        all[1].heal();
        let log = |to: u64| LogPlace::of_slot(0, ByteOffset(to)).unwrap().redo_header(0);
        let header = log(pool.label().members[1].data_start.0);
        device.write(header, &[3; 4096]).unwrap();
        let epoch = pool.label().epoch;
        assert!(say(false).contains("was member 1 of this pool until it failed"), "{}", say(false));
        let spare = pool.add_spare(device.clone(), false).unwrap_err().to_string();
        assert!(spare.contains("was member 1"), "{spare}");
        assert_eq!(pool.label().epoch, epoch, "nothing was changed");
        let old = pool.label().members[1].uuid;
        pool.replace(MemberIndex(1), device.clone(), true).unwrap();
        assert_eq!(pool.rebuilding(), Some(MemberIndex(1)));
        assert_ne!(pool.label().members[1].uuid, old);
        let mut log = vec![3; 4096];
        device.read(header, &mut log).unwrap();
        assert!(log.iter().all(|b| *b == 0), "{layout:?}: an old log stands");
        let twice = say(true);
        assert!(twice.contains("being filled: wait until it is filled"), "{twice}");
        assert!(pool.rebuild(MemberIndex(1), GO).unwrap());
        expect(&pool, &bytes);
        consistent(&pool, &all);
        pool.fail_member(MemberIndex(0)).unwrap();
        expect(&pool, &bytes);
        let again = Pool::assemble(all.iter().map(|d| d.clone() as Arc<dyn Device>).collect());
        assert_eq!(failed(&again.unwrap()), [0]);
    }
}

/// The half of a split that others do not go on with. Who goes on holds its liveness byte there still.
#[test]
fn a_copy_that_was_used_without_the_others_is_filled_again_on_a_persons_word() {
    let all = devices(2, |_| FaultPlan::default());
    drop(pool(&all, Layout::Mirror));
    let ours = Pool::assemble(all.iter().map(|d| d.clone() as Arc<dyn Device>).collect()).unwrap();
    ours.attach(0).unwrap();
    let other = Pool::assemble_degraded(vec![all[1].inner().clone()]).unwrap();
    other.commit_degraded().unwrap();
    other.write(ByteOffset(0), &[7; 512]).unwrap();
    all[1].arm(On::Write, 0, FaultKind::Gone);
    let bytes = fill_all(&ours, 9);
    assert_eq!((failed(&ours), failed(&other)), (vec![1], vec![0]));
    drop(other);
    all[1].heal();
    let epoch = ours.label().epoch;
    let device = || ours.devices()[1].clone();
    let refused = ours.replace(MemberIndex(1), device(), false).unwrap_err().to_string();
    assert!(refused.contains("was used without the others"), "{refused}");
    assert_eq!(ours.label().epoch, epoch, "nothing was changed");
    ours.replace(MemberIndex(1), device(), true).unwrap();
    assert!(ours.rebuild(MemberIndex(1), GO).unwrap());
    expect(&ours, &bytes);
    consistent(&ours, &all);
}

/// Each half has slots of its own: the nodes in the first slot of both are not the same.
#[test]
fn a_half_of_a_split_that_a_node_uses_is_not_taken() {
    let all = devices(2, |_| FaultPlan::default());
    drop(pool(&all, Layout::Mirror));
    let alone = |i: usize| {
        let half = Pool::assemble_degraded(vec![all[i].inner().clone()]).unwrap();
        half.commit_degraded().unwrap();
        let byte = half.lock_byte(1).unwrap().unwrap();
        half.attach(0).unwrap();
        (half, byte)
    };
    let ((ours, _byte), (other, byte)) = (alone(0), alone(1));
    other.write(ByteOffset(0), &[7; 512]).unwrap();
    let taken = || ours.replace(MemberIndex(1), all[1].inner().clone(), true);
    let refused = taken().unwrap_err().to_string();
    assert!(refused.contains("has it mounted without the others"), "{refused}");
    let mut back = [0; 512];
    other.read(ByteOffset(0), &mut back).unwrap();
    assert_eq!(back, [7; 512]);
    drop((other, byte));
    taken().unwrap();
}

/// What a device was asked before it failed could still change it after it was filled.
#[test]
fn a_device_that_has_something_to_do_yet_is_not_taken_back() {
    let all = devices(2, |_| FaultPlan::default());
    let slow = ScriptedDevice::over(all[1].clone());
    let held = slow.add(Rule::on(&[CommandKind::Write]).holds());
    let bounded = BoundedDevice::over(slow.clone(), std::time::Duration::from_millis(200));
    let with: Vec<Arc<dyn Device>> = vec![all[0].clone(), bounded];
    drop(pool(&all, Layout::Mirror));
    let pool = Pool::assemble(with).unwrap();
    pool.attach(0).unwrap();
    pool.write(ByteOffset(0), &[1; 4096]).unwrap();
    assert_eq!(failed(&pool), [1]);
    let device = pool.devices()[1].clone();
    let busy = pool.replace(MemberIndex(1), device.clone(), true).unwrap_err().to_string();
    assert!(busy.contains("has not yet ended all that it was asked"), "{busy}");
    held.release();
}

use std::sync::Arc;

use braid_device::{Device, FaultPlan, FaultyDevice, Power, ScriptedDevice};
use braid_format::ByteOffset;

use super::{finish_destroy, is_being_destroyed};
use crate::error::PoolError;
use crate::labels::Found;
use crate::layout::Redundancy;
use crate::pool::Pool;
use crate::reshape::tests::{disks, made};

fn dynamic(all: &[Arc<FaultyDevice>]) -> Vec<Arc<dyn Device>> {
    all.iter().map(|d| d.clone() as _).collect()
}

fn have_labels(all: &[Arc<FaultyDevice>]) -> usize {
    let found = dynamic(all).into_iter().map(Found::read);
    found.filter(|f| f.copies.iter().any(|c| !matches!(c, Err(fault) if fault.absent()))).count()
}

/// What a power cut makes of it: the pool is there as it was, or it can be finished by those devices that are
/// left, or nothing is left.
#[test]
fn a_power_cut_leaves_a_pool_or_what_can_be_finished() {
    let plan = FaultPlan { volatile_cache: true, ..FaultPlan::default() };
    for redundancy in [Redundancy::None, Redundancy::Mirror(2)] {
        let mut seen = [0_u32; 3];
        for (cut, seed) in (0..).flat_map(|cut| (0..4).map(move |seed| (cut, seed))) {
            let all: Vec<_> = disks("d", &[14; 3])
                .into_iter()
                .map(|d| FaultyDevice::new(d, plan.clone()))
                .collect();
            drop(made(dynamic(&all), redundancy));
            let written = vec![7; 64 << 10];
            let pool = Pool::assemble(dynamic(&all)).unwrap();
            pool.write(ByteOffset(0), &written).unwrap();
            drop(pool);
            all.iter().for_each(|d| d.flush().unwrap());
            let power = Power::on();
            let powered = all.iter().map(|d| ScriptedDevice::powered(d.clone(), &power) as _);
            let pool = Pool::assemble(powered.collect()).unwrap();
            power.cut_after(cut);
            let _ = pool.destroy();
            drop(pool);
            for (i, d) in (0..).zip(&all) {
                d.crash(seed * 31 + i).unwrap();
            }
            let outcome = if have_labels(&all) == 0 {
                2
            } else if is_being_destroyed(&dynamic(&all)) {
                let refused = Pool::assemble(dynamic(&all)).map(drop);
                assert!(matches!(refused, Err(PoolError::Ended { .. })), "{cut}: {refused:?}");
                let done = finish_destroy(dynamic(&all)).unwrap();
                assert!(done.left.is_empty(), "{cut}: {done:?}");
                1
            } else {
                let mut back = vec![0; written.len()];
                Pool::assemble(dynamic(&all)).unwrap().read(ByteOffset(0), &mut back).unwrap();
                assert!(back == written, "{cut}");
                assert!(matches!(finish_destroy(dynamic(&all)), Err(PoolError::NotEnded)));
                0
            };
            assert_eq!(have_labels(&all) == 0, outcome > 0, "{cut}");
            seen[outcome] += 1;
            if power.is_on() {
                assert_eq!(outcome, 2);
                break;
            }
        }
        assert!(seen[..2].iter().all(|n| *n > 8), "{seen:?}");
    }
}

/// A member that has the label of before (it was restored since) is nothing that a broken-off
/// destruction may wipe.
#[test]
fn what_does_not_say_that_it_has_ended_is_left() {
    let all = disks("d", &[14; 2]);
    let pool = made(all.clone(), Redundancy::Mirror(2));
    let kept: Vec<Found> = all.iter().cloned().map(Found::read).collect();
    pool.end().unwrap();
    let label = kept[0].newest().unwrap();
    crate::labels::write_copies(&all, label, 0, &[0]).unwrap();
    crate::labels::write_copies(&all, label, 1, &[0]).unwrap();
    let done = finish_destroy(all.clone()).unwrap();
    assert_eq!((done.wiped.as_slice(), done.left.len()), (&["d1".to_owned()][..], 1), "{done:?}");
    assert_eq!(Found::read(all[0].clone()).newest(), Some(label));
}

/// A member that had failed was not told of the end: it is wiped nonetheless.
#[test]
fn a_failed_member_is_wiped_with_the_others() {
    let all = disks("d", &[14; 3]);
    let pool = made(all.clone(), Redundancy::Mirror(3));
    pool.fail_member(braid_format::MemberIndex(1)).unwrap();
    pool.end().unwrap();
    let done = finish_destroy(all.clone()).unwrap();
    assert_eq!((done.wiped.len(), done.left.len()), (3, 0), "{done:?}");
}

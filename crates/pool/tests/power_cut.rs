//! Power that is cut while labels are written: the old pool or the new one, never a third.

use std::sync::Arc;

use braid_format::{Bytes, Epoch};
use braid_pool::device::{Device, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On};
use braid_pool::labels::write_epoch;
use braid_pool::{CreateOptions, Pool, PoolError};
use uuid::Uuid;

const MEMBERS: u64 = 3;

fn disks() -> Vec<Arc<FaultyDevice>> {
    (0..MEMBERS)
        .map(|i| {
            let inner = MemoryDevice::new(&format!("disk{i}"), Bytes(4 << 20), Bytes(512));
            FaultyDevice::new(inner, FaultPlan { volatile_cache: true, ..FaultPlan::default() })
        })
        .collect()
}

fn devices(disks: &[Arc<FaultyDevice>]) -> Vec<Arc<dyn Device>> {
    disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect()
}

/// Cuts the power before step `cut` of writing an epoch: copy 0 of each member, a flush of each,
/// copy 1 of each, a flush of each.
fn cut_power_at(disks: &[Arc<FaultyDevice>], cut: u64) {
    for (i, disk) in (0..MEMBERS).zip(disks) {
        let steps = [
            (On::Write, 0, i),
            (On::Flush, 0, 3 + i),
            (On::Write, 1, 6 + i),
            (On::Flush, 1, 9 + i),
        ];
        if let Some((on, after, _)) = steps.into_iter().find(|s| s.2 >= cut) {
            disk.arm(on, after, FaultKind::Gone);
        }
    }
}

#[test]
fn a_change_of_epoch() {
    for cut in 0..=4 * MEMBERS {
        for seed in 0..16 {
            let disks = disks();
            let pool = Pool::create(devices(&disks), &CreateOptions::new("p")).unwrap();
            let mut label = pool.label();
            (label.epoch, label.change_id) = (Epoch(2), Uuid::new_v4());
            cut_power_at(&disks, cut);
            let written = write_epoch(&pool.devices(), &label);
            assert_eq!(written.is_ok(), cut == 4 * MEMBERS, "cut at {cut}");
            for (disk, salt) in disks.iter().zip(0..) {
                disk.crash(seed * 31 + salt).unwrap();
            }
            let first = Pool::assemble(devices(&disks)).unwrap().info().epoch;
            let in_use = written.is_ok();
            assert!(first == Epoch(2) || (first == Epoch(1) && !in_use), "cut {cut}, seed {seed}");
            // What was chosen once stays chosen, whatever a second cut takes back.
            for disk in &disks {
                disk.crash(seed).unwrap();
            }
            assert_eq!(Pool::assemble(devices(&disks)).unwrap().info().epoch, first);
        }
    }
}

#[test]
fn creation() {
    for cut in 0..=4 * MEMBERS {
        for seed in 0..8 {
            let disks = disks();
            cut_power_at(&disks, cut);
            let created = Pool::create(devices(&disks), &CreateOptions::new("p"));
            assert_eq!(created.is_ok(), cut == 4 * MEMBERS);
            for (disk, salt) in disks.iter().zip(0..) {
                disk.crash(seed * 31 + salt).unwrap();
            }
            match Pool::assemble(devices(&disks)) {
                Ok(pool) => assert_eq!(pool.info().epoch, Epoch(1)),
                Err(e) => {
                    assert!(created.is_err(), "a created pool was lost: {e}");
                    let options = CreateOptions { force: true, ..CreateOptions::new("again") };
                    Pool::create(devices(&disks), &options).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_device_that_fails_is_named() {
    let disks = disks();
    let pool = Pool::create(devices(&disks), &CreateOptions::new("p")).unwrap();
    disks[1].arm(On::Write, 0, FaultKind::Fails);
    let error = pool.write(braid_format::ByteOffset(0), &vec![1; 1 << 20]).unwrap_err();
    assert!(matches!(error, PoolError::Device { .. }));
    assert!(error.to_string().contains("disk1"), "{error}");
    disks[2].arm(On::Flush, 0, FaultKind::Fails);
    let error = pool.flush().unwrap_err();
    assert!(error.to_string().contains("disk2"), "{error}");
}

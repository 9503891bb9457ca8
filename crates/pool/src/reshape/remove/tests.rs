use std::sync::Arc;

use braid_device::{Device, FaultPlan};
use braid_format::ByteOffset;
use braid_format::label::Label;

use super::*;
use crate::assembly::create::CreateOptions;
use crate::redundancy::tests::devices;
use crate::reshape::tests::{Content, fresh};

#[test]
fn who_holds_nothing_is_removed_and_can_be_used_again() {
    let all = devices(3, |_| FaultPlan::default());
    let pool = Pool::create(
        all.iter().map(|d| d.clone() as Arc<dyn Device>).collect(),
        &CreateOptions::new("p"),
    )
    .unwrap();
    let content = Content::fill(&pool, 1);
    let epoch = pool.info().epoch;
    let e = pool.remove_member(MemberIndex(1)).unwrap_err();
    let PoolError::Change(ChangeError::HoldsData { bytes, .. }) = &e else { panic!("{e}") };
    assert_eq!(bytes.0, pool.info().size.0 / 3);
    assert!(e.to_string().contains("braid evacuate POOL 1 --to"), "{e}");
    assert!(matches!(pool.remove_member(MemberIndex(3)), Err(PoolError::NoSuchMember { .. })));
    assert_eq!(pool.info().epoch, epoch);
    let (a, b) = (fresh("a", &all[0]), fresh("b", &all[0]));
    pool.add_spare(a.clone(), false).unwrap();
    pool.add_spare(b.clone(), false).unwrap();
    let removed = pool.remove_member(MemberIndex(3)).unwrap();
    assert_eq!((removed.path.as_str(), removed.unwiped.is_none()), ("a", true));
    let info = pool.info();
    assert_eq!((info.members.len(), info.members[3].path.as_str()), (4, "b"));
    content.check(&pool);
    content.check(&Pool::assemble(pool.devices()).unwrap());
    // It carries nothing that would keep it from being used.
    pool.add_spare(a, false).unwrap();
    pool.remove_member(MemberIndex(3)).unwrap();
    pool.remove_member(MemberIndex(3)).unwrap();
    assert_eq!(pool.info().members.len(), 3);
    content.check(&Pool::assemble(pool.devices()).unwrap());
}

#[test]
fn a_member_has_a_boot_sector_until_it_leaves() {
    let all = devices(2, |_| FaultPlan::default());
    let pool = Pool::create(
        all.iter().map(|d| d.clone() as Arc<dyn Device>).collect(),
        &CreateOptions::new("p"),
    )
    .unwrap();
    let spare = fresh("spare", &all[0]);
    let first = |device: &dyn Device| {
        let mut sector = [0; 512];
        device.read(ByteOffset(0), &mut sector).unwrap();
        sector
    };
    let index = pool.add_spare(spare.clone(), false).unwrap();
    for device in pool.devices() {
        assert_eq!(first(&*device), Label::BOOT_SECTOR, "{}", device.info().name);
        // To Braid that is nobody's.
        assert_eq!(braid_device::probe(&*device), None);
    }
    pool.remove_member(index).unwrap();
    assert_eq!(first(&*spare), [0; 512]);
    // What somebody has put there since stays.
    let index = pool.add_spare(spare.clone(), false).unwrap();
    spare.write(ByteOffset(0), &[7; 512]).unwrap();
    pool.remove_member(index).unwrap();
    assert_eq!(first(&*spare), [7; 512]);
}

#[test]
fn indices_move_up_together() {
    let all = devices(3, |_| FaultPlan::default());
    let pool = Pool::create(
        all.iter().map(|d| d.clone() as Arc<dyn Device>).collect(),
        &CreateOptions::new("p"),
    )
    .unwrap();
    let content = Content::fill(&pool, 1);
    // The one that held the first slice leaves the first place.
    let spare = pool.add_spare(fresh("spare", &all[0]), false).unwrap();
    let mut label = pool.label();
    let swap = |m: &mut MemberIndex| {
        *m = match m.0 {
            0 => spare,
            n if n == spare.0 => MemberIndex(0),
            _ => *m,
        }
    };
    for node in &mut label.nodes {
        if let NodeKind::Slice { member, .. } = &mut node.kind {
            swap(member);
        }
    }
    label.members.swap(0, 3);
    label.epoch.0 += 1;
    let mut devices = pool.devices();
    devices.swap(0, 3);
    crate::labels::write_epoch(&devices, &label).unwrap();
    let pool = Pool::assemble(devices).unwrap();
    content.check(&pool);
    let held = pool.lock_byte(5).unwrap().unwrap();
    pool.remove_member(MemberIndex(0)).unwrap();
    content.check(&pool);
    let again = Pool::assemble(pool.devices()).unwrap();
    content.check(&again);
    assert!(again.byte_locked(5).unwrap(), "who has the pool is still seen");
    drop(held);
    assert!(!again.byte_locked(5).unwrap());
}

//! Feature bits that this version does not know.

use std::sync::Arc;

use braid_format::label::MemberState;
use braid_format::meta::MetaHeader;
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, Bytes, FormatError, MemberIndex};
use braid_pool::device::{Device, MemoryDevice};
use braid_pool::layout::Redundancy;
use braid_pool::{CreateOptions, Pool};
use braid_testkit::wait_until;
use zerocopy::FromBytes;

use crate::attr::NoKernelCache;
use crate::check::{CheckOptions, check};
use crate::make::{MakeOptions, make};
use crate::volume::Volume;
use crate::{Error, Fs, MountOptions};

fn made() -> Pool {
    let device = MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512));
    let pool = Pool::create(vec![device], &CreateOptions::new("test")).unwrap();
    let options =
        MakeOptions { nodes: Some(2), journal_size: Some(4 << 20), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    pool
}

/// As a newer version would change the superblock.
fn patch(pool: &Pool, change: impl Fn(&mut RawSuperblock)) {
    let volume = Volume::open(pool.clone()).unwrap();
    let (mut body, _, _) = volume.read_body(BlockNo(0)).unwrap();
    change(RawSuperblock::mut_from_prefix(&mut body).unwrap().0);
    MetaHeader::seal(&mut body);
    volume.write_bodies(&[(BlockNo(0), &body)]).unwrap();
}

fn mount(pool: &Pool, read_only: bool) -> Result<Fs, Error> {
    let options = MountOptions { read_only, ..MountOptions::default() };
    Fs::mount(pool.clone(), options, Arc::new(NoKernelCache))
}

#[test]
fn what_may_only_be_read_is_looked_at_and_not_changed() {
    let pool = made();
    patch(&pool, |sb| sb.features_ro_compat.set(1 << 40));
    for read_only in [false, true] {
        let refused = mount(&pool, read_only).map(drop);
        let Err(Error::Superblock(FormatError::UnknownChange { bits, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(bits, 1 << 40);
    }
    let checked = |repair| {
        let options = CheckOptions { repair };
        check(pool.clone(), options, &mut |_, _| {}).map(|report| report.problems)
    };
    // Its copy was not changed with it: that is all there is to say.
    assert_eq!(checked(false).unwrap().len(), 1);
    assert!(matches!(checked(true), Err(Error::Superblock(FormatError::UnknownChange { .. }))));
    patch(&pool, |sb| sb.features_ro_compat.set(0));
    mount(&pool, false).unwrap().unmount().unwrap();
}

#[test]
fn a_mounted_node_looks_at_the_features_again_when_others_change_the_pool() {
    let pool = made();
    let fs = mount(&pool, false).unwrap();
    let volume = &fs.core().volume;
    assert!(!volume.refresh().unwrap());
    let incompat = volume.sb.features_incompat.get();
    let unknown = |result: crate::error::Result<bool>| match result {
        Err(Error::Superblock(
            FormatError::UnknownFeature { bits, .. } | FormatError::UnknownChange { bits, .. },
        )) => bits,
        other => panic!("{other:?}"),
    };
    patch(&pool, |sb| sb.features_ro_compat.set(2));
    assert_eq!(unknown(volume.refresh()), 2);
    patch(&pool, |sb| sb.features_ro_compat.set(0));
    assert!(!volume.refresh().unwrap());
    let look = Volume::open(pool.clone()).unwrap();
    let (mut body, _, _) = look.read_body(BlockNo(0)).unwrap();
    let sb = RawSuperblock::mut_from_prefix(&mut body).unwrap().0;
    sb.features_incompat.set(incompat | 1 << 50);
    MetaHeader::seal(&mut body);
    look.write_bodies(&[(BlockNo(0), &body)]).unwrap();
    assert_eq!(unknown(volume.refresh()), 1 << 50);
}

/// Two nodes on a mirror, each with the members opened for itself. A newer version begins to use what this one does
/// not know, and then the pool changes: the node that did not change it looks, too, and withdraws.
#[test]
fn a_node_withdraws_when_others_change_a_pool_that_has_features_which_it_does_not_know() {
    for incompatible in [true, false] {
        let device = |n| MemoryDevice::new(&format!("m{n}"), Bytes(160 << 20), Bytes(512));
        let devices = [0, 1, 2].map(device);
        let all = || devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect::<Vec<_>>();
        let of_pool = CreateOptions {
            redundancy: Redundancy::Mirror(3),
            log_slots: 2,
            ..CreateOptions::new("mirror")
        };
        let pool = Pool::create(all(), &of_pool).unwrap();
        make(&pool, &MakeOptions { nodes: Some(2), ..MakeOptions::default() }, &mut |_, _| {})
            .unwrap();
        drop(pool);
        let [looks, changes] =
            [(); 2].map(|()| mount(&Pool::assemble(all()).unwrap(), false).unwrap());
        // A change of the pool alone is no reason.
        changes.fail_member(MemberIndex(2), false).unwrap();
        let failed = (MemberIndex(2), MemberState::Failed);
        wait_until("the other takes note", || looks.pool().member_states().contains(&failed));
        patch(changes.pool(), |sb| {
            if incompatible {
                sb.features_incompat.set(sb.features_incompat.get() | 1 << 50);
            } else {
                sb.features_ro_compat.set(1 << 40);
            }
        });
        assert_eq!(looks.withdrawn(), None);
        // It looks as well.
        drop(changes.fail_member(MemberIndex(1), false));
        wait_until("the other withdraws", || looks.withdrawn().is_some());
        let said = looks.withdrawn().unwrap();
        assert!(said.contains("feature bits") && said.contains("newer"), "{said}");
        assert!(looks.unmount().is_err() && changes.withdrawn().is_some());
    }
}

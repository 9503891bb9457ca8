//! Members that are not what they should be: each is named, with what to do about it.

#![expect(clippy::unwrap_used, reason = "a failing step is a failing test")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_format::crc::crc32c_with_hole;
use braid_format::label::{Label, MemberState, RawLabel};
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex};
use braid_pool::LABEL_LOCK_BYTE;
use braid_pool::device::{
    CommandKind, Device, FileDevice, MemoryDevice, OpenOptions, Rule, ScriptedDevice, probe,
};
use braid_pool::labels::{write_copies, write_epoch};
use braid_pool::layout::Redundancy;
use braid_pool::{CreateOptions, MemberCondition, Pool, PoolError, discover};
use tempfile::TempDir;
use uuid::Uuid;
use zerocopy::FromBytes;

const MIB: u64 = 1 << 20;

/// Files that stand for disks, in a directory that removes itself.
struct Disks {
    dir: TempDir,
}
impl Disks {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn file(&self, name: &str, size: u64) -> Arc<dyn Device> {
        File::create(self.path(name)).unwrap().set_len(size).unwrap();
        self.open(name)
    }
    fn open(&self, name: &str) -> Arc<dyn Device> {
        FileDevice::open(&self.path(name), OpenOptions::default()).unwrap()
    }
    fn open_all(&self, names: &[&str]) -> Vec<Arc<dyn Device>> {
        names.iter().map(|n| self.open(n)).collect()
    }
    /// Pool "p" on a, b and c of 8, 8 and 12 MiB.
    fn with_pool() -> (Self, Pool) {
        let disks = Self::new();
        let devices = [("a", 8), ("b", 8), ("c", 12)].map(|(n, mib)| disks.file(n, mib * MIB));
        let pool = Pool::create(devices.to_vec(), &CreateOptions::new("p")).unwrap();
        (disks, pool)
    }
    fn flip(&self, name: &str, at: u64) {
        let file = File::options().read(true).write(true).open(self.path(name)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    }
    /// Where the two labels of a disk of `mib` begin.
    fn labels(mib: u64) -> [u64; 2] {
        [Label::COPY0_AT.0, Label::copy1_at(Bytes(mib * MIB)).unwrap().0]
    }
    /// A label of a later version: with a feature that this one does not know.
    fn renew(&self, name: &str, at: u64) {
        let mut head = [0; 4096];
        let file = File::options().read(true).write(true).open(self.path(name)).unwrap();
        file.read_exact_at(&mut head, at).unwrap();
        let len = RawLabel::ref_from_prefix(&head).unwrap().0.len.get();
        let mut bytes = vec![0; len.try_into().unwrap()];
        file.read_exact_at(&mut bytes, at).unwrap();
        let (raw, _) = RawLabel::mut_from_prefix(&mut bytes).unwrap();
        raw.features_incompat.set(raw.features_incompat.get() | 1 << 62);
        let crc = crc32c_with_hole(&bytes, std::mem::offset_of!(RawLabel, crc));
        RawLabel::mut_from_prefix(&mut bytes).unwrap().0.crc.set(crc);
        file.write_all_at(&bytes, at).unwrap();
    }
    fn bytes(&self, name: &str, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        File::open(self.path(name)).unwrap().read_exact_at(&mut bytes, at).unwrap();
        bytes
    }
}

fn memory(name: &str, mib: u64) -> Arc<dyn Device> {
    MemoryDevice::new(name, Bytes(mib * MIB), Bytes(512))
}

fn next_epoch(pool: &Pool) -> Label {
    let mut label = pool.label();
    label.epoch = Epoch(label.epoch.0 + 1);
    label.change_id = Uuid::new_v4();
    label
}

/// The error, after checking that it names the device and that it is not silent on what to do.
#[track_caller]
fn refused(result: Result<Pool, PoolError>, names: &str) -> PoolError {
    let error = result.expect_err("this must be refused");
    let text = error.to_string();
    assert!(text.contains(names), "{text:?} does not name {names:?}");
    assert!(text.len() > names.len() + 20, "{text:?} says too little");
    error
}

#[test]
fn any_order_gives_the_same_pool() {
    let (disks, pool) = Disks::with_pool();
    let data: Vec<u8> = (0..pool.info().size.0).map(|i| (i / 512 % 251).to_le_bytes()[0]).collect();
    pool.write(ByteOffset(0), &data).unwrap();
    pool.flush().unwrap();
    for order in [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]] {
        let again = Pool::assemble(disks.open_all(&order)).unwrap();
        assert_eq!(again.info().uuid, pool.info().uuid);
        assert!(again.devices()[0].info().name.ends_with("/a"));
        let mut back = vec![0; data.len()];
        again.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == data, "{order:?}");
    }
}

#[test]
fn names_of_devices_may_change() {
    let (disks, pool) = Disks::with_pool();
    std::fs::rename(disks.path("a"), disks.path("z")).unwrap();
    let again = Pool::assemble(disks.open_all(&["b", "c", "z"])).unwrap();
    assert_eq!(again.info().members[0].uuid, pool.info().members[0].uuid);
    assert!(again.info().members[0].path.ends_with("/z"));
}

#[test]
fn one_to_seventeen_members() {
    for n in 1..=17 {
        let devices: Vec<_> = (0..n).map(|i| memory(&format!("m{i}"), 3 + i % 4)).collect();
        let pool = Pool::create(devices.clone(), &CreateOptions::new("many")).unwrap();
        assert_eq!(pool.info().size.0, (0..n).map(|i| (1 + i % 4) * MIB).sum::<u64>());
        let mut shuffled = devices;
        shuffled.reverse();
        assert_eq!(Pool::assemble(shuffled).unwrap().info().uuid, pool.info().uuid);
    }
}

#[test]
fn too_many_members_and_none() {
    let devices: Vec<_> = (0..257).map(|i| memory(&format!("m{i}"), 3)).collect();
    let error = Pool::create(devices, &CreateOptions::new("p")).unwrap_err();
    assert!(matches!(error, PoolError::TooManyMembers { count: 257 }));
    let error = Pool::create(Vec::new(), &CreateOptions::new("p")).unwrap_err();
    assert!(matches!(error, PoolError::NoDevices));
    assert!(matches!(Pool::assemble(Vec::new()), Err(PoolError::NoDevices)));
}

#[test]
fn a_device_too_small() {
    let devices = vec![memory("large", 8), memory("small", 2)];
    let error = refused(Pool::create(devices.clone(), &CreateOptions::new("p")), "small");
    assert!(matches!(error, PoolError::TooSmall { .. }));
    // Nothing was written on the good one before the bad one was seen.
    let mut bytes = vec![1; 8 * usize::try_from(MIB).unwrap()];
    devices[0].read(ByteOffset(0), &mut bytes).unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
    let wide = CreateOptions::new("p").stripe_unit(Bytes(16 * MIB)).unwrap();
    let error = refused(Pool::create(vec![memory("large", 8)], &wide), "large");
    assert!(matches!(error, PoolError::TooSmall { needed: Bytes(n), .. } if n == 18 * MIB));
}

#[test]
fn stripe_units_and_names_of_nonsense() {
    for bytes in [0, 1, 512, 4095, 4097, 6144, (1 << 30) + 4096, u64::MAX] {
        let error = CreateOptions::new("p").stripe_unit(Bytes(bytes)).unwrap_err();
        assert!(error.to_string().contains(&bytes.to_string()));
    }
    for name in ["", "a/b", "a\nb", &"x".repeat(64)] {
        let error = Pool::create(vec![memory("m", 8)], &CreateOptions::new(name)).unwrap_err();
        assert!(matches!(error, PoolError::BadName { .. }), "{name:?}");
    }
    for sector in [0, 100, 1024, 8192] {
        let options = CreateOptions { lock_sector: Some(Bytes(sector)), ..CreateOptions::new("p") };
        let error = refused(Pool::create(vec![memory("m", 8)], &options), "m");
        assert!(matches!(error, PoolError::BadLockSector { .. }), "{sector}");
    }
}

#[test]
fn large_sectors_make_large_lock_sectors() {
    let large = MemoryDevice::new("large", Bytes(8 * MIB), Bytes(4096)) as Arc<dyn Device>;
    let devices = vec![memory("m", 8), large];
    let pool = Pool::create(devices.clone(), &CreateOptions::new("p")).unwrap();
    assert_eq!((pool.info().lock_sector, pool.info().sector), (Bytes(4096), Bytes(4096)));
    let small =
        CreateOptions { lock_sector: Some(Bytes(512)), force: true, ..CreateOptions::new("p") };
    let error = refused(Pool::create(devices, &small), "large");
    assert!(matches!(error, PoolError::BadLockSector { .. }));
}

#[test]
fn one_device_given_twice() {
    let disks = Disks::new();
    let a = disks.file("a", 8 * MIB);
    std::os::unix::fs::symlink(disks.path("a"), disks.path("link")).unwrap();
    let error = refused(
        Pool::create(vec![a.clone(), disks.open("link")], &CreateOptions::new("p")),
        "link",
    );
    assert!(matches!(error, PoolError::GivenTwice { .. }));
    let error = Pool::create(vec![a.clone(), a], &CreateOptions::new("p")).unwrap_err();
    assert!(matches!(error, PoolError::GivenTwice { .. }));
}

#[test]
fn a_foreign_file_system_needs_force() {
    let device = memory("disk", 8);
    let mut head = vec![0; 4096];
    head[..4].copy_from_slice(b"XFSB");
    device.write(ByteOffset(0), &head).unwrap();
    let error = refused(Pool::create(vec![device.clone()], &CreateOptions::new("p")), "disk");
    assert!(matches!(error, PoolError::Foreign { .. }));
    assert!(error.to_string().contains("XFS"), "{error}");
    let mut now = vec![0; 4096];
    device.read(ByteOffset(0), &mut now).unwrap();
    assert!(now == head, "refused, and nothing written");
    let error = refused(Pool::assemble(vec![device.clone()]), "XFS");
    assert!(matches!(error, PoolError::NotAMember { .. }));
    let options = CreateOptions { force: true, ..CreateOptions::new("p") };
    Pool::create(vec![device.clone()], &options).unwrap();
    assert_eq!(probe(&*device), None, "its signature is gone");
    Pool::assemble(vec![device]).unwrap();
}

#[test]
fn another_pools_member_needs_force() {
    let devices = vec![memory("one", 8), memory("two", 8)];
    let old = Pool::create(devices[..1].to_vec(), &CreateOptions::new("old")).unwrap();
    let error = refused(Pool::create(devices.clone(), &CreateOptions::new("new")), "one");
    assert!(matches!(error, PoolError::BelongsToPool { .. }));
    assert!(error.to_string().contains("\"old\""));
    let again = Pool::assemble(devices[..1].to_vec()).unwrap();
    assert_eq!(again.info().uuid, old.info().uuid, "the refused creation changed nothing");
    let options = CreateOptions { force: true, ..CreateOptions::new("new") };
    let new = Pool::create(devices.clone(), &options).unwrap();
    assert_eq!(Pool::assemble(devices).unwrap().info().uuid, new.info().uuid);
}

#[test]
fn a_pool_that_a_node_lives_on_is_not_overwritten() {
    let devices = vec![memory("one", 8)];
    Pool::create(devices.clone(), &CreateOptions::new("live")).unwrap();
    let guard = devices[0].abilities().locks.lock_byte(1 + 3).unwrap();
    assert!(guard.is_some());
    let options = CreateOptions { force: true, ..CreateOptions::new("new") };
    let error = refused(Pool::create(devices.clone(), &options), "one");
    assert!(matches!(error, PoolError::InUse { .. }));
    drop(guard);
    Pool::create(devices, &options).unwrap();
}

#[test]
fn while_a_pool_is_made_nobody_joins_what_was_there() {
    let inner = [memory("one", 8), memory("two", 8)];
    // At each write: whether somebody could take a slot's liveness byte.
    let free = inner.each_ref().map(|_| Arc::new(std::sync::Mutex::new(Vec::new())));
    let watched = |(inner, free): (&Arc<dyn Device>, &Arc<std::sync::Mutex<Vec<bool>>>)| {
        let device = ScriptedDevice::over(inner.clone());
        let (inner, free) = (inner.clone(), free.clone());
        device.add(Rule::on(&[CommandKind::Write]).calls(move |_, _| {
            let locks = inner.abilities().locks;
            let taken = [0, 1, 1024].map(|byte| locks.lock_byte(byte).unwrap().is_some());
            free.lock().unwrap().extend(taken);
        }));
        device as Arc<dyn Device>
    };
    let devices: Vec<Arc<dyn Device>> = inner.iter().zip(&free).map(watched).collect();
    Pool::create(devices.clone(), &CreateOptions::new("old")).unwrap();
    let options = CreateOptions { force: true, ..CreateOptions::new("new") };
    let old = Pool::assemble(devices.clone()).unwrap();
    assert!(old.is_current());
    Pool::create(devices.clone(), &options).unwrap();
    assert!(!old.is_current());
    for (inner, free) in inner.iter().zip(&free) {
        let free = free.lock().unwrap();
        assert!(free.len() >= 12 && free.iter().all(|free| !free), "{free:?}");
        assert!(inner.abilities().locks.lock_byte(1).unwrap().is_some(), "still held");
    }
}

#[test]
fn members_of_two_pools() {
    let (disks, _pool) = Disks::with_pool();
    Pool::create(vec![disks.file("x", 8 * MIB)], &CreateOptions::new("other")).unwrap();
    let error = refused(Pool::assemble(disks.open_all(&["a", "b", "x", "c"])), "/x");
    assert!(matches!(error, PoolError::OtherPool { .. }));
    assert!(error.to_string().contains("\"other\""));
}

#[test]
fn a_device_without_a_label() {
    let (disks, _pool) = Disks::with_pool();
    disks.file("blank", 8 * MIB);
    let error = refused(Pool::assemble(disks.open_all(&["a", "b", "c", "blank"])), "/blank");
    assert!(matches!(error, PoolError::NotAMember { .. }));
    disks.file("tiny", 512);
    let error = refused(Pool::assemble(disks.open_all(&["tiny"])), "/tiny");
    assert!(matches!(error, PoolError::NotAMember { .. }));
}

#[test]
fn missing_members_are_named() {
    let (disks, _pool) = Disks::with_pool();
    for present in [&["a", "b"][..], &["a"]] {
        let error = refused(Pool::assemble(disks.open_all(present)), "/c");
        let PoolError::Missing { missing, .. } = error else { panic!("{error}") };
        assert_eq!(missing.len(), 3 - present.len());
        assert_eq!(missing[missing.len() - 1].index, MemberIndex(2));
    }
}

#[test]
fn a_truncated_member() {
    let (disks, pool) = Disks::with_pool();
    File::options().write(true).open(disks.path("b")).unwrap().set_len(5 * MIB).unwrap();
    let error = refused(Pool::assemble(disks.open_all(&["a", "b", "c"])), "/b");
    assert!(matches!(error, PoolError::Truncated { expected: Bytes(n), .. } if n == 8 * MIB));
    // With its size back it is whole again, and the lost label is healed.
    File::options().write(true).open(disks.path("b")).unwrap().set_len(8 * MIB).unwrap();
    let again = Pool::assemble(disks.open_all(&["a", "b", "c"])).unwrap();
    assert_eq!(again.info().uuid, pool.info().uuid);
    again.heal_labels().unwrap();
    assert_eq!(&disks.bytes("b", 7 * MIB, 7), b"BRAIDPL");
}

#[test]
fn a_size_that_is_no_multiple_of_a_large_sector() {
    let small = MemoryDevice::new("m", Bytes(8 * MIB + 1536), Bytes(512));
    let pool = Pool::create(vec![small.clone()], &CreateOptions::new("p")).unwrap();
    assert_eq!(pool.label().members[0].device_size, Bytes(8 * MIB));
    Pool::assemble(vec![small]).unwrap();
}

#[test]
fn a_member_that_has_grown() {
    let (disks, pool) = Disks::with_pool();
    File::options().write(true).open(disks.path("b")).unwrap().set_len(20 * MIB).unwrap();
    disks.flip("b", Disks::labels(8)[1] + 5);
    let again = Pool::assemble(disks.open_all(&["a", "b", "c"])).unwrap();
    assert_eq!(again.info().size, pool.info().size);
    again.heal_labels().unwrap();
    assert_eq!(&disks.bytes("b", 7 * MIB, 7), b"BRAIDPL", "healed where it belongs");
}

#[test]
fn a_copy_of_a_member() {
    let (disks, _pool) = Disks::with_pool();
    std::fs::copy(disks.path("b"), disks.path("copy")).unwrap();
    let error = refused(Pool::assemble(disks.open_all(&["a", "b", "copy", "c"])), "/copy");
    assert!(matches!(error, PoolError::Duplicate { index: MemberIndex(1), .. }));
    assert!(error.to_string().contains("/b "));
    // The copy instead of the original is as good as the original.
    Pool::assemble(disks.open_all(&["a", "copy", "c"])).unwrap();
}

#[test]
fn a_stale_member() {
    let (disks, pool) = Disks::with_pool();
    std::fs::copy(disks.path("b"), disks.path("old b")).unwrap();
    write_epoch(&pool.devices(), &next_epoch(&pool)).unwrap();
    let error = refused(Pool::assemble(disks.open_all(&["a", "old b", "c"])), "/old b");
    assert!(matches!(error, PoolError::Stale { epoch: Epoch(1), current: Epoch(2), .. }));
    let again = Pool::assemble(disks.open_all(&["a", "b", "c"])).unwrap();
    assert_eq!(again.info().epoch, Epoch(2));
}

#[test]
fn most_members_are_old_copies() {
    let (disks, pool) = Disks::with_pool();
    for name in ["a", "b"] {
        std::fs::copy(disks.path(name), disks.path(&format!("old {name}"))).unwrap();
    }
    write_epoch(&pool.devices(), &next_epoch(&pool)).unwrap();
    let error = refused(Pool::assemble(disks.open_all(&["old a", "old b", "c"])), "/c");
    assert!(matches!(error, PoolError::Ahead { epoch: Epoch(2), current: Epoch(1), .. }));
}

/// Some members are read before the change and some after it.
#[test]
fn a_pool_that_is_changed_while_its_labels_are_read() {
    for changed in 0..3 {
        let (_disks, pool) = Disks::with_pool();
        let (mut devices, next) = (pool.devices(), next_epoch(&pool));
        let all = devices.clone();
        // Before the first read of this member another node changes the pool.
        let scripted = ScriptedDevice::over(devices[changed].clone());
        let reads = Rule::on(&[CommandKind::Read]);
        scripted.add(reads.calls_once(move || write_epoch(&all, &next).unwrap()));
        devices[changed] = scripted;
        assert_eq!(Pool::assemble(devices).unwrap().info().epoch, Epoch(2), "{changed}");
    }
}

#[test]
fn a_removed_member() {
    let (disks, pool) = Disks::with_pool();
    std::fs::copy(disks.path("b"), disks.path("old b")).unwrap();
    let mut label = next_epoch(&pool);
    label.members[1].uuid = Uuid::new_v4();
    write_epoch(&pool.devices(), &label).unwrap();
    let error = refused(Pool::assemble(disks.open_all(&["a", "b", "old b", "c"])), "/old b");
    assert!(matches!(error, PoolError::Removed { .. }));
}

#[test]
fn a_failed_member_that_nothing_stands_in_for_is_named() {
    let (disks, pool) = Disks::with_pool();
    let mut label = next_epoch(&pool);
    label.members[1].state = MemberState::Failed;
    write_epoch(&pool.devices(), &label).unwrap();
    let error = Pool::assemble(disks.open_all(&["a", "b", "c"])).unwrap_err();
    assert!(
        matches!(&error, PoolError::TooManyLost { lost, .. } if lost[0].ends_with("/b)")),
        "{error}"
    );
    let error = Pool::assemble_degraded(disks.open_all(&["a", "c"])).unwrap_err();
    assert!(matches!(error, PoolError::TooManyLost { .. }), "{error}");
}

#[test]
fn flipped_bits_in_one_copy_are_healed_from_the_other() {
    let (disks, pool) = Disks::with_pool();
    for (name, mib) in [("a", 8), ("c", 12)] {
        for (copy, at) in Disks::labels(mib).into_iter().enumerate() {
            for offset in [0, 9, 33, 70, 300, 600, 4095] {
                let before = disks.bytes(name, at, 4096);
                disks.flip(name, at + offset);
                assert_ne!(disks.bytes(name, at, 4096), before);
                let again = Pool::assemble(disks.open_all(&["a", "b", "c"])).unwrap();
                assert_eq!(again.info().uuid, pool.info().uuid);
                again.heal_labels().unwrap();
                let healed = disks.bytes(name, at, 4096) == before;
                assert!(healed, "copy {copy} of {name}, flip at {offset}");
            }
        }
    }
}

#[test]
fn labels_of_a_later_version_are_not_called_damaged() {
    let (disks, pool) = Disks::with_pool();
    for (name, mib) in [("a", 8), ("b", 8), ("c", 12)] {
        Disks::labels(mib).into_iter().for_each(|at| disks.renew(name, at));
    }
    let before = disks.bytes("a", 0, 8 << 20);
    let error = refused(Pool::assemble(disks.open_all(&["a", "b", "c"])), "/a");
    let said = error.to_string();
    assert!(matches!(error, PoolError::OtherLabel { .. }), "{said}");
    for part in ["unknown incompatible feature bits", "a newer braid", "use that version"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("label restore") && !said.contains("damaged"), "{said}");
    let error = refused(Pool::create(disks.open_all(&["a"]), &CreateOptions::new("new")), "/a");
    assert!(matches!(error, PoolError::Foreign { .. }), "{error}");
    // Nor by a node that has the pool in use.
    let error = pool.follow().unwrap_err();
    assert!(matches!(error, PoolError::OtherLabel { .. }), "{error}");
    assert!(disks.bytes("a", 0, 8 << 20) == before, "refused, and nothing written");
}

#[test]
fn flipped_bits_in_both_copies_are_refused() {
    let (disks, _pool) = Disks::with_pool();
    for at in Disks::labels(8) {
        disks.flip("b", at + 300);
    }
    let before = disks.bytes("b", 0, 8 << 20);
    let error = refused(Pool::assemble(disks.open_all(&["a", "b", "c"])), "/b");
    // Beside the others it is known which member it is.
    let PoolError::LabelsLost { lost, .. } = &error else { panic!("{error}") };
    assert_eq!(lost.iter().map(|m| m.index.0).collect::<Vec<_>>(), [1]);
    let alone = refused(Pool::assemble(disks.open_all(&["b"])), "/b");
    assert!(matches!(alone, PoolError::LabelsDamaged { .. }), "{alone}");
    assert!(error.to_string().contains("do not create a pool on it"));
    assert!(disks.bytes("b", 0, 8 << 20) == before, "refused, and nothing written");
    // A new pool is not made over it unasked.
    let error = refused(Pool::create(disks.open_all(&["b"]), &CreateOptions::new("new")), "/b");
    assert!(matches!(error, PoolError::Foreign { .. }));
    // Left out, it is missing, and the message says where it was.
    let error = refused(Pool::assemble(disks.open_all(&["a", "c"])), "/b");
    assert!(matches!(error, PoolError::Missing { .. }));
}

#[test]
fn nothing_is_healed_while_another_process_changes_labels() {
    let devices = vec![memory("a", 8), memory("b", 8)];
    Pool::create(devices.clone(), &CreateOptions::new("p")).unwrap();
    let at = ByteOffset(Disks::labels(8)[1]);
    devices[0].write(at, &[0; 4096]).unwrap();
    let label = || {
        let mut bytes = vec![0; 4096];
        devices[0].read(at, &mut bytes).unwrap();
        Label::decode(&bytes, at)
    };
    let guard = devices[0].abilities().locks.lock_byte(LABEL_LOCK_BYTE).unwrap();
    let pool = Pool::assemble(devices.clone()).unwrap();
    pool.heal_labels().unwrap();
    assert!(label().is_err());
    drop(guard);
    pool.heal_labels().unwrap();
    assert!(label().is_ok());
}

/// What may not be durable yet is not built on.
#[test]
fn nothing_is_changed_until_labels_could_be_healed() {
    let devices = vec![memory("a", 8), memory("b", 8)];
    Pool::create(devices.clone(), &CreateOptions::new("p")).unwrap();
    let at = ByteOffset(Disks::labels(8)[1]);
    let pool = Pool::assemble(devices.clone()).unwrap();
    let mut before = [0; 4096];
    pool.read(ByteOffset(0), &mut before).unwrap();
    let now = || {
        let mut now = [0; 4096];
        pool.read(ByteOffset(0), &mut now).unwrap();
        now
    };
    devices[0].write(at, &[0; 4096]).unwrap();
    let guard = devices[0].abilities().locks.lock_byte(LABEL_LOCK_BYTE).unwrap();
    pool.heal_labels().unwrap();
    let refused = pool.write(ByteOffset(0), &[7; 4096]).unwrap_err();
    assert!(matches!(refused, PoolError::InUse { .. }), "{refused}");
    assert!(refused.to_string().contains("a is in use"), "{refused}");
    assert!(now() == before);
    // For a moment it is waited for.
    std::thread::scope(|s| {
        let written = s.spawn(|| pool.write(ByteOffset(0), &[7; 4096]));
        drop(guard);
        written.join().unwrap().unwrap();
    });
    assert!(now() == [7; 4096]);
}

#[test]
fn labels_that_cannot_be_locked_are_not_taken_for_healed() {
    let devices = vec![memory("a", 8), memory("b", 8)];
    Pool::create(devices.clone(), &CreateOptions::new("p")).unwrap();
    let at = ByteOffset(Disks::labels(8)[1]);
    devices[0].write(at, &[0; 4096]).unwrap();
    let locked = ScriptedDevice::over(devices[0].clone());
    locked.refuse_locks();
    let pool = Pool::assemble(vec![locked, devices[1].clone()]).unwrap();
    pool.heal_labels().unwrap();
    let refused = pool.write(ByteOffset(0), &[7; 4096]).unwrap_err();
    assert!(matches!(refused, PoolError::Device { .. }), "{refused}");
}

/// A change of epoch that stopped after any number of label writes leaves the old pool or the
/// new one, and healing makes all labels agree.
#[test]
fn a_change_that_stops_anywhere_leaves_the_old_or_the_new_pool() {
    for stop in 0..=6 {
        let devices = vec![memory("a", 8), memory("b", 8), memory("c", 12)];
        let pool = Pool::create(devices.clone(), &CreateOptions::new("p")).unwrap();
        let label = next_epoch(&pool);
        let steps = (0..2).flat_map(|copy| (0..3).map(move |member| (copy, member)));
        for (copy, member) in steps.take(stop) {
            write_copies(&devices, &label, copy, &[member]).unwrap();
        }
        let again = Pool::assemble(devices.clone()).unwrap();
        let expected = if stop < 3 { Epoch(1) } else { Epoch(2) };
        assert_eq!(again.info().epoch, expected, "stopped after {stop} writes");
        again.heal_labels().unwrap();
        for at in [Disks::labels(8), Disks::labels(8), Disks::labels(12)].iter().enumerate() {
            for offset in at.1 {
                let mut bytes = vec![0; 4096];
                devices[at.0].read(ByteOffset(*offset), &mut bytes).unwrap();
                let (found, _) = Label::decode(&bytes, ByteOffset(*offset)).unwrap();
                assert_eq!(found.epoch, expected, "healed after {stop} writes");
            }
        }
    }
}

#[test]
fn two_changes_that_claimed_one_epoch_have_no_majority() {
    let devices = vec![memory("a", 8), memory("b", 8)];
    let pool = Pool::create(devices.clone(), &CreateOptions::new("p")).unwrap();
    for i in 0..2 {
        let label = next_epoch(&pool);
        for copy in 0..2 {
            write_copies(&devices, &label, copy, &[i]).unwrap();
        }
    }
    let error = Pool::assemble(devices).unwrap_err();
    assert!(matches!(error, PoolError::NoMajority { .. }), "{error}");
}

/// A member was being taken out when power was cut: the label that says so stands on one of the others.
#[test]
fn who_is_missing_is_named_though_a_change_that_was_broken_off_calls_it_failed() {
    let devices = vec![memory("a", 8), memory("b", 8), memory("c", 8)];
    let options = CreateOptions { redundancy: Redundancy::Mirror(2), ..CreateOptions::new("p") };
    let pool = Pool::create(devices[..2].to_vec(), &options).unwrap();
    pool.add_spare(devices[2].clone(), false).unwrap();
    let mut label = next_epoch(&pool);
    label.members[0].state = MemberState::Failed;
    label.members[0].state_epoch = label.epoch;
    write_copies(&devices, &label, 0, &[1]).unwrap();
    let left = || devices[1..].to_vec();
    let error = Pool::assemble(left()).unwrap_err();
    let PoolError::Missing { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|m| m.index).collect::<Vec<_>>(), [MemberIndex(0)]);
    let pool = Pool::assemble_degraded(left()).unwrap();
    pool.commit_degraded().unwrap();
    assert!(pool.info().epoch > label.epoch);
    drop(pool);
    Pool::assemble(left()).unwrap();
}

#[test]
fn discovery_names_pools_and_conditions() {
    let (disks, pool) = Disks::with_pool();
    Pool::create(vec![disks.file("x", 8 * MIB)], &CreateOptions::new("other")).unwrap();
    disks.file("blank", 8 * MIB);
    std::os::unix::fs::symlink(disks.path("a"), disks.path("another name of a")).unwrap();
    let look = || discover(Some(&[disks.dir.path().to_owned()]));
    let pools = look();
    let names: Vec<_> = pools.iter().map(|p| (p.name.as_str(), p.members.len())).collect();
    assert_eq!(names, [("other", 1), ("p", 3)]);
    assert!(pools.iter().all(braid_pool::FoundPool::complete));
    assert_eq!(pools[1].uuid, pool.info().uuid);

    std::fs::remove_file(disks.path("another name of a")).unwrap();
    std::fs::rename(disks.path("b"), disks.path("elsewhere")).unwrap();
    disks.flip("c", Disks::labels(12)[1] + 40);
    let found = look().remove(1);
    assert!(found.complete());
    assert!(
        found.members.iter().any(|m| m.path.ends_with("c") && m.state == MemberCondition::Damaged)
    );
    let paths: Vec<&Path> = found.paths().collect();
    assert_eq!(paths.len(), 3);
    std::fs::remove_file(disks.path("elsewhere")).unwrap();
    let found = look().remove(1);
    assert!(!found.complete());
    assert_eq!(found.missing[0].index, MemberIndex(1));
}

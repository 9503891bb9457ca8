//! Members that are put back from an old image while nobody uses the pool: each is found, and nothing
//! that a crash leaves is taken for one.

#![expect(clippy::unwrap_used, reason = "a failing step is a failing test")]

use std::sync::Arc;

use braid_format::label::{Label, MemberState};
use braid_format::lock_record::Life;
use braid_format::redundancy::RawEventCount;
use braid_format::{ByteOffset, Bytes, Epoch, Incarnation, NodeId};
use braid_pool::device::{Device, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On};
use braid_pool::labels::write_copies;
use braid_pool::layout::Redundancy;
use braid_pool::{CreateOptions, Pool, PoolError};
use zerocopy::IntoBytes;

const SIZE: Bytes = Bytes(8 << 20);

fn life(slot: u16) -> Life {
    Life { slot: NodeId(slot), incarnation: Incarnation(1) }
}

fn disks(n: usize) -> Vec<Arc<dyn Device>> {
    let disk = |i| MemoryDevice::new(&format!("disk{i}"), SIZE, Bytes(512)) as Arc<dyn Device>;
    (0..n).map(disk).collect()
}

fn mirror(n: usize) -> (Vec<Arc<dyn Device>>, Pool) {
    let disks = disks(n);
    let redundancy = Redundancy::Mirror(n.try_into().unwrap());
    let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
    let pool = Pool::create(disks.clone(), &options).unwrap();
    (disks, pool)
}

fn image(device: &Arc<dyn Device>) -> Vec<u8> {
    let mut image = vec![0; SIZE.to_usize()];
    device.read(ByteOffset(0), &mut image).unwrap();
    image
}

/// What a mount and an unmount count.
fn session(disks: &[Arc<dyn Device>], slot: u16) {
    let pool = Pool::assemble(disks.to_vec()).unwrap();
    pool.count_up(life(slot)).unwrap();
    pool.count_up(life(slot)).unwrap();
}

/// The members that are refused as out of date, and whether the pool can do without.
fn refused(disks: &[Arc<dyn Device>]) -> (String, bool) {
    match Pool::assemble(disks.to_vec()).unwrap_err() {
        PoolError::OutOfDate { members, spared, .. } => (members.join(" "), spared),
        other => panic!("{other}"),
    }
}

#[test]
fn an_image_from_before_a_session_is_found_whoever_had_it() {
    for slots in [[0, 0], [0, 1], [1, 0], [5, 191]] {
        let (disks, _) = mirror(2);
        session(&disks, slots[0]);
        let old = image(&disks[0]);
        session(&disks, slots[1]);
        disks[0].write(ByteOffset(0), &old).unwrap();
        let (members, spared) = refused(&disks);
        assert!(members.contains("member 0") && members.contains("disk0"), "{members}");
        assert!(!members.contains("disk1") && spared, "{members}");
    }
}

#[test]
fn an_image_from_within_a_session_is_found() {
    let (disks, pool) = mirror(2);
    pool.count_up(life(0)).unwrap();
    let old = image(&disks[1]);
    pool.count_up(life(0)).unwrap();
    disks[1].write(ByteOffset(0), &old).unwrap();
    assert!(refused(&disks).0.contains("disk1"));
}

#[test]
fn members_of_one_image_agree() {
    let (disks, _) = mirror(2);
    session(&disks, 0);
    let old: Vec<_> = disks.iter().map(image).collect();
    session(&disks, 1);
    for (disk, old) in disks.iter().zip(old) {
        disk.write(ByteOffset(0), &old).unwrap();
    }
    session(&disks, 0);
}

#[test]
fn what_is_blank_or_damaged_says_nothing() {
    let (disks, _) = mirror(3);
    session(&disks, 0);
    let all = usize::from(RawEventCount::SLOTS) * RawEventCount::SECTOR;
    disks[0].write(RawEventCount::AT, &vec![0; all]).unwrap();
    disks[1].write(RawEventCount::AT, &vec![0x5a; all]).unwrap();
    session(&disks, 3);
    // It counts with the others from then on.
    let old = image(&disks[0]);
    session(&disks, 0);
    disks[0].write(ByteOffset(0), &old).unwrap();
    assert!(refused(&disks).0.contains("disk0"));
}

#[test]
fn without_what_is_out_of_date_the_pool_has_a_failed_member() {
    let (disks, _) = mirror(2);
    session(&disks, 0);
    let old = image(&disks[0]);
    let pool = Pool::assemble(disks.clone()).unwrap();
    pool.count_up(life(0)).unwrap();
    pool.write(ByteOffset(0), &[7; 4096]).unwrap();
    pool.flush().unwrap();
    pool.count_up(life(0)).unwrap();
    drop(pool);
    disks[0].write(ByteOffset(0), &old).unwrap();
    let pool = Pool::assemble_degraded(disks.clone()).unwrap();
    assert!(pool.is_provisional());
    pool.commit_degraded().unwrap();
    let mut bytes = [0; 4096];
    for _ in 0..8 {
        pool.read(ByteOffset(0), &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
    }
    assert_eq!(pool.label().members[0].state, MemberState::Failed);
    // It is not used again, and nobody asks for it.
    let pool = Pool::assemble(disks).unwrap();
    assert_eq!(pool.label().members[0].state, MemberState::Failed);
}

#[test]
fn a_stripe_is_refused_until_a_person_accepts_it() {
    let disks = disks(2);
    drop(Pool::create(disks.clone(), &CreateOptions::new("p")).unwrap());
    session(&disks, 0);
    let old = image(&disks[1]);
    session(&disks, 0);
    disks[1].write(ByteOffset(0), &old).unwrap();
    let (members, spared) = refused(&disks);
    assert!(members.contains("disk1") && !spared);
    let degraded = Pool::assemble_degraded(disks.clone()).unwrap_err();
    assert!(matches!(degraded, PoolError::OutOfDate { spared: false, .. }), "{degraded}");
    assert!(degraded.to_string().contains("braid label accept"), "{degraded}");
    let current = image(&disks[0]);
    Pool::assemble_as_they_are(disks.clone()).unwrap().accept_members().unwrap();
    session(&disks, 0);
    // A device from before that word, though it was counted on longest then, is the one that is old.
    disks[0].write(ByteOffset(0), &current).unwrap();
    let (members, _) = refused(&disks);
    assert!(members.contains("disk0") && !members.contains("disk1"), "{members}");
}

/// A bad sector where a count stands closes no pool, costs no member, and makes none look out of date,
/// however often the pool is mounted.
#[test]
fn a_count_that_cannot_be_read_or_written_costs_nothing() {
    for redundancy in [Redundancy::None, Redundancy::Mirror(2)] {
        for (on, nth) in
            [(On::Read, 0), (On::Write, 0), (On::Write, 1), (On::Flush, 0), (On::Flush, 2)]
        {
            let inner = disks(2);
            let faulty = FaultyDevice::new(inner[1].clone(), FaultPlan::default());
            let devices = vec![inner[0].clone(), faulty.clone() as Arc<dyn Device>];
            let options = CreateOptions { redundancy, ..CreateOptions::new("p") };
            let pool = Pool::create(devices, &options).unwrap();
            pool.count_up(life(0)).unwrap();
            for _ in 0..4 {
                faulty.arm(on, nth, FaultKind::Fails);
                pool.count_up(life(0)).unwrap();
                let states = pool.label().members.iter().map(|m| m.state).collect::<Vec<_>>();
                assert_eq!(states, [MemberState::Active; 2]);
                Pool::assemble(inner.clone()).unwrap();
            }
            drop(pool);
            // Once the sector can be written, old images are noticed again.
            let old = image(&inner[0]);
            session(&inner, 0);
            inner[0].write(ByteOffset(0), &old).unwrap();
            assert!(refused(&inner).0.contains("disk0"), "{redundancy:?} {on:?} {nth}");
        }
    }
}

/// Makes a slot's count on a member, which `disk` is, this number.
fn count_of(pool: &Label, disk: &Arc<dyn Device>, member: usize, slot: u16, count: u64) {
    let m = &pool.members[member];
    let of = (pool.pool.into_bytes(), m.uuid.into_bytes(), m.state_epoch.0);
    let mut sector = vec![0; 4096];
    sector[..64].copy_from_slice(RawEventCount::new(of, life(slot), count).as_bytes());
    disk.write(RawEventCount::at(slot).unwrap(), &sector).unwrap();
}

/// Damage of the highest count leaves the lower ones of other slots, which must not speak for the member.
#[test]
fn a_damaged_count_is_unknown_and_not_old() {
    for bit in [0, 33, 8 * 8, 24 * 8, 40 * 8, 48 * 8, 60 * 8] {
        let disks = disks(2);
        drop(Pool::create(disks.clone(), &CreateOptions::new("p")).unwrap());
        session(&disks, 1);
        session(&disks, 0);
        session(&disks, 0);
        let at = RawEventCount::at(0).unwrap();
        let mut sector = vec![0; 4096];
        disks[1].read(at, &mut sector).unwrap();
        sector[bit / 8] ^= 1 << (bit % 8);
        disks[1].write(at, &sector).unwrap();
        session(&disks, 1);
        // A node that stops between two members leaves them one apart, also with the damage.
        let pool = Pool::assemble(disks.clone()).unwrap();
        count_of(&pool.label(), &disks[0], 0, 1, 17);
        drop(pool);
        session(&disks, 2);
        // The others tell what comes after.
        let old = image(&disks[1]);
        session(&disks, 2);
        disks[1].write(ByteOffset(0), &old).unwrap();
        assert!(refused(&disks).0.contains("disk1"), "bit {bit}");
    }
}

/// No node counts that far: such numbers are damage, or somebody's bad will.
#[test]
fn the_highest_numbers_close_no_pool() {
    for count in [u64::MAX, u64::MAX - 1, (1 << 62) + 1, 1 << 62, (1 << 62) - 1] {
        for on in [&[0][..], &[1], &[0, 1]] {
            let (disks, pool) = mirror(2);
            pool.count_up(life(1)).unwrap();
            for member in on {
                count_of(&pool.label(), &disks[*member], *member, 0, count);
            }
            drop(pool);
            if count <= 1 << 62 && on.len() == 1 {
                // Lower ones are of an earlier time, then.
                refused(&disks);
                continue;
            }
            for slot in [1, 0, 2, 0] {
                session(&disks, slot);
            }
        }
    }
}

/// What was counted is not known when no member can be read: counting from zero on would be behind it.
#[test]
fn nothing_is_counted_while_no_member_can_be_read() {
    let inner = disks(2);
    let faulty: Vec<_> =
        inner.iter().map(|d| FaultyDevice::new(d.clone(), FaultPlan::default())).collect();
    let devices = faulty.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let pool = Pool::create(devices, &CreateOptions::new("p")).unwrap();
    pool.count_up(life(1)).unwrap();
    pool.count_up(life(0)).unwrap();
    for disk in &faulty {
        disk.arm(On::Read, 0, FaultKind::Fails);
    }
    faulty[1].arm(On::Write, 0, FaultKind::Fails);
    pool.count_up(life(0)).unwrap();
    drop(pool);
    session(&inner, 0);
}

#[test]
fn a_node_that_has_withdrawn_counts_nothing() {
    let (disks, pool) = mirror(2);
    session(&disks, 0);
    let node = pool.clone().gated();
    let before: Vec<_> = disks.iter().map(image).collect();
    node.close();
    assert!(matches!(node.count_up(life(0)), Err(PoolError::Closed)));
    assert!(disks.iter().zip(before).all(|(d, before)| image(d) == before));
}

/// A member that comes into use again (a spare, one that was emptied) missed what was counted meanwhile.
#[test]
fn counts_from_before_a_member_got_its_state_say_nothing() {
    let (disks, _) = mirror(2);
    session(&disks, 0);
    let old = image(&disks[0]);
    session(&disks, 1);
    disks[0].write(ByteOffset(0), &old).unwrap();
    refused(&disks);
    let pool = Pool::assemble_as_they_are(disks.clone()).unwrap();
    let mut label = pool.label();
    drop(pool);
    label.epoch = Epoch(label.epoch.0 + 1);
    label.members[0].state_epoch = label.epoch;
    for copy in 0..2 {
        write_copies(&disks, &label, copy, &[0, 1]).unwrap();
    }
    Pool::assemble(disks.clone()).unwrap();
    session(&disks, 1);
    session(&disks, 0);
    // From then on it is counted with the others.
    let old = image(&disks[0]);
    session(&disks, 1);
    disks[0].write(ByteOffset(0), &old).unwrap();
    assert!(refused(&disks).0.contains("disk0"));
}

/// Lets a disk go at its `cut`th command of those that count: flush, write, flush, write, flush.
fn cut_at(disk: &FaultyDevice, cut: u64) {
    let on = if cut.is_multiple_of(2) { On::Flush } else { On::Write };
    disk.arm(on, cut / 2, FaultKind::Gone);
}

#[test]
fn no_cut_of_power_makes_a_member_look_out_of_date() {
    const CUTS: u64 = 7;
    for (first, second) in (0..CUTS).flat_map(|a| (0..CUTS).map(move |b| (a, b))) {
        for seed in 0..4 {
            let plan = || FaultPlan { volatile_cache: true, ..FaultPlan::default() };
            let faulty: Vec<_> =
                disks(2).into_iter().map(|d| FaultyDevice::new(d, plan())).collect();
            let devices: Vec<_> = faulty.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
            let pool = Pool::create(devices.clone(), &CreateOptions::new("p")).unwrap();
            pool.count_up(life(0)).unwrap();
            drop(pool);
            // Again and again, in one slot and in another, never a whole count between.
            for round in 0..4 {
                let pool = Pool::assemble(devices.clone());
                let pool = pool.unwrap_or_else(|e| panic!("{first} {second} {seed} {round}: {e}"));
                let turned = round % 2 == usize::from(seed % 2 == 1);
                let cuts = if turned { [first, second] } else { [second, first] };
                for (disk, cut) in faulty.iter().zip(cuts) {
                    cut_at(disk, cut);
                }
                pool.count_up(life(u16::from(round > 1))).ok();
                drop(pool);
                for (disk, salt) in faulty.iter().zip(0..) {
                    disk.crash(seed * 31 + salt).unwrap();
                }
            }
            Pool::assemble(devices).unwrap();
        }
    }
}

#[test]
fn the_counts_end_where_the_data_begins() {
    let end = RawEventCount::at(RawEventCount::SLOTS - 1).unwrap().0 + 4096;
    assert_eq!(end, Label::DATA_AT.0);
}

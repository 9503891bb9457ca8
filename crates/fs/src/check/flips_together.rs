//! Several flipped bits at once, in lock records and in every other kind of sector: one repair leaves
//! nothing for a second one, and what did not need the damaged sectors reads as before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::{BlockNo, ByteOffset, Bytes, NodeId};
use braid_pool::device::{AlignedBuf, Device, MemoryDevice};
use braid_pool::layout::Redundancy;
use braid_pool::{CreateOptions, Pool};

use super::flips::{mount, populate, walk, write};
use super::{CheckOptions, check};
use crate::make::{MakeOptions, make};
use crate::test_volume::Rng;
use crate::volume::Volume;

/// Combinations on each pool, of which a test run tries one in five.
const ROUNDS: u64 = 40;

/// A kind of sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sector {
    /// The lock record of a block of this kind.
    Lock(u16),
    /// Its body.
    Body(u16),
    /// A node's slot.
    Slot,
    Heartbeat,
    /// The first of a journal.
    Journal,
}
impl Sector {
    /// Whether nothing that a file or directory holds can be lost with it.
    fn is_derived(self) -> bool {
        const HELD: [MetaKind; 6] = [
            MetaKind::Dinode,
            MetaKind::Index,
            MetaKind::ExtentLeaf,
            MetaKind::DirLeaf,
            MetaKind::Xattr,
            MetaKind::XattrValue,
        ];
        // A change may be in a journal only.
        !matches!(self, Self::Body(kind) if HELD.iter().any(|k| *k as u16 == kind))
            && self != Self::Journal
    }
}

fn pool(redundancy: Redundancy, members: usize, sector: u64) -> Pool {
    let device = |i| {
        let size = Bytes(if redundancy == Redundancy::None { 40 << 20 } else { 72 << 20 });
        MemoryDevice::new(&format!("t{i}"), size, Bytes(512)) as Arc<dyn Device>
    };
    let lock_sector = Some(Bytes(sector));
    let log_slots = if redundancy == Redundancy::None { 0 } else { 3 };
    let options =
        CreateOptions { redundancy, lock_sector, log_slots, ..CreateOptions::new("together") };
    let pool = Pool::create((0..members).map(device).collect(), &options).unwrap();
    let options =
        MakeOptions { journal_size: Some(2 << 20), nodes: Some(3), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    populate(&pool, 30);
    pool
}

/// Where sectors of each kind begin in the pool.
fn sectors(volume: &Volume) -> BTreeMap<Sector, Vec<ByteOffset>> {
    let mut all: BTreeMap<Sector, Vec<ByteOffset>> = BTreeMap::new();
    let mut body = AlignedBuf::zeroed(volume.geo.body_len());
    for block in (0..volume.total_blocks()).map(BlockNo).filter(|b| volume.holds(*b)) {
        volume.pool.read(volume.body_at(block), &mut body).unwrap();
        if let Ok((_, kind)) = MetaHeader::decode(&body, block) {
            let (lock, body) = (volume.slot_at(block), volume.body_at(block));
            all.entry(Sector::Lock(kind as u16)).or_default().push(lock);
            all.entry(Sector::Body(kind as u16)).or_default().push(body);
        }
    }
    let at = |block: u64| volume.geo.block_size.offset_of(BlockNo(block));
    let sector = volume.geo.lock_sector.get();
    for n in 0..volume.sb.node_slots.get() {
        let nth = |area| at(area) + Bytes(u64::from(n) * sector);
        all.entry(Sector::Slot).or_default().push(nth(volume.sb.slot_area.get()));
        all.entry(Sector::Heartbeat).or_default().push(nth(volume.sb.heartbeat_area.get()));
        all.entry(Sector::Journal).or_default().push(volume.journal(NodeId(n)).0);
    }
    all
}

/// Flips a bit of the sector at `at`, on one copy or column, or on all that the pool reads.
fn hurt(pool: &Pool, at: ByteOffset, copy: Option<u32>, bit: u64) {
    let place = at + Bytes(bit / 8);
    let mask = 1 << (bit % 8);
    let place512 = ByteOffset(place.get() / 512 * 512);
    let mut sector = AlignedBuf::zeroed(512);
    let Some(copy) = copy else {
        pool.read(place512, &mut sector).unwrap();
        sector[Bytes(place.get() % 512).to_usize()] ^= mask;
        return pool.write(place512, &sector).unwrap();
    };
    let member = usize::try_from(copy).unwrap();
    let start = pool.label().members[member].data_start;
    let on_device = ByteOffset(start.get() + place512.get());
    pool.devices()[member].read(on_device, &mut sector).unwrap();
    sector[Bytes(place.get() % 512).to_usize()] ^= mask;
    pool.devices()[member].write(on_device, &sector).unwrap();
}

/// `copies`: each byte of the pool is at the same offset on so many members (a mirror).
fn one_repair(pool: &Pool, copies: u32, seed: u64) {
    damage_and_repair(pool, copies, seed);
}

/// The same of what a node leaves that dies with changes in its journal only.
fn one_repair_after_a_death(pool: &Pool, copies: u32, seed: u64) {
    let fs = mount(pool);
    let dir = fs.lookup(fs.root(), b"wide").unwrap().ino;
    for n in 0..10 {
        write(&fs, dir, format!("late {n}").as_bytes(), &[(0, 5000)]).unwrap();
    }
    fs.sync().unwrap();
    damage_and_repair(&super::tests::copy(pool), copies, seed);
    fs.unmount().unwrap();
}

fn damage_and_repair(pool: &Pool, copies: u32, seed: u64) {
    let volume = Volume::open(pool.clone()).unwrap();
    let before: Vec<Vec<u8>> = super::tests::image(pool);
    let fs = mount(pool);
    let whole = walk(&fs);
    assert!(whole.failed.is_empty(), "{whole:?}");
    fs.unmount().unwrap();
    let sectors = sectors(&volume);
    let kinds: Vec<Sector> = sectors.keys().copied().collect();
    assert!(kinds.len() > 20, "{kinds:?}");
    let locks: Vec<Sector> =
        kinds.iter().copied().filter(|k| matches!(k, Sector::Lock(_))).collect();
    for round in braid_testkit::places(5).take_while(|n| *n < ROUNDS) {
        let mut rng = Rng((seed << 16) | (round + 1));
        for (device, image) in pool.devices().iter().zip(&before) {
            device.write(ByteOffset(0), image).unwrap();
        }
        // Lock records among them in each round, alone in some.
        let mut pick = |of: &[Sector]| of[usize::try_from(rng.below(of.len() as u64)).unwrap()];
        let mut chosen = vec![pick(&locks), pick(&locks)];
        if round % 4 > 0 {
            chosen.extend((0..=round % 4).map(|_| pick(&kinds)));
        }
        // Beside the lock record of the same block, too.
        let beside = round % 3 == 0;
        let mut hit = Vec::new();
        for (n, kind) in chosen.iter().enumerate() {
            let all = &sectors[kind];
            let at = all[usize::try_from(rng.below(all.len() as u64)).unwrap()];
            // Without one sound superblock nothing can be done.
            let superblock = |k: Sector| k == Sector::Body(MetaKind::Superblock as u16);
            if superblock(*kind) && hit.iter().any(|h: &(Sector, _, _, _)| superblock(h.0)) {
                continue;
            }
            let copy = (copies > 1 && round % 2 == 0)
                .then(|| u32::try_from(rng.below(copies.into())).unwrap());
            let bit = rng.below(400) + 64;
            hurt(pool, at, copy, bit);
            hit.push((*kind, at, copy, bit));
            if let (Sector::Lock(of), true, 0) = (*kind, beside, n) {
                let body = at + volume.geo.body_at();
                hurt(pool, body, copy, bit);
                hit.push((Sector::Body(of), body, copy, bit));
            }
        }
        let what = format!("seed {seed}, round {round}: {hit:x?}");
        let found = check(pool.clone(), CheckOptions::default(), &mut |_, _| {}).expect(&what);
        let repair = check(pool.clone(), CheckOptions { repair: true }, &mut |_, _| {});
        let repair = repair.expect(&what);
        assert!(repair.left.is_empty(), "{what}: left {:#?}", repair.left);
        let after = check(pool.clone(), CheckOptions::default(), &mut |_, _| {}).expect(&what);
        let left = &after.problems;
        assert!(left.is_empty(), "{what}: {left:#?} after {repair:#?} found {found:#?}");
        let again = check(pool.clone(), CheckOptions { repair: true }, &mut |_, _| {});
        let again = again.expect(&what);
        assert_eq!(again.repaired, 0, "{what}: {again:#?}");
        let fs = mount(pool);
        let walked = walk(&fs);
        assert!(walked.failed.is_empty(), "{what}: {:?}", walked.failed);
        let sound = hit.iter().all(|(kind, _, copy, _)| copy.is_some() || kind.is_derived());
        if sound {
            assert_eq!(walked.sound, whole.sound, "{what}: {repair:#?}");
            assert!(repair.cut.is_empty(), "{what}: {:#?}", repair.cut);
        } else {
            let lost: BTreeSet<_> = whole.sound.keys().collect();
            let lost = lost.iter().any(|p| walked.sound.get(*p) != whole.sound.get(*p));
            assert!(!lost || !repair.cut.is_empty(), "{what}: lost, and nothing said");
        }
        fs.unmount().unwrap();
    }
}

#[test]
fn one_repair_mends_lock_records_and_whatever_else_is_damaged_in_a_plain_pool() {
    for sector in [512, 4096] {
        one_repair(&pool(Redundancy::None, 2, sector), 1, 7 + sector);
    }
}
#[test]
fn one_repair_mends_lock_records_and_whatever_else_is_damaged_in_a_mirror() {
    for sector in [512, 4096] {
        one_repair(&pool(Redundancy::Mirror(2), 2, sector), 2, 11 + sector);
    }
}
#[test]
fn one_repair_mends_lock_records_and_whatever_else_is_damaged_beside_parity() {
    for sector in [512, 4096] {
        one_repair(&pool(Redundancy::Parity(1), 3, sector), 1, 13 + sector);
    }
}
#[test]
fn one_repair_mends_them_beside_what_a_dead_node_has_left() {
    one_repair_after_a_death(&pool(Redundancy::None, 2, 512), 1, 17);
    one_repair_after_a_death(&pool(Redundancy::Mirror(2), 2, 4096), 2, 19);
}

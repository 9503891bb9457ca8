use std::collections::HashMap;
use std::sync::Arc;

use braid_device::{
    Abilities, Command, Completion, Device, DeviceError, DeviceInfo, FaultKind, FaultPlan,
    FaultyDevice, MemoryDevice, On, Power, ScriptedDevice,
};
use braid_format::label::{Label, MemberState};
use braid_format::redundancy::LogPlace;
use braid_format::{ByteOffset, Bytes, MemberIndex};
use proptest::prelude::*;

use crate::error::PoolError;
use crate::io::PoolRequest;
use crate::layout::group::Shape;
use crate::pool::Pool;
use crate::redundancy::tests::{
    Layout, Step, consistent, devices, dynamic, failed, fails, layouts, pool, steps,
};

const SECTOR: u64 = 512;

fn volatile() -> FaultPlan {
    FaultPlan { volatile_cache: true, ..FaultPlan::default() }
}

/// What sectors may hold after a crash.
#[derive(Default)]
struct Model {
    /// What was written last before the last flush.
    stable: HashMap<u64, u32>,
    /// What was written since.
    fresh: HashMap<u64, Vec<u32>>,
}

/// Content of a sector: names the step that wrote it.
fn content(sector: u64, step: u32) -> [u8; 512] {
    let mut bytes = [0; 512];
    for (i, b) in bytes.chunks_mut(16).enumerate() {
        b[..8].copy_from_slice(&(sector * 31 + i as u64).to_le_bytes());
        b[8..12].copy_from_slice(&step.to_le_bytes());
    }
    bytes
}

fn step_of(sector: u64, bytes: &[u8]) -> Option<u32> {
    let step = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
    if step == 0 {
        return (bytes == [0; 512]).then_some(0);
    }
    (bytes == content(sector, step)).then_some(step)
}

impl Model {
    fn write(&mut self, at: u64, len: u64, step: u32) {
        (at..at + len).for_each(|s| self.fresh.entry(s).or_default().push(step));
    }
    fn flush(&mut self) {
        for (sector, steps) in self.fresh.drain() {
            self.stable.extend(steps.last().map(|s| (sector, *s)));
        }
    }
    /// `lost`: a member went with the crash; then what was under way may be neither old nor new.
    fn check(&self, pool: &Pool, sectors: u64, lost: bool) -> Result<(), TestCaseError> {
        let mut bytes = vec![0; usize::try_from(sectors * SECTOR).unwrap()];
        pool.read(ByteOffset(0), &mut bytes).unwrap();
        for (sector, bytes) in (0..sectors).zip(bytes.chunks(512)) {
            let stable = self.stable.get(&sector).copied().unwrap_or(0);
            let found = step_of(sector, bytes);
            let Some(fresh) = self.fresh.get(&sector) else {
                prop_assert_eq!(found, Some(stable), "sector {} was durable", sector);
                continue;
            };
            let one_of = found.is_some_and(|f| f == stable || fresh.contains(&f));
            prop_assert!(one_of || lost, "sector {sector}: {found:?} of {stable}, {fresh:?}");
        }
        Ok(())
    }
}

/// The pool's label with the members in `gone` out of it, as an assembly without them would have.
fn without(mut label: Label, gone: &[usize]) -> Label {
    for i in gone {
        label.members[*i].state = MemberState::Failed;
    }
    label
}

/// Runs the steps, until one fails.
fn run(pool: &Pool, model: &mut Model, steps: &[Step]) -> Result<(), PoolError> {
    for (i, step) in (1_u32..).zip(steps) {
        match step {
            Step::Write(runs) => {
                // One step writes no sector twice: there is no order among its requests.
                let mut buffers: Vec<(u64, Vec<u8>)> = Vec::new();
                let mut seen = std::collections::HashSet::new();
                for (at, len) in runs {
                    if (*at..at + len).all(|s| seen.insert(s)) {
                        let bytes = (*at..at + len).flat_map(|s| content(s, i)).collect();
                        buffers.push((*at, bytes));
                        model.write(*at, *len, i);
                    }
                }
                let mut batch: Vec<PoolRequest<'_>> = buffers
                    .iter()
                    .map(|(at, b)| PoolRequest::write(ByteOffset(at * SECTOR), b))
                    .collect();
                pool.run(&mut batch);
                for r in batch {
                    r.result?;
                }
            }
            Step::Read(at, len) => {
                let mut back = vec![0; usize::try_from(len * SECTOR).unwrap()];
                pool.read(ByteOffset(at * SECTOR), &mut back)?;
            }
            Step::Discard(at, len) => {
                model.write(*at, *len, 0);
                pool.discard(ByteOffset(at * SECTOR), Bytes(len * SECTOR))?;
                let mut back = vec![0; usize::try_from(len * SECTOR).unwrap()];
                pool.read(ByteOffset(at * SECTOR), &mut back)?;
                for (sector, bytes) in (*at..).zip(back.chunks(512)) {
                    if bytes.iter().any(|b| *b != 0) {
                        model.fresh.entry(sector).or_default().pop();
                    }
                }
            }
            Step::Flush => {
                pool.flush()?;
                model.flush();
            }
        }
    }
    Ok(())
}

fn layout_spare(n: usize, layout: Layout) -> usize {
    match layout {
        Layout::Mirror => n - 1,
        Layout::Parity(p) | Layout::MirrorThenParity(p) => usize::from(p),
        Layout::StripedMirrors => 1,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Power goes at any write of any member, each member's cache losing what it likes; perhaps a
    /// member does not come back, or was lost before. After recovery every durable sector is
    /// there, and copies and parity agree.
    #[test]
    fn a_power_cut_at_any_write_loses_nothing_durable(
        (n, layout) in layouts(),
        steps in steps(3000),
        cut in 0_u64..400,
        on in any::<prop::sample::Index>(),
        gone in prop::option::of(any::<prop::sample::Index>()),
        before in prop::option::of(any::<prop::sample::Index>()),
        seed in any::<u64>(),
        again in any::<bool>(),
    ) {
        let all = devices(n, |_| volatile());
        let mut spare = layout_spare(n, layout);
        let lost_before: Vec<usize> =
            before.iter().map(|b| b.index(n)).take(spare.min(1)).collect();
        spare -= lost_before.len();
        let label = without(pool(&all, layout).label(), &lost_before);
        let power = Power::on();
        let powered = |d: &Arc<FaultyDevice>| {
            ScriptedDevice::powered(d.clone(), &power) as Arc<dyn Device>
        };
        let pool = Pool::open(all.iter().map(powered).collect(), label.clone()).unwrap();
        let mut model = Model::default();
        pool.attach(1).unwrap();
        pool.flush().unwrap();
        power.cut_after(cut);
        let ended = run(&pool, &mut model, &steps);
        prop_assert!(ended.is_ok() || !power.is_on(), "{ended:?}");
        drop(pool);
        for (i, d) in (0_u64..).zip(&all) {
            d.crash(seed ^ (i * 0x9E37_79B9)).unwrap();
        }
        let mut away = lost_before.clone();
        away.extend(gone.iter().map(|g| g.index(n)).filter(|g| !lost_before.contains(g)).take(spare));
        let lost_now = away.len() > lost_before.len() || !lost_before.is_empty();
        let pool = Pool::open(dynamic(&all), without(label.clone(), &away)).unwrap();
        if again {
            // The recoverer dies, too.
            let other = &all[on.index(n)];
            other.arm(On::Write, cut % 7, FaultKind::Gone);
            let _ = pool.recover_log(1);
            let label = pool.label();
            drop(pool);
            other.heal();
            let pool = Pool::open(dynamic(&all), label).unwrap();
            pool.recover_log(1).unwrap();
            model.check(&pool, 3000, lost_now || !failed(&pool).is_empty())?;
            consistent(&pool, &all);
        } else {
            pool.recover_log(1).unwrap();
            model.check(&pool, 3000, lost_now)?;
            consistent(&pool, &all);
            prop_assert_eq!(pool.recover_log(1).unwrap().records, 0, "the log is empty now");
        }
    }
}

#[test]
fn a_clean_end_leaves_nothing_to_recover() {
    for layout in [Layout::Mirror, Layout::Parity(1), Layout::Parity(2)] {
        let all = devices(4, |_| FaultPlan::default());
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        for i in 0..50 {
            pool.write(ByteOffset(i * 3 * SECTOR), &content(i, 7)).unwrap();
        }
        pool.detach().unwrap();
        let r = pool.recover_log(0).unwrap();
        assert_eq!((r.records, r.regions), (0, 0), "{layout:?}");
        assert!(matches!(pool.attach(2), Err(PoolError::NoLog { slot: 2, slots: 2 })));
    }
}

#[test]
fn partial_rows_go_through_the_log_and_full_rows_do_not() {
    let all = devices(4, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    pool.attach(0).unwrap();
    let row = 3 * 4096;
    pool.write(ByteOffset(0), &vec![1; row]).unwrap();
    assert_eq!(pool.recover_log(0).unwrap().records, 0);
    pool.attach(0).unwrap();
    pool.write(ByteOffset(0), &[2; 512]).unwrap();
    pool.write(ByteOffset(1024), &[3; 512]).unwrap();
    // A full row behind a logged one: it must not be undone by the record.
    pool.write(ByteOffset(0), &vec![4; row]).unwrap();
    let recovered = pool.recover_log(0).unwrap();
    assert!(recovered.regions == 1 && recovered.records >= 2, "{recovered:?}");
    let mut back = vec![0; row];
    pool.read(ByteOffset(0), &mut back).unwrap();
    assert!(back.iter().all(|b| *b == 4));
    consistent(&pool, &all);
}

#[test]
fn the_ring_turns_many_times() {
    let all = devices(4, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    pool.attach(0).unwrap();
    let writes = 3 * LogPlace::RING / (8 << 10);
    std::thread::scope(|s| {
        for t in 0..3_u64 {
            let pool = &pool;
            s.spawn(move || {
                for i in 0..writes / 3 {
                    let at = (t * 80 + i % 80) * SECTOR;
                    pool.write(
                        ByteOffset(at),
                        &content(at / SECTOR, u32::try_from(i).unwrap() + 1),
                    )
                    .unwrap();
                }
            });
        }
    });
    consistent(&pool, &all);
    pool.recover_log(0).unwrap();
    consistent(&pool, &all);
    for sector in 0..240 {
        let mut back = [0; 512];
        pool.read(ByteOffset(sector * SECTOR), &mut back).unwrap();
        assert!(step_of(sector, &back).is_some_and(|s| s != 0), "sector {sector}");
    }
}

#[test]
fn a_member_that_fails_under_the_log_moves_the_log() {
    for layout in [Layout::Mirror, Layout::Parity(1)] {
        let all = devices(4, |i| {
            if i == 0 { fails(On::Write, 40, FaultKind::Gone) } else { FaultPlan::default() }
        });
        let pool = pool(&all, layout);
        pool.attach(0).unwrap();
        for i in 0..100 {
            pool.write(ByteOffset(i * 5 * SECTOR), &content(i * 5, 9)).unwrap();
        }
        assert_eq!(failed(&pool), [0], "{layout:?}");
        // The log says enough without the member that was its first home.
        let label = pool.label();
        let again = Pool::open(dynamic(&all), label).unwrap();
        assert!(again.recover_log(0).unwrap().regions > 0);
        for i in 0..100 {
            let mut back = [0; 512];
            again.read(ByteOffset(i * 5 * SECTOR), &mut back).unwrap();
            assert_eq!(back, content(i * 5, 9));
        }
        consistent(&again, &all);
    }
}

#[test]
fn copies_that_differ_after_a_crash_are_made_equal() {
    let all = devices(3, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Mirror);
    pool.attach(0).unwrap();
    pool.write(ByteOffset(0), &vec![5; 64 << 10]).unwrap();
    let (member, at) = pool.map().locate(ByteOffset(0)).unwrap();
    assert_eq!(member, MemberIndex(0));
    // Copy 1 did not get the last write.
    all[1].inner().write(at, &[6; 4096]).unwrap();
    let recovered = pool.recover_log(0).unwrap();
    assert_eq!(recovered.repaired.0, 4096);
    assert!(pool.0.epochs.read().map.groups().iter().all(|g| g.shape == Shape::Mirror));
    consistent(&pool, &all);
}

#[test]
fn damaged_log_sectors_are_no_harm() {
    let all = devices(3, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    pool.attach(0).unwrap();
    pool.write(ByteOffset(0), &[1; 512]).unwrap();
    let place = LogPlace::of_slot(0, ByteOffset(u64::MAX >> 1)).unwrap();
    // Every copy of the intents is torn: all regions count as noted.
    for d in &all {
        d.inner().write(ByteOffset(place.intents(0).0 + 512), &[0xA5; 512]).unwrap();
        d.inner().write(place.ring(0), &[0x5A; 4096]).unwrap();
    }
    let recovered = pool.recover_log(0).unwrap();
    assert!(recovered.regions >= 1);
    consistent(&pool, &all);
}

/// Records that were written together with one that is torn stand whole behind it. They were never
/// acknowledged, and must not come back when the ring has grown up to them again.
#[test]
fn what_stands_behind_a_torn_record_never_counts_again() {
    let all = devices(4, |_| FaultPlan::default());
    let before = pool(&all, Layout::Parity(1));
    let (label, row) = (before.label(), 3 * 4096);
    before.attach(0).unwrap();
    for r in 0..3 {
        before.write(ByteOffset(r * row), &[1; 512]).unwrap();
    }
    let place = LogPlace::of_slot(0, ByteOffset(u64::MAX >> 1)).unwrap();
    for d in &all {
        d.inner().write(place.ring(0), &[0x5A; 512]).unwrap();
    }
    let after = Pool::open(dynamic(&all), label.clone()).unwrap();
    assert_eq!(after.attach(0).unwrap().records, 0);
    // As long as the first two records were; then a row of its own over the third's.
    after.write(ByteOffset(5 * row), &[2; 2048]).unwrap();
    after.write(ByteOffset(2 * row), &vec![3; usize::try_from(row).unwrap()]).unwrap();
    after.flush().unwrap();
    let last = Pool::open(dynamic(&all), label).unwrap();
    assert_eq!(last.recover_log(0).unwrap().records, 1);
    let mut back = vec![0; usize::try_from(row).unwrap()];
    last.read(ByteOffset(2 * row), &mut back).unwrap();
    assert!(back.iter().all(|b| *b == 3));
    consistent(&last, &all);
}

/// A forger who writes the highest possible numbers, with good checksums, stops nobody.
#[test]
fn numbers_of_nonsense_in_a_log_are_damage() {
    use braid_format::crc::crc32c_with_hole;
    use braid_format::redundancy::{RawIntents, RawRedoHeader};
    use zerocopy::{FromBytes, IntoBytes};
    let all = devices(3, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    pool.attach(0).unwrap();
    pool.write(ByteOffset(0), &[1; 512]).unwrap();
    let place = LogPlace::of_slot(0, ByteOffset(u64::MAX >> 1)).unwrap();
    for d in &all {
        let mut sector = vec![0; LogPlace::SECTOR];
        d.inner().read(place.intents(0), &mut sector).unwrap();
        let (raw, _) = RawIntents::mut_from_prefix(&mut sector).unwrap();
        raw.sequence.set(u64::MAX);
        raw.crc.set(crc32c_with_hole(raw.as_bytes(), RawIntents::CRC_AT));
        d.inner().write(place.intents(0), &sector).unwrap();
        for copy in 0..2 {
            d.inner().read(place.redo_header(copy), &mut sector).unwrap();
            let (raw, _) = RawRedoHeader::mut_from_prefix(&mut sector).unwrap();
            raw.generation.set(u64::MAX);
            raw.tail_sequence.set(u64::MAX);
            let crc = crc32c_with_hole(&sector, RawRedoHeader::CRC_AT);
            let (raw, _) = RawRedoHeader::mut_from_prefix(&mut sector).unwrap();
            raw.crc.set(crc);
            d.inner().write(place.redo_header(copy), &sector).unwrap();
        }
    }
    assert!(pool.recover_log(0).unwrap().regions >= 1);
    consistent(&pool, &all);
    pool.attach(0).unwrap();
    pool.write(ByteOffset(0), &[2; 512]).unwrap();
    assert_eq!(pool.recover_log(0).unwrap().records, 1);
}

#[test]
fn members_that_were_homes_once_keep_no_notes() {
    let all = devices(4, |_| FaultPlan::default());
    let pool = pool(&all, Layout::Parity(1));
    pool.attach(0).unwrap();
    pool.write(ByteOffset(0), &content(0, 1)).unwrap();
    // The log moves to a third member, and back when the first is filled.
    pool.fail_member(MemberIndex(0)).unwrap();
    pool.write(ByteOffset(SECTOR), &content(1, 2)).unwrap();
    let new = devices(1, |_| FaultPlan::default()).remove(0);
    pool.replace(MemberIndex(0), new, false).unwrap();
    assert!(pool.rebuild(MemberIndex(0), &|_| true).unwrap());
    pool.detach().unwrap();
    let recovered = pool.recover_log(0).unwrap();
    assert_eq!((recovered.records, recovered.regions), (0, 0));
}

/// A device of any size that holds what was written to it, and what is seen of it.
#[derive(Debug, Clone)]
struct Sparse {
    info: DeviceInfo,
    chunks: Arc<parking_lot::Mutex<HashMap<u64, Vec<u8>>>>,
    bytes: Arc<MemoryDevice>,
}

impl Sparse {
    const CHUNK: u64 = 64 << 10;

    fn new(name: &str, size: u64) -> Self {
        // Sectors of the log's size: none is torn, and so none says that anything may have been noted.
        let bytes = MemoryDevice::new(name, Bytes(1 << 20), Bytes(4096));
        let info = DeviceInfo { size: Bytes(size), ..bytes.info().clone() };
        Self { info, chunks: Arc::default(), bytes }
    }
    /// The same bytes, and a quarter more.
    fn enlarged(&self) -> Self {
        let size = Bytes(self.info.size.0 / 4 * 5);
        let chunks = Arc::new(parking_lot::Mutex::new(self.chunks.lock().clone()));
        let info = DeviceInfo { size, ..self.info.clone() };
        Self { info, chunks, bytes: self.bytes.clone() }
    }
    /// Calls `each` with a run of a chunk, and of `len` bytes from `at`.
    fn each(at: u64, len: usize, mut each: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let here = at + done as u64;
            let within = usize::try_from(here % Self::CHUNK).unwrap();
            let now = (len - done).min(usize::try_from(Self::CHUNK).unwrap() - within);
            each(here / Self::CHUNK, within, done..done + now);
            done += now;
        }
    }
}

impl Sparse {
    fn fill(&self, at: ByteOffset, buf: &mut [u8]) {
        let chunks = self.chunks.lock();
        Self::each(at.0, buf.len(), |chunk, within, run| match chunks.get(&chunk) {
            Some(c) => buf[run.clone()].copy_from_slice(&c[within..within + run.len()]),
            None => buf[run].fill(0),
        });
    }
    fn store(&self, at: ByteOffset, buf: &[u8]) {
        let mut chunks = self.chunks.lock();
        Self::each(at.0, buf.len(), |chunk, within, run| {
            let zeros = || vec![0; usize::try_from(Self::CHUNK).unwrap()];
            let c = chunks.entry(chunk).or_insert_with(zeros);
            c[within..within + run.len()].copy_from_slice(&buf[run]);
        });
    }
}

impl Device for Sparse {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        match command {
            Command::Read(buf) => self.fill(at, buf),
            Command::Write(buf) => self.store(at, buf),
            Command::CompareAndWrite { expected, new } => {
                let mut now = vec![0; new.len()];
                self.fill(at, &mut now);
                if now != expected {
                    return Ok(Completion::Mismatch(now));
                }
                self.store(at, new);
            }
            Command::WriteZeroes(len) => self.store(at, &vec![0; len.to_usize()]),
            Command::Deallocate(_) => return Ok(Completion::Unsupported),
            Command::Flush | Command::Discard(_) => {}
        }
        Ok(Completion::Done)
    }
    fn abilities(&self) -> Abilities<'_> {
        self.bytes.abilities()
    }
}

/// A pool becomes so large that its regions do, and so get other numbers: at every write of that all
/// that was noted is.
#[test]
fn power_may_be_cut_at_any_write_while_regions_get_other_numbers() {
    const TIB: u64 = 1 << 40;
    let small = [0, 1].map(|i| Sparse::new(&format!("d{i}"), 7 * TIB));
    let options = crate::assembly::create::CreateOptions {
        redundancy: crate::layout::Redundancy::Mirror(2),
        log_slots: 2,
        ..crate::assembly::create::CreateOptions::new("large")
    };
    let boxed =
        |all: &[Sparse]| all.iter().map(|d| Arc::new(d.clone()) as Arc<dyn Device>).collect();
    drop(Pool::create(boxed(&small), &options).unwrap());
    // In the first sector of notes, in the middle, and in the last that there is.
    let places = [TIB / 4, 2 * TIB, 4 * TIB, 7 * TIB - (1 << 30)].map(ByteOffset);
    let mut grown_and_cut = 0;
    for cut in 0.. {
        let all: Vec<Arc<FaultyDevice>> =
            small.iter().map(|d| FaultyDevice::new(Arc::new(d.enlarged()), volatile())).collect();
        let power = Power::on();
        let powered =
            |d: &Arc<FaultyDevice>| ScriptedDevice::powered(d.clone(), &power) as Arc<dyn Device>;
        let live: Vec<Arc<dyn Device>> = all.iter().map(powered).collect();
        let pool = Pool::assemble(live.clone()).unwrap();
        let before = pool.info().size;
        pool.attach(1).unwrap();
        for at in places {
            pool.write(at, &[1; 4096]).unwrap();
        }
        power.cut_after(cut);
        let reopen = |name: &str| Ok(live.iter().find(|d| d.info().name == name).unwrap().clone());
        let done = pool.grow(&reopen).is_ok();
        let over = power.is_on();
        let start = pool.label().members[1].data_start;
        drop(pool);
        for (d, salt) in all.iter().zip(0..) {
            d.crash(cut * 31 + salt).unwrap();
        }
        // The second copy did not get what the first did.
        for at in places {
            all[1].write(start + Bytes(at.0), &[2; 4096]).unwrap();
        }
        let pool = Pool::assemble(dynamic(&all)).unwrap();
        let grown = pool.info().size > before;
        assert!(grown || !done);
        grown_and_cut += u32::from(grown && !over);
        let whole = pool.recover_log(1).unwrap();
        assert_eq!(whole.repaired, Bytes(4 * 4096), "cut at {cut}, grown: {grown}");
        // The log is empty now, wherever it was written.
        assert_eq!(pool.recover_log(1).unwrap().regions, 0, "cut at {cut}");
        if over {
            break;
        }
    }
    assert!(grown_and_cut > 20, "{grown_and_cut}");
}

//! Whether the contents of a device agree with the member that it is said to be. It reads samples
//! only, for a second or two in all.
//!
//! Three things say something:
//! * a metadata slot names the block that it stands on, and so the member (`sample_plan` knows
//!   where slots are);
//! * copies of a mirror are equal, and parity rows add up, except in a few places after a crash or
//!   rot;
//! * lock records that nobody has used yet begin with the file system's identity.
//!
//! The majority decides; places that hold only zeros say nothing. Two things cannot be told this
//! way. One is which of two copies of a mirror a device is; that does not matter. The other is
//! whether two data columns of a group with one parity have changed places, because the sum is the
//! same, unless metadata stands on them in different places.

mod sample_plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::{AlignedBuf, Device};
use braid_format::label::Label;
use braid_format::lock_record::{LockRecord, RawLockRecord};
use braid_format::meta::MetaHeader;
use braid_format::{ByteOffset, LockNo, MemberIndex};
use zerocopy::FromBytes;

use super::member_verify::sample_plan::{
    Known, LOOK, Placement, SamplePlan, Table, look, placement, thin,
};
use crate::labels::counts;
use crate::layout::group::Shape;
use crate::layout::map::Map;
use crate::redundancy::parity;

/// Most metadata slots looked at on one device.
const SLOTS_MAX: usize = 96;
/// Most places of file data.
const DATA_MAX: usize = 64;
/// For all devices together.
const TIME: Duration = Duration::from_secs(2);
/// Places looked at however long it takes.
const LEAST: usize = 8;
/// As many unused records with one nonce are of one file system.
const ALIKE: usize = 3;

/// What samples of a device's contents say of the member that it is said to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SampleReport {
    /// Places that agree with it.
    pub agree: u32,
    /// Places that contradict it.
    pub against: u32,
    /// Places where something should stand, and zeros do.
    pub blank: u32,
    /// Members whose contents those that contradict it are.
    pub looks_like: Vec<MemberIndex>,
    /// It has records of another file system.
    pub foreign: bool,
    /// Nothing was compared: the pool does not use the member.
    pub unused: bool,
}

impl SampleReport {
    /// Whether most of what was found contradicts it.
    pub const fn contradicts(&self) -> bool {
        self.foreign || self.against > self.agree
    }
    /// Whether nothing was found that says anything.
    pub const fn says_nothing(&self) -> bool {
        self.agree == 0 && self.against == 0
    }
    /// What it looks like, as the rest of a sentence; empty: like nothing known.
    pub fn likeness(&self) -> String {
        let all: Vec<String> = self.looks_like.iter().map(ToString::to_string).collect();
        match all.as_slice() {
            [] if self.foreign => "; it looks like a member of another pool".to_owned(),
            [] => String::new(),
            some => format!("; it looks like member {}", some.join(" or ")),
        }
    }
}

/// Judges devices, each said to be a member, beside `others`, of which that is known. In the order of
/// `claims`.
pub(crate) fn verify_members(
    label: &Label,
    others: &[(MemberIndex, Arc<dyn Device>)],
    claims: &[(MemberIndex, Arc<dyn Device>)],
) -> Vec<SampleReport> {
    let Ok(map) = Map::new(label) else { return vec![SampleReport::default(); claims.len()] };
    let used = |m: MemberIndex| label.members.get(usize::from(m.0)).is_some_and(counts);
    let table = |of: &mut dyn Iterator<Item = &(MemberIndex, Arc<dyn Device>)>| {
        let mut table: Table = vec![None; label.members.len()];
        for (member, device) in of.filter(|(m, _)| used(*m)) {
            if let Some(place) = table.get_mut(usize::from(member.0)) {
                *place = Some(device.clone());
            }
        }
        table
    };
    let known = table(&mut others.iter());
    let all = table(&mut others.iter().chain(claims));
    let more: Vec<Arc<dyn Device>> = claims.iter().map(|(_, d)| d.clone()).collect();
    let until = Instant::now() + TIME / 2;
    let plan = SamplePlan::new(label, &map, &all, &more, until);
    let parts = u32::try_from(claims.len() * 2).unwrap_or(u32::MAX).max(1);
    let verified = |table: &Table| -> Vec<SampleReport> {
        let one = |(member, device): &(MemberIndex, Arc<dyn Device>)| {
            if !used(*member) {
                return SampleReport { unused: true, ..SampleReport::default() };
            }
            let until = Instant::now() + TIME / 2 / parts;
            let plan = plan.as_ref();
            MemberCheck { map: &map, table, plan, device, member: *member }.run(until)
        };
        claims.iter().map(one).collect()
    };
    // First beside what is known; what was only said may be as wrong as this.
    let first = verified(&known);
    if claims.len() == 1 || first.iter().any(SampleReport::contradicts) {
        return first;
    }
    let foreign = first.iter().map(|f| f.foreign);
    verified(&all)
        .into_iter()
        .zip(foreign)
        .map(|(e, f)| SampleReport { foreign: e.foreign || f, ..e })
        .collect()
}

/// One device, and who it is said to be.
struct MemberCheck<'a> {
    map: &'a Map,
    table: &'a Table,
    plan: Option<&'a SamplePlan>,
    device: &'a Arc<dyn Device>,
    member: MemberIndex,
}

/// What one place says.
enum SampleResult {
    Nothing,
    Blank,
    Agrees,
    Disagrees,
}

impl MemberCheck<'_> {
    fn run(&self, until: Instant) -> SampleReport {
        let mut found = SampleReport::default();
        let Some(plan) = self.plan else { return found };
        let mine = |kind: fn(&Known) -> bool, most| {
            let here =
                |at: &ByteOffset| placement(self.map, *at).is_some_and(|s| self.concerns(&s));
            let all = plan.known.iter().filter(|(_, k)| kind(k)).filter(|(at, _)| here(at));
            let all: Vec<(ByteOffset, Known)> = all.copied().collect();
            thin(&all, most).collect::<Vec<_>>()
        };
        let slots = mine(|k| *k != Known::Data, SLOTS_MAX);
        let data = mine(|k| *k == Known::Data, DATA_MAX);
        let (mut likes, mut nonces) = (BTreeMap::new(), BTreeMap::new());
        // By turns, so that what is looked at before the time is over is of both, and of everywhere.
        let (mut slots, mut data) = (scattered(slots), scattered(data));
        for n in 0_usize.. {
            let slot = slots.next();
            let Some((at, kind)) = slot.or_else(|| data.next()) else { break };
            if n >= LEAST && Instant::now() >= until {
                break;
            }
            let said = match kind {
                Known::Slot(fixed) => self.slot(plan, at, fixed, &mut likes, &mut nonces),
                Known::Data => self.data(at),
            };
            match said {
                SampleResult::Nothing => {}
                SampleResult::Blank => found.blank += 1,
                SampleResult::Agrees => found.agree += 1,
                SampleResult::Disagrees => found.against += 1,
            }
        }
        let own = nonces.remove(&plan.nonce).unwrap_or(0);
        found.foreign = nonces.values().any(|n| *n >= ALIKE && *n > own);
        if found.foreign {
            // In their places, but somebody else's.
            found.against += std::mem::take(&mut found.agree);
        }
        let most = likes.values().max().copied().unwrap_or(0);
        if found.contradicts() {
            found.looks_like = likes.iter().filter(|(_, n)| **n == most).map(|(m, _)| *m).collect();
        }
        found
    }

    /// Whether a place has something to do with the member.
    fn concerns(&self, placement: &Placement) -> bool {
        match placement.parity {
            Some((group, _)) => self.map.group(group).members().any(|m| m == self.member),
            None => placement.copies.iter().any(|(m, _)| *m == self.member),
        }
    }

    /// A metadata slot.
    fn slot(
        &self,
        plan: &SamplePlan,
        at: ByteOffset,
        fixed: bool,
        likes: &mut BTreeMap<MemberIndex, usize>,
        nonces: &mut BTreeMap<u64, usize>,
    ) -> SampleResult {
        let Some(Placement { copies, parity: None }) = placement(self.map, at) else {
            return SampleResult::Nothing;
        };
        let mine = copies.iter().find(|(m, _)| *m == self.member);
        let Some(bytes) = mine.and_then(|(_, place)| look(&**self.device, *place, LOOK)) else {
            return SampleResult::Nothing;
        };
        let block_size = plan.geo.block_size.bytes().0;
        let sign = sign(&bytes, plan);
        if let Some((block, nonce)) = sign {
            if block != at.0 / block_size {
                let place = mine.map(|(_, place)| *place);
                let resolved = block.checked_mul(block_size).map(ByteOffset);
                let resolved = resolved.and_then(|at| placement(self.map, at)).map(|s| s.copies);
                for (member, _) in
                    resolved.unwrap_or_default().iter().filter(|(_, p)| Some(*p) == place)
                {
                    *likes.entry(*member).or_default() += 1;
                }
                return SampleResult::Disagrees;
            }
            if let Some(nonce) = nonce.filter(|_| fixed) {
                *nonces.entry(nonce).or_default() += 1;
            }
        }
        match self.compare_copies(&bytes, &copies) {
            SampleResult::Nothing if sign.is_some() => SampleResult::Agrees,
            SampleResult::Nothing if is_zero(&bytes) => SampleResult::Blank,
            SampleResult::Nothing => SampleResult::Disagrees,
            said => said,
        }
    }

    /// The same bytes on the other copies.
    fn compare_copies(&self, bytes: &[u8], copies: &[(MemberIndex, ByteOffset)]) -> SampleResult {
        let others = copies.iter().filter(|(m, _)| *m != self.member);
        let others: Vec<AlignedBuf> = others
            .filter_map(|(m, place)| {
                let device = self.table.get(usize::from(m.0))?.as_ref()?;
                look(&**device, *place, LOOK)
            })
            .collect();
        if others.is_empty() || (is_zero(bytes) && others.iter().all(|o| is_zero(o))) {
            return SampleResult::Nothing;
        }
        if others.iter().any(|o| **o == *bytes) {
            SampleResult::Agrees
        } else {
            SampleResult::Disagrees
        }
    }

    /// A place of file data.
    fn data(&self, at: ByteOffset) -> SampleResult {
        let Some(Placement { copies, parity }) = placement(self.map, at) else {
            return SampleResult::Nothing;
        };
        if let Some((group, offset)) = parity {
            return self.row(group, offset).unwrap_or(SampleResult::Nothing);
        }
        let mine = copies.iter().find(|(m, _)| *m == self.member);
        let bytes = mine.and_then(|(_, place)| look(&**self.device, *place, LOOK));
        bytes.map_or(SampleResult::Nothing, |bytes| self.compare_copies(&bytes, &copies))
    }

    /// A piece of a row of parity, of which all columns are at hand.
    fn row(&self, group: u16, offset: u64) -> Option<SampleResult> {
        let group = self.map.group(group);
        let Shape::Parity { unit, parity } = group.shape else { return None };
        let piece = group.units(offset, 1).next()?;
        let columns = group.columns.len();
        let all = (0..columns).map(|place| {
            let column = group.column_of(piece.row, place);
            let (member, at) = group.at(column, piece.row * unit + piece.within);
            let device = match self.table.get(usize::from(member.0))? {
                _ if member == self.member => self.device,
                device => device.as_ref()?,
            };
            look(&**device, at, LOOK)
        });
        let all = all.collect::<Option<Vec<AlignedBuf>>>()?;
        if all.iter().all(|c| is_zero(c)) {
            return None;
        }
        let (data, sums) = all.split_at(columns - parity);
        let data: Vec<&[u8]> = data.iter().map(|d| &**d).collect();
        let (mut p, mut q) = (vec![0; LOOK.to_usize()], vec![0; LOOK.to_usize()]);
        parity::encode(&data, &mut p, (parity > 1).then_some(&mut q));
        let good = sums.iter().zip([p, q]).all(|(found, sum)| **found == *sum);
        Some(if good { SampleResult::Agrees } else { SampleResult::Disagrees })
    }
}

/// The block that a metadata slot says it stands on, and the nonce of its lock record if that was
/// never changed since the slot was made.
fn sign(slot: &[u8], plan: &SamplePlan) -> Option<(u64, Option<u64>)> {
    let sector = plan.geo.lock_sector.to_usize();
    let (raw, _) = RawLockRecord::read_from_prefix(slot).ok()?;
    let record = LockRecord::decode(slot.get(..sector)?, LockNo(raw.lock.get()));
    if let Ok(record) = record {
        let idle = record.version == 0 && record.holders.is_empty();
        return Some((record.lock.0, idle.then_some(record.nonce)));
    }
    // Where lock records are elsewhere. A checksum would need all of the slot; the majority counts.
    let (header, _) = MetaHeader::read_from_prefix(slot.get(sector..)?).ok()?;
    (header.magic.get() == MetaHeader::MAGIC).then_some((header.block.get(), None))
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

/// All of them, each far from the one before.
fn scattered<T: Copy>(all: Vec<T>) -> impl Iterator<Item = T> {
    let stride = (all.len() / 7).max(1);
    let order: Vec<usize> =
        (0..stride).flat_map(|from| (from..all.len()).step_by(stride)).collect();
    order.into_iter().filter_map(move |i| all.get(i).copied())
}

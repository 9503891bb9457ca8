//! The devices: bytes in a volatile cache, and bytes that are stable.
//!
//! A write changes what everybody reads at the moment it lands, and is stable after the next flush
//! of its device, by whomever. Until then a power cut may lose it, or tear it between sectors.
//! Writes by a node's journal and metadata cache may also be lost, torn or late when that node
//! dies, as if they had still been in flight: whoever waits for a flush waits for both.

use std::sync::Arc;

use braid_format::lock_record::LockRecord;
use braid_format::node::SlotRecord;
use braid_format::{ByteOffset, Generation, NodeId};
use braid_pool::device::{Device, MemoryDevice};

use crate::image::{BLOCKS, BlockIndex, Image, Place, SECTORS, SLOTS};
use crate::random::Random;
use crate::world::Pid;

/// What a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Lock(usize),
    Slot(u16),
    Slots,
    Beat(u16),
    /// Journals and metadata: place and length.
    Data(Place, usize),
    /// A whole device, to be flushed.
    Device(u16),
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write(Vec<u8>),
    CompareAndWrite { expected: Vec<u8>, new: Vec<u8> },
    Flush,
}
impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write(_) => "write",
            Self::CompareAndWrite { .. } => "compare-and-write",
            Self::Flush => "flush",
        })
    }
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Bytes for a read; of `Slots`, slots then beats.
    Done(Vec<u8>),
    Mismatch(Vec<u8>),
    Failed,
    /// Refused: its issuer was fenced.
    Fenced,
}
impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Done(_) => "done",
            Self::Mismatch(_) => "mismatch",
            Self::Failed => "failed",
            Self::Fenced => "fenced",
        })
    }
}

/// In place of a device, where lock records and slots stand in etcd.
pub(crate) const ETCD: u16 = u16::MAX;

/// Bytes of a record, and the smallest part of a write that survives by itself.
pub(crate) const LEN: usize = 512;

/// A write that has landed and is not stable.
#[derive(Debug)]
struct Cached {
    pid: Pid,
    at: u64,
    bytes: Vec<u8>,
    /// Of a journal or of metadata: it may be lost with its node.
    data: bool,
    /// By a compare-and-write: it is stable when only its device loses power.
    compared: bool,
}

#[derive(Debug)]
struct Media {
    /// What is read.
    seen: Arc<MemoryDevice>,
    /// What is left without power.
    stable: Arc<MemoryDevice>,
    cached: Vec<Cached>,
}

impl Media {
    /// What is read is what is stable. (Elsewhere than at unstable writes it is anyway, and a new copy
    /// of the device would cost much more.)
    fn forget_unstable(&self) {
        for cached in &self.cached {
            write(&self.seen, cached.at, &read(&self.stable, cached.at, cached.bytes.len()));
        }
    }
}

/// A write of a dead node that has yet to land.
#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) place: Place,
    pub(crate) bytes: Vec<u8>,
}

/// What became of unstable writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fates {
    pub(crate) lost: u64,
    pub(crate) torn: u64,
    pub(crate) late: u64,
}

#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) image: Arc<Image>,
    media: Vec<Media>,
    slots: u16,
    /// Flushes do nothing.
    pub(crate) lies: bool,
    /// Lock records and slots stand in etcd: what is changed there is stable.
    pub(crate) etcd: bool,
}

fn write(memory: &MemoryDevice, at: u64, bytes: &[u8]) {
    memory.write(ByteOffset(at), bytes).expect("a request inside the device");
}
fn read(memory: &MemoryDevice, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(ByteOffset(at), &mut bytes).expect("a request inside the device");
    bytes
}
/// Some sectors of a write land, each by itself.
fn write_torn(memory: &MemoryDevice, at: u64, bytes: &[u8], random: &mut Random) {
    for (n, sector) in bytes.chunks(LEN).enumerate() {
        if random.below(2) == 0 {
            write(memory, at + (n * LEN) as u64, sector);
        }
    }
}

impl Disk {
    /// Devices as `image` has them, of which `slots` node slots are used.
    pub(crate) fn new(image: Arc<Image>, slots: u16) -> Self {
        let media = |m: &Arc<MemoryDevice>| Media {
            seen: m.fork("seen"),
            stable: m.fork("stable"),
            cached: Vec::new(),
        };
        let media = image.memories.iter().map(media).collect();
        Self { image, media, slots: slots.min(SLOTS), lies: false, etcd: false }
    }
    fn place(&self, address: Address) -> (Place, usize) {
        let (places, n) = match address {
            Address::Lock(n) => (&self.image.locks, n),
            Address::Slot(n) => (&self.image.slots, usize::from(n)),
            Address::Beat(n) => (&self.image.beats, usize::from(n)),
            Address::Slots => (&self.image.slots, 0),
            Address::Data(place, len) => return (place, len),
            Address::Device(device) => return ((device, 0), 0),
        };
        (*places.get(n).expect("a place in the image"), LEN)
    }
    /// Whose fence matters to a request.
    pub(crate) fn device_of(&self, address: Address) -> u16 {
        if self.is_in_etcd(address) {
            return ETCD;
        }
        self.place(address).0.0
    }
    /// Whether a request goes to etcd. (Who reads all slots reads the heartbeats, too, from the device.)
    pub(crate) fn is_in_etcd(&self, address: Address) -> bool {
        self.etcd && matches!(address, Address::Lock(_) | Address::Slot(_) | Address::Slots)
    }
    fn media(&mut self, device: u16) -> &mut Media {
        self.media.get_mut(usize::from(device)).expect("a device of the image")
    }
    /// What is read.
    pub(crate) fn at(&self, address: Address) -> Vec<u8> {
        let ((device, at), len) = self.place(address);
        self.media.get(usize::from(device)).map_or_else(Vec::new, |m| read(&m.seen, at, len))
    }
    fn put(&mut self, pid: Pid, address: Address, bytes: Vec<u8>, compared: bool) {
        let ((device, at), _) = self.place(address);
        // What was compared is there once it is answered: others act on it.
        let data = matches!(address, Address::Data(..))
            && !compared
            && self.image.is_lost_with_node((device, at));
        if matches!(address, Address::Data(..)) {
            for (at, bytes) in self.beside_records((device, at), &bytes) {
                let media = self.media(device);
                write(&media.seen, at, &bytes);
                media.cached.push(Cached { pid, at, bytes, data, compared });
            }
            return;
        }
        let is_stable = self.is_in_etcd(address);
        let media = self.media(device);
        write(&media.seen, at, &bytes);
        if is_stable {
            write(&media.stable, at, &bytes);
        } else {
            media.cached.push(Cached { pid, at, bytes, data, compared });
        }
        self.copy_record((device, at));
    }
    /// What a write of a pool changes: records that nodes change as a whole, on both copies, are left as they are.
    fn beside_records(&self, (device, at): Place, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let image = self.image.clone();
        let end = at + bytes.len() as u64;
        let here = |(d, from): &Place| *d == device && (at..end).contains(from);
        let all = image.pairs.iter().flat_map(|(a, b)| [*a, *b]).filter(here);
        let mut records: Vec<u64> = all.map(|place| place.1).collect();
        records.sort_unstable();
        let (mut parts, mut from) = (Vec::new(), at);
        for record in records.into_iter().chain([end]) {
            let [a, b] = [from - at, record - at].map(|n| usize::try_from(n).unwrap_or(0));
            if let Some(part) = bytes.get(a..b).filter(|part| !part.is_empty()) {
                parts.push((from, part.to_vec()));
            }
            from = record + LEN as u64;
        }
        parts
    }
    /// Both copies of a record are the same at any time.
    fn copy_record(&mut self, place: Place) {
        let Some(other) = self.image.pairs.get(&place).copied() else { return };
        let from = self.media.get(usize::from(place.0));
        let Some(stands) = from.map(|m| read(&m.seen, place.1, LEN)) else { return };
        let media = self.media(other.0);
        write(&media.seen, other.1, &stands);
        write(&media.stable, other.1, &stands);
    }
    fn copy_records(&mut self) {
        let image = self.image.clone();
        image.pairs.keys().for_each(|place| self.copy_record(*place));
    }
    /// The effect of a request of `pid`, and its answer.
    pub(crate) fn land(&mut self, pid: Pid, address: Address, op: &Op) -> Answer {
        match op {
            Op::Read if address == Address::Slots => {
                let slots = (0..self.slots).map(Address::Slot);
                let all: Vec<_> = slots.chain((0..self.slots).map(Address::Beat)).collect();
                let sectors: Vec<_> = all.into_iter().map(|a| self.at(a)).collect();
                Answer::Done(sectors.concat())
            }
            Op::Read => Answer::Done(self.at(address)),
            Op::Write(bytes) => {
                self.put(pid, address, bytes.clone(), false);
                Answer::Done(Vec::new())
            }
            Op::CompareAndWrite { expected, new } => {
                let stands = self.at(address);
                if stands != *expected {
                    return Answer::Mismatch(stands);
                }
                self.put(pid, address, new.clone(), true);
                Answer::Done(Vec::new())
            }
            Op::Flush => {
                let ((device, _), _) = self.place(address);
                let lies = self.lies;
                let media = self.media(device);
                if !lies {
                    for cached in media.cached.drain(..) {
                        write(&media.stable, cached.at, &cached.bytes);
                    }
                }
                Answer::Done(Vec::new())
            }
        }
    }
    /// A write of which only some sectors land.
    pub(crate) fn land_torn(&mut self, pid: Pid, place: Place, bytes: &[u8], random: &mut Random) {
        for (n, sector) in bytes.chunks(LEN).enumerate() {
            if random.below(2) == 0 {
                let place = (place.0, place.1 + (n * LEN) as u64);
                self.put(pid, Address::Data(place, sector.len()), sector.to_vec(), false);
            }
        }
    }
    /// A node was fenced at a device: what it was told had landed there stays, whatever becomes of it.
    pub(crate) fn settle(&mut self, pid: Pid, device: u16) {
        for cached in self.media(device).cached.iter_mut().filter(|c| c.pid == pid) {
            cached.pid = Pid::MAX;
        }
    }
    /// A node has died: what becomes of its data that is not stable. The late ones are for the
    /// caller to land.
    pub(crate) fn crash(&mut self, pid: Pid, random: &mut Random) -> (Vec<Late>, Fates) {
        let mut late = Vec::new();
        let mut fates = Fates::default();
        // From "all is kept" to "all is lost", so that both ends are met often.
        let kept_of_4 = random.below(5);
        for (device, media) in (0_u16..).zip(&mut self.media) {
            if !media.cached.iter().any(|c| c.pid == pid && c.data) {
                continue;
            }
            media.forget_unstable();
            let seen = &media.seen;
            let mut left = Vec::new();
            for cached in media.cached.drain(..) {
                let place = (device, cached.at);
                if cached.pid == pid && cached.data && random.below(4) >= kept_of_4 {
                    let fate = random.below(3);
                    fates.lost += u64::from(fate == 0);
                    fates.late += u64::from(fate == 1);
                    fates.torn += u64::from(fate == 2);
                    match fate {
                        0 => {}
                        1 => late.push(Late { place, bytes: cached.bytes }),
                        _ => {
                            for (n, sector) in cached.bytes.chunks(LEN).enumerate() {
                                if random.below(2) == 0 {
                                    let at = cached.at + (n * LEN) as u64;
                                    write(seen, at, sector);
                                    left.push(Cached {
                                        pid,
                                        at,
                                        bytes: sector.to_vec(),
                                        data: true,
                                        compared: false,
                                    });
                                }
                            }
                        }
                    }
                    continue;
                }
                write(seen, cached.at, &cached.bytes);
                left.push(cached);
            }
            media.cached = left;
        }
        (late, fates)
    }
    /// Power is cut: an arbitrary part of what was not flushed is left.
    pub(crate) fn power_cut(&mut self, random: &mut Random) -> Fates {
        let mut fates = Fates::default();
        let kept_of_4 = random.below(5);
        let torn_of_4 = random.below(3);
        // Sometimes one kind is lost, or what is older: what relies on what shows best then.
        let kind = random.below(8);
        for media in &mut self.media {
            let oldest_kept = random.below(media.cached.len() as u64);
            for (n, cached) in (0..).zip(&media.cached) {
                let lost = match kind {
                    0 | 1 => !cached.data,
                    2 => cached.data,
                    3 => n < oldest_kept,
                    _ => random.below(4) >= kept_of_4,
                };
                if lost {
                    fates.lost += 1;
                } else if random.below(4) < torn_of_4 && cached.bytes.len() > LEN {
                    fates.torn += 1;
                    write_torn(&media.stable, cached.at, &cached.bytes, random);
                } else {
                    write(&media.stable, cached.at, &cached.bytes);
                }
            }
            media.forget_unstable();
            media.cached.clear();
        }
        self.copy_records();
        fates
    }
    /// One device loses power, and works again: of what was not flushed some is lost. Compare-and-writes are
    /// sent so that they are stable at once; heartbeats follow soon.
    pub(crate) fn lose_power(&mut self, device: u16, random: &mut Random) -> Fates {
        let (image, mut fates) = (self.image.clone(), Fates::default());
        let media = self.media(device);
        let kept_of_4 = random.below(5);
        for cached in &media.cached {
            let may_be_lost = !cached.compared && (cached.data || image.is_member(device));
            if may_be_lost && random.below(4) >= kept_of_4 {
                fates.lost += 1;
            } else {
                write(&media.stable, cached.at, &cached.bytes);
            }
        }
        media.forget_unstable();
        media.cached.clear();
        fates
    }
    /// The record of a lock, for checkers.
    pub(crate) fn record(&self, lock: usize) -> Result<LockRecord, String> {
        let number = self.image.lock_no(lock);
        LockRecord::decode(&self.at(Address::Lock(lock)), number).map_err(|e| e.to_string())
    }
    /// A bit of a node slot's record is read wrong from now on; gives back what stood there.
    pub(crate) fn spoil_slot(&mut self, slot: u16) -> Vec<u8> {
        let good = self.at(Address::Slot(slot));
        let mut bad = good.clone();
        if let Some(byte) = bad.get_mut(100) {
            *byte ^= 1;
        }
        let ((device, at), _) = self.place(Address::Slot(slot));
        self.media.get(usize::from(device)).into_iter().for_each(|m| write(&m.seen, at, &bad));
        self.copy_record((device, at));
        good
    }
    /// The record of a node slot, for checkers.
    pub(crate) fn slot(&self, slot: u16) -> Result<SlotRecord, String> {
        SlotRecord::decode(&self.at(Address::Slot(slot)), NodeId(slot)).map_err(|e| e.to_string())
    }
    /// Generation and value of a block as it would be read without power, if it is whole.
    pub(crate) fn stable(&self, block: BlockIndex) -> Option<(Generation, u64)> {
        self.body(block, |media| &media.stable)
    }
    /// Both copies as without power, where there are two.
    pub(crate) fn stable_copies(&self, block: BlockIndex) -> Vec<Option<(Generation, u64)>> {
        let first = self.image.bodies.get(block).copied();
        let other = first.and_then(|place| self.image.body_pairs.get(&place).copied());
        let places = first.into_iter().chain(other);
        places.map(|place| self.body_at(block, place, |media| &media.stable)).collect()
    }
    /// What the other copy of a body holds now.
    pub(crate) fn other_copy(&self, place: Place, len: usize) -> Option<Vec<u8>> {
        let mut pairs = self.image.body_pairs.iter();
        let (a, b) = pairs.find(|(a, b)| **a == place || **b == place)?;
        let other = if *a == place { *b } else { *a };
        Some(self.at(Address::Data(other, len)))
    }
    /// A body as it is read now at one of its places.
    pub(crate) fn seen_at(&self, block: BlockIndex, place: Place) -> Option<(Generation, u64)> {
        self.body_at(block, place, |media| &media.seen)
    }
    fn body(
        &self,
        block: BlockIndex,
        which: impl Fn(&Media) -> &Arc<MemoryDevice>,
    ) -> Option<(Generation, u64)> {
        self.body_at(block, *self.image.bodies.get(block)?, which)
    }
    fn body_at(
        &self,
        block: BlockIndex,
        (device, at): Place,
        which: impl Fn(&Media) -> &Arc<MemoryDevice>,
    ) -> Option<(Generation, u64)> {
        let media = self.media.get(usize::from(device))?;
        self.image.decode(block, &read(which(media), at, self.image.body_len))
    }
    /// Contents of a file as they are on each copy, without power.
    pub(crate) fn cell(&self, cell: usize) -> Vec<(Place, Vec<u8>)> {
        self.copies(cell, |media| &media.stable)
    }
    /// As they are read now.
    pub(crate) fn seen_cell(&self, cell: usize) -> Vec<(Place, Vec<u8>)> {
        self.copies(cell, |media| &media.seen)
    }
    fn copies(
        &self,
        cell: usize,
        which: impl Fn(&Media) -> &Arc<MemoryDevice>,
    ) -> Vec<(Place, Vec<u8>)> {
        let copy = |place: &Place| {
            let media = self.media.get(usize::from(place.0))?;
            Some((*place, read(which(media), place.1, SECTORS * LEN)))
        };
        self.image.cells.get(cell).into_iter().flatten().filter_map(copy).collect()
    }
    /// The block whose body a write puts in place.
    pub(crate) fn block_at(&self, place: Place) -> Option<BlockIndex> {
        let image = &self.image;
        let is_here = |p: &Place| *p == place || image.body_pairs.get(p) == Some(&place);
        image.bodies.iter().position(is_here)
    }
    /// The headers of all journals, to be put back.
    pub(crate) fn journal_headers(&self) -> Vec<(Place, Vec<u8>)> {
        let len = self.image.body_len;
        let other = |p: &Place| self.image.body_pairs.get(p).copied();
        let headers = self.image.journal_headers.iter();
        let headers = headers.flat_map(|p| [Some(*p), other(p)].into_iter().flatten());
        headers.map(|p| (p, self.at(Address::Data(p, len)))).collect()
    }
}

/// The blocks under a lock.
pub(crate) fn blocks_of(lock: usize) -> std::ops::Range<BlockIndex> {
    lock * BLOCKS..(lock + 1) * BLOCKS
}

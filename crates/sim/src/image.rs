//! What stands on the devices before anything happens: a real file system by the real mkfs, some
//! metadata blocks under each lock. With mirrors the first device has all metadata, and the contents of files
//! stand on mirrors of the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use braid_format::label::{Label, SubpoolKind};
use braid_format::lock_record::LockRecord;
use braid_format::meta::MetaHeader;
use braid_format::redundancy::LogPlace;
use braid_format::{
    BlockNo, BlockSize, ByteOffset, Bytes, Generation, Incarnation, LockNo, NodeId,
};
use braid_fs::make::{MakeOptions, make};
use braid_fs::simulation::{Metadata, Places};
use braid_pool::device::{
    Abilities, Command, Completion, Device, DeviceError, DeviceInfo, MemoryDevice,
};
use braid_pool::layout::parse;
use braid_pool::{CreateOptions, Pool};

use crate::disk::LEN;
use crate::random::draw_identities;
use crate::{Mirrors, lane};

/// Most locks.
pub(crate) const LOCKS_MAX: usize = 5;
/// Metadata blocks under each lock. The first is the one beside the lock's record.
pub(crate) const BLOCKS: usize = 3;
/// Parts of a file's contents under each lock, and the sectors of each.
pub(crate) const CELLS: usize = 2;
pub(crate) const SECTORS: usize = 4;
/// Node slots, and so journals.
pub(crate) const SLOTS: u16 = 6;
/// Of each node; some of the runs reach its end and go on at its beginning.
const JOURNAL: Bytes = Bytes(1 << 20);
/// Of all devices together, beside the labels; with mirrors, of the one that has the metadata.
const POOL: Bytes = Bytes(60 << 20);
/// Of each member of a mirror: reads change from copy to copy.
const COPY: Bytes = Bytes(16 << 20);
/// Two slots on one device, then the next: a journal record lies on several.
const STRIPE_UNIT: Bytes = Bytes(8 << 10);
/// Where a body's value begins.
const VALUE_AT: usize = 64;

/// A place: device, byte on it.
pub(crate) type Place = (u16, u64);

/// A block of the simulation, counted from zero: those of lock `n` from `n * BLOCKS`.
pub(crate) type BlockIndex = usize;

/// A new file system on so many devices.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) places: Places,
    pub(crate) memories: Vec<Arc<MemoryDevice>>,
    /// Lock records.
    pub(crate) locks: Vec<Place>,
    /// Slot records.
    pub(crate) slots: Vec<Place>,
    /// Heartbeats.
    pub(crate) beats: Vec<Place>,
    /// Bodies.
    pub(crate) bodies: Vec<Place>,
    pub(crate) body_len: usize,
    /// Contents of files: those of lock `n` from `n * CELLS`. Where each copy is, and where in the pool.
    pub(crate) cells: Vec<Vec<Place>>,
    cells_at: Vec<ByteOffset>,
    mirrors: Option<Mirrors>,
    /// Where the other copy is of a lock record, a slot or a heartbeat, where metadata has two.
    pub(crate) pairs: BTreeMap<Place, Place>,
    /// The same of bodies and journal headers.
    pub(crate) body_pairs: BTreeMap<Place, Place>,
    /// Both headers of each journal.
    pub(crate) journal_headers: Vec<Place>,
    /// The blocks of those.
    pub(crate) journal_blocks: Vec<BlockNo>,
}

/// What an image is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    devices: u16,
    large: bool,
    mirrors: Option<Mirrors>,
}

static IMAGES: Mutex<BTreeMap<Kind, Arc<Image>>> = Mutex::new(BTreeMap::new());

impl Image {
    /// On `devices` devices, with small or large blocks; made once.
    pub(crate) fn on(devices: u16, large: bool, mirrors: Option<Mirrors>) -> Arc<Self> {
        let kind = Kind { devices, large, mirrors };
        let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
        images.entry(kind).or_insert_with(|| Arc::new(Self::make(kind))).clone()
    }
    fn make(kind: Kind) -> Self {
        let _drawn = kind.mirrors.map(|_| draw_identities(0));
        let name = |n: u16| format!("simulated{n}");
        let memory = |n: u16| MemoryDevice::new(&name(n), kind.size_of(n), Bytes(512));
        let memories: Vec<Arc<MemoryDevice>> = (0..kind.devices).map(memory).collect();
        let simulated: Vec<Arc<SimDevice>> = (0..)
            .zip(&memories)
            .map(|(index, memory)| Arc::new(SimDevice::new(index, memory.clone())))
            .collect();
        let members = simulated.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let pool = Pool::create(members, &kind.options()).expect("a simulated pool");
        let size = Bytes(if kind.large { 8192 } else { 4096 });
        let block_size = BlockSize::new(size).expect("a size");
        let make_options = MakeOptions {
            block_size,
            nodes: Some(SLOTS),
            journal_size: Some(JOURNAL.get()),
            ..MakeOptions::default()
        };
        make(&pool, &make_options, &mut |_, _| ()).expect("a simulated file system");
        let places = Places::open(pool).expect("a file system");
        let image = Self::around(places, memories, kind.mirrors);
        image.fill();
        for slot in 0..SLOTS {
            image.advance_journal(NodeId(slot));
        }
        for device in &simulated {
            device.sealed.store(true, Ordering::Release);
        }
        image
    }
    fn around(places: Places, memories: Vec<Arc<MemoryDevice>>, mirrors: Option<Mirrors>) -> Self {
        let locate = |at: ByteOffset| {
            let (member, at) = places.pool().locate(at).expect("a place in the pool");
            (member.index.0, at.get())
        };
        let copies = |at: &ByteOffset| -> Vec<Place> {
            places.pool().placements(*at).into_iter().map(|(m, at)| (m.0, at.get())).collect()
        };
        let cells_at: Vec<_> = (0..LOCKS_MAX * CELLS).map(|n| cell_at(&places, n)).collect();
        let (slots_at, beats_at) = places.node_records();
        let sector = |n: u16| Bytes::from(usize::from(n) * LEN);
        let body = |block| places.body(block);
        let headers: Vec<_> = (0..SLOTS).flat_map(|n| places.journal_headers(NodeId(n))).collect();
        let locks_at = (0..LOCKS_MAX).map(|n| places.slot_at(block_of(&places, n * BLOCKS)));
        let records_at = (0..SLOTS).flat_map(|n| [slots_at + sector(n), beats_at + sector(n)]);
        let bodies_at = (0..LOCKS_MAX * BLOCKS).map(|n| body(block_of(&places, n)).0);
        let headers_at = headers.iter().map(|b| body(*b).0);
        let other = |at: ByteOffset| match copies(&at)[..] {
            [first, other] => Some((first, other)),
            _ => None,
        };
        Self {
            pairs: locks_at.chain(records_at).filter_map(other).collect(),
            body_pairs: bodies_at.chain(headers_at).filter_map(other).collect(),
            locks: (0..LOCKS_MAX)
                .map(|n| locate(places.slot_at(block_of(&places, n * BLOCKS))))
                .collect(),
            slots: (0..SLOTS).map(|n| locate(slots_at + sector(n))).collect(),
            beats: (0..SLOTS).map(|n| locate(beats_at + sector(n))).collect(),
            bodies: (0..LOCKS_MAX * BLOCKS).map(|n| locate(body(block_of(&places, n)).0)).collect(),
            body_len: body(block_of(&places, 0)).1.to_usize(),
            cells: cells_at.iter().map(copies).collect(),
            cells_at,
            mirrors,
            journal_headers: headers.iter().map(|b| locate(body(*b).0)).collect(),
            journal_blocks: headers,
            places,
            memories,
        }
    }
    /// Gives every block its first content, value zero.
    fn fill(&self) {
        let all: Vec<_> = (0..LOCKS_MAX * BLOCKS).map(|b| self.owned(b)).collect();
        let open = Metadata::open(&self.places, NodeId(0), Incarnation(0), Bytes::MIB);
        let metadata = open.expect("a new journal");
        let made = metadata.create(&all, |body| set_value(body, 0)).and_then(|()| metadata.close());
        made.expect("memory takes it");
        for cell in 0..LOCKS_MAX * CELLS {
            let zeros = vec![0; SECTORS * LEN];
            self.places.pool().write(self.cell(cell), &zeros).expect("memory takes it");
        }
        for lock in 0..LOCKS_MAX {
            let mut bytes = vec![0; LEN];
            LockRecord::unlocked(self.lock_no(lock), 0).encode(&mut bytes);
            let at = self.places.slot_at(self.block(lock * BLOCKS));
            self.places.pool().write(at, &bytes).expect("memory takes it");
        }
    }
    /// Uses most of a node's journal up, so that runs soon reach its end.
    fn advance_journal(&self, slot: NodeId) {
        let all: Vec<_> = (0..LOCKS_MAX * BLOCKS).map(|b| self.owned(b)).collect();
        let open = Metadata::open(&self.places, slot, Incarnation(0), Bytes::MIB);
        let metadata = open.expect("a new journal");
        let images = JOURNAL.get() / self.body_len as u64 - 8 * (1 + u64::from(slot.get()));
        for _ in 0..images / all.len() as u64 {
            let changed = metadata.change(&all, |body| set_value(body, 0));
            changed
                .and_then(|()| metadata.commit())
                .and_then(|()| metadata.checkpoint())
                .expect("memory takes it");
        }
        metadata.close().expect("memory takes it");
    }
    pub(crate) fn block(&self, block: BlockIndex) -> BlockNo {
        block_of(&self.places, block)
    }
    /// Where in the pool a part of a file's contents is.
    pub(crate) fn cell(&self, cell: usize) -> ByteOffset {
        self.cells_at.get(cell).copied().unwrap_or_default()
    }
    /// Whether a write there may be lost with its node, as if it were still under way: of metadata and of
    /// journals. What else is written is what the device was told, whatever becomes of the node.
    pub(crate) fn is_lost_with_node(&self, (device, at): Place) -> bool {
        if self.mirrors.is_some() {
            let metadata =
                self.places.pool().info().members.first().map_or(Bytes(0), |m| m.data_len);
            return !self.is_member(device) && (META_AT.0..META_AT.0 + metadata.0).contains(&at);
        }
        let len = (SECTORS * LEN) as u64;
        let is_here = |(d, from): &Place| *d == device && (*from..from + len).contains(&at);
        !self.cells.iter().flatten().any(is_here)
    }
    /// Whether a device is a member of a mirror.
    pub(crate) fn is_member(&self, device: u16) -> bool {
        self.mirrors.is_some_and(|mirrors| device >= mirrors.of_metadata())
    }
    /// The devices as a node sees them that has a pool of its own.
    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        let sealed = |(index, memory): (u16, &Arc<MemoryDevice>)| {
            let device = SimDevice::new(index, memory.clone());
            device.sealed.store(true, Ordering::Release);
            Arc::new(device) as Arc<dyn Device>
        };
        (0..).zip(&self.memories).map(sealed).collect()
    }
    /// The number of a simulated lock: of the slot that it stands in.
    pub(crate) fn lock_no(&self, lock: usize) -> LockNo {
        LockNo::from(self.block(lock * BLOCKS))
    }
    /// A block, and the lock that covers it.
    pub(crate) fn owned(&self, block: BlockIndex) -> (BlockNo, LockNo) {
        (self.block(block), self.lock_no(block / BLOCKS))
    }
    /// A body's generation and value, if it is whole.
    pub(crate) fn decode(&self, block: BlockIndex, body: &[u8]) -> Option<(Generation, u64)> {
        let (header, _) = MetaHeader::decode(body, self.block(block)).ok()?;
        Some((header.generation(), value_of(body)?))
    }
}

fn block_of(places: &Places, block: BlockIndex) -> BlockNo {
    places.free_slot(block as u64)
}

/// Where contents are: in a free slot behind those of metadata, or spread over the data.
fn cell_at(places: &Places, cell: usize) -> ByteOffset {
    let info = places.pool().info();
    let Some(data) = info.subpools.iter().find(|s| s.kind == SubpoolKind::Data) else {
        return places.body(places.free_slot((LOCKS_MAX * BLOCKS + cell) as u64)).0;
    };
    let apart = data.len.get() / (LOCKS_MAX * CELLS) as u64 / STRIPE_UNIT.get() * STRIPE_UNIT.get();
    data.start + Bytes(apart * cell as u64)
}

/// Where data areas begin on devices with redundancy logs.
const META_AT: Bytes = Bytes(Label::DATA_AT.0 + SLOTS as u64 * LogPlace::LEN.0);

impl Kind {
    /// Bytes of a device.
    fn size_of(self, device: u16) -> Bytes {
        let Some(mirrors) = self.mirrors else {
            let share = POOL.get() / u64::from(self.devices);
            return Bytes(share.next_multiple_of(1 << 20) + (4 << 20));
        };
        let data = if device < mirrors.of_metadata() { POOL } else { COPY };
        Bytes(META_AT.0 + data.0 + Label::TAIL.0)
    }
    fn options(self) -> CreateOptions {
        let options = CreateOptions::new("simulated").stripe_unit(STRIPE_UNIT).expect("a unit");
        let Some(mirrors) = self.mirrors else { return options };
        let layout = parse::layout(mirrors.layout(), &BTreeMap::new()).expect("a layout");
        CreateOptions { layout: Some(layout), log_slots: SLOTS, ..options }
    }
}

/// Writes a value all over a body.
pub(crate) fn set_value(body: &mut [u8], value: u64) {
    for word in body.get_mut(VALUE_AT..).unwrap_or_default().chunks_exact_mut(8) {
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The value of a body; `None` when it holds several.
pub(crate) fn value_of(body: &[u8]) -> Option<u64> {
    let words = body.get(VALUE_AT..)?;
    let first = words.first_chunk::<8>()?;
    let same = words.chunks_exact(8).all(|word| word == first);
    same.then(|| u64::from_le_bytes(*first))
}

/// A device as a node sees it: what a [`lane`] runs asks the world; what nothing runs (the making
/// of the image) goes to memory.
#[derive(Debug)]
struct SimDevice {
    index: u16,
    memory: Arc<MemoryDevice>,
    sealed: AtomicBool,
}

impl SimDevice {
    fn new(index: u16, memory: Arc<MemoryDevice>) -> Self {
        Self { index, memory, sealed: AtomicBool::new(false) }
    }
    fn refused(&self, operation: &'static str, at: ByteOffset) -> DeviceError {
        let device = self.memory.info().name.as_str().into();
        DeviceError::Injected { device, operation, at }
    }
    /// Nothing is written outside lanes once the image is made.
    fn open(&self, operation: &'static str, at: ByteOffset) -> Result<(), DeviceError> {
        if self.sealed.load(Ordering::Acquire) { Err(self.refused(operation, at)) } else { Ok(()) }
    }
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        self.memory.info()
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        let name = command.name();
        let place = (self.index, at.get());
        let asked = match &command {
            Command::Read(buf) => lane::Request::Read { place, len: buf.len() },
            Command::Write(buf) => {
                self.info().check(at, command.len())?;
                lane::Request::Write { place, bytes: buf.to_vec() }
            }
            Command::CompareAndWrite { expected, new } => lane::Request::CompareAndWrite {
                place,
                expected: expected.to_vec(),
                new: new.to_vec(),
            },
            Command::Flush => lane::Request::Flush { device: self.index },
            // Nothing that runs in a lane does these.
            _ => {
                self.open(name, at)?;
                return self.memory.submit(at, command);
            }
        };
        match (lane::ask(asked), command) {
            (None, Command::Flush) => {}
            (None, command) => {
                if command.changes() {
                    self.open(name, at)?;
                }
                return self.memory.submit(at, command);
            }
            (Some(Ok(bytes)), Command::Read(buf)) if bytes.len() == buf.len() => {
                buf.copy_from_slice(&bytes);
            }
            (Some(Ok(stands)), Command::CompareAndWrite { .. }) if !stands.is_empty() => {
                return Ok(Completion::Mismatch(stands));
            }
            (Some(Ok(_)), Command::Write(_) | Command::CompareAndWrite { .. } | Command::Flush) => {
            }
            (Some(_), _) => return Err(self.refused(name, at)),
        }
        Ok(Completion::Done)
    }
    fn abilities(&self) -> Abilities<'_> {
        self.memory.abilities()
    }
}

//! What stands on the devices before anything happens: a real file system by the real mkfs, some
//! metadata blocks under each lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use braid_format::lock_record::LockRecord;
use braid_format::meta::MetaHeader;
use braid_format::{
    BlockNo, BlockSize, ByteOffset, Bytes, Generation, Incarnation, LockNo, NodeId,
};
use braid_fs::make::{MakeOptions, make};
use braid_fs::simulation::{Metadata, Places};
use braid_pool::device::{
    Abilities, Command, Completion, Device, DeviceError, DeviceInfo, MemoryDevice,
};
use braid_pool::{CreateOptions, Pool};

use crate::disk::LEN;
use crate::lane;

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
/// Of all devices together, beside the labels.
const POOL: Bytes = Bytes(60 << 20);
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
    /// Contents of files: those of lock `n` from `n * CELLS`.
    pub(crate) cells: Vec<Place>,
    /// Both headers of each journal.
    pub(crate) journal_headers: Vec<Place>,
    /// The blocks of those.
    pub(crate) journal_blocks: Vec<BlockNo>,
}

static IMAGES: Mutex<BTreeMap<(u16, bool), Arc<Image>>> = Mutex::new(BTreeMap::new());

impl Image {
    /// On `devices` devices, with small or large blocks; made once.
    pub(crate) fn on(devices: u16, large: bool) -> Arc<Self> {
        let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
        images
            .entry((devices, large))
            .or_insert_with(|| Arc::new(Self::make(devices, large)))
            .clone()
    }
    fn make(devices: u16, large: bool) -> Self {
        let share = POOL.get() / u64::from(devices);
        let size = Bytes(share.next_multiple_of(1 << 20) + (4 << 20));
        let name = |n: u16| format!("simulated{n}");
        let memories: Vec<Arc<MemoryDevice>> =
            (0..devices).map(|n| MemoryDevice::new(&name(n), size, Bytes(512))).collect();
        let simulated: Vec<Arc<SimDevice>> = (0..devices)
            .zip(&memories)
            .map(|(index, memory)| Arc::new(SimDevice::new(index, memory.clone())))
            .collect();
        let members = simulated.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let options = CreateOptions::new("simulated").stripe_unit(STRIPE_UNIT).expect("a unit");
        let pool = Pool::create(members, &options).expect("a simulated pool");
        let block_size = BlockSize::new(Bytes(if large { 8192 } else { 4096 })).expect("a size");
        let make_options = MakeOptions {
            block_size,
            nodes: Some(SLOTS),
            journal_size: Some(JOURNAL.get()),
            ..MakeOptions::default()
        };
        make(&pool, &make_options, &mut |_, _| ()).expect("a simulated file system");
        let image = Self::around(Places::open(pool).expect("a file system"), memories);
        image.fill();
        for slot in 0..SLOTS {
            image.advance_journal(NodeId(slot));
        }
        for device in &simulated {
            device.sealed.store(true, Ordering::Release);
        }
        image
    }
    fn around(places: Places, memories: Vec<Arc<MemoryDevice>>) -> Self {
        let locate = |at: ByteOffset| {
            let (member, at) = places.pool().locate(at).expect("a place in the pool");
            (member.index.0, at.get())
        };
        let (slots_at, beats_at) = places.node_records();
        let sector = |n: u16| Bytes::from(usize::from(n) * LEN);
        let body = |block| places.body(block);
        let headers: Vec<_> = (0..SLOTS).flat_map(|n| places.journal_headers(NodeId(n))).collect();
        Self {
            locks: (0..LOCKS_MAX)
                .map(|n| locate(places.slot_at(block_of(&places, n * BLOCKS))))
                .collect(),
            slots: (0..SLOTS).map(|n| locate(slots_at + sector(n))).collect(),
            beats: (0..SLOTS).map(|n| locate(beats_at + sector(n))).collect(),
            bodies: (0..LOCKS_MAX * BLOCKS).map(|n| locate(body(block_of(&places, n)).0)).collect(),
            body_len: body(block_of(&places, 0)).1.to_usize(),
            cells: (0..LOCKS_MAX * CELLS).map(|n| locate(body(cell_of(&places, n)).0)).collect(),
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
        self.places.body(cell_of(&self.places, cell)).0
    }
    /// Whether contents of files stand there.
    pub(crate) fn is_cell(&self, (device, at): Place) -> bool {
        let len = (SECTORS * LEN) as u64;
        self.cells.iter().any(|(d, from)| *d == device && (*from..from + len).contains(&at))
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

/// A free slot for contents, behind those of metadata.
fn cell_of(places: &Places, cell: usize) -> BlockNo {
    places.free_slot((LOCKS_MAX * BLOCKS + cell) as u64)
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
        let asked = match &command {
            Command::Read(buf) => {
                lane::Request::Read { place: (self.index, at.get()), len: buf.len() }
            }
            Command::Write(buf) => {
                self.info().check(at, command.len())?;
                lane::Request::Write { place: (self.index, at.get()), bytes: buf.to_vec() }
            }
            Command::Flush => lane::Request::Flush { device: self.index },
            // Nothing that runs in a lane does these.
            _ => {
                self.open(name, at)?;
                return self.memory.submit(at, command);
            }
        };
        match (lane::ask(asked), command) {
            (None, Command::Flush) | (Some(Ok(_)), Command::Write(_) | Command::Flush) => {}
            (None, command) => {
                if command.changes() {
                    self.open(name, at)?;
                }
                return self.memory.submit(at, command);
            }
            (Some(Ok(bytes)), Command::Read(buf)) if bytes.len() == buf.len() => {
                buf.copy_from_slice(&bytes);
            }
            (Some(_), _) => return Err(self.refused(name, at)),
        }
        Ok(Completion::Done)
    }
    fn abilities(&self) -> Abilities<'_> {
        self.memory.abilities()
    }
}

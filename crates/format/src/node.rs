//! Nodes: slot records, heartbeats, private counters, orphan lists. docs/FORMAT.md section 6.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;
use crate::crc::crc32c_with_hole;
use crate::features::Features;
use crate::lock_record::{Life, Mode};
use crate::meta::MetaHeader;
use crate::units::{BlockNo, Incarnation, LockNo, MemberIndex, NodeId};

/// State of a node slot. Changed only by compare-and-write.
///
/// ```text
///            mount                unmount
///   Free ------------> Active ---------------> Free
///                        | death noticed, fenced
///                        v
///                   Recovering(by) --replayed--> Free
///                        |  ^ recoverer died: another takes over
///                        +--+
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum SlotState {
    /// Nobody's; its journal is clean.
    Free = 0,
    /// A node lives here.
    Active = 1,
    /// Its node is dead and fenced; `recoverer` replays its journal.
    Recovering = 2,
}

/// An inode on which a node holds kernel locks: 16 bytes, in [`RawSlot`]; all zero where unused.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawLockPlace {
    /// The first four bytes of the kernel's boot id: equal numbers under two kernels differ.
    pub kernel: U32,
    /// Number of the file system that the inode is in (`st_dev`).
    pub device: U32,
    /// The inode.
    pub inode: U64,
}
const _: () = assert!(size_of::<RawLockPlace>() == 16);

/// An inode on which a process holds kernel locks. Two processes see each other's locks exactly if they
/// hold them on one inode; a device has several inodes if it has several nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockPlace {
    /// Of which kernel: the first four bytes of its boot id.
    pub kernel: u32,
    /// Number of the file system that the inode is in.
    pub device: u32,
    /// The inode.
    pub inode: u64,
}

impl LockPlace {
    const UNUSED: Self = Self { kernel: 0, device: 0, inode: 0 };

    fn from_raw(raw: RawLockPlace) -> Self {
        Self { kernel: raw.kernel.get(), device: raw.device.get(), inode: raw.inode.get() }
    }
    fn to_raw(self) -> RawLockPlace {
        let Self { kernel, device, inode } = self;
        RawLockPlace { kernel: U32::new(kernel), device: U32::new(device), inode: U64::new(inode) }
    }
}

/// A node slot: one lock sector.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawSlot {
    /// "BRSL".
    pub magic: U32,
    /// Revision, 2.
    pub revision: U16,
    /// A [`SlotState`].
    pub state: U16,
    /// Which slot.
    pub slot: U16,
    /// Recoverer's slot while `Recovering`.
    pub recoverer: U16,
    /// Current incarnation: counted up each time the slot is taken.
    pub incarnation: U32,
    /// Recoverer's incarnation.
    pub recoverer_incarnation: U32,
    /// Process id of the node, for people.
    pub pid: U32,
    /// Fresh in every write.
    pub nonce: U64,
    /// When it was taken, Unix seconds, for people.
    pub since: U64,
    /// Identity of the node (random, made at mount). Nowhere else: hints by TCP are sealed with what is made of it.
    pub node_uuid: [u8; 16],
    /// Identity of the running kernel (its boot id).
    pub boot_id: [u8; 16],
    /// Host name, UTF-8, padded with zero.
    pub host: [u8; 64],
    /// Where hints are sent: `unix:PATH`, `tcp:ADDRESS:PORT`, or both with a space between, padded with zero.
    pub address: [u8; 128],
    /// Mount point, cut to fit, for people.
    pub mount_point: [u8; 128],
    /// Identity of the machine (made of `/etc/machine-id` and the identity of the hardware), zero where unknown.
    pub machine_id: [u8; 16],
    /// While `Recovering`: the damaged block that stopped the last attempt.
    pub damaged_block: U64,
    /// What it is part of, a [`DamagedPart`]; 0 while no damage was found.
    pub damaged_part: U16,
    /// Bit 0, while `Recovering`: the journal is replayed (before the damage was met, if there is one).
    /// Bit 1, not while `Free`: a person has said that the host of who acts by the slot is off.
    /// Bit 2, not while `Free`: the node serves clients that rely for a while on what it has told them.
    /// Bit 3, not while `Free`: the node compares and writes under kernel locks, where its liveness lock is.
    pub flags: U16,
    /// The node's `io_timeout`, milliseconds: all its timers, and those of who watches it. 0: the usual.
    pub io_timeout: U32,
    /// The key by which it is registered with every member, for its fence; 0: with none.
    pub fence_key: U64,
    /// The highest incarnation that a life of this slot was ever named by, where that is more than
    /// `incarnation`; else 0.
    pub named: U32,
    /// Where the node holds its liveness lock: up to four `RawLockPlace`, the unused ones zero and last.
    pub lock_places: [RawLockPlace; 4],
    /// Zero.
    pub reserved: [u8; 8],
    /// CRC-32C of the 512 bytes with this field zero.
    pub crc: U32,
}
const _: () = assert!(size_of::<RawSlot>() == 512);

impl RawSlot {
    /// "BRSL".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRSL");
    /// Bytes used at the start of the sector; the rest of a larger sector is zero.
    pub const LEN: usize = size_of::<Self>();
    /// Most lock places in one slot.
    pub const PLACES: usize = 4;
    const REVISION: u16 = 2;
    const CRC_AT: usize = core::mem::offset_of!(Self, crc);
    const VOUCHED: u16 = 2;
    const SERVES: u16 = 4;
    const EMULATES_COMPARE_AND_WRITE: u16 = 8;

    /// The places in use, if the others are the last ones.
    fn places(&self) -> Option<Vec<LockPlace>> {
        let all: Vec<_> = self.lock_places.iter().map(|p| LockPlace::from_raw(*p)).collect();
        let used = all.iter().take_while(|p| **p != LockPlace::UNUSED).count();
        let (places, unused) = all.split_at(used);
        unused.iter().all(|p| *p == LockPlace::UNUSED).then(|| places.to_vec())
    }
    /// The damage noted, if these fields are what a writer makes of a slot in `state`.
    fn damage(&self, state: SlotState) -> Result<Option<SlotDamage>, FormatError> {
        let others = Self::VOUCHED | Self::SERVES | Self::EMULATES_COMPARE_AND_WRITE;
        let (block, flags) = (self.damaged_block.get(), self.flags.get() & !others);
        let raw = self.damaged_part.get();
        let part = DamagedPart::from_raw(raw);
        let recovering = state == SlotState::Recovering;
        match part {
            None if raw == 0 && block == 0 && flags <= u16::from(recovering) => Ok(None),
            Some(part) if flags <= 1 && recovering => {
                Ok(Some(SlotDamage { block: BlockNo(block), part, replayed: flags == 1 }))
            }
            _ => Err(FormatError::BadField {
                what: SlotRecord::WHAT,
                at: u64::from(self.slot.get()),
                field: "damaged_part",
                value: u64::from(raw),
            }),
        }
    }
}

/// What of a dead node's belongings is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum DamagedPart {
    /// Both headers of its journal.
    JournalHeader = 1,
    /// A record of its journal.
    Journal = 2,
    /// One of its allocation windows.
    Window = 3,
    /// Its free log.
    FreeLog = 4,
    /// Its orphan list.
    Orphans = 5,
    /// Its change of the counters.
    Counters = 6,
    /// Something that all nodes share (a resource group, the cluster's counters).
    Shared = 7,
}

impl DamagedPart {
    fn from_raw(raw: u16) -> Option<Self> {
        let all = [
            Self::JournalHeader,
            Self::Journal,
            Self::Window,
            Self::FreeLog,
            Self::Orphans,
            Self::Counters,
            Self::Shared,
        ];
        all.into_iter().find(|part| *part as u16 == raw)
    }
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::JournalHeader => "journal header",
            Self::Journal => "journal",
            Self::Window => "allocation window",
            Self::FreeLog => "free log",
            Self::Orphans => "orphan list",
            Self::Counters => "node information",
            Self::Shared => "shared metadata",
        }
    }
}

/// The damage that keeps a dead node from being recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotDamage {
    /// The damaged block.
    pub block: BlockNo,
    /// What it is part of.
    pub part: DamagedPart,
    /// The journal was replayed before: what the node held of locks counts for nothing any more.
    pub replayed: bool,
}

/// A verified node slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each a bit on disk")]
pub struct SlotRecord {
    /// Which slot, and its current (or, when free, last) incarnation.
    pub life: Life,
    /// What is going on in it.
    pub state: SlotState,
    /// Who recovers it while `Recovering`.
    pub recoverer: Option<Life>,
    /// Process id, for people.
    pub pid: u32,
    /// Fresh in every write.
    pub nonce: u64,
    /// When it was taken, Unix seconds, for people.
    pub since: u64,
    /// Identity of the node (random, made at mount). Nowhere else: hints by TCP are sealed with what is made of it.
    pub node_uuid: [u8; 16],
    /// Identity of the running host.
    pub boot_id: [u8; 16],
    /// Identity of the machine, zero where unknown.
    pub machine_id: [u8; 16],
    /// Host name, cut to fit.
    pub host: String,
    /// Where hints are sent: `unix:PATH`, `tcp:ADDRESS:PORT`, both, or empty.
    pub address: String,
    /// Mount point, for people, cut to fit.
    pub mount_point: String,
    /// While `Recovering`: the journal is replayed, and what the node held of locks counts for nothing
    /// any more.
    pub replayed: bool,
    /// What stopped its recovery, while `Recovering`.
    pub damage: Option<SlotDamage>,
    /// A person has said that the host of who acts by the slot is off: it counts as fenced, to
    /// everybody. Never of a free slot.
    pub vouched: bool,
    /// The node serves clients that rely for a while on what it has told them: when it is dead, whoever recovers it
    /// waits that long first. Never of a free slot.
    pub serves: bool,
    /// The node compares and writes under kernel locks, where its liveness lock is: who does so elsewhere, or by
    /// the device's own command, is not excluded. Never of a free slot.
    pub emulates_compare_and_write: bool,
    /// The node's `io_timeout` in milliseconds; 0: the usual.
    pub io_timeout: u32,
    /// The key by which it is registered with every member; 0: with none.
    pub fence_key: u64,
    /// The highest incarnation that a life of this slot was ever named by, where that is more than the
    /// current one: of nodes that died while they took the slot over. No name is given twice.
    pub named: Option<Incarnation>,
    /// Where the node holds its liveness lock, the first [`RawSlot::PLACES`] of the devices that have
    /// it. None: nobody else's kernel can say that it is dead.
    pub lock_places: Vec<LockPlace>,
}

impl SlotRecord {
    const WHAT: &str = "node slot";

    /// Whether its journal is replayed, so that what its node held of locks counts for nothing.
    pub fn is_replayed(&self) -> bool {
        self.replayed || self.damage.is_some_and(|d| d.replayed)
    }
    /// A slot that was never taken.
    pub fn free(slot: NodeId) -> Self {
        Self {
            life: Life { slot, incarnation: Incarnation(0) },
            state: SlotState::Free,
            recoverer: None,
            pid: 0,
            nonce: 0,
            since: 0,
            node_uuid: [0; 16],
            boot_id: [0; 16],
            machine_id: [0; 16],
            host: String::new(),
            address: String::new(),
            mount_point: String::new(),
            replayed: false,
            damage: None,
            vouched: false,
            serves: false,
            emulates_compare_and_write: false,
            io_timeout: 0,
            fence_key: 0,
            named: None,
            lock_places: Vec::new(),
        }
    }
    /// Who may do something by this slot: its node, or whoever takes it over and recovers it first.
    pub fn acting(&self) -> Life {
        self.recoverer.filter(|by| by.slot == self.life.slot).unwrap_or(self.life)
    }
    /// The highest incarnation that a life of this slot was ever named by.
    pub fn last_named(&self) -> Incarnation {
        let taker = self.recoverer.filter(|by| by.slot == self.life.slot).map(|by| by.incarnation);
        let most = self.named.into_iter().chain(taker).map(|i| i.0).fold(0, u32::max);
        Incarnation(most.max(self.life.incarnation.0))
    }
    /// Verifies the lock sector of `slot`. As with lock records only the one encoding is accepted.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn decode(sector: &[u8], slot: NodeId) -> Result<Self, FormatError> {
        let at = u64::from(slot.0);
        let bad = |field, value: u64| FormatError::BadField { what: Self::WHAT, at, field, value };
        let (raw, tail) = RawSlot::read_from_prefix(sector)
            .map_err(|_| FormatError::TooShort { what: Self::WHAT, len: sector.len() })?;
        let (magic, crc_at) = (RawSlot::MAGIC, RawSlot::CRC_AT);
        let sealed = Sealed { what: Self::WHAT, at, magic, crc_at, revision: RawSlot::REVISION };
        sealed.verify(raw.as_bytes(), raw.magic, raw.crc, raw.revision)?;
        if raw.slot.get() != slot.0 {
            let found = u64::from(raw.slot.get());
            return Err(FormatError::WrongAddress { what: Self::WHAT, at, found });
        }
        if raw.reserved != [0; 8] || tail.iter().any(|b| *b != 0) {
            return Err(bad("reserved", 1));
        }
        let state = match raw.state.get() {
            0 => SlotState::Free,
            1 => SlotState::Active,
            2 => SlotState::Recovering,
            other => return Err(bad("state", u64::from(other))),
        };
        let by = Life {
            slot: NodeId(raw.recoverer.get()),
            incarnation: Incarnation(raw.recoverer_incarnation.get()),
        };
        let recoverer = (state == SlotState::Recovering).then_some(by);
        if recoverer.is_none() && (by.slot.0 != 0 || by.incarnation.0 != 0) {
            return Err(bad("recoverer", u64::from(by.slot.0)));
        }
        let damage = raw.damage(state)?;
        let vouched = raw.flags.get() & RawSlot::VOUCHED != 0;
        let serves = raw.flags.get() & RawSlot::SERVES != 0;
        let emulates_compare_and_write = raw.flags.get() & RawSlot::EMULATES_COMPARE_AND_WRITE != 0;
        if (vouched || serves || emulates_compare_and_write) && state == SlotState::Free {
            return Err(bad("flags", u64::from(raw.flags.get())));
        }
        let named = Some(raw.named.get()).filter(|n| *n != 0);
        if named.is_some_and(|n| n <= raw.incarnation.get()) {
            return Err(bad("named", u64::from(raw.named.get())));
        }
        Ok(Self {
            life: Life { slot, incarnation: Incarnation(raw.incarnation.get()) },
            state,
            recoverer,
            pid: raw.pid.get(),
            nonce: raw.nonce.get(),
            since: raw.since.get(),
            node_uuid: raw.node_uuid,
            boot_id: raw.boot_id,
            machine_id: raw.machine_id,
            host: text(&raw.host).ok_or_else(|| bad("host", 0))?,
            address: text(&raw.address).ok_or_else(|| bad("address", 0))?,
            mount_point: text(&raw.mount_point).ok_or_else(|| bad("mount_point", 0))?,
            replayed: raw.flags.get() & 1 == 1,
            damage,
            vouched,
            serves,
            emulates_compare_and_write,
            io_timeout: raw.io_timeout.get(),
            fence_key: raw.fence_key.get(),
            named: named.map(Incarnation),
            lock_places: raw.places().ok_or_else(|| bad("lock_places", 0))?,
        })
    }
    /// Fills a whole lock sector with the record; texts are cut to fit at a character, and lock places
    /// beyond the room are left out.
    ///
    /// # Panics
    /// If the sector is shorter than a slot record, or `recoverer` or `damage` does not fit `state`, or
    /// `named` not the incarnation.
    pub fn encode(&self, sector: &mut [u8]) {
        assert_eq!(self.recoverer.is_some(), self.state == SlotState::Recovering);
        assert!(self.damage.is_none() || self.recoverer.is_some(), "damage is met in recovery");
        assert!(!self.replayed || self.recoverer.is_some(), "replayed in recovery");
        assert!(!self.vouched || self.state != SlotState::Free, "nobody is to be dead");
        assert!(!self.serves || self.state != SlotState::Free, "nobody serves");
        assert!(
            !self.emulates_compare_and_write || self.state != SlotState::Free,
            "nobody compares"
        );
        assert!(self.named.is_none_or(|n| n.0 > self.life.incarnation.0), "a name of a later life");
        let mut raw = RawSlot::new_zeroed();
        raw.magic = U32::new(RawSlot::MAGIC);
        raw.revision = U16::new(RawSlot::REVISION);
        raw.state = U16::new(self.state as u16);
        raw.slot = U16::new(self.life.slot.0);
        raw.incarnation = U32::new(self.life.incarnation.0);
        if let Some(by) = self.recoverer {
            raw.recoverer = U16::new(by.slot.0);
            raw.recoverer_incarnation = U32::new(by.incarnation.0);
        }
        raw.pid = U32::new(self.pid);
        raw.nonce = U64::new(self.nonce);
        raw.since = U64::new(self.since);
        raw.node_uuid = self.node_uuid;
        raw.boot_id = self.boot_id;
        raw.machine_id = self.machine_id;
        raw.io_timeout = U32::new(self.io_timeout);
        raw.fence_key = U64::new(self.fence_key);
        raw.named = U32::new(self.named.map_or(0, |n| n.0));
        for (raw, place) in raw.lock_places.iter_mut().zip(&self.lock_places) {
            *raw = place.to_raw();
        }
        put_text(&mut raw.host, &self.host);
        put_text(&mut raw.address, &self.address);
        put_text(&mut raw.mount_point, &self.mount_point);
        if let Some(damage) = self.damage {
            raw.damaged_block = U64::new(damage.block.get());
            raw.damaged_part = U16::new(damage.part as u16);
        }
        let vouched = if self.vouched { RawSlot::VOUCHED } else { 0 };
        let serves = if self.serves { RawSlot::SERVES } else { 0 };
        let by_lock =
            if self.emulates_compare_and_write { RawSlot::EMULATES_COMPARE_AND_WRITE } else { 0 };
        raw.flags = U16::new(u16::from(self.is_replayed()) | vouched | serves | by_lock);
        raw.crc = U32::new(crc32c_with_hole(raw.as_bytes(), RawSlot::CRC_AT));
        let (head, tail) = sector.split_at_mut(size_of::<RawSlot>());
        head.copy_from_slice(raw.as_bytes());
        tail.fill(0);
    }
}

/// What all sealed sectors of this module have in common.
struct Sealed {
    what: &'static str,
    at: u64,
    magic: u32,
    crc_at: usize,
    revision: u16,
}
impl Sealed {
    fn verify(&self, bytes: &[u8], magic: U32, crc: U32, rev: U16) -> Result<(), FormatError> {
        let Self { what, at, .. } = *self;
        if magic.get() != self.magic {
            return Err(FormatError::BadMagic { what, at, found: u64::from(magic.get()) });
        }
        let expected = crc32c_with_hole(bytes, self.crc_at);
        if crc.get() != expected {
            return Err(FormatError::ChecksumMismatch { what, at, expected, found: crc.get() });
        }
        if rev.get() != self.revision {
            let (found, known) = (rev.get().into(), self.revision.into());
            return Err(FormatError::OtherRevision { what, at, found, known });
        }
        Ok(())
    }
}

/// Text padded with zero bytes.
fn text(bytes: &[u8]) -> Option<String> {
    let len = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let (head, padding) = bytes.split_at(len);
    if padding.iter().any(|b| *b != 0) {
        return None;
    }
    core::str::from_utf8(head).ok().map(str::to_owned)
}

fn put_text(to: &mut [u8], text: &str) {
    let mut len = text.len().min(to.len());
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    for (place, byte) in to.iter_mut().zip(text.bytes().take(len).take_while(|b| *b != 0)) {
        *place = byte;
    }
}

/// A wish in a heartbeat: a lock this node waits for. Others that hold it take it as a hint.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RawWish {
    /// The lock.
    pub lock: U64,
    /// 1 shared, 2 exclusive, 3 concurrent; 0 = no wish.
    pub mode: U64,
}

/// A node's heartbeat: one lock sector, written by that node alone.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawHeartbeat {
    /// "BRHB".
    pub magic: U32,
    /// Revision, 1.
    pub revision: U16,
    /// Which slot.
    pub slot: U16,
    /// Incarnation.
    pub incarnation: U32,
    /// Pool epoch this node uses.
    pub pool_epoch: U32,
    /// Counted up with each beat.
    pub sequence: U64,
    /// This node's change of the free block count, not yet in the counters (two's complement).
    pub free_delta: U64,
    /// This node's change of the inode count.
    pub inode_delta: U64,
    /// Locks waited for longest.
    pub wishes: [RawWish; 24],
    /// This node's change of the free metadata blocks.
    pub meta_delta: U64,
    /// First half of the `change_id` of the pool epoch this node uses.
    pub pool_change: U64,
    /// 1 + the member of the pool that this node could not fill or move in this epoch; 0: none.
    pub stuck: U16,
    /// How far this node has the pool frozen, a [`FreezeStage`]; 0: not at all.
    pub freeze: U16,
    /// Which freeze of this node that is (random).
    pub freeze_id: U32,
    /// The freeze ends by itself after so many seconds.
    pub freeze_seconds: U32,
    /// 1 + the slot of the node whose freeze this node follows; 0: none.
    pub followed_slot: U16,
    /// How far it has followed it, a [`FreezeStage`].
    pub followed_stage: U16,
    /// That node's `freeze_id`.
    pub followed_id: U32,
    /// The incompatible features of labels that this node knows.
    pub label_features: U64,
    /// Those of superblocks.
    pub superblock_features: U64,
    /// Zero.
    pub reserved: [u8; 32],
    /// CRC-32C of the 512 bytes with this field zero.
    pub crc: U32,
}
const _: () = assert!(size_of::<RawHeartbeat>() == 512);

impl RawHeartbeat {
    /// "BRHB".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRHB");
    /// Most wishes in one beat.
    pub const WISHES: usize = 24;
    const CRC_AT: usize = core::mem::offset_of!(Self, crc);
}

/// How far a pool is frozen: no node changes anything but lock records, slots and heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum FreezeStage {
    /// All that programs have written is made stable.
    Prepared = 1,
    /// Changes wait.
    Frozen = 2,
}

impl FreezeStage {
    fn from_raw(raw: u16) -> Option<Self> {
        [Self::Prepared, Self::Frozen].into_iter().find(|stage| *stage as u16 == raw)
    }
}

/// What a node that freezes the pool asks of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FreezeOrder {
    /// How far.
    pub stage: FreezeStage,
    /// Which freeze of this node (random).
    pub id: u32,
    /// It ends by itself after so many seconds.
    pub seconds: u32,
}

/// How far a node has followed another one's freeze.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FreezeAnswer {
    /// Whose.
    pub slot: NodeId,
    /// Which.
    pub id: u32,
    /// How far.
    pub stage: FreezeStage,
}

/// A verified heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Heartbeat {
    /// Whose.
    pub life: Life,
    /// Pool epoch this node uses: its number's low bits.
    pub pool_epoch: u32,
    /// Which change of the pool made that epoch: the first half of its `change_id`.
    pub pool_change: u64,
    /// Counted up with each beat.
    pub sequence: u64,
    /// This node's change of the free block count.
    pub free_delta: i64,
    /// This node's change of the inode count.
    pub inode_delta: i64,
    /// This node's change of the free metadata blocks.
    pub meta_delta: i64,
    /// The member of the pool that this node could not fill or move in this epoch.
    pub stuck: Option<MemberIndex>,
    /// How far this node has the pool frozen.
    pub freeze: Option<FreezeOrder>,
    /// How far this node has followed another one's freeze.
    pub followed: Option<FreezeAnswer>,
    /// The features of the format that this node knows: with another one in the pool it cannot go on.
    pub knows: Features,
    /// Locks waited for longest, at most [`RawHeartbeat::WISHES`].
    pub wishes: Vec<(LockNo, Mode)>,
}

impl Heartbeat {
    const WHAT: &str = "heartbeat";

    /// Verifies the heartbeat sector of `slot`. A sector that was never written is a
    /// [`FormatError::BadMagic`]; one torn by a concurrent write a checksum mismatch: read again.
    ///
    /// # Errors
    /// What is wrong.
    pub fn decode(sector: &[u8], slot: NodeId) -> Result<Self, FormatError> {
        let at = u64::from(slot.0);
        let bad = |field, value: u64| FormatError::BadField { what: Self::WHAT, at, field, value };
        let (raw, _) = RawHeartbeat::read_from_prefix(sector)
            .map_err(|_| FormatError::TooShort { what: Self::WHAT, len: sector.len() })?;
        let (magic, crc_at) = (RawHeartbeat::MAGIC, RawHeartbeat::CRC_AT);
        let sealed = Sealed { what: Self::WHAT, at, magic, crc_at, revision: 1 };
        sealed.verify(raw.as_bytes(), raw.magic, raw.crc, raw.revision)?;
        if raw.slot.get() != slot.0 {
            let found = u64::from(raw.slot.get());
            return Err(FormatError::WrongAddress { what: Self::WHAT, at, found });
        }
        let (id, seconds) = (raw.freeze_id.get(), raw.freeze_seconds.get());
        let freeze = FreezeStage::from_raw(raw.freeze.get());
        let whose = raw.followed_slot.get().checked_sub(1).map(NodeId);
        let followed = FreezeStage::from_raw(raw.followed_stage.get()).zip(whose);
        let mut wishes = Vec::new();
        for wish in raw.wishes {
            match wish.mode.get() {
                0 => {}
                other => {
                    let mode = u16::try_from(other).ok().and_then(Mode::from_u16);
                    let mode = mode.ok_or_else(|| bad("wishes", other))?;
                    wishes.push((LockNo(wish.lock.get()), mode));
                }
            }
        }
        Ok(Self {
            life: Life { slot, incarnation: Incarnation(raw.incarnation.get()) },
            pool_epoch: raw.pool_epoch.get(),
            pool_change: raw.pool_change.get(),
            sequence: raw.sequence.get(),
            free_delta: raw.free_delta.get().cast_signed(),
            inode_delta: raw.inode_delta.get().cast_signed(),
            meta_delta: raw.meta_delta.get().cast_signed(),
            stuck: raw.stuck.get().checked_sub(1).map(MemberIndex),
            freeze: freeze.map(|stage| FreezeOrder { stage, id, seconds }),
            followed: followed.map(|(stage, slot)| FreezeAnswer {
                slot,
                id: raw.followed_id.get(),
                stage,
            }),
            knows: match (raw.label_features.get(), raw.superblock_features.get()) {
                (0, 0) => Features::UNSAID,
                (label, superblock) => Features { label, superblock },
            },
            wishes,
        })
    }
    /// Fills a whole sector with the heartbeat; wishes beyond the room are left out.
    ///
    /// # Panics
    /// If the sector is shorter than a heartbeat.
    pub fn encode(&self, sector: &mut [u8]) {
        let mut raw = RawHeartbeat::new_zeroed();
        raw.magic = U32::new(RawHeartbeat::MAGIC);
        raw.revision = U16::new(1);
        raw.slot = U16::new(self.life.slot.0);
        raw.incarnation = U32::new(self.life.incarnation.0);
        raw.pool_epoch = U32::new(self.pool_epoch);
        raw.sequence = U64::new(self.sequence);
        raw.free_delta = U64::new(self.free_delta.cast_unsigned());
        raw.inode_delta = U64::new(self.inode_delta.cast_unsigned());
        raw.meta_delta = U64::new(self.meta_delta.cast_unsigned());
        raw.pool_change = U64::new(self.pool_change);
        raw.stuck = U16::new(self.stuck.map_or(0, |m| m.0.saturating_add(1)));
        if let Some(freeze) = self.freeze {
            raw.freeze = U16::new(freeze.stage as u16);
            raw.freeze_id = U32::new(freeze.id);
            raw.freeze_seconds = U32::new(freeze.seconds);
        }
        if let Some(followed) = self.followed {
            raw.followed_slot = U16::new(followed.slot.0.saturating_add(1));
            raw.followed_stage = U16::new(followed.stage as u16);
            raw.followed_id = U32::new(followed.id);
        }
        raw.label_features = U64::new(self.knows.label);
        raw.superblock_features = U64::new(self.knows.superblock);
        for (place, (lock, mode)) in raw.wishes.iter_mut().zip(&self.wishes) {
            *place = RawWish { lock: U64::new(lock.0), mode: U64::new(*mode as u64) };
        }
        raw.crc = U32::new(crc32c_with_hole(raw.as_bytes(), RawHeartbeat::CRC_AT));
        let (head, tail) = sector.split_at_mut(size_of::<RawHeartbeat>());
        head.copy_from_slice(raw.as_bytes());
        tail.fill(0);
    }
}

/// A node's private counters (kind `NodeInfo`), or the cluster's (kind `Counters`).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawCounters {
    /// Kind `NodeInfo` or `Counters`.
    pub header: MetaHeader,
    /// Free blocks (a delta, two's complement, in `NodeInfo`).
    pub free_blocks: U64,
    /// Inodes in use (a delta in `NodeInfo`).
    pub inodes: U64,
    /// Blocks of free metadata slots, and free blocks of groups for metadata alone, which `free_blocks`
    /// leaves out (a delta in `NodeInfo`).
    pub free_meta: U64,
}

/// A list of orphans (kind `Orphans`): header, count, then inode numbers as `U64`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawOrphans {
    /// Kind `Orphans`.
    pub header: MetaHeader,
    /// Inode numbers that follow.
    pub count: U64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> SlotRecord {
        SlotRecord {
            life: Life { slot: NodeId(3), incarnation: Incarnation(9) },
            state: SlotState::Recovering,
            recoverer: Some(Life { slot: NodeId(1), incarnation: Incarnation(2) }),
            pid: 77,
            nonce: 5,
            since: 6,
            node_uuid: [1; 16],
            boot_id: [2; 16],
            machine_id: [3; 16],
            host: "h".to_owned(),
            address: "unix:/a".to_owned(),
            mount_point: "/m".to_owned(),
            replayed: false,
            damage: None,
            vouched: false,
            serves: false,
            emulates_compare_and_write: false,
            io_timeout: 0x0201,
            fence_key: 0x0807_0605_0403_0201,
            named: None,
            lock_places: vec![
                LockPlace { kernel: 0x0403_0201, device: 0x0807_0605, inode: 9 },
                LockPlace { kernel: 1, device: 2, inode: 3 },
            ],
        }
    }
    fn beat() -> Heartbeat {
        Heartbeat {
            life: Life { slot: NodeId(3), incarnation: Incarnation(9) },
            pool_epoch: 4,
            pool_change: 0,
            sequence: 5,
            free_delta: -2,
            inode_delta: 1,
            meta_delta: -3,
            stuck: Some(MemberIndex(0x0605)),
            freeze: Some(FreezeOrder { stage: FreezeStage::Frozen, id: 0x0a09_0807, seconds: 11 }),
            followed: Some(FreezeAnswer {
                slot: NodeId(12),
                id: 0x1110_0f0e,
                stage: FreezeStage::Prepared,
            }),
            knows: Features { label: 0x1312, superblock: 0x1514 },
            wishes: vec![(LockNo(16), Mode::Shared), (LockNo(17), Mode::Exclusive)],
        }
    }

    #[test]
    fn slot_golden_bytes() {
        let mut sector = vec![0x5a; 512];
        slot().encode(&mut sector);
        let mut golden = vec![0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| golden[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"BRSL\x02\0\x02\0\x03\0\x01\0");
        put(12, &[9, 0, 0, 0, 2, 0, 0, 0, 77]);
        put(24, &[5, 0, 0, 0, 0, 0, 0, 0, 6]);
        put(40, &[1; 16]);
        put(56, &[2; 16]);
        put(72, b"h");
        put(136, b"unix:/a");
        put(264, b"/m");
        put(392, &[3; 16]);
        put(420, &[1, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        put(436, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        put(452, &[1, 0, 0, 0, 2, 0, 0, 0, 3]);
        put(508, &0xe541_b2e4_u32.to_le_bytes());
        assert_eq!(sector, golden);
    }

    #[test]
    fn heartbeat_golden_bytes() {
        let mut sector = vec![0x5a; 512];
        beat().encode(&mut sector);
        let mut golden = vec![0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| golden[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"BRHB\x01\0\x03\0\x09\0\0\0\x04\0\0\0\x05");
        put(24, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
        put(40, &[16, 0, 0, 0, 0, 0, 0, 0, 1]);
        put(56, &[17, 0, 0, 0, 0, 0, 0, 0, 2]);
        put(424, &[0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        put(440, &[6, 6, 2, 0, 7, 8, 9, 10, 11, 0, 0, 0, 13, 0, 1, 0, 14, 15, 16, 17]);
        put(460, &[0x12, 0x13, 0, 0, 0, 0, 0, 0, 0x14, 0x15]);
        put(508, &0xe748_50ce_u32.to_le_bytes());
        assert_eq!(sector, golden);
    }

    /// A heartbeat that others cannot read is silence, and silence is fenced.
    #[test]
    fn wishes_of_every_mode_are_read() {
        let modes = [Mode::Shared, Mode::Exclusive, Mode::Concurrent];
        let wishes = (16..).map(LockNo).zip(modes).collect();
        let beat = Heartbeat { wishes, ..beat() };
        let mut sector = vec![0; 512];
        beat.encode(&mut sector);
        assert_eq!(Heartbeat::decode(&sector, NodeId(3)), Ok(beat));
    }

    #[test]
    fn both_round_trip_and_no_flipped_bit_passes() {
        for len in [512, 4096] {
            let mut sector = vec![0x5a; len];
            slot().encode(&mut sector);
            assert_eq!(SlotRecord::decode(&sector, NodeId(3)), Ok(slot()));
            assert!(SlotRecord::decode(&sector, NodeId(4)).is_err());
            for at in 0..len {
                sector[at] ^= 1 << (at % 8);
                assert!(SlotRecord::decode(&sector, NodeId(3)).is_err(), "flip at {at}");
                sector[at] ^= 1 << (at % 8);
            }
            beat().encode(&mut sector);
            assert_eq!(Heartbeat::decode(&sector, NodeId(3)), Ok(beat()));
            for at in 0..512 {
                sector[at] ^= 1 << (at % 8);
                assert!(Heartbeat::decode(&sector, NodeId(3)).is_err(), "flip at {at}");
                sector[at] ^= 1 << (at % 8);
            }
        }
        for len in 0..512 {
            assert!(SlotRecord::decode(&vec![0; len], NodeId(0)).is_err());
            assert!(Heartbeat::decode(&vec![0; len], NodeId(0)).is_err());
        }
    }

    #[test]
    fn damage_round_trips_and_only_in_recovery() {
        for (n, replayed) in (1..=7).zip([true, false].into_iter().cycle()) {
            let part = DamagedPart::from_raw(n).unwrap();
            let damage = Some(SlotDamage { block: BlockNo(77), part, replayed });
            let record = SlotRecord { replayed, damage, ..slot() };
            let mut sector = vec![0x5a; 512];
            record.encode(&mut sector);
            assert_eq!(
                (sector[408], u16::from(sector[416]), sector[418]),
                (77, n, replayed.into())
            );
            assert_eq!(SlotRecord::decode(&sector, NodeId(3)), Ok(record));
        }
        let record = SlotRecord { replayed: true, ..slot() };
        let mut sector = vec![0; 512];
        record.encode(&mut sector);
        assert_eq!((&sector[408..418], sector[418]), (&[0; 10][..], 1));
        assert_eq!(SlotRecord::decode(&sector, NodeId(3)), Ok(record));
        let refused = |change: &dyn Fn(&mut RawSlot)| {
            let mut sector = vec![0; 512];
            slot().encode(&mut sector);
            let (mut raw, _) = RawSlot::read_from_prefix(&sector).unwrap();
            change(&mut raw);
            raw.crc = U32::new(crc32c_with_hole(raw.as_bytes(), RawSlot::CRC_AT));
            assert!(SlotRecord::decode(raw.as_bytes(), NodeId(3)).is_err());
        };
        refused(&|raw| raw.lock_places[0] = RawLockPlace::new_zeroed());
        refused(&|raw| raw.revision.set(1));
        refused(&|raw| raw.damaged_part.set(8));
        refused(&|raw| raw.damaged_block.set(1));
        refused(&|raw| raw.flags.set(16));
        let record = SlotRecord { vouched: true, ..slot() };
        record.encode(&mut sector);
        assert_eq!(sector[418], 2);
        assert_eq!(SlotRecord::decode(&sector, NodeId(3)), Ok(record));
        let record = SlotRecord { serves: true, ..slot() };
        record.encode(&mut sector);
        assert_eq!(sector[418], 4);
        assert_eq!(SlotRecord::decode(&sector, NodeId(3)), Ok(record));
        let record = SlotRecord { emulates_compare_and_write: true, ..slot() };
        record.encode(&mut sector);
        assert_eq!(sector[418], 8);
        assert_eq!(SlotRecord::decode(&sector, NodeId(3)), Ok(record));
        refused(&|raw| {
            raw.flags.set(2);
            (raw.state, raw.recoverer, raw.recoverer_incarnation) =
                (U16::new(0), U16::new(0), U32::new(0));
        });
        refused(&|raw| {
            raw.flags.set(1);
            (raw.state, raw.recoverer, raw.recoverer_incarnation) =
                (U16::new(1), U16::new(0), U32::new(0));
        });
        refused(&|raw| {
            raw.damaged_part.set(1);
            raw.flags.set(16);
        });
        refused(&|raw| {
            raw.damaged_part.set(1);
            (raw.state, raw.recoverer, raw.recoverer_incarnation) =
                (U16::new(1), U16::new(0), U32::new(0));
        });
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let mut record = slot();
        record.host = "\u{20ac}".repeat(30);
        let mut sector = vec![0; 512];
        record.encode(&mut sector);
        let back = SlotRecord::decode(&sector, NodeId(3)).unwrap();
        assert_eq!(back.host, "\u{20ac}".repeat(21));
    }

    #[test]
    fn no_incarnation_that_a_slot_ever_had_is_forgotten() {
        let taken_over = |by, incarnation| {
            let by = Life { slot: NodeId(by), incarnation: Incarnation(incarnation) };
            SlotRecord { recoverer: Some(by), ..slot() }
        };
        // Its node, of incarnation 9, is recovered by another slot, or by its own next life.
        assert_eq!(taken_over(1, 20).last_named(), Incarnation(9));
        assert_eq!(taken_over(3, 20).last_named(), Incarnation(20));
        let named = SlotRecord { named: Some(Incarnation(30)), ..taken_over(3, 20) };
        assert_eq!(named.last_named(), Incarnation(30));
        assert_eq!(taken_over(1, 20).acting(), slot().life);
        assert_eq!(taken_over(3, 20).acting().incarnation, Incarnation(20));
    }

    #[test]
    fn only_a_slot_in_recovery_names_a_recoverer() {
        let active = SlotRecord { state: SlotState::Active, recoverer: None, ..slot() };
        let mut sector = vec![0; 512];
        active.encode(&mut sector);
        assert_eq!(SlotRecord::decode(&sector, NodeId(3)), Ok(active));
        for (slot, incarnation) in [(1, 0), (0, 2), (1, 2)] {
            let (mut raw, _) = RawSlot::read_from_prefix(&sector).unwrap();
            raw.recoverer.set(slot);
            raw.recoverer_incarnation.set(incarnation);
            raw.crc.set(crc32c_with_hole(raw.as_bytes(), RawSlot::CRC_AT));
            let found = SlotRecord::decode(raw.as_bytes(), NodeId(3));
            let refused = matches!(found, Err(FormatError::BadField { field: "recoverer", .. }));
            assert!(refused, "{slot}, {incarnation}: {found:?}");
        }
    }

    #[test]
    fn an_incarnation_is_named_ahead_of_the_slot_s_own() {
        let mut sector = vec![0; 512];
        let named = SlotRecord { named: Some(Incarnation(10)), ..slot() };
        named.encode(&mut sector);
        assert_eq!(SlotRecord::decode(&sector, NodeId(3)), Ok(named));
        for not_ahead in [8, 9] {
            let (mut raw, _) = RawSlot::read_from_prefix(&sector).unwrap();
            raw.named.set(not_ahead);
            raw.crc.set(crc32c_with_hole(raw.as_bytes(), RawSlot::CRC_AT));
            let found = SlotRecord::decode(raw.as_bytes(), NodeId(3));
            let refused = matches!(found, Err(FormatError::BadField { field: "named", .. }));
            assert!(refused, "{not_ahead}: {found:?}");
        }
    }
}

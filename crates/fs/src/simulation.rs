//! Journal, metadata cache and replay by themselves, for the simulator (`crates/sim`): not an API.
//!
//! Thin: everything here calls what a mounted node calls. It exists because the simulator drives
//! those layers one blocking call at a time, on devices that it stops and cuts off at any request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_format::meta::MetaKind;
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, ByteOffset, Bytes, Incarnation, InodeNo, LockNo, NodeId};
use braid_pool::Pool;
use braid_pool::device::AlignedBuf;

use crate::error::Result;
use crate::inode::Inode;
use crate::meta::Meta;
pub use crate::replay::Writer;

mod sharing;

pub use sharing::{Link, Sharing, Terms};

/// The kind of the blocks that a simulation changes: nothing but its user looks inside.
const KIND: MetaKind = MetaKind::DirLeaf;

/// A file system's places. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Places(Arc<crate::volume::Volume>);

impl Places {
    /// Of the file system on `pool`.
    ///
    /// # Errors
    /// When there is none.
    pub fn open(pool: Pool) -> Result<Self> {
        Ok(Self(Arc::new(crate::volume::Volume::open(pool)?)))
    }
    /// The pool under it.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }
    /// The `n`-th free metadata slot of a new file system; there are some sixty.
    pub fn free_slot(&self, n: u64) -> BlockNo {
        let slot = self.0.geo.slot_blocks();
        BlockNo(self.0.root().get() + (1 + n) * slot)
    }
    /// Where a slot begins: with the lock record, if it has one.
    pub fn slot_at(&self, block: BlockNo) -> ByteOffset {
        self.0.slot_at(block)
    }
    /// Where a slot's body is.
    pub fn body(&self, block: BlockNo) -> (ByteOffset, Bytes) {
        (self.0.body_at(block), Bytes::from(self.0.geo.body_len()))
    }
    /// Where the records of node slots, and heartbeats, begin.
    pub fn node_records(&self) -> (ByteOffset, ByteOffset) {
        let at = |block| self.0.geo.block_size.offset_of(BlockNo(block));
        (at(self.0.sb.slot_area.get()), at(self.0.sb.heartbeat_area.get()))
    }
    /// The two copies of a journal's header.
    pub fn journal_headers(&self, node: NodeId) -> [BlockNo; 2] {
        [0, 1].map(|copy| self.0.node_area(node, RawSuperblock::AREA_JOURNAL_HEADERS + copy))
    }
}

/// A node's journal and metadata cache.
#[derive(Debug, Clone)]
pub struct Metadata(Arc<Meta>);

impl Metadata {
    /// As a node does that has joined.
    ///
    /// # Errors
    /// When the node's journal is not clean, or a device fails.
    pub fn open(places: &Places, node: NodeId, life: Incarnation, cache: Bytes) -> Result<Self> {
        Ok(Self(Arc::new(Meta::open(places.0.clone(), node, life, cache.get())?)))
    }
    /// A block's body. `owner` held, at least shared.
    ///
    /// # Errors
    /// When it is not `owner`'s, is damaged, or a device fails.
    pub fn read(&self, block: BlockNo, owner: LockNo) -> Result<Arc<AlignedBuf>> {
        self.0.read(block, owner, KIND)
    }
    /// One transaction that gives free slots content. `owner` held exclusively.
    ///
    /// # Errors
    /// When a slot is in use, or a device fails.
    pub fn create(
        &self,
        blocks: &[(BlockNo, LockNo)],
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<()> {
        let mut tx = self.0.begin()?;
        blocks.iter().try_for_each(|&(b, owner)| tx.create(b, owner, KIND, |body| fill(body)))
    }
    /// One transaction that changes these blocks. Each `owner` held exclusively.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn change(
        &self,
        blocks: &[(BlockNo, LockNo)],
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<()> {
        let mut tx = self.0.begin()?;
        blocks.iter().try_for_each(|&(b, owner)| tx.modify(b, owner, KIND, |body| fill(body)))
    }
    /// Tells that an exclusive lock was granted.
    pub fn note_granted(&self) {
        self.0.note_granted();
    }
    /// Makes every transaction closed before this call durable.
    ///
    /// # Errors
    /// When a device fails; as all below.
    pub fn commit(&self) -> Result<()> {
        self.0.commit()
    }
    /// As [`Self::commit`], and contents that were written before are durable, too.
    ///
    /// # Errors
    /// When a device fails; as all below.
    pub fn commit_and_flush(&self) -> Result<()> {
        self.0.commit_and_flush()
    }
    /// Contents were written in place: what an overwrite says once it is complete.
    pub fn note_data_written(&self) {
        self.0.note_data_written();
    }
    /// Puts everything under `owner` in place, stable: the way an exclusive lock is given up.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn sync_owner(&self, owner: LockNo) -> Result<()> {
        self.0.sync_owner(owner)
    }
    /// Forgets what is cached under a lock that is given up altogether.
    pub fn drop_owner(&self, owner: LockNo) {
        self.0.drop_owner(owner);
    }
    /// Writes everything durable in place, and moves the journal's tail.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn checkpoint(&self) -> Result<()> {
        self.0.checkpoint()
    }
    /// Leaves the journal clean, as a node does that leaves.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn close(&self) -> Result<()> {
        self.0.close()
    }
    /// Whether the cache holds something of this block that is not in place.
    pub fn is_dirty(&self, block: BlockNo) -> bool {
        self.0.is_dirty(block)
    }
}

/// An inode as far as programs of a node have it open. See `crate::inode::Inode::leaves_opener`.
#[derive(Debug)]
pub struct OpenFile(Inode);

impl Default for OpenFile {
    fn default() -> Self {
        Self(Inode::new(InodeNo(0)))
    }
}

impl OpenFile {
    /// A program opens it; its lock is held.
    pub fn open(&self) {
        self.0.opens.fetch_add(1, Ordering::SeqCst);
    }
    /// A program closes it. Then [`Self::end_opener`] is to be asked.
    pub fn close(&self) {
        self.0.opens.fetch_sub(1, Ordering::SeqCst);
    }
    /// Whether a program has it open.
    pub fn is_open(&self) -> bool {
        self.0.opens.load(Ordering::SeqCst) > 0
    }
    /// The lock is being given up: whether its record is to name this node as an opener.
    pub fn leaves_opener(&self) -> bool {
        self.0.leaves_opener(|| false)
    }
    /// Whether the lock must be taken, so that its record names this node no more.
    pub fn end_opener(&self) -> bool {
        self.0.end_opener()
    }
    /// Whether the record may name this node.
    pub fn may_be_opener(&self) -> bool {
        self.0.may_be_opener()
    }
    /// The lock could not be taken: to be tried again.
    pub fn still_opener(&self) {
        self.0.still_opener();
    }
    /// A new inode: no record names anybody.
    pub fn no_opener(&self) {
        self.0.no_opener();
    }
}

/// Waits on behalf of one of several lines of work that share this thread: what the metadata cache
/// knows of the thread is that line's own, and is back afterwards.
pub fn outside_transaction<T>(wait: impl FnOnce() -> T) -> T {
    crate::meta::outside_transaction(wait)
}

/// What a replay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// Transactions found valid.
    pub transactions: u64,
    /// Bodies written in place.
    pub written: u64,
    /// Bodies skipped: newer in place.
    pub skipped: u64,
}

/// As [`replay`] once was: a header that says clean is believed, also where the newer one is lost that
/// says otherwise. For the simulator, which must find that.
///
/// # Errors
/// As [`replay`].
pub fn replay_believing(places: &Places, slot: NodeId, writer: Writer) -> Result<Replayed> {
    let ring = crate::journal::Ring::of(&places.0, slot)?;
    if crate::journal::Header::read(&places.0, &ring)?.clean {
        return Ok(Replayed { transactions: 0, written: 0, skipped: 0 });
    }
    replay(places, slot, writer)
}

/// Replays the journal of a slot, as a recoverer does that of a dead node, and a check those of all slots.
///
/// # Errors
/// When a device fails, or the journal is damaged.
pub fn replay(places: &Places, slot: NodeId, writer: Writer) -> Result<Replayed> {
    let done = crate::replay::replay(&places.0, slot, writer)?;
    let crate::replay::Replayed { transactions, written, skipped } = done;
    Ok(Replayed { transactions, written, skipped })
}

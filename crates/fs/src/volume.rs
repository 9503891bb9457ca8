//! The pool as the file system sees it: geometry, superblock, metadata slots by number.

mod store_choice;
mod superblock;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::label::SubpoolKind;
use braid_format::lock_record::LockRecord;
use braid_format::meta::{Geometry, MetaHeader, MetaKind};
use braid_format::superblock::{RawRegions, RawSuperblock};
use braid_format::{BlockNo, ByteOffset, Bytes, FormatError, InodeNo, LockNo, NodeId};
use braid_pool::device::AlignedBuf;
use braid_pool::{Pool, PoolRequest, ReadPath};
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::external_store::ExternalStore;
use crate::groups::{GroupShape, Groups, takes_data};

/// Slots on each side of a damaged one that show whether its copy is in the right place.
const AROUND: u64 = 4;

/// Slots so far from one another are read at once.
const GAP: u64 = 2;
/// Reads of such slots that are under way at a time.
const AT_ONCE: usize = 4;
/// Slots that are read at once, at most.
const TOGETHER: usize = 32;

/// A metadata body, shared and immutable.
pub(crate) type Body = Arc<AlignedBuf>;

/// A pool with the file system on it. Cheap to share; it only ever gets larger.
#[derive(Debug)]
pub(crate) struct Volume {
    pub pool: Pool,
    pub geo: Geometry,
    /// As it was read when this was opened.
    pub sb: RawSuperblock,
    /// As they were read when this was opened.
    pub regions: Box<RawRegions>,
    /// Where the locks are if they are not on the pool.
    pub external_store: Option<ExternalStore>,
    pub groups: Arc<Groups>,
    /// Blocks of the file system now.
    total: AtomicU64,
    /// Held by the thread that reads the superblock again.
    learning: Mutex<()>,
}

impl Volume {
    /// Looks again, with a liveness lock held: whoever makes a pool or a file system holds them all
    /// meanwhile, and may have done so since this was opened. Nodes may have changed the pool's members
    /// since, too: the newest epoch is used from now on.
    ///
    /// # Errors
    /// [`Error::Replaced`], or a device failed.
    pub fn confirm(&self) -> Result<()> {
        if !self.pool.has_its_members() {
            return Err(Error::Replaced);
        }
        self.pool.follow()?;
        self.confirm_file_system()?;
        match &self.external_store {
            Some(store) => Ok(store.etcd.confirm()?),
            None => Ok(()),
        }
    }
    /// As [`Volume::confirm`], but the pool stays as it was opened: without members that count as lost, or with
    /// members that are out of date.
    ///
    /// # Errors
    /// As [`Volume::confirm`].
    pub fn confirm_identity(&self) -> Result<()> {
        if !self.pool.has_its_members() {
            return Err(Error::Replaced);
        }
        self.confirm_file_system()
    }
    fn confirm_file_system(&self) -> Result<()> {
        let now = Self::open(self.pool.clone())?;
        if now.sb.fs_uuid != self.sb.fs_uuid || now.geo != self.geo {
            return Err(Error::Replaced);
        }
        Ok(())
    }
    /// A body from the first copy that is sound.
    pub fn look_at_body(&self, block: BlockNo) -> Result<AlignedBuf> {
        let mut body = AlignedBuf::zeroed(self.geo.body_len());
        let mut found = Ok(());
        for nth in 0..self.pool.copies() {
            self.pool.look(self.body_at(block), &mut body, nth)?;
            found = MetaHeader::decode(&body, block).map(drop);
            if found.is_ok() {
                break;
            }
        }
        found.map_err(|source| Error::Damaged { block, source })?;
        Ok(body)
    }
    /// Blocks of the file system.
    pub fn total_blocks(&self) -> u64 {
        self.total.load(Ordering::Acquire)
    }
    /// Where slot `block` begins in the pool.
    pub fn slot_at(&self, block: BlockNo) -> ByteOffset {
        self.geo.block_size.offset_of(block)
    }
    /// Where the body of slot `block` begins.
    pub fn body_at(&self, block: BlockNo) -> ByteOffset {
        self.slot_at(block) + self.geo.body_at()
    }
    /// Whether `block` can be a slot at all: hostile block numbers stop here.
    pub fn holds(&self, block: BlockNo) -> bool {
        let total = self.total_blocks();
        block.get() < total && block.get() + self.geo.slot_blocks() <= total
    }
    /// Reads slot `block`'s body from the devices and verifies it.
    pub fn read_body(&self, block: BlockNo) -> Result<(AlignedBuf, MetaHeader, MetaKind)> {
        if !self.holds(block) {
            return Err(Error::Inconsistent { block, what: "address beyond the file system" });
        }
        let mut body = AlignedBuf::zeroed(self.geo.body_len());
        if let Err(source) = self.pool.read(self.body_at(block), &mut body) {
            if !source.is_of_one_place() {
                return Err(source.into());
            }
            // A suspected member may have it, too, and here its checksum tells.
            return self.other_copy(block).ok_or(Error::Unreadable { block, source });
        }
        match MetaHeader::decode(&body, block) {
            Ok((header, kind)) => {
                let good = |b: &[u8]| MetaHeader::decode(b, block).is_ok();
                if self.pool.ask_suspects(self.body_at(block), body.len(), &good) {
                    self.heal_body(block);
                }
                Ok((body, header, kind))
            }
            Err(source) => self.other_copy(block).ok_or(Error::Damaged { block, source }),
        }
    }
    /// The bodies of slots, ascending, as they stand on the devices: those that are near one another by one read. None of
    /// those that a read fails for; nothing is verified.
    pub fn read_neighbours(&self, slots: &[BlockNo]) -> Vec<(BlockNo, AlignedBuf)> {
        let held: Vec<BlockNo> = slots.iter().copied().filter(|slot| self.holds(*slot)).collect();
        held.chunks(TOGETHER).flat_map(|chunk| self.read_runs(chunk)).collect()
    }
    /// Those of a few slots.
    fn read_runs(&self, slots: &[BlockNo]) -> Vec<(BlockNo, AlignedBuf)> {
        let len = self.geo.body_len();
        let is_near = |a: &BlockNo, b: &BlockNo| {
            b.get().saturating_sub(a.get()) <= GAP * self.geo.slot_blocks()
        };
        // Of a run: its slots, from the first of them, and what is read.
        let mut runs: Vec<(&[BlockNo], ByteOffset, AlignedBuf)> = slots
            .chunk_by(is_near)
            .filter_map(|run| {
                let (first, last) = (self.body_at(*run.first()?), self.body_at(*run.last()?));
                let bytes = Bytes(last.0 - first.0 + len as u64);
                Some((run, first, AlignedBuf::zeroed(bytes.to_usize())))
            })
            .collect();
        let mut requests: Vec<PoolRequest<'_>> =
            runs.iter_mut().map(|(_, first, buf)| PoolRequest::read(*first, buf)).collect();
        // Each that is under way may take a thread, and memory.
        requests.chunks_mut(AT_ONCE).for_each(|some| self.pool.run(some));
        let read: Vec<bool> = requests.into_iter().map(|request| request.result.is_ok()).collect();
        let mut bodies = Vec::with_capacity(slots.len());
        for ((run, first, buf), _) in runs.iter().zip(read).filter(|(_, read)| *read) {
            for slot in *run {
                let at = Bytes(self.body_at(*slot).0 - first.0).to_usize();
                let Some(bytes) = buf.get(at..at + len) else { continue };
                let mut body = AlignedBuf::zeroed(len);
                body.copy_from_slice(bytes);
                bodies.push((*slot, body));
            }
        }
        bodies
    }
    /// A body whose checksum is right from another copy, or from parity; the damaged one is healed.
    pub fn other_copy(&self, block: BlockNo) -> Option<(AlignedBuf, MetaHeader, MetaKind)> {
        let at = self.body_at(block);
        let mut body = AlignedBuf::zeroed(self.geo.body_len());
        for nth in 0.. {
            match self.pool.read_otherwise(ReadPath::Read, at, &mut body, nth) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    tracing::warn!(%block, %error, "a copy of a damaged block");
                    continue;
                }
            }
            let Ok((header, kind)) = MetaHeader::decode(&body, block) else { continue };
            tracing::warn!(%block, "was damaged; read from another member");
            let good = |b: &[u8]| MetaHeader::decode(b, block).is_ok();
            self.pool.blame(at, body.len(), &good);
            self.heal_body(block);
            return Some((body, header, kind));
        }
        None
    }
    /// Writes a body anew where it is damaged, from where it is not.
    fn heal_body(&self, block: BlockNo) {
        let good = |b: &[u8]| MetaHeader::decode(b, block).is_ok();
        // A node that keeps no log only looks: another node may be using the pool.
        if self.pool.is_attached()
            && (self.external_store.is_some() || !self.is_misplaced(block))
            && let Err(error) =
                self.pool.heal(self.body_at(block), Bytes::from(self.geo.body_len()), &good)
        {
            tracing::warn!(%block, %error, "could not be healed");
        }
    }
    /// Whether a copy of a slot without a good body has no lock record of that place either, nor
    /// have the slots around it: as if a member stood in another one's place. To repair it would
    /// overwrite what is good there. Where records are in a store nothing tells.
    fn is_misplaced(&self, block: BlockNo) -> bool {
        let mut slot = AlignedBuf::zeroed(Bytes(self.geo.slot_bytes()).to_usize());
        let mut good = |block: BlockNo, nth, part: fn(&[u8], &[u8], BlockNo) -> bool| {
            let read = self.pool.look(self.slot_at(block), &mut slot, nth);
            let (record, body) = slot.split_at(self.geo.body_at().to_usize());
            read.is_ok() && part(record, body, block)
        };
        let far = AROUND * self.geo.slot_blocks();
        let around = (block.get().saturating_sub(far)..=block.get().saturating_add(far))
            .step_by(Bytes(self.geo.slot_blocks()).to_usize());
        let misplaced = (0..self.pool.copies()).any(|nth| {
            !good(block, nth, |_, body, block| MetaHeader::decode(body, block).is_ok())
                && !around.clone().map(BlockNo).filter(|b| self.holds(*b)).any(|b| {
                    good(b, nth, |record, _, b| LockRecord::decode(record, LockNo::from(b)).is_ok())
                })
        });
        if misplaced {
            tracing::error!(
                %block,
                "not healed: nothing around that copy belongs to this place, as if a member were in the place of another one; were labels restored onto the wrong devices?"
            );
        }
        misplaced
    }
    /// Reads and verifies a block that belongs to one node alone.
    pub fn read_private(&self, block: BlockNo, kind: MetaKind) -> Result<AlignedBuf> {
        let (body, header, found) = self.read_body(block)?;
        if found != kind {
            let (expected, at, found) = (kind.name(), block.get(), found as u16);
            let source = FormatError::WrongKind { expected, at, found };
            return Err(Error::Damaged { block, source });
        }
        if header.owner.get() != block.get() {
            return Err(Error::Inconsistent { block, what: "owner of a private block" });
        }
        Ok(body)
    }
    /// Runs requests on the pool, all at once; the first failure, if any, when all have ended.
    pub fn run(&self, requests: &mut [PoolRequest<'_>]) -> Result<()> {
        self.pool.run(requests);
        for request in requests {
            std::mem::replace(&mut request.result, Ok(()))?;
        }
        Ok(())
    }
    /// Writes bodies (sealed by the caller) in place, many at once. Complete, not durable.
    pub fn write_bodies(&self, bodies: &[(BlockNo, &[u8])]) -> Result<()> {
        debug_assert!(
            bodies.iter().all(|(block, _)| !self.is_data_only(*block)),
            "a body on a data subpool"
        );
        for chunk in bodies.chunks(256) {
            let mut requests: Vec<PoolRequest<'_>> = chunk
                .iter()
                .map(|(block, body)| PoolRequest::write(self.body_at(*block), body))
                .collect();
            self.run(&mut requests)?;
        }
        Ok(())
    }
    /// The root directory.
    pub fn root(&self) -> InodeNo {
        InodeNo(self.sb.root_inode.get())
    }
    /// The `n`-th named lock.
    pub fn named(&self, n: u64) -> LockNo {
        LockNo(self.sb.named_start.get() + n * self.geo.slot_blocks())
    }
    /// What a lock protects, for people.
    pub fn name_of(&self, lock: LockNo) -> String {
        let stride = self.geo.slot_blocks();
        let within = |start: u64, count: u64| {
            let n = lock.get().checked_sub(start)? / stride;
            (n < count).then_some(n)
        };
        let block = BlockNo(lock.get());
        if let Some(n) = within(self.sb.named_start.get(), self.sb.named_count.get().into()) {
            format!("named lock {n}")
        } else if let Some(n) = within(self.sb.plock_start.get(), self.sb.plock_count.get().into())
        {
            format!("program locks {n}")
        } else if self.is_group_lock(lock) {
            let n = self.rgrp_of(block).unwrap_or_default();
            format!("resource group {n}")
        } else {
            format!("inode {lock}")
        }
    }
    /// The lock of nodes that may have free space that no resource group shows.
    pub fn space_lock(&self) -> LockNo {
        self.named(RawSuperblock::NAMED_SPACE)
    }
    /// Whether it is the lock of a resource group.
    pub fn is_group_lock(&self, lock: LockNo) -> bool {
        let block = BlockNo(lock.get());
        self.rgrp_of(block).is_some_and(|n| self.rgrp(n) == block)
    }
    /// The bucket of program locks for `ino`.
    pub fn plock_bucket(&self, ino: InodeNo) -> LockNo {
        let n = (ino.get() / self.geo.slot_blocks()) % u64::from(self.sb.plock_count.get().max(1));
        self.nth_plock_bucket(n)
    }
    /// All buckets of program locks, in the order in which several are locked.
    pub fn plock_buckets(&self) -> impl Iterator<Item = LockNo> {
        (0..u64::from(self.sb.plock_count.get())).map(|n| self.nth_plock_bucket(n))
    }
    fn nth_plock_bucket(&self, n: u64) -> LockNo {
        LockNo(self.sb.plock_start.get() + n * self.geo.slot_blocks())
    }
    /// The `n`-th slot of `node`'s private area ([`RawSuperblock::AREA_INFO`] and its like).
    pub fn node_area(&self, node: NodeId, n: u64) -> BlockNo {
        let per_node = u64::from(self.sb.node_area_slots.get());
        let slot = u64::from(node.get()) * per_node + n;
        BlockNo(self.sb.node_area.get() + slot * self.geo.slot_blocks())
    }
    /// First byte and length of `node`'s journal ring.
    pub fn journal(&self, node: NodeId) -> (ByteOffset, Bytes) {
        let blocks = self.sb.journal_blocks.get();
        let start = BlockNo(self.sb.journal_area.get() + u64::from(node.get()) * blocks);
        (self.geo.block_size.offset_of(start), Bytes(blocks << self.geo.block_size.shift()))
    }
    /// Header slot of resource group `index`; its lock is the group's.
    pub fn rgrp(&self, index: u64) -> BlockNo {
        self.groups.head(index)
    }
    /// The parts of group `index`, if there is one.
    pub fn group_shape(&self, index: u64) -> Option<GroupShape> {
        self.groups.shape(index)
    }
    /// The resource group that block lies in, if it lies in one.
    pub fn rgrp_of(&self, block: BlockNo) -> Option<u64> {
        self.groups.of_block(block)
    }
    /// Whether `block` lies where nothing but file data may be.
    pub fn is_data_only(&self, block: BlockNo) -> bool {
        let at = self.slot_at(block);
        let kind = self.pool.info().kind_of(at, self.geo.block_size.bytes());
        kind == Some(SubpoolKind::Data)
    }
    /// First, and one past the last block that file data may lie in.
    pub fn data_bounds(&self) -> (u64, u64) {
        self.groups.data_bounds(self.total_blocks())
    }
    /// The rows that a large file in group `index` is best aligned to, from the group's block
    /// `block` on: (first block of all rows, blocks in a row; 0: none).
    pub fn rows_at(&self, index: u64, block: u64) -> (u64, u64) {
        let shift = self.geo.block_size.shift();
        let info = self.pool.info();
        let whole = |n: u64| n.is_multiple_of(self.geo.block_size.bytes().get());
        if !self.groups.split() && !self.groups.is_added(index) {
            return (0, self.sb.stripe_width.get() >> shift);
        }
        if !takes_data(self.groups.kind(index)) {
            return (0, 0);
        }
        let at = block << shift;
        let zone = info.zones.iter().find(|z| z.start.get() + z.len.get() > at);
        let (start, width) = match zone {
            Some(z) if z.width != Bytes(0) => (z.start.get(), z.width.get()),
            _ => (0, info.stripe_unit.get()),
        };
        if whole(start) && whole(width) { (start >> shift, width >> shift) } else { (0, 0) }
    }
}

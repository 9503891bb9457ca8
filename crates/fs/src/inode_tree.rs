//! The tree of an inode: [`Reader`] reads its nodes from the metadata cache, [`Editor`] changes them in an
//! open transaction.

use braid_format::BlockNo;
use braid_format::dinode::RawDinode;
use braid_format::meta::MetaKind;

use crate::alloc::{Alloc, Reservation};
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::meta::{Body, Meta, Tx};
use crate::tree::{Nodes, NodesMut, Root};

/// The root of an inode whose lock is held.
pub(crate) fn root_of(inode: &Inode, body_len: usize) -> Result<Root> {
    let st = inode.state_ref().ok_or(Error::Stale(inode.ino))?;
    let xattr_len = usize::from(st.raw.xattr_len.get());
    let capacity = body_len
        .checked_sub(RawDinode::TAIL_AT + xattr_len)
        .ok_or(Error::Inconsistent { block: inode.block(), what: "length of inline attributes" })?;
    Ok(Root {
        block: inode.block(),
        height: st.raw.tree_height.get(),
        count: st.raw.tail_count.get(),
        tail_at: RawDinode::TAIL_AT,
        capacity,
    })
}

/// Reads an inode's tree. Its lock is held, at least shared.
pub(crate) struct Reader<'a> {
    /// The cache.
    pub meta: &'a Meta,
    /// Whose tree.
    pub inode: &'a Inode,
}

impl Nodes for Reader<'_> {
    fn root(&mut self) -> Result<(Root, Body)> {
        let body = self.meta.read(self.inode.block(), self.inode.lock_no(), MetaKind::Dinode)?;
        Ok((root_of(self.inode, body.len())?, body))
    }
    fn read(&mut self, block: BlockNo, kind: MetaKind) -> Result<Body> {
        self.meta.read(block, self.inode.lock_no(), kind)
    }
}

/// Changes an inode's tree in a transaction. Its lock is held exclusively.
pub(crate) struct Editor<'a, 't> {
    /// Where slots come from.
    pub alloc: &'a Alloc,
    /// The transaction.
    pub tx: &'a mut Tx<'t>,
    /// Pays for slots and free-log entries.
    pub reservation: &'a mut Reservation,
    /// Whose tree.
    pub inode: &'a Inode,
    /// Blocks a slot takes, bytes of its body.
    pub geo: braid_format::meta::Geometry,
}

impl Editor<'_, '_> {
    /// Counts blocks that the inode holds more (or fewer, negative).
    pub fn count_blocks(&mut self, change: i64) -> Result<()> {
        self.inode.update(self.tx, |raw| {
            raw.blocks = raw.blocks.get().saturating_add_signed(change).into();
        })
    }
    fn slot_blocks(&self) -> i64 {
        i64::try_from(self.geo.slot_blocks()).unwrap_or(1)
    }
}

impl Nodes for Editor<'_, '_> {
    fn root(&mut self) -> Result<(Root, Body)> {
        let body = self.tx.read(self.inode.block(), self.inode.lock_no(), MetaKind::Dinode)?;
        Ok((root_of(self.inode, body.len())?, body))
    }
    fn read(&mut self, block: BlockNo, kind: MetaKind) -> Result<Body> {
        self.tx.read(block, self.inode.lock_no(), kind)
    }
}

impl NodesMut for Editor<'_, '_> {
    fn body_len(&self) -> usize {
        self.geo.body_len()
    }
    fn modify(
        &mut self,
        block: BlockNo,
        kind: MetaKind,
        f: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        self.tx.modify(block, self.inode.lock_no(), kind, |body| f(body))
    }
    fn create(&mut self, kind: MetaKind, f: &mut dyn FnMut(&mut [u8])) -> Result<BlockNo> {
        let slot = self.alloc.take_slot(self.tx, self.reservation)?;
        self.tx.create(slot, self.inode.lock_no(), kind, |body| f(body))?;
        self.count_blocks(self.slot_blocks())?;
        Ok(slot)
    }
    fn free(&mut self, block: BlockNo) -> Result<()> {
        self.tx.free(block, self.inode.lock_no())?;
        self.alloc.free_slot(self.tx, self.reservation, block, false)?;
        self.count_blocks(-self.slot_blocks())
    }
    fn set_tail(&mut self, height: u16, count: u16, contents: &[u8]) -> Result<()> {
        let block = self.inode.block();
        let root = root_of(self.inode, self.geo.body_len())?;
        let room = |body: &mut [u8]| -> bool {
            let Some(tail) = body.get_mut(root.tail_at..).and_then(|t| t.get_mut(..root.capacity))
            else {
                return false;
            };
            let Some((used, unused)) = tail.split_at_mut_checked(contents.len()) else {
                return false;
            };
            used.copy_from_slice(contents);
            unused.fill(0);
            true
        };
        if !self.tx.modify(block, self.inode.lock_no(), MetaKind::Dinode, room)? {
            return Err(Error::Inconsistent { block, what: "tail" });
        }
        self.inode.update(self.tx, |raw| {
            raw.tree_height = height.into();
            raw.tail_count = count.into();
        })
    }
}

//! An inode whose lock is held, as reading, writing and writing back see it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_format::dinode::{Layout, RawDinode};
use braid_format::meta::MetaKind;
use braid_pool::PoolRequest;
use parking_lot::MutexGuard;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::file_data::{Delalloc, FileData};
use crate::inode::{Inode, InodeState, Locked, now, raw_time};
use crate::inode_tree::{Reader, root_of};
use crate::map::Bounds;
use crate::meta::Body;
use crate::tree::Root;

/// An inode whose cluster lock is held: by a guard, or by the demotion that gives it up.
#[derive(Clone, Copy)]
pub(crate) struct HeldInode<'a> {
    pub core: &'a Core,
    pub inode: &'a Arc<Inode>,
}

/// The few fields of a state that all paths look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub size: u64,
    pub disk_size: u64,
    pub layout: Layout,
}

impl<'a> HeldInode<'a> {
    pub fn of(core: &'a Core, locked: &'a Locked) -> Self {
        Self { core, inode: &locked.inode }
    }
    pub fn data(&self) -> &'a FileData {
        &self.inode.data
    }
    /// log2 of the block size.
    pub fn shift(&self) -> u32 {
        self.core.volume.geo.block_size.shift()
    }
    pub fn block_size(&self) -> u64 {
        1 << self.shift()
    }
    /// Blocks that `bytes` from a block's start touch.
    pub fn blocks_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.block_size())
    }
    pub fn view(&self) -> Result<View> {
        let st = self.inode.state_ref().ok_or(Error::Stale(self.inode.ino))?;
        let layout = Layout::from_u16(st.raw.layout.get()).ok_or_else(|| self.bad("layout"))?;
        Ok(View { size: st.raw.size.get(), disk_size: st.disk_size, layout })
    }
    pub fn change_state(&self, f: impl FnOnce(&mut InodeState)) -> Result<()> {
        f(&mut *self.inode.state_mut().ok_or(Error::Stale(self.inode.ino))?);
        Ok(())
    }
    pub fn bad(&self, what: &'static str) -> Error {
        Error::Inconsistent { block: self.inode.block(), what }
    }
    pub fn reader(&self) -> Reader<'a> {
        Reader { meta: &self.core.meta, inode: self.inode }
    }
    pub fn root(&self) -> Result<Root> {
        root_of(self.inode, self.core.volume.geo.body_len())
    }
    pub fn bounds(&self) -> Bounds {
        let (start, end) = self.core.volume.data_bounds();
        Bounds { start, end }
    }
    pub fn body(&self) -> Result<Body> {
        self.core.meta.read(self.inode.block(), self.inode.lock_no(), MetaKind::Dinode)
    }
    /// The bytes of a stuffed file.
    pub fn stuffed<'b>(&self, body: &'b [u8], size: u64) -> Result<&'b [u8]> {
        let capacity = self.root()?.capacity;
        usize::try_from(size)
            .ok()
            .filter(|n| *n <= capacity)
            .and_then(|n| body.get(RawDinode::TAIL_AT..)?.get(..n))
            .ok_or_else(|| self.bad("size of a stuffed file"))
    }
    /// The result of a transaction; see [`Core::sealed`].
    pub fn fatal<T>(&self, result: Result<T>) -> Result<T> {
        self.core.sealed(result)
    }
    /// `change`, once nobody writes directly in the blocks of `len` bytes at `offset`. While it is
    /// held, nobody will.
    pub fn change_apart(&self, offset: u64, len: u64) -> MutexGuard<'a, Delalloc> {
        let shift = self.shift();
        // A page of the kernel's may lie anywhere.
        let end = self.blocks_for(offset.saturating_add(len)).saturating_mul(self.block_size());
        let range = offset >> shift << shift..end;
        let inflight = &self.core.inflight;
        loop {
            inflight.wait_for(self.inode.ino, &range);
            let change = self.data().change.lock();
            if !inflight.is_in(self.inode.ino, &range) {
                return change;
            }
        }
    }
    /// Accounts for the memory that dirty pages hold now. `change` held.
    pub fn recount(&self) {
        let bytes = self.data().pages.read().bytes();
        let before = self.data().dirty.swap(bytes, Ordering::AcqRel);
        self.core.dirty.moved(self.inode, before, bytes);
    }
    /// Issues requests for contents; the first that failed is the error.
    pub fn run(&self, requests: &mut [PoolRequest<'_>]) -> Result<()> {
        if requests.is_empty() {
            return Ok(());
        }
        self.core.volume.pool.run(requests);
        first_failed(requests)
    }

    /// As [`HeldInode::run`], for writes of what other nodes may be writing too (concurrent lock).
    pub fn run_concurrent(&self, requests: &mut [PoolRequest<'_>]) -> Result<()> {
        self.core.volume.pool.run_concurrent(requests);
        first_failed(requests)
    }
}

/// The first failure of requests for contents.
fn first_failed(requests: &mut [PoolRequest<'_>]) -> Result<()> {
    for r in requests {
        std::mem::replace(&mut r.result, Ok(())).map_err(Error::Contents)?;
    }
    Ok(())
}

/// Contents changed now.
pub(crate) fn touch(st: &mut InodeState) {
    let t = raw_time(now());
    st.raw.mtime = t;
    st.raw.ctime = t;
    st.dirty = true;
}

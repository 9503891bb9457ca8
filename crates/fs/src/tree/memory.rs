//! A tree's nodes in memory, for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::{BlockNo, LockNo};
use braid_pool::device::AlignedBuf;
use zerocopy::IntoBytes;

use super::{Nodes, NodesMut, Root};
use crate::error::{Error, Result};
use crate::meta::Body;

/// Slot of the root.
pub(crate) const ROOT: BlockNo = BlockNo(1);

/// Nodes of any size.
pub(crate) struct Memory {
    /// Bytes of a node.
    pub body_len: usize,
    /// Bytes of the tail.
    pub tail_len: usize,
    /// Height, count, tail.
    pub root: (u16, u16, Vec<u8>),
    /// By slot.
    pub nodes: BTreeMap<BlockNo, (MetaKind, Vec<u8>)>,
    last: u64,
}

impl Memory {
    pub fn sized(body_len: usize, tail_len: usize) -> Self {
        Self { body_len, tail_len, root: (0, 0, Vec::new()), nodes: BTreeMap::new(), last: 100 }
    }
    pub fn count(&self, kind: MetaKind) -> usize {
        self.nodes.values().filter(|n| n.0 == kind).count()
    }
}

fn bad(block: BlockNo, what: &'static str) -> Error {
    Error::Inconsistent { block, what }
}

fn body_of(bytes: &[u8]) -> Body {
    let mut buf = AlignedBuf::zeroed(bytes.len());
    buf.copy_from_slice(bytes);
    Arc::new(buf)
}

impl Nodes for Memory {
    fn root(&mut self) -> Result<(Root, Body)> {
        let (height, count, tail) = &self.root;
        let mut bytes = tail.clone();
        bytes.resize(self.tail_len, 0);
        let root = Root {
            block: ROOT,
            height: *height,
            count: *count,
            tail_at: 0,
            capacity: self.tail_len,
        };
        Ok((root, body_of(&bytes)))
    }
    fn read(&mut self, block: BlockNo, kind: MetaKind) -> Result<Body> {
        match self.nodes.get(&block) {
            Some((k, bytes)) if *k == kind => Ok(body_of(bytes)),
            _ => Err(bad(block, "no such node")),
        }
    }
}

impl NodesMut for Memory {
    fn body_len(&self) -> usize {
        self.body_len
    }
    fn modify(
        &mut self,
        block: BlockNo,
        kind: MetaKind,
        f: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        match self.nodes.get_mut(&block) {
            Some((k, bytes)) if *k == kind => {
                f(bytes);
                Ok(())
            }
            _ => Err(bad(block, "no such node")),
        }
    }
    fn create(&mut self, kind: MetaKind, f: &mut dyn FnMut(&mut [u8])) -> Result<BlockNo> {
        self.last += 1;
        let block = BlockNo(self.last);
        let mut bytes = vec![0; self.body_len];
        let head = MetaHeader::new(kind, block, LockNo(1));
        bytes[..MetaHeader::LEN].copy_from_slice(head.as_bytes());
        f(&mut bytes);
        self.nodes.insert(block, (kind, bytes));
        Ok(block)
    }
    fn free(&mut self, block: BlockNo) -> Result<()> {
        self.nodes.remove(&block).map(|_| ()).ok_or_else(|| bad(block, "freed twice"))
    }
    fn set_tail(&mut self, height: u16, count: u16, contents: &[u8]) -> Result<()> {
        assert!(contents.len() <= self.tail_len);
        self.root = (height, count, contents.to_vec());
        Ok(())
    }
}

//! A check under way: what it has seen, and what it reports.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use braid_format::lock_record::LockRecord;
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::{BlockNo, Bytes, FormatError, LockNo};
use braid_pool::PoolRequest;
use braid_pool::device::AlignedBuf;

use super::inodes::Inodes;
use super::name::Name;
use super::report::Report;
use super::space::Space;
use crate::error::Result;
use crate::volume::Volume;

/// Bodies read at once.
pub(super) const BATCH: usize = 256;

/// Lines kept; more are only counted.
pub(super) const PROBLEMS_MAX: usize = 10_000;

pub(super) struct Checker {
    pub(super) volume: Arc<Volume>,
    pub(super) space: Space,
    pub(super) inodes: Inodes,
    /// Entries that lead to an inode beside [`super::inodes::Info::from`].
    pub(super) more_names: BTreeMap<u64, Vec<Name>>,
    pub(super) report: Report,
    /// A window was damaged, in this pass or one before.
    pub(super) windows_lost: bool,
    /// Lock records that are damaged, of blocks that are sound.
    pub(super) locks: RefCell<BTreeMap<BlockNo, FormatError>>,
    pub(super) suppressed: u64,
    /// Inodes expected, for the progress.
    pub(super) total: u64,
}

impl Checker {
    /// Notes what a repair cut off.
    pub(super) fn cut(&mut self, line: String) {
        if self.report.cut.len() < PROBLEMS_MAX {
            self.report.cut.push(line);
        }
    }
    /// Adds a line that names `block`.
    pub(super) fn problem(&mut self, block: BlockNo, text: impl std::fmt::Display) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(format!("block {block}: {text}"));
        } else {
            self.suppressed += 1;
        }
    }
    pub(super) fn finish(mut self) -> Report {
        if self.suppressed > 0 {
            self.report.problems.push(format!("and {} problems more", self.suppressed));
        }
        self.report
    }
    /// Reads and verifies the bodies of `blocks` (all inside the file system), all at once. If they
    /// are sound, their lock records are verified, too.
    pub(super) fn read(&self, blocks: &[BlockNo]) -> Result<Vec<Verified>> {
        let volume = &self.volume;
        let len = Bytes(volume.geo.slot_bytes()).to_usize();
        let mut slots: Vec<AlignedBuf> = blocks.iter().map(|_| AlignedBuf::zeroed(len)).collect();
        let mut requests: Vec<PoolRequest<'_>> = blocks
            .iter()
            .zip(&mut slots)
            .map(|(block, slot)| PoolRequest::read(volume.slot_at(*block), slot))
            .collect();
        volume.pool.run(&mut requests);
        requests.into_iter().try_for_each(|r| r.result)?;
        Ok(slots.iter().zip(blocks).map(|(slot, block)| self.verify(slot, *block)).collect())
    }
    pub(super) fn verify(&self, slot: &[u8], block: BlockNo) -> Verified {
        let (record, bytes) = slot.split_at(self.volume.geo.body_at().to_usize());
        let verified = match MetaHeader::decode(bytes, block) {
            Ok((header, kind)) => {
                let mut body = AlignedBuf::zeroed(bytes.len());
                body.copy_from_slice(bytes);
                (body, header, kind)
            }
            Err(error) => self.volume.other_copy(block).ok_or(error)?,
        };
        if let Err(error) = LockRecord::decode(record, LockNo::from(block)) {
            self.locks.borrow_mut().insert(block, error);
        }
        Ok(verified)
    }
}

/// A body that is sound, or why it is not.
pub(super) type Verified = std::result::Result<(AlignedBuf, MetaHeader, MetaKind), FormatError>;

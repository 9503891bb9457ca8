//! fsck: verifies a file system that nobody has mounted, and repairs it when asked.
//!
//! ```text
//!  refuse while a node lives -> replay journals -> fixed area -> group headers and bitmaps
//!    -> walk all dinodes and trees from the root and the orphan lists, in batches
//!    -> compare links, parents, counts -> compare bitmaps with what was seen -> counters
//! ```
//! The walk marks every block it meets in a map of its own; what the bitmaps, the windows and the
//! free logs of dead nodes say together must be the same. Nothing here trusts a number from disk
//! before it is bounded, and no structure is followed twice, so the walk ends on any image. Unless it
//! repairs, all this is done on a [`Pool::on_scratch`], and no device is written.
//!
//! Repair rewrites what can be derived from the rest: bitmaps, group counters, cluster counters,
//! link counts, entry and block counts, the superblock's other copy; it empties windows and free
//! logs, whose content the bitmaps then hold, and orphan lists that are damaged, drops what stands
//! behind the damage in a journal, frees the slots of dead nodes that damage kept from recovery,
//! drops directory entries that lead nowhere, unlocks what has a damaged lock record, empties free
//! blocks that are damaged, and puts inodes without a name into `/lost+found`. What it cannot
//! derive is cut off and named in [`Report::cut`]: the entries of a damaged dinode; a damaged tree
//! node with all below it; the second user's extent of blocks that are used twice; attributes that
//! make no sense, with the permissions of group and others, which an access control list may have
//! narrowed. A file that lost contents goes to `/lost+found`: at its old name a reader would take
//! the hole for zeros. A repair repeats its passes until one finds nothing to repair, so a check
//! after it is clean.

mod bodies;
mod buckets;
mod cut;
mod fixed;
#[cfg(test)]
mod flips;
#[cfg(test)]
mod flips_together;
mod links;
mod lost;
mod name;
mod repair;
mod space;
#[cfg(test)]
mod tests;
mod walk;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use braid_format::lock_record::LockRecord;
use braid_format::meta::{MetaHeader, MetaKind};

use braid_format::{BlockNo, ByteOffset, Bytes, FormatError, LockNo, NodeId};
use braid_pool::device::AlignedBuf;
use braid_pool::{Pool, PoolRequest};

use self::links::Inodes;
use self::space::Space;
use crate::error::{Error, Result};
use crate::exclusive_use::enter;
use crate::replay;
use crate::verifier::VolumeVerifier;
use crate::volume::Volume;

/// Bodies read at once.
const BATCH: usize = 256;
/// Passes of a repair. Each cuts off at least one level of a damaged tree, or all that has been
/// found; one more finds nothing.
const PASSES_MAX: usize = 2 * crate::tree::HEIGHT_MAX as usize;
/// Lines kept; more are only counted.
const PROBLEMS_MAX: usize = 10_000;

/// What to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// Repair what can be repaired.
    pub repair: bool,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// One line per problem, naming the block.
    pub problems: Vec<String>,
    /// Problems repaired.
    pub repaired: u64,
    /// Inodes seen.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Data blocks referred to.
    pub data_blocks: u64,
    /// Journals that had to be replayed first.
    pub replayed: u64,
    /// What a repair cut off, and what it put into `/lost+found`: one line each, naming the inode.
    pub cut: Vec<String>,
    /// Those of the problems that are left: all without a repair.
    pub left: Vec<String>,
    /// Bytes of metadata that nobody used and that a repair has made space for data again.
    pub given_back: u64,
}

/// Checks the file system on `pool`. `progress` gets (done, total). Without
/// [`CheckOptions::repair`] nothing is written to a device: journals are replayed, and damaged copies
/// healed, in memory.
///
/// # Errors
/// When a node has it mounted, or a device fails. Problems found are in the report.
pub fn check(
    pool: Pool,
    options: CheckOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report> {
    // What is not asked for is done to nobody's bytes but its own.
    let pool = if options.repair { pool } else { pool.on_scratch()? };
    let volume = Arc::new(Volume::open(pool)?);
    if options.repair {
        volume.may_change()?;
    }
    let (claimed, store_lost) = enter(&volume, options.repair)?;
    // No node is alive, so the registered keys are those of nodes that died together.
    let taken_over = volume.pool.take_over()?;
    volume.pool.commit_degraded()?;
    volume.confirm()?;
    volume.pool.heal_labels()?;
    let mut checker = Checker {
        space: Space::new(&volume),
        inodes: Inodes::default(),
        more_names: BTreeMap::new(),
        volume,
        report: Report::default(),
        windows_lost: false,
        locks: RefCell::default(),
        suppressed: 0,
        total: 0,
    };
    if store_lost {
        checker.problem(BlockNo(0), "the store of the locks had no data of this file system");
        checker.report.repaired += 1;
    }
    checker.journals(options.repair)?;
    let grown = match checker.volume.refresh() {
        Ok(grown) => grown,
        Err(e @ Error::Superblock(FormatError::UnknownFeature { .. })) => return Err(e),
        // The superblock is looked at as everything else is.
        Err(_) => false,
    };
    if grown {
        // A growth that was in a journal only.
        checker.volume = Arc::new(Volume::open(checker.volume.pool.clone())?);
        checker.space = Space::new(&checker.volume);
    }
    let found = checker.passes(options.repair, progress)?;
    if options.repair {
        repair::slots(&checker)?;
    }
    let lost = if options.repair { checker.lost(&found) } else { Vec::new() };
    let to_give_back = options.repair && !found.any() && checker.space.has_unused(&checker.volume);
    checker.volume.pool.detach()?;
    // What is left to do is a node's work.
    drop((taken_over, claimed));
    if !lost.is_empty() {
        checker.reconnect(&lost);
    }
    if to_give_back {
        checker.report.given_back = lost::give_back(checker.volume.pool.clone())?;
    }
    Ok(checker.finish())
}

/// Those of the problems that can be repaired.
#[derive(Debug, Default)]
struct Mendable {
    /// Bitmaps, group counters, windows, logs, cluster counters.
    space: u64,
    /// Dinodes whose counts are wrong: number and what they must be.
    counts: Vec<links::Counts>,
    /// Entries that lead nowhere: directory, block that holds the entry, cookie.
    entries: Vec<name::Name>,
    /// Parts of inodes to be cut off.
    cuts: Vec<cut::Cut>,
    /// The root's dinode is damaged.
    root: bool,
    /// Blocks of the fixed area that are damaged.
    private: Vec<(BlockNo, MetaKind)>,
    /// Superblock copies to rewrite.
    superblocks: Vec<BlockNo>,
    /// Blocks whose lock record is damaged.
    locks: Vec<BlockNo>,
    /// Free metadata blocks that are damaged.
    free: Vec<BlockNo>,
    /// Nodes' slots of which a copy is damaged, and where they are.
    slots: Vec<(ByteOffset, NodeId)>,
    /// Blocks are in use that the bitmaps offer to the allocator, or call something else.
    exposed: bool,
    /// Parts of inodes could not be read: bitmaps are not rewritten before those are cut off.
    unsure: bool,
}
impl Mendable {
    fn any(&self) -> bool {
        self.space > 0
            || !self.counts.is_empty()
            || !self.entries.is_empty()
            || !self.superblocks.is_empty()
            || !self.locks.is_empty()
            || !self.free.is_empty()
            || !self.slots.is_empty()
            || !self.private.is_empty()
            || !self.cuts.is_empty()
            || self.root
    }
}

struct Checker {
    volume: Arc<Volume>,
    space: Space,
    inodes: Inodes,
    /// Entries that lead to an inode beside [`links::Info::from`].
    more_names: BTreeMap<u64, Vec<name::Name>>,
    report: Report,
    /// A window was damaged, in this pass or one before.
    windows_lost: bool,
    /// Lock records that are damaged, of blocks that are sound.
    locks: RefCell<BTreeMap<BlockNo, FormatError>>,
    suppressed: u64,
    /// Inodes expected, for the progress.
    total: u64,
}

impl Checker {
    /// Looks at everything. A repair repairs what was found, and looks again until nothing is left:
    /// after one pass has cut something off, the next pass finds what has lost its name or its
    /// user. Returns what the last pass found.
    fn passes(&mut self, repair: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Mendable> {
        let before = self.report.problems.len();
        let mut found = self.run(progress)?;
        let mut last = self.report.problems.get(before..).unwrap_or(&[]).to_vec();
        for _ in 0..PASSES_MAX {
            if !repair || !found.any() {
                break;
            }
            repair::repair(self, &mut found)?;
            let known: HashSet<String> = self.report.problems.iter().cloned().collect();
            let all = std::mem::take(&mut self.report.problems);
            (self.report.inodes, self.report.directories, self.report.data_blocks) = (0, 0, 0);
            self.space = Space::new(&self.volume);
            self.inodes = Inodes::default();
            self.more_names = BTreeMap::new();
            found = self.run(progress)?;
            last = std::mem::replace(&mut self.report.problems, all);
            for line in last.iter().filter(|line| !known.contains(*line)) {
                if self.report.problems.len() < PROBLEMS_MAX {
                    self.report.problems.push(line.clone());
                }
            }
        }
        self.report.left = if repair { last } else { self.report.problems.clone() };
        Ok(found)
    }
    /// Gives inodes without a name one in `/lost+found`.
    fn reconnect(&mut self, lost: &[lost::Lost]) {
        let (named, result) = lost::reconnect(self.volume.pool.clone(), lost);
        self.report.repaired += named;
        let done = usize::try_from(named).unwrap_or(usize::MAX);
        for lost in lost.iter().take(done) {
            self.cut(format!("inode {} had no name: it is /lost+found/#{0} now", lost.ino));
            let line = format!("block {}: {}", BlockNo::from(lost.ino), walk::NAMELESS);
            self.report.left.retain(|left| *left != line);
        }
        if let Err(e) = result {
            let root = BlockNo::from(self.volume.root());
            self.problem(root, format!("cannot put all of them into /lost+found: {e}"));
            self.report.left.extend(self.report.problems.last().cloned());
        }
    }
    /// Notes what a repair cut off.
    fn cut(&mut self, line: String) {
        if self.report.cut.len() < PROBLEMS_MAX {
            self.report.cut.push(line);
        }
    }
    fn run(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<Mendable> {
        let mut found = Mendable::default();
        self.superblocks(&mut found)?;
        self.slots(&mut found)?;
        let (roots, buckets) = self.fixed_area(&mut found)?;
        self.groups(&mut found)?;
        self.buckets(&buckets, &mut found)?;
        self.walk(&roots, &mut found, progress)?;
        self.unreachable(&mut found, progress)?;
        self.loops(&mut found);
        self.dangling(&mut found);
        self.compare_links(&mut found);
        self.compare_space(&mut found);
        self.free_slots(&mut found)?;
        self.compare_counters(&mut found);
        if let Some(store) = &self.volume.elsewhere {
            let mut bad = self.locks.borrow_mut();
            store.etcd.records(&mut |lock, record| {
                if let Err(error) = LockRecord::decode(record, lock) {
                    bad.insert(BlockNo::from(lock), error);
                }
            })?;
        }
        for (block, error) in self.locks.take() {
            self.problem(block, error);
            found.locks.push(block);
        }
        Ok(found)
    }
    /// Replays all journals. A repair drops the damaged part of a journal; without a repair all of
    /// it stays.
    fn journals(&mut self, repair: bool) -> Result<()> {
        let verifier = VolumeVerifier::of(&self.volume);
        for slot in (0..self.volume.sb.node_slots.get()).map(NodeId) {
            self.volume.pool.recover_log_with(slot.get(), &verifier)?;
        }
        // No node is alive: the log of any slot may serve what is written from here on.
        self.volume.pool.attach_with(0, &verifier)?;
        for slot in (0..self.volume.sb.node_slots.get()).map(NodeId) {
            let writer = replay::Writer::of_slot(&self.volume, slot)?;
            let done = if repair {
                replay::salvage(&self.volume, slot, writer)
            } else {
                match replay::replay(&self.volume, slot, writer) {
                    Err(e) if e.is_damage() => Ok((replay::Replayed::default(), Some(e))),
                    done => done.map(|done| (done, None)),
                }
            };
            let (done, damage) = done?;
            self.report.replayed += u64::from(done.transactions > 0);
            let (block, text) = match damage {
                None => continue,
                Some(Error::Journal { block, what, .. }) => (block, what.into()),
                Some(Error::Damaged { block, source }) => (block, source.to_string()),
                Some(Error::Inconsistent { block, what }) => (block, what.to_owned()),
                Some(other) => return Err(other),
            };
            self.problem(block, format!("journal of node {slot}: {text}"));
            self.report.repaired += u64::from(repair);
        }
        Ok(())
    }
    /// Adds a line that names `block`.
    fn problem(&mut self, block: BlockNo, text: impl std::fmt::Display) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(format!("block {block}: {text}"));
        } else {
            self.suppressed += 1;
        }
    }
    fn finish(mut self) -> Report {
        if self.suppressed > 0 {
            self.report.problems.push(format!("and {} problems more", self.suppressed));
        }
        self.report
    }
    /// Reads and verifies the bodies of `blocks` (all inside the file system), all at once. If they
    /// are sound, their lock records are verified, too.
    fn read(&self, blocks: &[BlockNo]) -> Result<Vec<Verified>> {
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
    fn verify(&self, slot: &[u8], block: BlockNo) -> Verified {
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
type Verified = std::result::Result<(AlignedBuf, MetaHeader, MetaKind), FormatError>;

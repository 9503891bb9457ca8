//! The passes of a check, and of a repair, from the first to the last.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use braid_format::lock_record::LockRecord;
use braid_format::{BlockNo, FormatError, NodeId};
use braid_pool::Pool;

use super::checker::{Checker, PROBLEMS_MAX};
use super::inodes::Inodes;
use super::mendable::Mendable;
use super::report::{CheckOptions, Report};
use super::space::Space;
use super::{lost, repair, walk};
use crate::error::{Error, Result};
use crate::exclusive_use::enter;
use crate::journal::{Header, Ring};
use crate::replay;
use crate::verifier::VolumeVerifier;
use crate::volume::Volume;

/// Passes of a repair. Each cuts off at least one level of a damaged tree, or all that has been
/// found; one more finds nothing.
const PASSES_MAX: usize = 2 * crate::tree::HEIGHT_MAX as usize;

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
        if let Some(store) = &self.volume.external_store {
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
            // It does without one of two; a repair makes it anew.
            let header = Header::damaged_copy(&self.volume, &Ring::of(&self.volume, slot)?)?;
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
            for error in damage.into_iter().chain(header) {
                let (block, text) = match error {
                    Error::Journal { block, what, .. } => (block, what.into()),
                    Error::Damaged { block, source } => (block, source.to_string()),
                    Error::Inconsistent { block, what } => (block, what.to_owned()),
                    other => return Err(other),
                };
                self.problem(block, format!("journal of node {slot}: {text}"));
                self.report.repaired += u64::from(repair);
            }
        }
        Ok(())
    }
}

//! Recovery of a dead node, after its fence: its journal, its windows and free log, its orphans.
//!
//! Damage in them does not concern living nodes: the recoverer touches nothing further, and returns
//! what is damaged. The lock layer writes that into the dead node's slot, which stays that node's.
//! Before the journal is replayed what the dead node held locked is lost to all (`EIO`) until a
//! repair; afterwards only the space in its windows and the inodes on its orphan list are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::history::EventKind;
use braid_format::meta::MetaKind;
use braid_format::node::{DamagedPart, SlotDamage};
use braid_format::{BlockNo, LockNo, NodeId};
use braid_lock::interrupt::Interrupt;
use braid_lock::{JoinOptions, Life, Mode, NodeStore, NotRecovered, Recover};
use parking_lot::{Mutex, RwLock};

use crate::cluster::{Bounds, Cluster};
use crate::deferred_ops::DeferredOps;
use crate::error::{Error, Result};
use crate::make::area_kind;
use crate::replay::{Replayed, Writer};
use crate::verifier::VolumeVerifier;
use crate::volume::Volume;

/// Recovers dead nodes. While this node itself is still joining, or is leaving, it has no journal
/// of its own to move the dead node's windows with. Then only the dead node's journal is replayed,
/// and the next owner of the slot inherits windows, free log and orphans as they are.
pub(crate) struct Recoverer {
    pub volume: Arc<Volume>,
    pub core: Arc<DeferredOps>,
    pub nodes: Arc<dyn NodeStore>,
    pub join: JoinOptions,
    pub cluster: Mutex<Option<Arc<Cluster>>>,
    pub bounds: Bounds,
    /// This node leaves: as while it is joining. Held for reading while a node is recovered.
    pub leaving: RwLock<bool>,
    /// Second halves of recoveries under way, and whether they may still wait for other nodes.
    pub finishing: Mutex<Finishing>,
    /// Nodes that were recovered to the end.
    pub recovered: AtomicU64,
}

/// Second halves of recoveries, which wait for locks.
#[derive(Default)]
pub(crate) struct Finishing {
    under_way: Vec<Interrupt>,
    given_up: bool,
}

impl Recover for Recoverer {
    fn recover(&self, dead: Life, by: Life) -> std::result::Result<(), NotRecovered> {
        let _stays = self.leaving.read();
        self.recover_journal(dead, by, true).map(drop)
    }
    fn finish(&self, dead: Life, _: Life) -> std::result::Result<(), NotRecovered> {
        let volume = &self.volume;
        let leaving = self.leaving.read();
        let interrupt = Interrupt::of_steps();
        let _scope = interrupt.scope();
        let mut finishing = self.finishing.lock();
        finishing.under_way.retain(|other| other.current() != 0);
        finishing.under_way.push(interrupt.clone());
        if finishing.given_up {
            interrupt.trip_current();
        }
        drop(finishing);
        let late = |e| not_recovered(volume, dead.slot, true, e);
        // It may have been adding to the file system.
        volume.refresh().map_err(late)?;
        inspect(volume, dead.slot).map_err(late)?;
        let Some(core) = self.core.get().filter(|_| !*leaving) else {
            self.recovered.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let done = crate::alloc::reclaim(volume, &core.meta, &core.locks, dead.slot)
            .and_then(|()| crate::orphan::recover(&core, dead.slot));
        match done {
            // Met before anything was changed: it is the dead node's, or was there before.
            Err(e) if e.is_damage() && core.meta.check().is_ok() => Err(late(e)),
            Err(e) if core.meta.check().is_err() => {
                core.withdraw(&e);
                Err(late(e))
            }
            done => {
                core.watch(done).map_err(late)?;
                self.recovered.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
    fn wishes(&self) -> Vec<(LockNo, Mode)> {
        // Not while it is being made: nothing waits yet.
        let cluster = self.cluster.try_lock().and_then(|c| c.clone());
        cluster.map_or_else(Vec::new, |c| c.wishes())
    }
    fn wished(&self, lock: LockNo, mode: Mode, overdue: bool) {
        let cluster = self.cluster.try_lock().and_then(|c| c.clone());
        if let Some(cluster) = cluster {
            cluster.wished(lock, mode, overdue);
        }
    }
    fn confirm(&self) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.volume.confirm()?)
    }
}

impl Recoverer {
    /// Makes whole what a dead node was writing, and replays its journal. With `its_dead`, what those nodes
    /// were writing that it was recovering is made whole before the replay, which may need their regions.
    pub fn recover_journal(
        &self,
        dead: Life,
        by: Life,
        its_dead: bool,
    ) -> std::result::Result<Replayed, NotRecovered> {
        let volume = &self.volume;
        let cluster = self.cluster(by).map_err(|e| NotRecovered::Failed(e.into()))?;
        let pool_error = |e: braid_pool::PoolError| NotRecovered::Failed(Error::from(e).into());
        // What follows writes: if this node has no redundancy log yet, the dead node's serves.
        let attached = volume.pool.is_attached();
        let make_whole = || {
            let verifier = VolumeVerifier::of(volume);
            if attached {
                return volume.pool.recover_log_with(dead.slot.get(), &verifier);
            }
            volume.pool.restart_migration()?;
            volume.pool.attach_with(dead.slot.get(), &verifier)
        };
        let whole = match &cluster {
            Some(cluster) => {
                // It may have begun to change the pool.
                volume.pool.follow().map_err(pool_error)?;
                cluster.recover(dead.slot, make_whole)
            }
            None => make_whole(),
        };
        let done = whole.map_err(pool_error).and_then(|whole| {
            log_made_whole(dead.slot, &whole);
            if let Some(cluster) = cluster.as_ref().filter(|_| its_dead) {
                self.recover_logs_of_its_dead(cluster, dead).map_err(pool_error)?;
            }
            self.replay(dead)
        });
        // Whatever came of it: the log is the dead node's.
        if attached {
            return done;
        }
        let detached = volume.pool.detach().map_err(pool_error);
        let done = done.and_then(|replayed| detached.map(|()| replayed));
        if done.is_err() && cluster.is_some_and(|cluster| !cluster.is_member()) {
            // Regions of a life that gives its slot up would be those of a dead one.
            self.end_cluster();
        }
        done
    }

    /// This node's place among the others, made when it is first needed.
    pub fn cluster(&self, me: Life) -> Result<Option<Arc<Cluster>>> {
        let mut cluster = self.cluster.lock();
        if let Some(of_before) = cluster.take_if(|c| c.me() != me) {
            // It was to join by another slot, which it could not recover.
            of_before.end();
        }
        if cluster.is_none() {
            *cluster = Cluster::join(&self.volume, &self.nodes, &self.join, me, self.bounds)?;
        }
        Ok(cluster.clone())
    }

    /// This node could not join as it was to, and has no place among the others any more.
    pub fn end_cluster(&self) {
        let cluster = self.cluster.lock().take();
        if let Some(cluster) = cluster {
            cluster.end();
        }
    }

    /// This node leaves, and has waited long enough: recoveries that wait for other nodes fail, now and
    /// from now on. Others take them over.
    pub fn give_up(&self) {
        let cluster = self.cluster.try_lock().and_then(|c| c.clone());
        if let Some(cluster) = cluster {
            cluster.give_recoveries_up();
        }
        let mut finishing = self.finishing.lock();
        finishing.given_up = true;
        let under_way = std::mem::take(&mut finishing.under_way);
        drop(finishing);
        under_way.iter().for_each(Interrupt::trip_current);
    }

    /// This node leaves: recoveries under way are waited for, and later ones leave what needs this
    /// node's locks and journal to others.
    pub fn only_replay(&self) {
        *self.leaving.write() = true;
    }

    /// Recovers the redundancy logs of the nodes that `dead` was recovering when it died, and of those that
    /// they were recovering: the replay of its journal writes, perhaps in regions that these hold, and they
    /// themselves are recovered after that replay. This node has a redundancy log by now.
    fn recover_logs_of_its_dead(
        &self,
        cluster: &Cluster,
        dead: Life,
    ) -> std::result::Result<(), braid_pool::PoolError> {
        let mut gone = vec![dead];
        for n in 0.. {
            let Some(by) = gone.get(n).copied() else { return Ok(()) };
            for life in cluster.recovered_by(by)? {
                if gone.iter().any(|g| g.slot == life.slot) {
                    continue;
                }
                let verifier = VolumeVerifier::of(&self.volume);
                let log = life.slot.get();
                let whole = cluster
                    .recover(life.slot, || self.volume.pool.recover_log_with(log, &verifier))?;
                log_made_whole(life.slot, &whole);
                gone.push(life);
            }
        }
        Ok(())
    }

    /// The dead node's journal.
    fn replay(&self, dead: Life) -> std::result::Result<Replayed, NotRecovered> {
        let volume = &self.volume;
        let replayed = crate::replay::replay(volume, dead.slot, Writer::Life(dead.incarnation))
            .map_err(|e| not_recovered(volume, dead.slot, false, e))?;
        let (slot, count) = (dead.slot, replayed.transactions);
        let text = format!("node {slot} died: its journal is replayed ({count} transactions)");
        volume.pool.record(EventKind::Recovery, None, text);
        if replayed.transactions > 0 {
            let Replayed { transactions, written, skipped } = replayed;
            tracing::info!(
                of_node = %dead.slot,
                transactions,
                written,
                skipped,
                "replayed the journal of a dead node"
            );
        }
        Ok(replayed)
    }
}

fn log_made_whole(node: NodeId, whole: &braid_pool::Recovered) {
    if whole.records + whole.regions > 0 {
        let braid_pool::Recovered { records, regions, repaired } = whole;
        tracing::info!(of_node = %node, records, regions, %repaired, "made whole what a dead node was writing");
    }
}

/// Reads all private blocks of a dead node whose journal is replayed, and changes nothing.
///
/// # Errors
/// The first that is damaged.
pub(crate) fn inspect(volume: &Volume, node: NodeId) -> Result<()> {
    crate::alloc::inspect(volume, node)?;
    crate::orphan::inspect(volume, node)
}

fn not_recovered(volume: &Volume, node: NodeId, replayed: bool, e: Error) -> NotRecovered {
    let (block, journal) = match &e {
        Error::Damaged { block, .. } | Error::Inconsistent { block, .. } => (*block, false),
        Error::Journal { block, .. } => (*block, true),
        _ => return NotRecovered::Failed(e.into()),
    };
    let part = if journal { DamagedPart::Journal } else { part_of(volume, node, block) };
    let damage = SlotDamage { block, part, replayed };
    NotRecovered::Damaged { damage, source: e.into() }
}

/// What of `node`'s belongings a block is.
fn part_of(volume: &Volume, node: NodeId, block: BlockNo) -> DamagedPart {
    let slots = u64::from(volume.sb.node_area_slots.get());
    let place = (0..slots).find(|n| volume.node_area(node, *n) == block);
    match place.map(area_kind) {
        Some(MetaKind::JournalHeader) => DamagedPart::JournalHeader,
        Some(MetaKind::Window) => DamagedPart::Window,
        Some(MetaKind::FreeLog) => DamagedPart::FreeLog,
        Some(MetaKind::Orphans) => DamagedPart::Orphans,
        Some(MetaKind::NodeInfo) => DamagedPart::Counters,
        _ => DamagedPart::Shared,
    }
}

#[cfg(test)]
mod tests;

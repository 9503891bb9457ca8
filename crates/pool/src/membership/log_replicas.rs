//! The redundancy log of this node, and those of dead nodes: attaching, recovering, cleaning and
//! emptying them, and writing them to their replicas when the epoch changes.

use std::sync::Arc;

use crate::error::PoolError;
use crate::pool::PoolState;
use crate::redundancy::EpochInUse;
use crate::redundancy::log::redo::flush_all;
use crate::redundancy::log::replicas::Reach;
use crate::redundancy::log_recovery::{Found, Recovered};
use crate::redundancy::verifier::{ChecksumVerifier, NoChecksums};
use crate::topology::{FailedMembers, Lost};

impl PoolState {
    /// Recovers slot `slot`'s log; for its own node, keeps it to be written.
    ///
    /// What it may change is held against other nodes, by this node or still by the dead life.
    fn recover(
        &self,
        slot: u16,
        verifier: &dyn ChecksumVerifier,
        attach: bool,
    ) -> Result<Recovered, PoolError> {
        loop {
            let found = Found::read(&*self.enter()?, slot);
            let _held = match self.cluster.shared() {
                Some(shared) => {
                    let locks = found.locks(&self.epochs.read(), shared.regions.count());
                    Some(shared.regions.hold_to_recover(&locks)?)
                }
                None => None,
            };
            let copy_damage = found.judge(|| self.enter(), verifier)?;
            for (member, places) in &copy_damage.damaged {
                for at in places {
                    self.accuse(*member, *at);
                }
            }
            // What shows it is healed next.
            self.mark_suspects()?;
            let mut lost = FailedMembers::new();
            let how = (verifier, &copy_damage);
            let recovered = found.make_whole(|| self.enter(), how, &mut lost)?;
            if let Some((recovered, log)) = recovered.filter(|_| lost.is_empty()) {
                if attach {
                    self.epochs.write().log = Some(Arc::new(log));
                }
                return Ok(recovered);
            }
            self.fail_members(&lost)?;
        }
    }

    /// Forgets noted regions that are no longer written, after a flush.
    pub fn clean_log(&self) {
        let Ok(topology) = self.enter_alone() else { return };
        let mut lost = Lost::new();
        // Copies that differ must be compared if this node dies now.
        if let Some(log) = topology.log.as_ref().filter(|_| self.redundancy.divergent.is_none()) {
            log.intents.clean(&topology, log.slot, &mut lost);
        }
        if let Some(log) = &topology.log
            && let Err(error) = log.end_missed(&topology, &mut lost)
        {
            tracing::warn!(%error, "cannot clear the notes of what members missed that are back");
        }
        let lost = topology.named(&lost);
        drop(topology);
        if !lost.is_empty()
            && let Err(error) = self.fail_members(&lost)
        {
            tracing::error!(%error, "a member failed while the redundancy log was cleaned");
        }
    }

    /// What a region is given up with: no record of this node's log names it any more, so that what
    /// others write there is not undone by a recovery of this node.
    pub fn empty_ring(&self) -> Result<(), PoolError> {
        let topology = self.epochs.read();
        let mut lost = Lost::new();
        if let Some(log) = &topology.log {
            log.redo.checkpoint(&topology, log.slot, &mut lost)?;
        }
        let lost = topology.named(&lost);
        drop(topology);
        if lost.is_empty() { Ok(()) } else { self.fail_members(&lost) }
    }

    /// Empties the log: all members hold the same, durably.
    fn detach(&self) -> Result<(), PoolError> {
        loop {
            let mut topology = self.enter_alone()?;
            let Some(log) = topology.log.clone() else { return Ok(()) };
            let mut lost = Lost::new();
            flush_all(&topology, &mut lost)?;
            if lost.is_empty() {
                log.redo.checkpoint(&topology, log.slot, &mut lost)?;
                log.intents.forget(&topology, log.slot, &mut lost)?;
                log.end_missed(&topology, &mut lost)?;
            }
            if lost.is_empty() {
                topology.log = None;
                return Ok(());
            }
            let lost = topology.named(&lost);
            drop(topology);
            self.fail_members(&lost)?;
        }
    }
}

/// Makes everything in place durable and writes the log to its replicas of this epoch.
///
/// What a member that is offline has missed is noted first: this epoch may be in use though the flush fails, and the
/// intents may then be forgotten.
pub(crate) fn relocate_log(topology: &EpochInUse, lost: &mut Lost) -> Result<(), PoolError> {
    let Some(log) = &topology.log else { return Ok(()) };
    log.renew_missed(topology, lost)?;
    flush_all(topology, lost)?;
    log.intents.rewrite(topology, log.slot, Reach::Replicas, lost)?;
    log.redo.relocate(topology, log.slot, lost)
}

impl crate::pool::Pool {
    /// Begins to keep the redundancy log of node slot `slot`, after recovering what stands in it.
    /// From now on a crash at any moment leaves nothing unequal that
    /// [`crate::pool::Pool::recover_log`] does not find. A pool without redundancy has no log. If
    /// there are other nodes, this waits until all use one epoch.
    ///
    /// # Errors
    /// [`PoolError::NoLog`] when the pool was made for fewer slots; [`PoolError::Device`];
    /// [`PoolError::Closed`]: this node has withdrawn.
    pub fn attach(&self, slot: u16) -> Result<Recovered, PoolError> {
        self.attach_with(slot, &NoChecksums)
    }

    /// As [`Pool::attach`](crate::pool::Pool::attach); `verifier` is asked which copy is good where copies differ that
    /// have to be made equal. Without one the first of two counts, though it may have rotted.
    ///
    /// # Errors
    /// As [`Pool::attach`](crate::pool::Pool::attach).
    pub fn attach_with(
        &self,
        slot: u16,
        verifier: &dyn ChecksumVerifier,
    ) -> Result<Recovered, PoolError> {
        self.check_log(slot)?;
        if !self.0.redundancy.present {
            // The epoch may be in force by labels that only this node can see; it has to show them
            // to the others.
            self.0.await_settled()?;
            return Ok(Recovered::default());
        }
        self.0.recover(slot, verifier, true)
    }

    /// Makes whole what the node of slot `slot` left unequal when it died, and lets a move begin again
    /// ([`crate::pool::Pool::restart_migration`]). The slot's node is known to be dead or fenced, and nobody else
    /// recovers it. It may be repeated.
    ///
    /// # Errors
    /// As [`crate::pool::Pool::attach`].
    pub fn recover_log(&self, slot: u16) -> Result<Recovered, PoolError> {
        self.recover_log_with(slot, &NoChecksums)
    }

    /// As [`Pool::recover_log`](crate::pool::Pool::recover_log), with a verifier as in
    /// [`Pool::attach_with`](crate::pool::Pool::attach_with).
    ///
    /// # Errors
    /// As [`Pool::attach`](crate::pool::Pool::attach).
    pub fn recover_log_with(
        &self,
        slot: u16,
        verifier: &dyn ChecksumVerifier,
    ) -> Result<Recovered, PoolError> {
        self.check_log(slot)?;
        self.restart_migration()?;
        if !self.0.redundancy.present {
            return Ok(Recovered::default());
        }
        self.0.recover(slot, verifier, false)
    }

    /// Whether [`Pool::recover_log`](crate::pool::Pool::recover_log) of a slot would write nothing but the
    /// log itself. The slot's node is known to be dead or fenced, and nobody else recovers it: so it
    /// stays as it is.
    ///
    /// # Errors
    /// As [`Pool::attach`](crate::pool::Pool::attach).
    pub fn is_log_empty(&self, slot: u16) -> Result<bool, PoolError> {
        self.check_log(slot)?;
        if !self.0.redundancy.present {
            return Ok(true);
        }
        let topology = self.0.enter()?;
        Found::read(&topology, slot).is_empty(&topology)
    }

    /// Ends the log that [`crate::pool::Pool::attach`] began: everything is durable and equal, and a
    /// later recovery finds nothing to do. No request is under way afterwards that was not flushed.
    ///
    /// # Errors
    /// [`PoolError::Device`]; the log then stays as it is.
    pub fn detach(&self) -> Result<(), PoolError> {
        self.0.detach()
    }

    /// Called when a region that this node wrote rows of parity in is given up: see
    /// [`crate::RegionLocks`].
    ///
    /// # Errors
    /// [`PoolError::Device`]: the region must be kept.
    pub fn give_up_regions(&self) -> Result<(), PoolError> {
        self.0.empty_ring()
    }

    /// Whether this process keeps a redundancy log.
    pub fn is_attached(&self) -> bool {
        self.0.epochs.read().log.is_some()
    }

    fn check_log(&self, slot: u16) -> Result<(), PoolError> {
        match self.info().log_slots {
            Some(slots) if u64::from(slot) >= slots => Err(PoolError::NoLog { slot, slots }),
            _ => Ok(()),
        }
    }
}

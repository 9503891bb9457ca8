//! Whether a node's handles on a pool may change anything: while the node's lease lasts, unless the pool
//! is frozen, and until they are closed for good.
//!
//! A node that could not write a heartbeat for too long stops by itself, before the others take it
//! for dead. Its new changes then wait at the gate; what it has issued before may still reach the
//! devices. The gate opens again when the node has written a heartbeat and has seen that nobody
//! fenced it ([`WriteGate::extend`]). If the gate is closed, the waiting changes fail.
//!
//! While the pool is *frozen* all changes wait but those without which nodes could neither live nor read: of heartbeats,
//! slots, lock records.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use braid_device::tasks::{self, Awaited};
use braid_device::{Change, FreezeGate, Moment};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

use crate::error::PoolError;

/// How often a thread that waits for the lease checks whether the gate was closed.
const LOOK: Duration = Duration::from_millis(20);
/// There is no lease.
const FOR_EVER: u64 = u64::MAX;

/// Each change holds a [`Pass`].
#[derive(Debug)]
pub(crate) struct WriteGate {
    closed: RwLock<bool>,
    /// For changes that a frozen pool does not have.
    pub freeze: FreezeGate,
    /// As closed, but nobody has waited yet for the changes under way.
    refuses: AtomicBool,
    /// End of the lease, nanoseconds of the clock of leases.
    until: AtomicU64,
    lapsed: Mutex<()>,
    extended: Condvar,
}

impl Default for WriteGate {
    fn default() -> Self {
        Self {
            closed: RwLock::default(),
            freeze: FreezeGate::default(),
            refuses: AtomicBool::new(false),
            until: AtomicU64::new(FOR_EVER),
            lapsed: Mutex::default(),
            extended: Condvar::new(),
        }
    }
}

/// A change is under way.
pub(crate) type Pass<'a> = (RwLockReadGuard<'a, bool>, Change<'a>);

impl WriteGate {
    /// For a change: waits for the lease, and for the thaw.
    ///
    /// # Errors
    /// [`PoolError::Closed`].
    pub fn pass(&self) -> Result<Pass<'_>, PoolError> {
        self.pass_thawed(|| self.pass_for_lock())
    }
    /// For what is told after the lease's end, too: waits for the thaw alone.
    ///
    /// # Errors
    /// [`PoolError::Closed`].
    pub fn pass_for_history(&self) -> Result<Pass<'_>, PoolError> {
        self.pass_thawed(|| self.pass_unleased())
    }
    fn pass_thawed<'a>(
        &'a self,
        pass: impl Fn() -> Result<RwLockReadGuard<'a, bool>, PoolError>,
    ) -> Result<Pass<'a>, PoolError> {
        loop {
            let unclosed = pass()?;
            if let Some(change) = self.freeze.try_enter() {
                return Ok((unclosed, change));
            }
            drop(unclosed);
            self.freeze.wait(LOOK);
        }
    }
    /// For a change of a lock's record or of a slot: waits for the lease.
    ///
    /// # Errors
    /// [`PoolError::Closed`].
    pub fn pass_for_lock(&self) -> Result<RwLockReadGuard<'_, bool>, PoolError> {
        loop {
            let pass = self.pass_unleased()?;
            if self.is_leased() {
                return Ok(pass);
            }
            drop(pass);
            self.wait_for_lease();
        }
    }
    /// For what extends the lease.
    ///
    /// # Errors
    /// [`PoolError::Closed`].
    pub fn pass_unleased(&self) -> Result<RwLockReadGuard<'_, bool>, PoolError> {
        let closed = self.closed.read();
        if *closed || self.refuses.load(Ordering::Acquire) {
            Err(PoolError::Closed)
        } else {
            Ok(closed)
        }
    }
    /// As [`WriteGate::pass`], but never waits: for callers that hold what other threads wait for.
    pub fn try_pass(&self) -> Option<Pass<'_>> {
        let open = !self.refuses.load(Ordering::Acquire) && self.is_leased();
        let unclosed = self.closed.try_read().filter(|closed| open && !**closed)?;
        Some((unclosed, self.freeze.try_enter()?))
    }
    /// Waits for the lease; false if `cancelled`, which is asked every [`LOOK`], was true before.
    ///
    /// # Errors
    /// [`PoolError::Closed`].
    pub fn await_lease_unless(&self, cancelled: &dyn Fn() -> bool) -> Result<bool, PoolError> {
        while !self.is_leased() {
            drop(self.pass_unleased()?);
            if cancelled() {
                return Ok(false);
            }
            self.wait_for_lease();
        }
        Ok(true)
    }
    /// Waits until the lease is extended, for [`LOOK`] at most.
    fn wait_for_lease(&self) {
        let _waits = tasks::wait(Awaited::Lease);
        let mut lapsed = self.lapsed.lock();
        if !self.is_leased() {
            self.extended.wait_for(&mut lapsed, LOOK);
        }
    }
    /// Whether the lease lasts.
    pub fn is_leased(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        until == FOR_EVER || Moment::now().nanoseconds() < until
    }
    /// From now on, until `until`.
    pub fn extend(&self, until: u64) {
        self.until.store(until, Ordering::Release);
        let _lapsed = self.lapsed.lock();
        self.extended.notify_all();
    }
    /// Nothing new is let in any more.
    pub fn refuse(&self) {
        self.refuses.store(true, Ordering::Release);
        let _lapsed = self.lapsed.lock();
        self.extended.notify_all();
    }
    /// Waits for the changes under way; there is none afterwards.
    pub fn close(&self) {
        *self.closed.write() = true;
    }
    pub fn is_closed(&self) -> bool {
        *self.closed.read()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_frozen_gate_lets_locks_pass_and_nothing_else() {
        let write_gate = Arc::new(WriteGate::default());
        assert!(write_gate.freeze.freeze(Instant::now()));
        drop((write_gate.pass_for_lock().unwrap(), write_gate.pass_unleased().unwrap()));
        assert!(write_gate.try_pass().is_none());
        let waiting = |write_gate: &Arc<WriteGate>| {
            let write_gate = write_gate.clone();
            std::thread::spawn(move || write_gate.pass().map(drop))
        };
        let waits = waiting(&write_gate);
        std::thread::sleep(LOOK * 3);
        assert!(!waits.is_finished());
        write_gate.freeze.thaw();
        waits.join().unwrap().unwrap();
        assert!(write_gate.try_pass().is_some() && write_gate.freeze.freeze(Instant::now()));
        let fails = waiting(&write_gate);
        write_gate.close();
        assert!(matches!(fails.join().unwrap(), Err(PoolError::Closed)));
    }

    #[test]
    fn a_change_waits_for_the_lease_and_not_for_a_closed_gate() {
        let write_gate = Arc::new(WriteGate::default());
        drop(write_gate.pass().unwrap());
        write_gate.extend(Moment::now().nanoseconds() + 3_600_000_000_000);
        drop(write_gate.pass().unwrap());
        write_gate.extend(0);
        assert!(!write_gate.is_leased());
        drop(write_gate.pass_unleased().unwrap());
        let waiting = |write_gate: &Arc<WriteGate>| {
            let write_gate = write_gate.clone();
            std::thread::spawn(move || write_gate.pass().map(drop))
        };
        let first = waiting(&write_gate);
        std::thread::sleep(LOOK * 3);
        assert!(!first.is_finished());
        write_gate.extend(FOR_EVER);
        first.join().unwrap().unwrap();
        write_gate.extend(0);
        let second = waiting(&write_gate);
        write_gate.close();
        assert!(matches!(second.join().unwrap(), Err(PoolError::Closed)));
        let write_gate = Arc::new(WriteGate::default());
        write_gate.extend(0);
        let third = waiting(&write_gate);
        write_gate.refuse();
        assert!(matches!(third.join().unwrap(), Err(PoolError::Closed)));
        write_gate.extend(FOR_EVER);
        assert!(write_gate.pass_unleased().is_err() && !write_gate.is_closed());
    }
}

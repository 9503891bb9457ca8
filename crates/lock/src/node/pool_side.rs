//! What a node asks of the pool for itself: its epoch, its lease, its key and those of others.

use std::time::Duration;

use braid_device::Moment;
use braid_pool::{EpochTag, FenceHow, Pool, Reservable};

use crate::error::StoreError;

/// The pool, as a node's place in the cluster needs it. None of this has a default: a store that
/// forgot one of them would be no safe one.
pub trait PoolSide: Send + Sync {
    /// The epoch in use here.
    fn epoch(&self) -> EpochTag;
    /// See [`Pool::epoch_without_members`].
    fn epoch_without_members(&self) -> Option<EpochTag>;
    /// Uses the epoch that the pool's labels say; whether it is another than before.
    ///
    /// # Errors
    /// This node cannot go on.
    fn follow(&self) -> Result<bool, StoreError>;
    /// Makes all completed writes durable. A slot must not turn back into a free one in a power
    /// cut once its node has written to its journal.
    ///
    /// # Errors
    /// The device's.
    fn flush(&self) -> Result<(), StoreError>;
    /// Which members have reservations.
    fn reservable(&self) -> Reservable;
    /// Registers this node's key with every member, or its host's where that has one: see
    /// [`Pool::register`].
    ///
    /// # Errors
    /// Nothing is registered then.
    fn register(&self, key: u64) -> Result<u64, StoreError>;
    /// Ends that.
    fn unregister(&self);
    /// Whether the key still stands everywhere: see [`Pool::uphold`].
    ///
    /// # Errors
    /// [`StoreError::is_fenced`] if not; others where it cannot be asked.
    fn uphold(&self) -> Result<(), StoreError>;
    /// Takes another node's key from every member: see [`Pool::fence`].
    ///
    /// # Errors
    /// The fence is not complete.
    fn fence(&self, key: u64, how: FenceHow) -> Result<(), StoreError>;
    /// Takes away all keys but those that `keep` names.
    ///
    /// # Errors
    /// The device's.
    fn sweep(&self, keep: &dyn Fn(u64) -> bool) -> Result<(), StoreError>;
    /// This node may issue changes until `until`.
    fn lease(&self, until: Moment);
    /// In which a member answers, from this node's timer: see [`Pool::answers_within`].
    fn answers_within(&self, _io_timeout: Duration) {}
    /// This node issues no changes any more.
    fn refuse(&self);
    /// This node was fenced: see [`Pool::sever`].
    fn sever(&self);
}

impl PoolSide for Pool {
    fn epoch(&self) -> EpochTag {
        self.epoch_tag()
    }
    fn epoch_without_members(&self) -> Option<EpochTag> {
        Self::epoch_without_members(self)
    }
    fn follow(&self) -> Result<bool, StoreError> {
        Ok(Self::follow(self)?)
    }
    fn flush(&self) -> Result<(), StoreError> {
        Ok(Self::flush(self)?)
    }
    fn reservable(&self) -> Reservable {
        Self::reservable(self)
    }
    fn register(&self, key: u64) -> Result<u64, StoreError> {
        Ok(Self::register(self, key)?)
    }
    fn unregister(&self) {
        Self::unregister(self);
    }
    fn uphold(&self) -> Result<(), StoreError> {
        Ok(Self::uphold(self)?)
    }
    fn fence(&self, key: u64, how: FenceHow) -> Result<(), StoreError> {
        Ok(Self::fence(self, key, how)?)
    }
    fn sweep(&self, keep: &dyn Fn(u64) -> bool) -> Result<(), StoreError> {
        Ok(Self::sweep(self, keep)?)
    }
    fn lease(&self, until: Moment) {
        Self::lease(self, until);
    }
    fn answers_within(&self, io_timeout: Duration) {
        Self::answers_within(self, io_timeout);
    }
    fn refuse(&self) {
        Self::refuse(self);
    }
    fn sever(&self) {
        Self::sever(self);
    }
}

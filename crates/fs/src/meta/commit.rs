//! Group commit: one thread leads, and all callers that come meanwhile share the next commit.

use std::sync::atomic::Ordering;

use braid_pool::device::tasks::{self, Awaited};

use super::metadata::Meta;
use super::running::Running;
use crate::error::Result;
use crate::journal::Image;

/// The leader's mark; gone with it, whatever happens.
struct Leadership<'a>(&'a Meta);

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.poison("panic in a commit".into());
        }
        self.0.group.lock().leading = false;
        self.0.group_changed.notify_all();
    }
}

/// What a commit makes durable.
struct Snapshot {
    id: u64,
    images: Vec<Image>,
    hooks: Vec<Box<dyn FnOnce() + Send>>,
}

impl Meta {
    /// Makes every transaction closed before this call durable (group commit: one journal write for
    /// all callers at the same time). Flushes the devices first when data was written, or a lock
    /// granted, since the last flush, so that the data that a transaction makes visible, and the
    /// hold on every lock that it was made under, are durable before it. Nothing to commit: no I/O.
    /// Call it with nothing locked that an `on_commit` closure locks, or that a thread with an open
    /// transaction may wait for.
    ///
    /// # Panics
    /// If this thread has a transaction open.
    pub fn commit(&self) -> Result<()> {
        self.assert_no_tx_here();
        self.check()?;
        let wanted = self.running.lock().last_used();
        let mut group = self.group.lock();
        while group.durable < wanted {
            self.check()?;
            if group.leading {
                let _waits = tasks::wait(Awaited::Commit);
                self.group_changed.wait(&mut group);
                continue;
            }
            group.leading = true;
            drop(group);
            let lead = Leadership(self);
            let done = self.fatal(self.lead_commit());
            drop(lead);
            done?;
            group = self.group.lock();
        }
        Ok(())
    }
    /// Makes durable on return every transaction closed before this call ([`Meta::commit`]), and all data written
    /// before it. The devices are flushed only if no flush since then has covered that data.
    ///
    /// # Panics
    /// If this thread has a transaction open.
    pub fn commit_and_flush(&self) -> Result<()> {
        let written = self.data_written.load(Ordering::Acquire);
        self.commit()?;
        if self.data_flushed.load(Ordering::Acquire) >= written {
            return Ok(());
        }
        let waits = tasks::wait(Awaited::Commit);
        let _turn = self.data_flush.lock();
        drop(waits);
        // The thread before us may have flushed for us, too.
        if self.data_flushed.load(Ordering::Acquire) < written {
            self.check()?;
            self.fatal(self.flush_devices())?;
        }
        Ok(())
    }
    /// Flushes all devices, and notes the data and the locks that this covers.
    pub(super) fn flush_devices(&self) -> Result<()> {
        let written = self.data_written.load(Ordering::Acquire);
        let granted = self.granted.load(Ordering::Acquire);
        self.volume.pool.flush()?;
        self.data_flushed.fetch_max(written, Ordering::AcqRel);
        self.granted_flushed.fetch_max(granted, Ordering::AcqRel);
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn lead_commit(&self) -> Result<()> {
        self.check()?;
        let mut journal = self.journal.lock();
        let snapshot = self.snapshot();
        if !snapshot.images.is_empty() {
            // Only now: what was noted by transactions in the snapshot counts.
            let written = self.data_written.load(Ordering::Acquire);
            let granted = self.granted.load(Ordering::Acquire);
            let data = self.data_flushed.load(Ordering::Acquire) < written;
            let locks = self.granted_flushed.load(Ordering::Acquire) < granted;
            if data || locks {
                self.flush_devices()?;
            }
            self.make_room(&mut journal, snapshot.images.len() as u64)?;
            self.check()?;
            let appended = journal.append(&self.volume, &snapshot.images)?;
            self.flush_devices()?;
            self.publish(appended, &snapshot.images);
            let images = snapshot.images.len() as u64;
            self.counters.commits.fetch_add(1, Ordering::Relaxed);
            self.counters.logged.fetch_add(images, Ordering::Relaxed);
        }
        drop(journal);
        for hook in snapshot.hooks {
            hook();
        }
        self.group.lock().durable = snapshot.id;
        Ok(())
    }
    /// Closes the running transaction and starts the next. Waits for open transactions, and stops
    /// new ones, only for this.
    fn snapshot(&self) -> Snapshot {
        let _closed = self.barrier.write();
        let mut running = self.running.lock();
        let id = running.id;
        let next = Running { id: id + 1, ..Running::first() };
        let Running { blocks, hooks, .. } = std::mem::replace(&mut *running, next);
        drop(running);
        self.running_blocks.store(0, Ordering::Release);
        let mut images = Vec::with_capacity(blocks.len());
        for block in blocks {
            self.cache.shard(block).change(block, |entry| {
                entry.running = false;
                entry.committing = Some(entry.current.clone());
                images.push(Image { block, body: entry.current.clone() });
            });
        }
        Snapshot { id, images, hooks }
    }
}

//! What happens to the pool is told, and written to the members by a thread of its own ([`crate::history`]). A pool
//! keeps no history until [`Pool::keep_history`].

use std::collections::HashSet;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use braid_device::Device;
use braid_format::history::{Event, EventKind, HistoryPage};
use braid_format::label::{Label, Member, MemberState};
use braid_format::{MemberIndex, NodeId};
use parking_lot::{Condvar, Mutex};

use crate::history::{
    Queue, Recorder, Shared, append, changes, gone_offline, members_out, read_ring, who,
};
use crate::pool::{Pool, PoolState};

/// How often the thread looks whether the pool is still there.
const LOOK: Duration = Duration::from_secs(1);

impl Pool {
    /// From now on what happens to the pool is written to its history, as of `host`. Called once; later calls
    /// change nothing.
    pub fn keep_history(&self, host: &str) {
        let write_gate = Arc::downgrade(&self.1);
        let queue = Mutex::new(Queue { write_gate, ..Queue::default() });
        let (host, slot) = (host.to_owned(), AtomicU16::new(u16::MAX));
        let shared = Arc::new(Shared { host, slot, queue, changed: Condvar::new() });
        if self.0.history.set(Recorder(shared.clone())).is_err() {
            return;
        }
        let pool = Arc::downgrade(&self.0);
        let thread = std::thread::Builder::new().name("braid-history".into());
        if let Err(error) = thread.spawn(move || write_all(&shared, &pool)) {
            tracing::warn!(%error, "no thread that writes the pool's history");
        }
    }

    /// Events of this node from now on are of its `slot`, and end when this handle is closed.
    pub fn history_of_node(&self, slot: NodeId) {
        if let Some(Recorder(shared)) = self.0.history.get() {
            shared.slot.store(slot.0, Ordering::Release);
            shared.queue.lock().write_gate = Arc::downgrade(&self.1);
        }
    }

    /// Tells an event, if the pool keeps a history. Waits for nothing.
    pub fn record(&self, kind: EventKind, user: Option<u32>, text: impl Into<String>) {
        self.0.record(kind, user, text);
    }

    /// Waits until all that was told is written, for `time` at most.
    pub fn settle_history(&self, time: Duration) {
        let Some(Recorder(shared)) = self.0.history.get() else { return };
        let end = Instant::now() + time;
        let mut queue = shared.queue.lock();
        while (queue.busy || !queue.waiting.is_empty()) && Instant::now() < end {
            shared.changed.wait_until(&mut queue, end);
        }
    }

    /// What the members in use know of the pool's history, the oldest first. What cannot be read is left out.
    pub fn history(&self) -> Vec<Event> {
        let topology = self.0.epochs.snapshot();
        let (pool, len) = (topology.label.pool.into_bytes(), topology.label.lock_sector);
        let used = topology.members().filter(|m| topology.state(*m) != MemberState::Failed);
        let devices: Vec<Arc<dyn Device>> = used.map(|m| topology.device(m).clone()).collect();
        drop(topology);
        let rings = devices.iter().filter_map(|device| read_ring(&**device, pool, len).ok());
        let pages = rings.flat_map(|ring| ring.pages).flatten();
        let mut seen = HashSet::new();
        let mut pages: Vec<HistoryPage> = pages.collect();
        pages.sort_by_key(|page| page.sequence);
        let events = pages.iter().flat_map(HistoryPage::events);
        let mut events: Vec<Event> = events.filter(|e| seen.insert(e.id)).collect();
        // Stable: of one millisecond, as they were written.
        events.sort_by_key(|e| e.time);
        events
    }

    /// When each member that is offline went, in milliseconds since 1970 by the clock of the host that took it out; not
    /// of those of which the history does not say so any more.
    pub fn offline_since(&self) -> Vec<(MemberIndex, u64)> {
        let label = self.label();
        let members = (0..).map(MemberIndex).zip(&label.members);
        let offline: Vec<_> = members.filter(|(_, m)| m.is_offline()).collect();
        if offline.is_empty() {
            return Vec::new();
        }
        let events = self.history();
        let went = |who: &str| events.iter().rev().find(|e| e.text == gone_offline(who));
        let since = |(i, m): (MemberIndex, &Member)| Some((i, went(&who(i, m))?.time));
        offline.into_iter().filter_map(since).collect()
    }
}

impl PoolState {
    fn record(&self, kind: EventKind, user: Option<u32>, text: impl Into<String>) {
        if let Some(recorder) = self.history.get() {
            recorder.record(kind, user, text.into());
        }
    }

    /// Tells what this node has changed of the pool.
    pub(crate) fn record_change(&self, before: &Label, now: &Label) {
        if self.history.get().is_none() {
            return;
        }
        for text in changes(before, now) {
            self.record(EventKind::Member, None, text);
        }
        let lost = |label: &Label| !members_out(label).is_empty();
        match (lost(before), lost(now)) {
            (false, true) => self.record(EventKind::Pool, None, "the pool is degraded"),
            (true, false) => self.record(EventKind::Pool, None, "the pool is whole again"),
            _ => {}
        }
        if before.name != now.name {
            self.record(
                EventKind::Pool,
                None,
                format!("renamed from {:?} to {:?}", before.name, now.name),
            );
        }
        if before.properties != now.properties {
            let all = now.properties.iter().map(|(key, value)| format!("{key}={value:?}"));
            let all = all.collect::<Vec<_>>().join(", ");
            self.record(EventKind::Pool, None, format!("properties are now: {all}"));
        }
        let (was, is) = (before.size().0 - before.holes().0, now.size().0 - now.holes().0);
        if was != is {
            self.record(
                EventKind::Pool,
                None,
                format!("{} MiB instead of {} MiB", is >> 20, was >> 20),
            );
        }
    }
}

/// The thread: writes what is told until the pool is gone.
fn write_all(shared: &Shared, pool: &Weak<PoolState>) {
    loop {
        let mut queue = shared.queue.lock();
        queue.busy = false;
        shared.changed.notify_all();
        let event = loop {
            if queue.stop {
                return;
            }
            match queue.waiting.pop_front() {
                Some(event) => break event,
                None => drop(shared.changed.wait_for(&mut queue, LOOK)),
            }
        };
        queue.busy = true;
        let write_gate = queue.write_gate.upgrade();
        drop(queue);
        let (Some(pool), Some(write_gate)) = (pool.upgrade(), write_gate) else { continue };
        // Not after this node has left or withdrawn, nor while the pool is frozen.
        let Ok(_pass) = write_gate.pass_for_history() else { continue };
        let topology = pool.epochs.snapshot();
        let (uuid, len) = (topology.label.pool.into_bytes(), topology.label.lock_sector);
        let members =
            topology.members().filter(|m| topology.readable(*m)).take(HistoryPage::COPIES);
        let devices: Vec<Arc<dyn Device>> = members.map(|m| topology.device(m).clone()).collect();
        // A change of epoch waits for those who have the one before.
        drop(topology);
        append(&devices.iter().map(|d| &**d).collect::<Vec<_>>(), uuid, len, &event);
    }
}

//! Since when a slot that cannot be read shows no sign of a node.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::NodeId;
use parking_lot::Mutex;

use crate::simulation;

/// Since when the slots that cannot be read are silent: one for all of this process's that looks at slots.
///
/// A node that lives soon writes its own slot anew. So a slot that stays unreadable and silent for
/// [`Timing::fence_after`](super::Timing::fence_after) is nobody's. The regular looks count that time; a change of the
/// pool then need not wait for it, on one node after the other.
#[derive(Debug, Clone, Default)]
pub struct SilentSlots(Arc<Mutex<HashMap<NodeId, Silent>>>);

/// What such a slot shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shown {
    /// Of its heartbeat, if that can be read.
    sequence: Option<u64>,
    /// Its liveness lock is seen to be held.
    locked: bool,
}

#[derive(Debug)]
struct Silent {
    shown: Shown,
    since: Instant,
}

impl SilentSlots {
    /// A look at `slot`, which cannot be read: the sequence number of its heartbeat, if it has one, and whether its
    /// liveness lock is seen to be held. How long no node has shown itself there; nothing while the lock is held.
    pub fn note(&self, slot: NodeId, sequence: Option<u64>, locked: bool) -> Duration {
        let (shown, now) = (Shown { sequence, locked }, simulation::now());
        let mut all = self.0.lock();
        let silent = all.entry(slot).or_insert(Silent { shown, since: now });
        if silent.shown != shown {
            *silent = Silent { shown, since: now };
        }
        if locked { Duration::ZERO } else { now.saturating_duration_since(silent.since) }
    }

    /// At this look only `unreadable` could not be read.
    pub fn retain(&self, unreadable: &[NodeId]) {
        self.0.lock().retain(|slot, _| unreadable.contains(slot));
    }
}

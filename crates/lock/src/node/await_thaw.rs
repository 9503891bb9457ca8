//! Who joins waits until nobody has the pool frozen: it would change things before others could ask it not to.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use braid_format::NodeId;
use braid_format::node::FreezeOrder;

use super::freeze::orders;
use super::observation::Heartbeats;
use super::slots::decode_slots;
use super::{NodeStore, Timing};
use crate::Life;
use crate::dlock::Time;
use crate::error::LockError;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Waits as long as a node that shows heartbeats freezes the pool, or has frozen it.
///
/// # Errors
/// The slots cannot be read.
pub fn await_thaw(store: &dyn NodeStore) -> Result<(), LockError> {
    let mut look = FreezeLook::default();
    while !look.orders(store, None)?.is_empty() {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// What somebody sees of freezes who does not watch the other nodes yet.
#[derive(Debug, Default)]
pub(super) struct FreezeLook {
    beats: Heartbeats,
    /// The last heartbeat of each node that freezes the pool, and since when it is the last.
    last: HashMap<Life, (u64, Instant)>,
    told: Option<NodeId>,
}

impl FreezeLook {
    /// The freezes of nodes that show heartbeats, besides `me`.
    ///
    /// # Errors
    /// The slots cannot be read.
    pub fn orders(
        &mut self,
        store: &dyn NodeStore,
        me: Option<Life>,
    ) -> Result<Vec<(Life, FreezeOrder)>, LockError> {
        let (slots, heartbeats) =
            store.read_slots_and_heartbeats().map_err(LockError::NodeStore)?;
        let records = decode_slots(store, &slots, &[])?.records;
        for record in &records {
            let slot = record.life.slot;
            let sector = heartbeats.chunks_exact(store.sector_len()).nth(usize::from(slot.0));
            self.beats.note(Time::ZERO, slot, sector.unwrap_or_default());
        }
        // Of whom a person has said that its host is off, no heartbeat is waited for.
        let believed = records.iter().filter(|r| !r.vouched);
        let mut all = orders(me, believed, &self.beats);
        all.retain(|(by, _)| {
            let record = records.iter().find(|r| r.life == *by);
            self.shows_life(*by, Timing::of_slot(record.map_or(0, |r| r.io_timeout)))
        });
        if let Some((by, _)) = all.first()
            && self.told.replace(by.slot) != Some(by.slot)
        {
            tracing::info!("the pool is frozen by node {}: joining waits for the thaw", by.slot);
        }
        Ok(all)
    }

    fn shows_life(&mut self, life: Life, timing: Timing) -> bool {
        let (sequence, now) =
            (self.beats.of(life).map_or(0, |(beat, _)| beat.sequence), Instant::now());
        let seen = self.last.entry(life).or_insert((sequence, now));
        if seen.0 != sequence {
            *seen = (sequence, now);
        }
        now.saturating_duration_since(seen.1) < timing.suspect_after()
    }
}

//! Who joins waits until nobody has the pool frozen: it would change things before others could ask it not to.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use braid_format::NodeId;

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
    let mut beats = Heartbeats::default();
    let mut last: HashMap<Life, (u64, Instant)> = HashMap::new();
    let mut told: Option<NodeId> = None;
    loop {
        let (slots, heartbeats) =
            store.read_slots_and_heartbeats().map_err(LockError::NodeStore)?;
        let records = decode_slots(store, &slots, &[])?.records;
        for record in &records {
            let slot = record.life.slot;
            let sector = heartbeats.chunks_exact(store.sector_len()).nth(usize::from(slot.0));
            beats.note(Time::ZERO, slot, sector.unwrap_or_default());
        }
        let now = Instant::now();
        let mut lives = false;
        // Of whom a person has said that its host is off, no heartbeat is waited for.
        let believed = records.iter().filter(|r| !r.vouched);
        for (by, _) in orders(None, believed, &beats) {
            let sequence = beats.of(by).map_or(0, |(beat, _)| beat.sequence);
            let seen = last.entry(by).or_insert((sequence, now));
            if seen.0 != sequence {
                *seen = (sequence, now);
            }
            let record = records.iter().find(|r| r.life == by);
            let timing = Timing::of_slot(record.map_or(0, |r| r.io_timeout));
            if now.saturating_duration_since(seen.1) >= timing.suspect_after() {
                continue;
            }
            lives = true;
            if told.replace(by.slot) != Some(by.slot) {
                tracing::info!(
                    "the pool is frozen by node {}: joining waits for the thaw",
                    by.slot
                );
            }
        }
        if !lives {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

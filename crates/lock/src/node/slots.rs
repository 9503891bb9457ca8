//! Reads and writes slot records.

use braid_format::node::{LockPlace, RawSlot, SlotDamage, SlotRecord};
use braid_format::{FormatError, NodeId};

use super::NodeStore;
use super::slot_write::{Action, Event, Outcome, SlotWrite};
use crate::error::LockError;
use crate::store::{CawOutcome, Sector, torn_pauses};

/// A slot that cannot be decoded: it is of a life that nobody knows.
#[derive(Debug, Clone)]
pub(super) struct Unreadable {
    pub slot: NodeId,
    pub why: FormatError,
    bytes: Sector,
}

impl Unreadable {
    fn log(&self) {
        tracing::error!(
            "the slot of node {} cannot be read ({}): no node can join with this slot, and locks held by its last node stay held; run `braid check --repair` after unmounting all nodes",
            self.slot,
            self.why
        );
    }
}

/// Logs the slots that cannot be read, but for those that were `known` before.
pub(super) fn log_new(unreadable: &[Unreadable], known: &[Unreadable]) {
    let new = |u: &&Unreadable| known.iter().all(|k| k.slot != u.slot);
    unreadable.iter().filter(new).for_each(Unreadable::log);
}

/// All slots at one look.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub records: Vec<SlotRecord>,
    pub unreadable: Vec<Unreadable>,
}

/// Reads all slots. Damage of one is no error of the others; `known` has been found before, and is not
/// waited for to be a write under way.
pub(super) fn read_slots(store: &dyn NodeStore, known: &[Unreadable]) -> Result<Slots, LockError> {
    let bytes = store.read_slots().map_err(LockError::NodeStore)?;
    decode_slots(store, &bytes, known)
}

/// As [`read_slots`], of what was read.
pub(super) fn decode_slots(
    store: &dyn NodeStore,
    bytes: &[u8],
    known: &[Unreadable],
) -> Result<Slots, LockError> {
    let mut all = Slots::default();
    for (slot, sector) in (0..store.slots()).map(NodeId).zip(bytes.chunks_exact(store.sector_len()))
    {
        if let Some(known) = known.iter().find(|u| u.slot == slot && u.bytes == sector) {
            all.unreadable.push(known.clone());
            continue;
        }
        match decode_slot(store, slot, sector) {
            Ok(record) => all.records.push(record),
            Err(LockError::Slot { slot, source: why }) => {
                all.unreadable.push(Unreadable { slot, why, bytes: sector.to_vec() });
            }
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// A record read in one piece with others may be torn; alone it is not for long.
pub(super) fn decode_slot(
    store: &dyn NodeStore,
    slot: NodeId,
    bytes: &[u8],
) -> Result<SlotRecord, LockError> {
    let mut decoded = SlotRecord::decode(bytes, slot);
    for pause in torn_pauses() {
        if !matches!(decoded, Err(FormatError::ChecksumMismatch { .. })) {
            break;
        }
        std::thread::sleep(pause);
        let again = store.read_slot(slot).map_err(LockError::NodeStore)?;
        decoded = SlotRecord::decode(&again, slot);
    }
    decoded.map_err(|source| LockError::Slot { slot, source })
}

/// Writes a slot record; whether the new one stands. An unknown outcome is settled by reading.
///
/// # Errors
/// [`LockError::NodeStore`]: the store failed, and what was expected still stands, as far as it is known.
pub(super) fn write_slot(
    store: &dyn NodeStore,
    expected: &SlotRecord,
    new: &SlotRecord,
) -> Result<bool, LockError> {
    let write = SlotWrite::new(expected, new, store.sector_len());
    let (mut failed, slot) = (None, write.slot());
    let mut answered =
        match store.compare_and_write_slot(slot, write.expected(), write.new_sector()) {
            Ok(CawOutcome::Written) => Event::Written,
            Ok(CawOutcome::Mismatch(stands)) => Event::Mismatch(stands),
            Err(e) => {
                failed = Some(e);
                Event::Unknown
            }
        };
    loop {
        let outcome = match write.step(answered) {
            Action::End(outcome) => outcome,
            Action::Read => {
                answered = match store.read_slot(slot) {
                    Ok(stands) => Event::Read(stands),
                    Err(e) => {
                        failed = Some(e);
                        Event::ReadFailed
                    }
                };
                continue;
            }
        };
        return match (outcome, failed) {
            (Outcome::Failed, Some(e)) => Err(LockError::NodeStore(e)),
            (outcome, _) => Ok(outcome == Outcome::Committed),
        };
    }
}

pub(super) fn describe(damage: SlotDamage) -> String {
    format!("its {} is damaged (block {})", damage.part.name(), damage.block)
}

/// Once for each damage, by the node that met it.
pub(super) fn log_damage(record: &SlotRecord) {
    let Some(damage) = record.damage else { return };
    let locks = if record.is_replayed() { "" } else { "; what it held locked gives EIO" };
    tracing::error!(
        of_node = %record.life,
        "a dead node cannot be recovered: {}{locks}; run `braid check --repair` after unmounting all nodes",
        describe(damage),
    );
}

/// As many as a slot has room for.
pub(super) fn first_places(mut places: Vec<LockPlace>) -> Vec<LockPlace> {
    places.truncate(RawSlot::PLACES);
    places
}

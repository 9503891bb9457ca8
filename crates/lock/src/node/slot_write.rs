//! One change of a slot record: compared and written; if the outcome is unknown, the slot is read.
//!
//! ```text
//!  CompareAndWrite ---- written, or the new record stands already ----> End(Committed)
//!     |        \------- another record stands ------------------------> End(Lost)
//!     | no answer
//!     v
//!   Read -------------- the new record stands ------------------------> End(Committed)
//!      \--------------- the expected one still does, or no answer ----> End(Failed)
//!       \-------------- another one stands ---------------------------> End(Lost)
//! ```
//!
//! Each write carries a nonce of its own, so bytes that are equal are this write.

use braid_format::NodeId;
use braid_format::node::SlotRecord;

use crate::store::Sector;

/// A change under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotWrite {
    slot: NodeId,
    expected: Sector,
    new: Sector,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Answer to `Action::CompareAndWrite`: it is done.
    Written,
    /// Answer to `Action::CompareAndWrite`: this stands.
    Mismatch(Sector),
    /// Answer to `Action::CompareAndWrite`: the store failed, the write may have landed.
    Unknown,
    /// Answer to [`Action::Read`]: this stands.
    Read(Sector),
    /// Answer to [`Action::Read`]: the store failed.
    ReadFailed,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read the slot.
    Read,
    /// Nothing more.
    End(Outcome),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The new record stands, or stood.
    Committed,
    /// Another was faster.
    Lost,
    /// The store failed. What was expected still stands, as far as anybody could see.
    Failed,
}

impl SlotWrite {
    /// The change of `expected` to `new`, in sectors of `sector_len` bytes. Begins with
    /// a compare-and-write of [`Self::expected`] and [`Self::new_sector`].
    pub fn new(expected: &SlotRecord, new: &SlotRecord, sector_len: usize) -> Self {
        let encode = |record: &SlotRecord| {
            let mut sector = vec![0; sector_len];
            record.encode(&mut sector);
            sector
        };
        Self { slot: new.life.slot, expected: encode(expected), new: encode(new) }
    }
    /// `new` over a sector that cannot be decoded.
    pub fn over(stands: Sector, new: &SlotRecord) -> Self {
        let write = Self::new(new, new, stands.len());
        Self { expected: stands, ..write }
    }
    /// Which slot.
    pub fn slot(&self) -> NodeId {
        self.slot
    }
    /// What is compared.
    pub fn expected(&self) -> &[u8] {
        &self.expected
    }
    /// What is written.
    pub fn new_sector(&self) -> &[u8] {
        &self.new
    }
    /// Takes an event, says what to do.
    pub fn step(&self, event: Event) -> Action {
        Action::End(match event {
            Event::Written => Outcome::Committed,
            // An earlier attempt of the store's, whose answer was lost, may be what stands.
            Event::Mismatch(stands) | Event::Read(stands) if stands == self.new => {
                Outcome::Committed
            }
            Event::Unknown => return Action::Read,
            Event::Read(stands) if stands == self.expected => Outcome::Failed,
            Event::ReadFailed => Outcome::Failed,
            Event::Mismatch(_) | Event::Read(_) => Outcome::Lost,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_outcome_is_settled_by_what_stands() {
        let old = SlotRecord::free(NodeId(3));
        let [new, other] = [7, 8].map(|nonce| SlotRecord { nonce, ..old.clone() });
        let write = SlotWrite::new(&old, &new, 512);
        let sector = |record: &SlotRecord| SlotWrite::new(&old, record, 512).new_sector().to_vec();
        assert_eq!(write.slot(), NodeId(3));
        assert_eq!(write.step(Event::Written), Action::End(Outcome::Committed));
        assert_eq!(write.step(Event::Unknown), Action::Read);
        assert_eq!(write.step(Event::ReadFailed), Action::End(Outcome::Failed));
        for (stands, read, mismatch) in [
            (&new, Outcome::Committed, Outcome::Committed),
            (&other, Outcome::Lost, Outcome::Lost),
            (&old, Outcome::Failed, Outcome::Lost),
        ] {
            assert_eq!(write.step(Event::Read(sector(stands))), Action::End(read));
            assert_eq!(write.step(Event::Mismatch(sector(stands))), Action::End(mismatch));
        }
    }
}

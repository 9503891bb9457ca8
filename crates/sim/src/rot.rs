//! Rot in a journal's headers.

use braid_format::journal::RawJournalHeader;
use braid_format::meta::MetaHeader;
use braid_format::{Generation, NodeId};
use braid_lock::Life;
use zerocopy::FromBytes;

use crate::disk::{Address, Op};
use crate::image::Place;
use crate::world::{Pid, World};

/// A header that has rotted.
pub(crate) struct Rotten {
    place: Place,
    good: Vec<u8>,
    bad: Vec<u8>,
}

impl World {
    /// Of a dead node's journal the newer header rots, now and then: only where that one alone says that
    /// the journal is in use, and the older one that it is clean. The records that follow tell the truth.
    /// (One that was recovered while it was stopped has no journal: a later life may be in its slot.)
    pub(crate) fn rot_journal(&mut self, me: Life) {
        if !self.faulty() || self.random.below(4) != 0 {
            return;
        }
        if self.processes.iter().any(|p| p.me == Some(me) && p.recovered) {
            return;
        }
        let headers = self.headers_of(me.slot);
        let [(first, Some((a, a_clean))), (second, Some((b, b_clean)))] = headers else { return };
        let (newer, in_use, older_clean) =
            if a > b { (first, !a_clean, b_clean) } else { (second, !b_clean, a_clean) };
        if !in_use || !older_clean {
            return;
        }
        self.note(|| format!("the newer journal header of {me:?} rots"));
        self.report.rotten += 1;
        let len = self.disk.image.body_len;
        let good = self.disk.at(Address::Data(newer, len));
        let mut bad = good.clone();
        if let Some(byte) = bad.get_mut(100) {
            *byte ^= 1;
        }
        self.disk.land(Pid::MAX, Address::Data(newer, len), &Op::Write(bad.clone()));
        self.rotten.insert(me.slot, Rotten { place: newer, good, bad });
    }
    /// A journal is replayed: a header that has rotted stays so until it is written anew. To put back what
    /// it said would say again that the journal is in use.
    pub(crate) fn has_replayed(&mut self, slot: NodeId) {
        self.rotten.remove(&slot);
    }
    /// A replay has refused a journal: if one of its headers has rotted, that is honest, and a repair puts
    /// it right. Power may take the repair back; then the journal is refused again, and repaired again.
    pub(crate) fn repair_journal(&mut self, slot: NodeId) {
        let Some(Rotten { place, good, bad }) = self.rotten.get(&slot) else { return };
        let (address, good) = (Address::Data(*place, good.len()), good.clone());
        if self.disk.at(address) == *bad {
            self.note(|| format!("the journal of slot {slot} is repaired"));
            self.disk.land(Pid::MAX, address, &Op::Write(good));
        }
    }
    /// Where the two headers of a slot's journal are; generation of each, and whether it says clean, if
    /// it can be read.
    fn headers_of(&self, slot: NodeId) -> [(Place, Option<(Generation, bool)>); 2] {
        let image = &self.disk.image;
        let at = usize::from(slot.get()) * 2;
        [at, at + 1].map(|n| {
            let place = image.journal_headers.get(n).copied().unwrap_or_default();
            let body = self.disk.at(Address::Data(place, image.body_len));
            let header = image.journal_blocks.get(n).and_then(|block| {
                let (header, _) = MetaHeader::decode(&body, *block).ok()?;
                let (raw, _) = RawJournalHeader::read_from_prefix(&body).ok()?;
                Some((header.generation(), raw.clean.get() == 1))
            });
            (place, header)
        })
    }
}

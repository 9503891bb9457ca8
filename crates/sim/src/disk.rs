//! The devices: sectors that change at the moment a request lands.

use std::collections::HashMap;

use braid_format::lock_record::LockRecord;
use braid_format::node::SlotRecord;
use braid_format::{LockNo, NodeId};

use crate::work::Place;

/// Where things stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Lock(usize),
    Slot(u16),
    Slots,
    Beat(u16),
    Data(Place),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write(Vec<u8>),
    CompareAndWrite { expected: Vec<u8>, new: Vec<u8> },
    Flush,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Bytes for a read; of `Slots`, slots then beats.
    Done(Vec<u8>),
    Mismatch(Vec<u8>),
    Failed,
}

pub(crate) const LEN: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct Disk {
    sectors: HashMap<Address, Vec<u8>>,
    slots: u16,
}

impl Disk {
    /// Devices with free slots and unlocked locks.
    pub(crate) fn new(slots: u16, locks: usize) -> Self {
        let mut sectors = HashMap::new();
        for slot in 0..slots {
            let mut bytes = vec![0; LEN];
            SlotRecord::free(NodeId(slot)).encode(&mut bytes);
            sectors.insert(Address::Slot(slot), bytes);
        }
        for lock in 0..locks {
            let mut bytes = vec![0; LEN];
            LockRecord::unlocked(lock_no(lock), 0).encode(&mut bytes);
            sectors.insert(Address::Lock(lock), bytes);
        }
        Self { sectors, slots }
    }
    fn at(&self, address: Address) -> Vec<u8> {
        self.sectors.get(&address).cloned().unwrap_or_else(|| vec![0; LEN])
    }
    /// The effect of a request, and its answer.
    pub(crate) fn land(&mut self, address: Address, op: &Op) -> Answer {
        match op {
            Op::Read if address == Address::Slots => {
                let slots = (0..self.slots).map(Address::Slot);
                let all = slots.chain((0..self.slots).map(Address::Beat));
                Answer::Done(all.flat_map(|a| self.at(a)).collect())
            }
            Op::Read => Answer::Done(self.at(address)),
            Op::Write(bytes) => {
                self.sectors.insert(address, bytes.clone());
                Answer::Done(Vec::new())
            }
            Op::CompareAndWrite { expected, new } => {
                let stands = self.at(address);
                if stands != *expected {
                    return Answer::Mismatch(stands);
                }
                self.sectors.insert(address, new.clone());
                Answer::Done(Vec::new())
            }
            Op::Flush => Answer::Done(Vec::new()),
        }
    }
    /// The record of a lock, for checkers.
    pub(crate) fn record(&self, lock: usize) -> Result<LockRecord, String> {
        LockRecord::decode(&self.at(Address::Lock(lock)), lock_no(lock)).map_err(|e| e.to_string())
    }
}

/// The number of a simulated lock.
pub(crate) fn lock_no(lock: usize) -> LockNo {
    LockNo(1000 + u64::try_from(lock).unwrap_or(0))
}

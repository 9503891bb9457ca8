//! Changes of slot records, by the steps of `braid_lock::node::slot_write`.

use braid_format::NodeId;
use braid_format::node::SlotRecord;
use braid_lock::node::slot_write::{Action, Event, Outcome, SlotWrite};

use super::Purpose;
use crate::disk::{Address, Answer, LEN, Op};
use crate::world::{Pid, World};

/// Who wants a slot record to be changed.
#[derive(Debug, Clone)]
pub(crate) enum For {
    Join,
    /// With what shall stand.
    Watch(Box<SlotRecord>),
    Leave,
    /// Its own, which cannot be read.
    Mend,
}

impl World {
    pub(super) fn write_slot(
        &mut self,
        pid: Pid,
        expected: &SlotRecord,
        new: &SlotRecord,
        whom: For,
    ) {
        self.begin_slot_write(pid, SlotWrite::new(expected, new, LEN), whom);
    }
    pub(super) fn begin_slot_write(&mut self, pid: Pid, write: SlotWrite, whom: For) {
        let (expected, new) = (write.expected().to_vec(), write.new_sector().to_vec());
        let op = Op::CompareAndWrite { expected, new };
        self.submit(pid, Address::Slot(write.slot().0), op, Purpose::Slot(write, whom));
    }
    pub(super) fn slot_answered(&mut self, pid: Pid, write: &SlotWrite, whom: For, answer: Answer) {
        let event = match answer {
            Answer::Done(bytes) if bytes.is_empty() => Event::Written,
            Answer::Done(bytes) => Event::Read(bytes),
            Answer::Mismatch(bytes) => Event::Mismatch(bytes),
            Answer::Failed | Answer::Fenced => Event::Unknown,
        };
        let slot = write.slot();
        match write.step(event) {
            Action::Read => {
                let purpose = Purpose::Slot(write.clone(), whom);
                self.submit(pid, Address::Slot(slot.0), Op::Read, purpose);
            }
            Action::End(outcome) => self.slot_written(pid, slot, whom, outcome),
        }
    }
    fn slot_written(&mut self, pid: Pid, slot: NodeId, whom: For, outcome: Outcome) {
        match whom {
            For::Join => self.join_wrote(pid, outcome),
            For::Watch(new) => {
                let stands = outcome == Outcome::Committed;
                if let Some(member) = self.member(pid).filter(|_| stands) {
                    member.slots.insert(slot, *new);
                }
                self.wrote_for_watcher(pid, slot, stands);
            }
            For::Leave => self.leave_wrote(pid, outcome),
            For::Mend => {
                if let Some(member) = self.member(pid) {
                    member.mending = false;
                }
            }
        }
    }
}

//! Commands are run and answered.

use std::sync::Arc;

use super::collect::Input;
use crate::connection::{Answer, Connection};
use crate::faults::Action;
use crate::lun::Lun;
use crate::outcome::Refusal;
use crate::pdu::CommandPdu;
use crate::scsi;
use crate::sense::Sense;
use crate::state::TargetState;
use crate::tasks::{Abort, Task};

/// A session: a connection, and the target that it is with.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub target: Arc<TargetState>,
    pub conn: Arc<Connection>,
}

impl Session {
    /// The unit that a header names.
    pub fn lun(&self, field: [u8; 8]) -> Option<&Arc<Lun>> {
        let [method, low, rest @ ..] = field;
        // Peripheral or flat addressing; nothing below.
        let number = match method >> 6 {
            0 if method == 0 => u16::from(low),
            1 => u16::from(method & 0x3f) << 8 | u16::from(low),
            _ => return None,
        };
        self.target.luns.get(usize::from(number)).filter(|_| rest == [0; 6])
    }
    /// Runs a command and answers it.
    pub fn perform(&self, task: &Task, pdu: &CommandPdu, input: &Input) {
        if !task.start() {
            return;
        }
        let answer = self.execute(task, pdu, input);
        self.conclude(task, pdu, Some(answer));
    }
    fn execute(&self, task: &Task, pdu: &CommandPdu, input: &Input) -> Answer {
        let target = &*self.target;
        let lun = task.lun.and_then(|n| target.luns.get(usize::from(n)));
        let outcome = match lun {
            _ if pdu.writes && pdu.expected > crate::TRANSFER_MAX => {
                Err(Sense::field(if pdu.cdb[0] >> 5 == 4 { 10 } else { 7 }).into())
            }
            Some(lun) => scsi::execute(&scsi::Command {
                lun,
                nexus: self.conn.nexus(),
                cdb: &pdu.cdb,
                data: input.bytes(),
                task,
                target,
            }),
            None => scsi::execute_nowhere(&pdu.cdb, &target.luns),
        };
        Answer::of(outcome, pdu)
    }
    /// The I/O has ended: says so, then answers unless somebody aborted it.
    fn conclude(&self, task: &Task, pdu: &CommandPdu, answer: Option<Answer>) {
        let aborted = task.end();
        self.conn.widen_window(pdu.immediate);
        let answer = match aborted {
            None => answer,
            Some(Abort::Other) => answer.is_some().then(Answer::aborted),
            Some(Abort::Own | Abort::Lost) => None,
        };
        if let Some(answer) = answer {
            self.conn.answer_or_cut(pdu, &answer);
        }
        self.target.tasks.gone(task);
    }
    /// A command that has been started, with what is to happen to it.
    pub fn perform_faulty(&self, task: &Task, pdu: &CommandPdu, input: &Input, fault: Action) {
        let failure = || Answer::of(Err(Refusal::Sense(Sense::INTERNAL)), pdu);
        let answer = match fault {
            Action::Delay(time) if task.pause(time) => Some(self.execute(task, pdu, input)),
            // Somebody has ended it: that is answered.
            Action::Delay(_) => Some(Answer::aborted()),
            Action::Drop => {
                // The initiator's window stays the narrower for it.
                return self.target.tasks.gone(task);
            }
            Action::Mute => {
                self.execute(task, pdu, input);
                None
            }
            Action::Fail => Some(failure()),
            Action::Late(time) | Action::LateFail(time) => {
                if matches!(fault, Action::LateFail(_)) {
                    self.conn.answer_or_cut(pdu, &failure());
                }
                if task.pause(time) {
                    self.execute(task, pdu, input);
                }
                None
            }
            Action::RefuseFua if pdu.cdb[1] & scsi::FUA != 0 => {
                Some(Answer::of(Err(Refusal::Sense(Sense::field(1))), pdu))
            }
            Action::RefuseFua => Some(self.execute(task, pdu, input)),
            Action::Cut => {
                self.conn.cut();
                None
            }
            Action::CutAfter => {
                self.execute(task, pdu, input);
                self.conn.cut();
                None
            }
        };
        self.conclude(task, pdu, answer);
    }
}

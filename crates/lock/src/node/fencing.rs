//! How a silent node is fenced: what is tried, in which order, and what of that is a proof.
//!
//! ```text
//!             of this host, and holds its lock: EndProcess -- ended --> Fenced
//!            /                                      | stays
//!           /       /-------------------------------/
//!  Begin -- may act --> by reservation? --no-----------------> a command, and its host is another's?
//!    |                       | yes                                ^         | yes        | no
//!    | may not               v                          refused   |         v            v
//!    v                    Preempt -- done --> Fenced    another   |       Call        NotFenced
//!  NotFenced                 |  \---------------------------------+         |
//!                            | refused: this node itself is fenced          | done
//!                            v                                              v
//!                         NotFenced                        TakeKey -- done --> Fenced
//! ```
//!
//! This node may act while its lease lasts and it has not withdrawn; that is asked before each method.

use braid_format::node::SlotRecord;

/// By what a node is known, or would be, to be dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FenceMethod {
    /// It is of this host: the kernel says so.
    Kernel,
    /// Its keys were taken from every member.
    Reservation,
    /// A command that said so.
    Command,
    /// A person's word.
    Operator,
}

impl FenceMethod {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Reservation => "reservation",
            Self::Command => "command",
            Self::Operator => "operator",
        }
    }
}

/// What this node has to fence others with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Means {
    /// Its own key, if every member has reservations; else 0.
    pub key: u64,
    /// It was given a command.
    pub command: bool,
    /// Its host: no command turns that off.
    pub host: String,
}

impl Means {
    /// What is tried first to fence the node of another host in a slot.
    pub fn first_for(&self, record: &SlotRecord) -> FenceMethod {
        if reserves(self.key, record) {
            FenceMethod::Reservation
        } else if self.commands(record) {
            FenceMethod::Command
        } else {
            FenceMethod::Operator
        }
    }
    fn commands(&self, record: &SlotRecord) -> bool {
        self.command && record.host != self.host
    }
}

/// Whether a node that has registered `own`, if that is not 0, can shut the slot's node out from the
/// members. Who has this node's key shares its host's path: it cannot be shut out alone.
pub(super) fn reserves(own: u64, record: &SlotRecord) -> bool {
    own != 0 && record.fence_key != 0 && record.fence_key != own
}

/// A fence under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fencing {
    means: Means,
    record: Box<SlotRecord>,
    /// A process of this host is seen to hold its liveness lock.
    here: bool,
    /// By reservation it was tried, and failed.
    refused: bool,
}

/// What happened. `may_act`: this node may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The fence begins.
    Begin {
        /// This node may act.
        may_act: bool,
    },
    /// Answer to [`Action::EndProcess`]: its liveness lock is gone.
    ProcessEnded,
    /// Answer to [`Action::EndProcess`]: it is not.
    ProcessStays {
        /// This node may act.
        may_act: bool,
    },
    /// Answer to [`Action::Preempt`]: every member has ended what the node had under way.
    Preempted,
    /// Answer to [`Action::Preempt`]: it is not complete.
    NotPreempted {
        /// This node itself has been fenced.
        self_fenced: bool,
        /// This node may act.
        may_act: bool,
    },
    /// Answer to [`Action::Call`]: whether the command says that the host is off.
    Called(bool),
    /// Answer to [`Action::TakeKey`].
    KeyTaken,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// End the node's process.
    EndProcess,
    /// Take the node's key from every member, and end there what it has under way.
    Preempt,
    /// Call the command.
    Call,
    /// Take the node's key where that can be had: what its host had under way in the devices may land.
    TakeKey,
    /// It is fenced.
    Fenced(FenceMethod),
    /// It is not.
    NotFenced(Why),
}

/// Why a node is not fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// This node may not act itself.
    MayNotAct,
    /// The reservations: what they said last counts.
    Reservation,
    /// The command: what it did counts.
    Command,
    /// Its process: what was said of it counts.
    Process,
    /// There is no method.
    NoMethod,
}

impl Fencing {
    /// Of who acts by the slot of `record`. `here`: a process of this host is seen to hold its liveness
    /// lock.
    pub fn new(means: Means, record: Box<SlotRecord>, here: bool) -> Self {
        Self { means, record, here, refused: false }
    }
    /// Who is fenced.
    pub fn record(&self) -> &SlotRecord {
        &self.record
    }
    /// Takes an event, says what to do.
    pub fn step(&mut self, event: Event) -> Action {
        match event {
            Event::Begin { may_act: false } | Event::ProcessStays { may_act: false } => {
                Action::NotFenced(Why::MayNotAct)
            }
            Event::Begin { may_act: true } if self.here => Action::EndProcess,
            Event::ProcessEnded => Action::Fenced(FenceMethod::Kernel),
            Event::Begin { may_act } | Event::ProcessStays { may_act } => {
                if reserves(self.means.key, &self.record) {
                    Action::Preempt
                } else {
                    self.command(may_act)
                }
            }
            Event::Preempted => Action::Fenced(FenceMethod::Reservation),
            // It is this node that is to be dead: not the other's host, by its word.
            Event::NotPreempted { self_fenced: true, .. } => Action::NotFenced(Why::Reservation),
            Event::NotPreempted { may_act, .. } => {
                self.refused = true;
                self.command(may_act)
            }
            Event::Called(true) => Action::TakeKey,
            Event::Called(false) => Action::NotFenced(Why::Command),
            Event::KeyTaken => Action::Fenced(FenceMethod::Command),
        }
    }
    fn command(&self, may_act: bool) -> Action {
        match (self.means.commands(&self.record), may_act) {
            (true, true) => Action::Call,
            (true, false) => Action::NotFenced(Why::MayNotAct),
            (false, _) if self.refused => Action::NotFenced(Why::Reservation),
            (false, _) if self.here => Action::NotFenced(Why::Process),
            (false, _) => Action::NotFenced(Why::NoMethod),
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_format::NodeId;

    use super::*;

    fn means(key: u64, command: bool) -> Means {
        Means { key, command, host: "here".to_owned() }
    }
    fn record(fence_key: u64, host: &str) -> SlotRecord {
        SlotRecord { fence_key, host: host.to_owned(), ..SlotRecord::free(NodeId(1)) }
    }
    fn fencing(means: Means, record: SlotRecord) -> Fencing {
        Fencing::new(means, Box::new(record), false)
    }
    const BEGIN: Event = Event::Begin { may_act: true };

    #[test]
    fn what_is_tried_first_depends_on_both() {
        use FenceMethod as F;
        let first = |own, command, key, host| means(own, command).first_for(&record(key, host));
        assert_eq!(first(1, true, 2, "there"), F::Reservation);
        assert_eq!(first(1, true, 0, "there"), F::Command);
        assert_eq!(first(0, true, 2, "there"), F::Command);
        assert_eq!(first(1, false, 1, "there"), F::Operator, "one path for both");
        assert_eq!(first(1, true, 1, "here"), F::Operator, "a command turns its own host off");
    }

    #[test]
    fn reservations_come_before_the_command() {
        let mut f = fencing(means(1, true), record(2, "there"));
        assert_eq!(f.step(BEGIN), Action::Preempt);
        assert_eq!(f.step(Event::Preempted), Action::Fenced(FenceMethod::Reservation));
        let mut f = fencing(means(1, true), record(2, "there"));
        f.step(BEGIN);
        let refused = Event::NotPreempted { self_fenced: false, may_act: true };
        assert_eq!(f.step(refused), Action::Call);
        assert_eq!(f.step(Event::Called(true)), Action::TakeKey);
        assert_eq!(f.step(Event::KeyTaken), Action::Fenced(FenceMethod::Command));
        assert_eq!(f.step(Event::Called(false)), Action::NotFenced(Why::Command));
        let mut f = fencing(means(1, false), record(2, "there"));
        f.step(BEGIN);
        assert_eq!(f.step(refused), Action::NotFenced(Why::Reservation));
    }

    #[test]
    fn a_process_of_this_host_is_ended_first() {
        let here = |means, record| Fencing::new(means, Box::new(record), true);
        let stays = Event::ProcessStays { may_act: true };
        let mut f = here(means(1, true), record(2, "here"));
        assert_eq!(f.step(BEGIN), Action::EndProcess);
        assert_eq!(f.step(Event::ProcessEnded), Action::Fenced(FenceMethod::Kernel));
        assert_eq!(f.step(stays), Action::Preempt);
        let refused = Event::NotPreempted { self_fenced: false, may_act: true };
        assert_eq!(
            f.step(refused),
            Action::NotFenced(Why::Reservation),
            "no command for its own host"
        );
        let mut f = here(means(0, true), record(2, "here"));
        assert_eq!(f.step(BEGIN), Action::EndProcess);
        assert_eq!(
            f.step(Event::ProcessStays { may_act: false }),
            Action::NotFenced(Why::MayNotAct)
        );
        assert_eq!(f.step(stays), Action::NotFenced(Why::Process));
    }

    #[test]
    fn who_may_not_act_does_not() {
        let mut f = fencing(means(1, true), record(2, "there"));
        assert_eq!(f.step(Event::Begin { may_act: false }), Action::NotFenced(Why::MayNotAct));
        f.step(BEGIN);
        let fenced = Event::NotPreempted { self_fenced: true, may_act: true };
        assert_eq!(f.step(fenced), Action::NotFenced(Why::Reservation));
        let may_not = Event::NotPreempted { self_fenced: false, may_act: false };
        assert_eq!(f.step(may_not), Action::NotFenced(Why::MayNotAct));
        let mut f = fencing(means(0, false), record(2, "there"));
        assert_eq!(f.step(BEGIN), Action::NotFenced(Why::NoMethod));
    }
}

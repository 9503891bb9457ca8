//! The label of the next epoch; which members carry it; the move that a label says is under way.

use braid_format::label::{Label, Member, MemberState};
use braid_format::{Epoch, MemberIndex};

use crate::clock::unix_seconds;
use crate::identity::{fresh, is_simulated};

/// A label for the epoch after `label`'s, with nothing else changed.
pub(crate) fn next_epoch(label: &Label) -> Label {
    let mut next = label.clone();
    next.epoch = Epoch(label.epoch.0.saturating_add(1));
    next.change_id = fresh();
    // For people: in a simulation it is the same in each run.
    next.changed = if is_simulated() { label.changed } else { unix_seconds() };
    next
}

/// Whether the labels of an epoch are written on a member: on all but those that failed.
pub(crate) fn carries_labels(member: &Member) -> bool {
    member.state != MemberState::Failed
}

/// Members whose labels carry an epoch.
pub(crate) fn carriers(label: &Label) -> Vec<usize> {
    let all = label.members.iter().enumerate();
    all.filter(|(_, m)| carries_labels(m)).map(|(i, _)| i).collect()
}

/// Ends all marks of members that are offline if `next` puts a member in use that was not in use in `before`, or changes
/// the pool's size or segments. The record of what a member missed stands on the members in use, and counts only if each
/// of them has been in use since the member went. A member that is being filled by such a record gets a new
/// `state_epoch`: it is filled whole.
pub(crate) fn end_marks(before: &Label, next: &mut Label) {
    let in_use = |m: &Member| matches!(m.state, MemberState::Active | MemberState::Leaving);
    let was = |m: &Member| before.members.iter().any(|b| b.uuid == m.uuid && in_use(b));
    let same = before.size() == next.size() && before.segments == next.segments;
    if same && next.members.iter().filter(|m| in_use(m)).all(was) {
        return;
    }
    let epoch = next.epoch;
    for m in next.members.iter_mut().filter(|m| m.offline) {
        m.offline = false;
        if m.state == MemberState::Rebuilding {
            m.state_epoch = epoch;
        }
        tracing::warn!(
            member = m.path,
            "the members in use, or the pool's size, have changed: this member, which was offline, is filled whole"
        );
    }
}

/// A member whose contents are being moved, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moving {
    /// The member that leaves.
    pub leaving: MemberIndex,
    /// The member that gets its contents.
    pub successor: MemberIndex,
}

/// The move that a label says is under way.
pub(crate) fn moving(label: &Label) -> Option<Moving> {
    let mut members = (0_u16..).map(MemberIndex).zip(&label.members);
    members.find_map(|(leaving, m)| Some(Moving { leaving, successor: m.successor? }))
}

/// Ends moves whose one side or the other has failed: what is left of the other is a member as it
/// was.
pub(crate) fn settle_move(label: &mut Label) {
    let Some(Moving { leaving, successor }) = moving(label) else { return };
    let epoch = label.epoch;
    let state =
        |label: &Label, m: MemberIndex| label.members.get(usize::from(m.0)).map(|m| m.state);
    let failed = |m| state(label, m) == Some(MemberState::Failed);
    if !failed(leaving) && !failed(successor) {
        return;
    }
    if let Some(m) = label.members.get_mut(usize::from(leaving.0)) {
        m.successor = None;
        if m.state == MemberState::Leaving {
            (m.state, m.state_epoch) = (MemberState::Active, epoch);
        }
    }
}

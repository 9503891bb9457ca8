//! Why members of a pool, or its shape, cannot be changed.

use braid_format::label::MemberState;
use braid_format::{ByteOffset, Bytes, MemberIndex};
use thiserror::Error;

/// Why a pool cannot be changed so.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// There is one already.
    #[error(
        "{leaving} is being moved to {successor}: wait until that is done, or end it (`braid evacuate POOL MEMBER --cancel`)"
    )]
    Moving {
        /// The member that leaves.
        leaving: String,
        /// Who gets its contents.
        successor: String,
    },
    /// It would hide that redundancy is missing.
    #[error(
        "{member} is {state}: `clear` ends suspicions, and brings no member back; while one is out, a suspected one stays suspected (`braid replace`, `braid online`); nothing was changed"
    )]
    ClearWhileOut {
        /// The member that is out.
        member: String,
        /// What it is.
        state: &'static str,
    },
    /// There is none.
    #[error("{member} is not being moved")]
    NotMoving {
        /// The member.
        member: String,
    },
    /// The contents of a member that is not whole cannot be moved.
    #[error(
        "{member} is {state}: it cannot be moved or removed; `braid replace` puts a device in its place"
    )]
    NotWhole {
        /// The member.
        member: String,
        /// What it is.
        state: &'static str,
    },
    /// Only a member in use can be taken offline.
    #[error(
        "{member} is {state}: only an active member goes offline. `braid fail POOL {index}` takes it out for good"
    )]
    CannotGoOffline {
        /// The member.
        member: String,
        /// Its place.
        index: MemberIndex,
        /// What it is.
        state: &'static str,
    },
    /// It is in use, or has failed by itself.
    #[error(
        "{member} is {state}, not offline: only a member that `braid offline` took out comes back online. A member that has failed is filled by `braid replace POOL {index} DEVICE`, also its own device (--force)"
    )]
    NotOffline {
        /// The member.
        member: String,
        /// Its place.
        index: MemberIndex,
        /// What it is.
        state: &'static str,
    },
    /// Another device would be taken for a member.
    #[error(
        "{path} is not the device that was {member}: name that one, or let `braid replace POOL {index} {path}` fill this one; nothing was changed"
    )]
    NotItsDevice {
        /// The member.
        member: String,
        /// Its place.
        index: MemberIndex,
        /// The device.
        path: String,
    },
    /// It returns garbage, which would be copied, and a new device would be trusted with it.
    #[error(
        "{member} is suspected to return garbage: what it holds is not copied. `braid replace POOL {index} DEVICE`, or `braid fail POOL {index}` if there is a spare, fills another device from the other members"
    )]
    Suspected {
        /// The member.
        member: String,
        /// Its place.
        index: MemberIndex,
    },
    /// There is nothing to move.
    #[error("{member} holds no byte of the pool: `braid remove` takes it out of the pool")]
    HoldsNothing {
        /// The member.
        member: String,
    },
    /// Something stands on it.
    #[error(
        "{member} holds {bytes} bytes of the pool: move them to another device first (`braid evacuate POOL {index} --to DEVICE`), or make the pool smaller (`braid remove POOL {index}` while it is mounted); nothing was changed"
    )]
    HoldsData {
        /// The member.
        member: String,
        /// Its place.
        index: MemberIndex,
        /// How many.
        bytes: Bytes,
    },
    /// A member that has contents of its own, or none that count.
    #[error("{member} cannot take the contents of another: it is {state}, not an unused member")]
    NotFree {
        /// The member.
        member: String,
        /// What it is.
        state: &'static str,
    },
    /// Onto itself.
    #[error("{member} cannot be moved to itself: name another device")]
    ToItself {
        /// The member.
        member: String,
    },
    /// Journals stay where they are.
    #[error("journals cannot be added: give a layout for metadata and data, or for data only")]
    NoJournals,
    /// A pool of one subpool gets no other kinds.
    #[error(
        "this pool has one subpool for everything: what is added must be for everything too, and without parity (a stripe or mirrors)"
    )]
    OneSubpool,
    /// There is nowhere to keep the logs.
    #[error(
        "this pool was made without mirrors or parity and keeps no logs for them: what is added cannot have any; make another pool"
    )]
    NoLogs,
    /// A table of the label is full.
    #[error(
        "the pool's label would have {count} {what}, and has room for {max}: nothing was changed"
    )]
    LabelFull {
        /// What there are too many of.
        what: &'static str,
        /// How many there would be.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// Bytes that are no part of their own.
    #[error(
        "bytes {from} to {to} of the pool are no part that came by itself: nothing was changed"
    )]
    NotAPart {
        /// First byte.
        from: ByteOffset,
        /// One past the last.
        to: ByteOffset,
    },
    /// No device is larger than it was.
    #[error(
        "no device of the pool is larger than when it joined (by a whole MiB at least): nothing to grow by"
    )]
    NotLarger,
    /// A device that is to join is a member already.
    #[error("{path} is member {index} of this pool already, and is {word}: {}; nothing was changed", use_of(*index, path, *state, *holds))]
    AlreadyMember {
        /// The device.
        path: String,
        /// Its place.
        index: MemberIndex,
        /// What it is.
        state: MemberState,
        /// The word for that.
        word: &'static str,
        /// Bytes of the pool stand on it.
        holds: bool,
    },
    /// A device that is to join was a member before it failed.
    #[error(
        "{path} was member {index} of this pool until it failed, and what is on it is out of date: `braid replace POOL {index} {path} --force` fills it again in its place; nothing was changed"
    )]
    OwnFailed {
        /// The device.
        path: String,
        /// Its place.
        index: MemberIndex,
    },
    /// A device that is to join was a member, failed for those who use the pool, and was used by others without them.
    #[error(
        "{path} was member {index} of this pool, and was used without the others after it had failed here: what was written there alone would be lost. `braid replace POOL {index} {path} --force` fills it again in its place; nothing was changed"
    )]
    OwnApart {
        /// The device.
        path: String,
        /// Its place.
        index: MemberIndex,
    },
    /// A node uses a half of a split that is to join the other one.
    #[error(
        "{path} was member {index} of this pool, and a node of this host holds it that has it mounted without the others, or has been a node of this pool since before: unmount it there first; nothing was changed"
    )]
    ApartInUse {
        /// The device.
        path: String,
        /// Its place.
        index: MemberIndex,
    },
    /// A device that failed has something to do yet.
    #[error(
        "{path} has not yet ended all that it was asked before member {index} failed, and may still change: try again later, or give another device; nothing was changed"
    )]
    StillBusy {
        /// The device.
        path: String,
        /// Its place.
        index: MemberIndex,
    },
    /// Another device stands there.
    #[error("{path} is another device now, not {member}: nothing was changed")]
    Another {
        /// Where it was looked for.
        path: String,
        /// Who should be there.
        member: String,
    },
    /// Another node was first.
    #[error(
        "{member} is not what it was when it was named: {why}; look at the members (`braid status`) and name it again"
    )]
    Overtaken {
        /// The member.
        member: String,
        /// What has happened to it.
        why: String,
    },
    /// Requests that went past the mapping are in flight.
    #[error("a window of requests is open on the pool: try again when it is empty")]
    Busy,
}

/// What can be done with a device that is a member in use.
fn use_of(index: MemberIndex, path: &str, state: MemberState, holds: bool) -> String {
    match state {
        MemberState::Rebuilding => {
            "wait until it is filled (`braid status POOL`), or name another device".to_owned()
        }
        MemberState::Spare => format!(
            "a spare steps in by itself for a member that fails (`braid fail POOL MEMBER`); for another use take it out first (`braid remove POOL {index}`)"
        ),
        _ if !holds => format!(
            "it holds nothing, so `braid remove POOL {index}` takes it out, and then it can join again"
        ),
        _ => format!(
            "name another device; or, to fill this one anew from the others, take it out of use first (`braid fail POOL {index}`), then `braid replace POOL {index} {path} --force`"
        ),
    }
}

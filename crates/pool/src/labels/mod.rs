//! Labels on devices: reading both copies, finding the label in force, and writing an epoch.
//!
//! An epoch is written in two phases: copy 0 on every member, flush, then copy 1 on every member,
//! flush. So each member always has one whole label, and:
//! * if copy 1 of any member carries the epoch, copy 0 of every member does: the epoch is
//!   *committed*;
//! * if no copy 1 carries the epoch, and copy 0 of some member does not, the epoch was never in
//!   use. Copy 1 of every member still carries the epoch before, and the pool goes back to that.
//!
//! The highest committed epoch that a majority of its own members carries is in force.

mod assess;
pub(crate) mod discover;
mod events;
mod member;
mod next;
mod read;
mod write;

pub use assess::{LabelAssessment, Verdict, assess_labels};
pub use member::Hint;
pub use next::Moving;
pub use read::{Copy, Found};
pub use write::{write_copies, write_epoch};

pub(crate) use assess::{counts, ended, on_all, second};
pub(crate) use events::{highest, names as event_names, out_of_date, read_counts};
pub(crate) use member::{fits, member_of, same_device, state_word};
pub(crate) use next::{carriers, end_marks, moving, next_epoch, settle_move};
pub(crate) use read::{id, own_uuid, settle};
pub(crate) use write::{
    try_copies, wipe, wipe_behind, wipe_labels, write_boot_sector, write_second,
};

/// Byte of liveness locks that a writer of labels holds where no claim tells others of it.
pub const LABEL_LOCK_BYTE: u64 = braid_device::CHANGE_BYTE;

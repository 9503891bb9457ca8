//! Why a pool cannot be made, put together or used. Each error names the device and says what to
//! do about it.

mod change;

use std::sync::Arc;

use braid_device::{DeviceError, Silent};
use braid_format::label::{Label, Member};
use braid_format::{ByteOffset, Bytes, Epoch, FormatError, MemberIndex};
use thiserror::Error;
use uuid::Uuid;

pub use change::ChangeError;

use crate::layout::map::MapError;
use crate::layout::{LayoutError, LayoutFault};

/// A member that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingMember {
    /// Its place in the pool.
    pub index: MemberIndex,
    /// Its identity.
    pub uuid: Uuid,
    /// Where it was last seen.
    pub last_path: String,
}
impl MissingMember {
    pub(crate) fn of(index: MemberIndex, member: &Member) -> Self {
        Self { index, uuid: member.uuid, last_path: member.path.clone() }
    }
}
impl core::fmt::Display for MissingMember {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "member {} (last seen at {}, {})", self.index, self.last_path, self.uuid)
    }
}

/// A member whose labels are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostMember {
    /// Its place in the pool.
    pub index: MemberIndex,
    /// Its device.
    pub path: String,
}

fn list(missing: &[MissingMember]) -> String {
    missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a label cannot be used.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum LabelFault {
    /// The bytes are not a good label.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The bytes cannot be read.
    #[error(transparent)]
    Unreadable(#[from] DeviceError),
}
impl LabelFault {
    /// Whether there is simply no label, rather than a damaged one.
    pub fn absent(&self) -> bool {
        matches!(self, Self::Format(FormatError::BadMagic { .. } | FormatError::TooShort { .. }))
    }
    /// Whether it is a good label of another version.
    pub fn is_of_another_version(&self) -> bool {
        use FormatError as F;
        matches!(
            self,
            Self::Format(
                F::UnknownFeature { .. } | F::UnknownChange { .. } | F::OtherRevision { .. }
            )
        )
    }
}

/// A pool, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolName {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: Uuid,
}
impl From<&Label> for PoolName {
    fn from(label: &Label) -> Self {
        Self { name: label.name.clone(), uuid: label.pool }
    }
}
impl core::fmt::Display for PoolName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "pool {:?} ({})", self.name, self.uuid)
    }
}

/// Everything that can go wrong with a pool.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The handle was closed: its node may change nothing any more.
    #[error("the pool was closed: this node has left it")]
    Closed,
    /// A wait for another node was broken off.
    #[error(
        "another node holds what this one needs, and does not give it up: it may be dead, and not fenced yet. `braid nodes` shows whether it is; once its host is off, confirm that: `braid fence POOL NODE --confirm`"
    )]
    BrokenOff,
    /// A member has no persistent reservations, or this node has not registered.
    #[error(
        "{path} has no persistent reservations: a node that is fenced from the other members could still write here"
    )]
    NotReservable {
        /// Its device.
        path: String,
    },
    /// The node may go on with members that this node has lost.
    #[error(
        "members {members:?} failed after that node was last heard, and may be all that it has left: it could go on with them. Make them reachable again, or turn its host off and confirm that: `braid fence POOL NODE --confirm`"
    )]
    Split {
        /// Where those were.
        members: Vec<String>,
    },
    /// The key is that of this node's whole host.
    #[error(
        "{path}: the key is this node's own, or its host's: removing it would fence this node, too"
    )]
    OwnKey {
        /// Its device.
        path: String,
    },
    /// All nodes of this host share its path to a member, which is registered with another key than
    /// those to the others.
    #[error(
        "{path}: this host is registered there with the key {key:#x}, and with other members by another; end the program that uses it, or clear that registration"
    )]
    OtherKey {
        /// Its device.
        path: String,
        /// The key that stands.
        key: u64,
    },
    /// Nodes are registered with a device that is to be new.
    #[error(
        "{path} is reserved for nodes that have registered with it, perhaps of other hosts; if none of them is alive, --force takes it over"
    )]
    Registered {
        /// Its device.
        path: String,
    },
    /// A reservation of another kind stands on a member.
    #[error(
        "{path} is reserved by another program, in a way that excludes nodes: find out which, and clear that reservation"
    )]
    Reserved {
        /// Its device.
        path: String,
    },
    /// Another node changes the pool at the same time.
    #[error("pool '{name}' is being changed by another node: try again")]
    EpochMoved {
        /// The pool.
        name: String,
        /// Who claims the change, if it is claimed.
        by: Option<braid_format::lock_record::Life>,
    },
    /// The pool would get features that a node does not know which has it mounted: that node could not go on.
    #[error(
        "this needs the feature {} of the format, and older versions of Braid that do not know it have the pool mounted ({}: see `braid nodes`). Unmount it there, or mount it with a version that knows the feature, and try again",
        features.join(", "),
        nodes.iter().map(|node| format!("node {node}")).collect::<Vec<_>>().join(", ")
    )]
    UnknownToNodes {
        /// Names of the features.
        features: Vec<&'static str>,
        /// Slots of the nodes.
        nodes: Vec<braid_format::NodeId>,
    },
    /// What the other nodes know of the format cannot be read just now.
    #[error("which features of the format the other nodes know cannot be seen now: {0}; try again")]
    NodesUnasked(Arc<dyn std::error::Error + Send + Sync>),
    /// No device was given.
    #[error("no device given")]
    NoDevices,
    /// No label of a pool in use can be read any more.
    #[error("no member of pool '{name}' gives a label: all its devices fail, or were written over")]
    NoLabels {
        /// The pool.
        name: String,
    },
    /// More members than a pool can have.
    #[error("{count} devices are too many: a pool has at most 256 members")]
    TooManyMembers {
        /// How many were given.
        count: usize,
    },
    /// A name that a pool cannot have.
    #[error(
        "{name:?} cannot be a pool's name: 1 to 63 bytes, no '/', no control characters, and no format characters, which are not seen"
    )]
    BadName {
        /// The name given.
        name: String,
    },
    /// Properties that no label can have.
    #[error(
        "these properties do not fit: a key has at most 63 bytes of a to z, digits, '.', '_' and '-', a value at most 1024 bytes without control characters, and all together at most 4096 bytes"
    )]
    BadProperties,
    /// A stripe unit of nonsense.
    #[error("{bytes} bytes cannot be a stripe unit: it must be a multiple of 4096, at most 1 GiB")]
    BadStripeUnit {
        /// What was given.
        bytes: Bytes,
    },
    /// A lock sector of nonsense, or smaller than a device's sector.
    #[error(
        "a lock sector of {lock_sector} bytes is not possible on {path}, whose sectors have {sector}: use 4096, or 512 where all devices have 512"
    )]
    BadLockSector {
        /// The device.
        path: String,
        /// Its sector.
        sector: Bytes,
        /// What was asked for.
        lock_sector: Bytes,
    },
    /// The sectors of a member, or of a device that is to be one, are larger than the pool's.
    #[error(
        "pool {name:?} was made for sectors of {lock_sector} bytes, and {path} takes only whole sectors of {sector}: use a device with sectors of {lock_sector} bytes instead (`lsblk -o NAME,LOG-SEC`), to which a member is copied whole, by `dd` for example"
    )]
    LargeSectors {
        /// The device.
        path: String,
        /// The pool.
        name: String,
        /// The device's sector.
        sector: Bytes,
        /// The pool's.
        lock_sector: Bytes,
    },
    /// A device that cannot hold the labels and one stripe unit.
    #[error(
        "{path} is too small: {size} bytes, at least {needed} are needed; use a larger device or a smaller stripe unit"
    )]
    TooSmall {
        /// The device.
        path: String,
        /// Its size.
        size: Bytes,
        /// The least it must have.
        needed: Bytes,
    },
    /// A device that cannot be written.
    #[error(
        "{path} is read-only: make it writable, leave it out, or only read the pool (`mount -o ro`, `check`)"
    )]
    ReadOnly {
        /// The device.
        path: String,
    },
    /// A device that something else is using; not even force helps.
    #[error("{path} is in use: {how}; unmount or detach it first")]
    InUse {
        /// The device.
        path: String,
        /// By what.
        how: String,
    },
    /// A device with something else on it.
    #[error(
        "{path} has {what} on it, which would be lost: give another device, or --force to overwrite it"
    )]
    Foreign {
        /// The device.
        path: String,
        /// What was found.
        what: String,
    },
    /// A device that is already in a pool.
    #[error(
        "{path} belongs to pool {name:?} ({pool}), which would be lost: give another device, or --force to overwrite it"
    )]
    BelongsToPool {
        /// The device.
        path: String,
        /// That pool's name.
        name: String,
        /// That pool.
        pool: Uuid,
    },
    /// One device given twice.
    #[error("{path} and {other} are the same device: name each device once")]
    GivenTwice {
        /// The one.
        path: String,
        /// The other.
        other: String,
    },
    /// No label on a device that should have one.
    #[error("{path} is not a member of any pool{}: check the path, or leave it out", found.as_ref().map(|f| format!(" (it carries {f})")).unwrap_or_default())]
    NotAMember {
        /// The device.
        path: String,
        /// What stands there instead.
        found: Option<String>,
    },
    /// Both labels of a member are damaged.
    #[error(
        "both labels of {path} are damaged (first: {first}; second: {second}): its data may be whole, so keep the device as it is and do not create a pool on it; `braid label restore --member INDEX={word} DEVICE...` writes them again from the pool's other members, `braid label restore --from FILE --member INDEX={word}` from a dump; `braid dump-label` shows what is left of both",
        word = shell_word(path)
    )]
    LabelsDamaged {
        /// The device.
        path: String,
        /// What is wrong with copy 0.
        first: Box<LabelFault>,
        /// What is wrong with copy 1.
        second: Box<LabelFault>,
    },
    /// Members have lost both labels, and what is on their devices says which they are.
    #[error(
        "{}: both labels are lost or damaged, and by {} size and contents {} of pool {name:?}. Do not replace {}, and do not create a pool on {}: `{}` shows what would be written, and with --yes writes the labels again",
        lost.iter().map(|m| m.path.as_str()).collect::<Vec<_>>().join(", "),
        if lost.len() == 1 { "its" } else { "their" },
        match lost.as_slice() {
            [one] => format!("it is member {}", one.index),
            all => format!("they are members {}", all.iter().map(|m| m.index.to_string()).collect::<Vec<_>>().join(", ")),
        },
        if lost.len() == 1 { "it" } else { "them" },
        if lost.len() == 1 { "it" } else { "them" },
        restoration(lost, others)
    )]
    LabelsLost {
        /// The pool.
        name: String,
        /// Who, and on which device.
        lost: Vec<LostMember>,
        /// The devices whose labels are good.
        others: Vec<String>,
    },
    /// The labels of a member are sound, and this version does not know all that they say.
    #[error(
        "{path}: {fault}. Its labels are sound: use that version (`braid upgrade --list` shows what this one knows); do not restore them, and do not create a pool on it"
    )]
    OtherLabel {
        /// The device.
        path: String,
        /// What is not known.
        fault: Box<LabelFault>,
    },
    /// A member of another pool among the devices.
    #[error("{path} belongs to {found}, {other} to {expected}: give the members of one pool only")]
    OtherPool {
        /// The device.
        path: String,
        /// Its pool.
        found: Box<PoolName>,
        /// The device it was compared with.
        other: String,
        /// That one's pool.
        expected: Box<PoolName>,
    },
    /// Members that were not found.
    #[error("pool {name:?} is not complete: {} {} missing; attach {} and try again (`braid scan` lists what is seen); if the others hold everything, `-o degraded` mounts it without {}", list(missing), if missing.len() == 1 { "is" } else { "are" }, if missing.len() == 1 { "it" } else { "them" }, if missing.len() == 1 { "it" } else { "them" })]
    Missing {
        /// The pool.
        name: String,
        /// Who is not there.
        missing: Vec<MissingMember>,
    },
    /// A member on a device that has become smaller.
    #[error(
        "{path} has been truncated: {size} bytes, it had {expected} when it joined pool {name:?}; give it its size back before use, or its data is lost"
    )]
    Truncated {
        /// The device.
        path: String,
        /// The pool.
        name: String,
        /// Size now.
        size: Bytes,
        /// Size when it joined.
        expected: Bytes,
    },
    /// A member that missed a change of the pool.
    #[error(
        "{path} is stale: its label is of epoch {epoch}, pool {name:?} is at epoch {current}; an old copy or backup of a member? give the current device instead"
    )]
    Stale {
        /// The device.
        path: String,
        /// The pool.
        name: String,
        /// Its epoch.
        epoch: Epoch,
        /// The pool's.
        current: Epoch,
    },
    /// Members that were put back from an old image while no node had the pool mounted.
    #[error(
        "{} of pool {name:?} {} as at an earlier time: put back from an old image (a snapshot, a backup, a copy)? Give the current {} instead; {}",
        members.join(", "),
        if members.len() == 1 { "is" } else { "are" },
        if members.len() == 1 { "device" } else { "devices" },
        if *spared {
            "or mount without it, with `-o degraded`: what is out of date then counts as failed, and `braid replace` fills it again"
        } else {
            "the pool cannot do without it; if there is no current one any more, `braid label accept` takes all members as they are, and `braid check --repair` repairs the file system"
        }
    )]
    OutOfDate {
        /// The pool.
        name: String,
        /// Who, and on which device.
        members: Vec<String>,
        /// The others hold everything.
        spared: bool,
    },
    /// A member that was used without the others, as they were without it: since then each side
    /// has a history of its own.
    #[error(
        "{path} and the other members of pool {name:?} were used without each other (its label is of epoch {epoch}, theirs of {current}) and now differ: leave out those that you can do without, and fill them again when they are added"
    )]
    Diverged {
        /// The device.
        path: String,
        /// The pool.
        name: String,
        /// Its epoch.
        epoch: Epoch,
        /// The others'.
        current: Epoch,
    },
    /// A member that has seen a change that most of the others have not.
    #[error(
        "{path} is newer than the rest of pool {name:?}: its label is of epoch {epoch}, most members' of epoch {current}; the others are old copies or backups: give the current devices instead"
    )]
    Ahead {
        /// The device.
        path: String,
        /// The pool.
        name: String,
        /// Its epoch.
        epoch: Epoch,
        /// The majority's.
        current: Epoch,
    },
    /// Two devices with the label of one member.
    #[error(
        "{path} and {other} both carry the label of member {index} of pool {name:?}: one is a copy of the other; detach the copy (or wipe its labels)"
    )]
    Duplicate {
        /// The one.
        path: String,
        /// The other.
        other: String,
        /// The pool.
        name: String,
        /// The member.
        index: MemberIndex,
    },
    /// A member is to be taken out, and those that would stand in for it are suspected to return garbage.
    #[error(
        "{member} is not taken out: {} suspected to return garbage, and what only {member} holds undamaged would be lost; {}",
        match others.as_slice() { [(_, one)] => format!("{one} is"), all => format!("{} are", names(all)) },
        if *too {
            format!("it is suspected itself: run `braid scrub POOL` to its end, which writes what either holds undamaged to the other; then `braid fail POOL {index} --force` takes it out")
        } else {
            format!("take {} out first: {}", names(others), replaced(others))
        }
    )]
    OthersSuspected {
        /// The member.
        member: String,
        /// Its place.
        index: MemberIndex,
        /// It is suspected, too.
        too: bool,
        /// The others, and their places.
        others: Vec<(MemberIndex, String)>,
    },
    /// The pool is being destroyed: nobody uses it any more.
    #[error(
        "pool {name:?} is being destroyed ({path} says so): `braid destroy --yes` finishes that; a label that was kept before brings it back (`braid label restore --from FILE --member 0=DEVICE ...`)"
    )]
    Ended {
        /// The pool.
        name: String,
        /// A device whose label says so.
        path: String,
    },
    /// It was to be finished that a pool is destroyed, and no label says that this was begun.
    #[error("no label says that the pool is being destroyed")]
    NotEnded,
    /// A device that is no longer in its pool.
    #[error(
        "{path} was removed from pool {name:?} or replaced before epoch {current}: leave it out"
    )]
    Removed {
        /// The device.
        path: String,
        /// The pool.
        name: String,
        /// The pool's epoch.
        current: Epoch,
    },
    /// The members do not agree, and no epoch has a majority.
    #[error(
        "the members of pool {name:?} do not agree: no epoch stands on a majority of them (highest seen: {highest}, on {path}); attach all current members, without old copies"
    )]
    NoMajority {
        /// The pool.
        name: String,
        /// Highest epoch seen.
        highest: Epoch,
        /// A device that carries it.
        path: String,
    },
    /// A label that this version cannot write or understand.
    #[error("label of {path}: {source}")]
    Label {
        /// The device.
        path: String,
        /// What is wrong.
        source: Box<FormatError>,
    },
    /// A layout that cannot be.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A change of the pool that cannot be.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A topology that this version cannot serve.
    #[error(transparent)]
    Map(#[from] MapError),
    /// So many members are lost that some bytes are on none of the others.
    #[error(
        "pool {name:?}: {} {} not usable, and its layout can spare {}: bring {} back (`braid scan` lists what is seen){}",
        lost.join(", "),
        if lost.len() == 1 { "is" } else { "are" },
        if *can_lose == 0 { "none".to_owned() } else { can_lose.to_string() },
        if lost.len() == 1 { "it" } else { "one" },
        if *refused { "; nothing was changed" } else { "" }
    )]
    TooManyLost {
        /// The pool.
        name: String,
        /// How many the group that is hit can spare.
        can_lose: usize,
        /// The members that are lost.
        lost: Vec<String>,
        /// One of them is not lost yet: its loss was asked for, and refused.
        refused: bool,
    },
    /// Members are missing, and no label says so yet.
    #[error(
        "pool {name:?} was opened without all its members, to be read only: nothing may be written yet"
    )]
    Provisional {
        /// The pool.
        name: String,
    },
    /// A member is offline, and this node has no log yet in which to note what it misses.
    #[error(
        "a member of pool {name:?} is offline, and this node does not note yet what that misses: nothing was written"
    )]
    Unnoted {
        /// The pool.
        name: String,
    },
    /// Regions of the pool cannot be held against other nodes.
    #[error("the pool's regions cannot be locked: {source}")]
    Regions {
        /// Why.
        source: std::sync::Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A member that the pool does not have, or not in the state that was expected.
    #[error("the pool has no such member {member} (`braid status` lists them)")]
    NoSuchMember {
        /// Its place.
        member: MemberIndex,
    },
    /// A node slot without a redundancy log.
    #[error(
        "the pool keeps redundancy logs for {slots} node slots, and slot {slot} is not among them: it was made for fewer nodes"
    )]
    NoLog {
        /// The slot.
        slot: u16,
        /// Slots that have one.
        slots: u64,
    },
    /// Parity cannot be changed by compare-and-write.
    #[error(
        "a compare-and-write at {at} would fall on parity: locks must stand on a mirror or a stripe (a metadata subpool)"
    )]
    LockOnParity {
        /// Where.
        at: ByteOffset,
    },
    /// A compare-and-write against what is no record, on a mirror of which a copy is being filled.
    #[error(
        "a compare-and-write at {at}, where there is no record of a lock or of a node, while a member is filled: try again when that is done"
    )]
    NoRecord {
        /// Where.
        at: ByteOffset,
    },
    /// A read or write beyond the end.
    #[error("{len} bytes at {at} reach past the end of the pool ({size} bytes)")]
    PastEnd {
        /// Where.
        at: ByteOffset,
        /// How many.
        len: Bytes,
        /// The pool's size.
        size: Bytes,
    },
    /// A read or write of what has left the pool.
    #[error("{len} bytes at {at}: that part has left the pool")]
    Hole {
        /// Where.
        at: ByteOffset,
        /// How many.
        len: Bytes,
    },
    /// A read or write that is not of whole sectors.
    #[error("{len} bytes at {at} are not whole sectors of {sector} bytes")]
    Misaligned {
        /// Where.
        at: ByteOffset,
        /// How many.
        len: Bytes,
        /// The pool's sector.
        sector: Bytes,
    },
    /// A member that is needed answers nothing.
    #[error("{name} {silent}, and the pool cannot do without it{besides}")]
    SilentMember {
        /// Its place and its device.
        name: String,
        /// For how long.
        silent: Silent,
        /// The others that are needed and do not answer; empty: none.
        besides: String,
    },
    /// A member that is needed has been given up.
    #[error("{name} was given up ({why}), and the pool cannot do without it{besides}")]
    GivenUpMember {
        /// Its place and its device.
        name: String,
        /// What ended its sessions.
        why: Arc<str>,
        /// The others that are needed and do not answer; empty: none.
        besides: String,
    },
    /// A device failed; its error names it.
    #[error(transparent)]
    Device {
        /// Its error.
        source: Box<DeviceError>,
    },
    /// The system gives this process no more threads.
    #[error(
        "no thread for requests: {source}; a limit on processes (`ulimit -u`, pids of a cgroup)?"
    )]
    NoThread {
        /// Its error.
        source: Arc<std::io::Error>,
    },
    /// The kernel refused a queue or a submission.
    #[error("no queue for requests: {source}")]
    Queue {
        /// Its error.
        source: Box<DeviceError>,
    },
}

impl From<DeviceError> for PoolError {
    fn from(source: DeviceError) -> Self {
        Self::Device { source: Box::new(source) }
    }
}

impl PoolError {
    /// Whether a member refuses this node because it has been fenced.
    pub fn is_fenced(&self) -> bool {
        matches!(self, Self::Device { source } if source.is_fenced())
    }
    /// Whether a device answered that it cannot read or write one place (a bad sector). The device
    /// and the node may be sound.
    pub fn is_of_one_place(&self) -> bool {
        matches!(self, Self::Device { source } if source.is_of_one_place())
    }
}

/// The command that writes the labels of `lost` members again.
fn restoration(lost: &[LostMember], others: &[String]) -> String {
    let members = lost.iter().map(|m| format!(" --member {}={}", m.index, shell_word(&m.path)));
    let others = others.iter().map(|path| format!(" {}", shell_word(path)));
    format!("braid label restore{}", members.chain(others).collect::<String>())
}

/// A word as a shell takes it.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Names of members, for people.
fn names(members: &[(MemberIndex, String)]) -> String {
    let names: Vec<&str> = members.iter().map(|(_, name)| name.as_str()).collect();
    names.join(" and ")
}

/// The commands that put devices in the place of members.
fn replaced(members: &[(MemberIndex, String)]) -> String {
    let commands = members.iter().map(|(index, _)| format!("`braid replace POOL {index} DEVICE`"));
    commands.collect::<Vec<_>>().join(", ")
}

impl From<LayoutFault> for PoolError {
    fn from(fault: LayoutFault) -> Self {
        Self::Layout(fault.into())
    }
}

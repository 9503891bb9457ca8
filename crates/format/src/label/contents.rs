//! What a label says: the members, the topology, the logical address space; and the limits of that.

use uuid::Uuid;

use super::boot;
use super::properties::Properties;
use super::raw::features;
use crate::units::{ByteOffset, Bytes, Epoch, MemberIndex};

pub(super) const WHAT: &str = "pool label";

/// What a member is to its pool.
///
/// ```text
///   Spare ---> Rebuilding ---> Active ---> Failed      (each arrow is a new epoch)
///                                 |
///                                 +------> Leaving ---> gone from the table
/// ```
/// A leaving member with a successor is in use, and the successor, a spare, gets each of its
/// writes; when it has all of them it takes the leaving member's place in the table. A leaving
/// member without one holds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum MemberState {
    /// In use, contents current.
    Active = 1,
    /// Out of use, contents not current.
    Failed = 2,
    /// Being filled.
    Rebuilding = 3,
    /// Waits to replace another.
    Spare = 4,
    /// Being emptied.
    Leaving = 5,
}
impl MemberState {
    /// From the number on disk.
    pub const fn from_u16(v: u16) -> Option<Self> {
        Some(match v {
            1 => Self::Active,
            2 => Self::Failed,
            3 => Self::Rebuilding,
            4 => Self::Spare,
            5 => Self::Leaving,
            _ => return None,
        })
    }
}

/// What kind of device a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum DeviceClass {
    /// Not known.
    #[default]
    Unknown = 0,
    /// Turning disk.
    Rotational = 1,
    /// Solid state.
    SolidState = 2,
    /// Memory.
    Memory = 3,
}
impl DeviceClass {
    /// From the number on disk.
    pub const fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::Unknown,
            1 => Self::Rotational,
            2 => Self::SolidState,
            3 => Self::Memory,
            _ => return None,
        })
    }
}

/// What a segment may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u16)]
pub enum SubpoolKind {
    /// Everything.
    #[default]
    General = 0,
    /// File data.
    Data = 1,
    /// Metadata.
    Metadata = 2,
    /// Journals.
    Journal = 3,
    /// Nothing: what stood there has left the pool. [`Segment::node`] is then how many redundancy
    /// groups it had, which keep their numbers.
    Hole = 4,
}
impl SubpoolKind {
    /// From the number on disk.
    pub const fn from_u16(v: u16) -> Option<Self> {
        Some(match v {
            0 => Self::General,
            1 => Self::Data,
            2 => Self::Metadata,
            3 => Self::Journal,
            4 => Self::Hole,
            _ => return None,
        })
    }
}

/// A member, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub uuid: Uuid,
    /// Where its data area begins on the device.
    pub data_start: ByteOffset,
    /// Bytes in its data area.
    pub data_len: Bytes,
    /// Bytes the device had when it joined.
    pub device_size: Bytes,
    /// What it is to the pool.
    pub state: MemberState,
    /// Epoch in which `state` was last changed.
    pub state_epoch: Epoch,
    /// It has returned garbage where others had what is right: it is read last, by every node.
    pub suspected: bool,
    /// An operator has taken it out of use for a while. Failed, it is offline, and every node notes what it misses;
    /// rebuilding, only what it has missed is filled. It is never marked while it is in use.
    pub offline: bool,
    /// Kind of device.
    pub class: DeviceClass,
    /// Bandwidth, bytes per second; 0 unknown.
    pub bytes_per_second: Bytes,
    /// Bus or controller, counted from 1; 0 unknown.
    pub bus: u16,
    /// Who gets the contents of a leaving member.
    pub successor: Option<MemberIndex>,
    /// Path it was last seen at: a hint for people (bytes that are no UTF-8 are replaced).
    pub path: String,
    /// Serial number or world-wide name, for people.
    pub serial: String,
}

impl Member {
    /// Whether it is out of use for a while: an operator took it out, and is to bring it back.
    pub fn is_offline(&self) -> bool {
        self.offline && self.state == MemberState::Failed
    }
}

/// A child of a node, with its share of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Child {
    /// Index in [`Label::nodes`], lower than the parent's.
    pub node: u16,
    /// Units of each row, 1 when all are equal.
    pub weight: u16,
}

/// What a topology node does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeKind {
    /// A run of one member's data area.
    Slice {
        /// The member.
        member: MemberIndex,
        /// First byte, counted from the start of the data area.
        start: ByteOffset,
    },
    /// Children side by side. Child `i` of weight `w` has `floor(len / (unit * w))` rows; a row
    /// takes `w` units of each child that still has rows, dealt in rounds in child order. Where
    /// children end, a new zone of fewer columns begins: all space is used.
    Stripe {
        /// Bytes on one child before the next.
        unit: Bytes,
        /// The columns.
        children: Vec<Child>,
    },
    /// Children hold the same bytes, as many as the shortest has.
    Mirror {
        /// The copies.
        children: Vec<Child>,
    },
    /// Children of equal length hold data and, rotating, parity. Of `n` children, row `r` has its
    /// first parity on child `n - 1 - r % n`, the second (when there are two) on the next one
    /// (after the last comes the first), and its data on those that follow, in the same cycle.
    Parity {
        /// Bytes on one child before the next.
        unit: Bytes,
        /// Children that may be lost, 1 or 2.
        parity: u16,
        /// Number of the code, [`Label::CODE`].
        code: u16,
        /// Data and parity columns.
        children: Vec<Child>,
    },
    /// Children one after the other.
    Concat {
        /// In order.
        children: Vec<Child>,
    },
}
impl NodeKind {
    /// The children; none for a slice.
    pub fn children(&self) -> &[Child] {
        match self {
            Self::Slice { .. } => &[],
            Self::Stripe { children, .. }
            | Self::Mirror { children }
            | Self::Parity { children, .. }
            | Self::Concat { children } => children,
        }
    }
    /// The word for people.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Slice { .. } => "slice",
            Self::Stripe { .. } => "stripe",
            Self::Mirror { .. } => "mirror",
            Self::Parity { .. } => "parity",
            Self::Concat { .. } => "concat",
        }
    }
}

/// A topology node, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeNode {
    /// Logical bytes.
    pub len: Bytes,
    /// What it does.
    pub kind: NodeKind,
}

/// A run of the logical address space, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First logical byte.
    pub start: ByteOffset,
    /// Bytes.
    pub len: Bytes,
    /// Index of the node it shows.
    pub node: u16,
    /// First byte of that node.
    pub node_start: ByteOffset,
    /// What it may hold.
    pub subpool: SubpoolKind,
}

impl Segment {
    /// Whether nothing stands there any more.
    pub fn is_hole(&self) -> bool {
        self.subpool == SubpoolKind::Hole
    }
}

/// A label, decoded and verified: who this member is, and the pool's whole topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The pool.
    pub pool: Uuid,
    /// Its name.
    pub name: String,
    /// Counted up with every change.
    pub epoch: Epoch,
    /// Fresh in every epoch written.
    pub change_id: Uuid,
    /// Which member this label stands on.
    pub member: MemberIndex,
    /// Features an older version may ignore.
    pub features_compat: u64,
    /// Features an older version may ignore when it only reads.
    pub features_ro_compat: u64,
    /// Bytes in a device lock's sector.
    pub lock_sector: Bytes,
    /// Block size of the file system, for people; 0 when there is none.
    pub block_size: Bytes,
    /// A change of shape is under way: two trees then use the same members' space.
    pub reshaping: bool,
    /// The pool is being destroyed: its members are to be wiped, and nobody may use them.
    pub ended: bool,
    /// The pool's stripe unit.
    pub stripe_unit: Bytes,
    /// When the pool was made, Unix seconds.
    pub created: u64,
    /// When this epoch was written, Unix seconds.
    pub changed: u64,
    /// The members; a member's index is its place here.
    pub members: Vec<Member>,
    /// The topology, children before parents.
    pub nodes: Vec<TreeNode>,
    /// The logical address space.
    pub segments: Vec<Segment>,
    /// Settings that stay with the pool.
    pub properties: Properties,
}

impl Label {
    /// Most bytes a label takes: room for each table at its limit.
    pub const LEN_MAX: usize = 128 << 10;
    /// Labels are written in multiples of this.
    pub const GRAIN: usize = 4096;
    /// Where copy 0 begins.
    pub const COPY0_AT: ByteOffset = ByteOffset(64 << 10);
    /// What stands at byte 0 of a member: to tools that do not know labels, a partition table without
    /// partitions. They ask before they overwrite one. Nothing reads it here.
    pub const BOOT_SECTOR: [u8; 512] = boot::sector();
    /// Where the data area begins.
    pub const DATA_AT: ByteOffset = ByteOffset(1 << 20);
    /// Bytes kept at the end of a device for copy 1.
    pub const TAIL: Bytes = Bytes(1 << 20);
    /// Data areas and copy 1 begin at multiples of this.
    pub const ALIGN: Bytes = Bytes(1 << 20);
    /// Most members.
    pub const MEMBERS_MAX: usize = 256;
    /// Most topology nodes.
    pub const NODES_MAX: usize = 768;
    /// Most edges.
    pub const EDGES_MAX: usize = 4096;
    /// Most segments.
    pub const SEGMENTS_MAX: usize = 128;
    /// Most redundancy groups that have left with holes: with those that are there their numbers
    /// have 16 bits.
    pub const GONE_GROUPS_MAX: u64 = 32_768;
    /// Longest name, in bytes.
    pub const NAME_MAX: usize = 63;
    /// The code of parity groups: exclusive or; the second parity in GF(256).
    pub const CODE: u16 = 1;
    /// Most units of a row, all weights together.
    pub const ROW_MAX: u64 = 4096;

    /// Where copy 1 begins on a device of `size` bytes, or `None` when the device is too small
    /// to have one and at least [`Label::ALIGN`] of data.
    pub const fn copy1_at(size: Bytes) -> Option<ByteOffset> {
        let whole = size.0 / Self::ALIGN.0 * Self::ALIGN.0;
        if whole < Self::DATA_AT.0 + Self::ALIGN.0 + Self::TAIL.0 {
            return None;
        }
        Some(ByteOffset(whole - Self::TAIL.0))
    }

    /// The incompatible feature bits that this topology needs.
    pub fn features_incompat(&self) -> u64 {
        let mut bits = 0;
        for node in &self.nodes {
            match node.kind {
                NodeKind::Mirror { .. } => bits |= features::MIRROR,
                NodeKind::Parity { .. } => bits |= features::PARITY,
                NodeKind::Stripe { ref children, .. } if children.iter().any(|c| c.weight != 1) => {
                    bits |= features::WEIGHTS;
                }
                _ => {}
            }
        }
        let own = |s: &Segment| !matches!(s.subpool, SubpoolKind::General | SubpoolKind::Hole);
        if self.segments.iter().any(own) {
            bits |= features::SUBPOOLS;
        }
        if self.segments.iter().any(Segment::is_hole) {
            bits |= features::HOLES;
        }
        if self.reshaping {
            bits |= features::RESHAPE;
        }
        if self.ended {
            bits |= features::ENDED;
        }
        if self.members.iter().any(|m| m.successor.is_some()) {
            bits |= features::SUCCESSION;
        }
        if self.members.iter().any(|m| m.suspected) {
            bits |= features::SUSPECTED;
        }
        if self.members.iter().any(|m| m.offline) {
            bits |= features::OFFLINE;
        }
        if !self.properties.is_empty() {
            bits |= features::PROPERTIES;
        }
        bits
    }

    /// Logical bytes of the pool on which nothing stands any more.
    pub fn holes(&self) -> Bytes {
        Bytes(self.segments.iter().filter(|s| s.is_hole()).map(|s| s.len.0).sum())
    }

    /// Logical bytes of the pool, holes included.
    pub fn size(&self) -> Bytes {
        Bytes(self.segments.last().map_or(0, |s| s.start.0.saturating_add(s.len.0)))
    }

    /// The runs of a member's data area that the topology uses: where each begins, and its bytes.
    pub fn slices_on(&self, member: MemberIndex) -> impl Iterator<Item = (ByteOffset, Bytes)> {
        self.nodes.iter().filter_map(move |n| match n.kind {
            NodeKind::Slice { member: m, start } if m == member => Some((start, n.len)),
            _ => None,
        })
    }

    /// Bytes of the topology that stand on a member.
    pub fn bytes_on(&self, member: MemberIndex) -> Bytes {
        Bytes(self.slices_on(member).map(|s| s.1.0).sum())
    }
}

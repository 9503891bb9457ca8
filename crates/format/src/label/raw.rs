//! The label's structures as they stand on disk.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Head of a label.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawLabel {
    /// "BRAIDPL\0".
    pub magic: [u8; 8],
    /// CRC-32C of `len` bytes with this field zero.
    pub crc: U32,
    /// Bytes in the label, a multiple of 4,096, at most `Label::LEN_MAX`.
    pub len: U32,
    /// Revision, 1.
    pub revision: U32,
    /// Which copy, 0 or 1.
    pub copy: U32,
    /// Own byte offset on the member: exposes a label found in the wrong place.
    pub at: U64,
    /// Counted up with every change of the topology.
    pub epoch: U64,
    /// Features an older version may ignore.
    pub features_compat: U64,
    /// Features an older version may ignore when it only reads.
    pub features_ro_compat: U64,
    /// Features an older version must refuse: [`features`].
    pub features_incompat: U64,
    /// The pool.
    pub pool_uuid: [u8; 16],
    /// The pool's name, UTF-8, padded with zero.
    pub name: [u8; 64],
    /// The member this label stands on.
    pub member_uuid: [u8; 16],
    /// Its place in the member table.
    pub member_index: U16,
    /// Members, 1 to 256.
    pub member_count: U16,
    /// Topology nodes.
    pub node_count: U16,
    /// Edges from nodes to their children.
    pub edge_count: U16,
    /// Segments of the logical address space.
    pub segment_count: U16,
    /// Bytes of properties behind the segments.
    pub properties_len: U16,
    /// Bytes in a device lock's sector: 512 or 4,096.
    pub lock_sector: U32,
    /// Block size of the file system on the pool, for people; 0 when there is none.
    pub block_size: U32,
    /// Zero.
    pub flags: U32,
    /// The pool's stripe unit in bytes.
    pub stripe_unit: U64,
    /// When the pool was made, Unix seconds, for people.
    pub created: U64,
    /// When this epoch was written, Unix seconds, for people.
    pub changed: U64,
    /// Fresh in every epoch written: tells apart two changes that claimed the same epoch.
    pub change_id: [u8; 16],
    /// Zero.
    pub reserved: [u8; 288],
}
const _: () = assert!(size_of::<RawLabel>() == 512);
const _: () = assert!(core::mem::offset_of!(RawLabel, crc) == 8);
const _: () = assert!(core::mem::offset_of!(RawLabel, epoch) == 32);
const _: () = assert!(core::mem::offset_of!(RawLabel, pool_uuid) == 64);
const _: () = assert!(core::mem::offset_of!(RawLabel, member_index) == 160);
const _: () = assert!(core::mem::offset_of!(RawLabel, stripe_unit) == 184);
const _: () = assert!(core::mem::offset_of!(RawLabel, change_id) == 208);

/// A member.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawMember {
    /// Its identity.
    pub uuid: [u8; 16],
    /// Where its data area begins.
    pub data_start: U64,
    /// Bytes in its data area.
    pub data_len: U64,
    /// Bytes the device had when it joined, or was last grown: a smaller one has been truncated.
    pub device_size: U64,
    /// Epoch in which `state` was last changed.
    pub state_epoch: U64,
    /// Bandwidth measured or told, bytes per second; 0 unknown.
    pub bytes_per_second: U64,
    /// A `MemberState`.
    pub state: U16,
    /// A `DeviceClass`.
    pub class: u8,
    /// [`RawMember::SUSPECTED`], [`RawMember::OFFLINE`], or nothing.
    pub flags: u8,
    /// Bus or controller it hangs on, counted from 1; 0 unknown.
    pub bus: U16,
    /// A leaving member: one more than the index of the spare that gets its contents; 0 none.
    pub successor: U16,
    /// Path it was last seen at, padded with zero: a hint for people, never trusted.
    pub path: [u8; 128],
    /// Serial number or world-wide name, padded with zero, for people.
    pub serial: [u8; 64],
}
impl RawMember {
    /// In `flags`: the member is suspected to return garbage.
    pub const SUSPECTED: u8 = 1;
    /// In `flags`: the member is offline, or catches up after that.
    pub const OFFLINE: u8 = 2;
}
const _: () = assert!(size_of::<RawMember>() == 256);
const _: () = assert!(core::mem::offset_of!(RawMember, state) == 56);
const _: () = assert!(core::mem::offset_of!(RawMember, path) == 64);

/// A node of the topology.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawTreeNode {
    /// 1 slice, 2 stripe, 3 mirror, 4 parity, 5 concat.
    pub kind: U16,
    /// Zero.
    pub flags: U16,
    /// Slice: the member.
    pub member: U16,
    /// First of its edges.
    pub first_edge: U16,
    /// Number of its edges.
    pub child_count: U16,
    /// Parity: how many of the children's worth of space is parity, 1 or 2.
    pub parity: U16,
    /// Parity: the code's number.
    pub code: U16,
    /// Zero.
    pub reserved0: U16,
    /// Slice: offset in the member's data area.
    pub start: U64,
    /// Logical bytes of this node.
    pub len: U64,
    /// Stripe and parity: the unit in bytes.
    pub unit: U64,
    /// Zero.
    pub reserved: U64,
}
const _: () = assert!(size_of::<RawTreeNode>() == 48);
const _: () = assert!(core::mem::offset_of!(RawTreeNode, start) == 16);

/// From a node to a child.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawEdge {
    /// Index of the child.
    pub node: U16,
    /// Units it takes of each row of a stripe; 1 when all are equal.
    pub weight: U16,
}
const _: () = assert!(size_of::<RawEdge>() == 4);

/// A run of the pool's logical address space.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawSegment {
    /// First logical byte.
    pub start: U64,
    /// Bytes.
    pub len: U64,
    /// Where in the topology node `node` its bytes begin; zero in a hole.
    pub node_start: U64,
    /// The node; in a hole, how many redundancy groups were there.
    pub node: U16,
    /// A `SubpoolKind`.
    pub subpool: U16,
    /// Zero.
    pub flags: U32,
}
const _: () = assert!(size_of::<RawSegment>() == 32);

/// Incompatible features of a label: a version that does not know a bit must refuse the pool.
pub mod features {
    /// The topology has mirrors.
    pub const MIRROR: u64 = 1;
    /// The topology has parity.
    pub const PARITY: u64 = 2;
    /// A stripe gives its children unequal weights.
    pub const WEIGHTS: u64 = 4;
    /// There is more than one subpool.
    pub const SUBPOOLS: u64 = 8;
    /// A change of shape is under way.
    pub const RESHAPE: u64 = 16;
    /// A member's contents are being moved to another: both get its writes.
    pub const SUCCESSION: u64 = 32;
    /// Parts of the logical address space stand on nothing any more.
    pub const HOLES: u64 = 64;
    /// The pool is being destroyed: its members are to be wiped, and nobody may use them.
    pub const ENDED: u64 = 128;
    /// A member is suspected to return garbage: what it holds is not to be trusted.
    pub const SUSPECTED: u64 = 256;
    /// A member is offline: every node notes what it misses.
    pub const OFFLINE: u64 = 512;
    /// The pool has properties: a version that does not know them would drop them with its next change.
    pub const PROPERTIES: u64 = 1024;
    /// All bits of `features_ro_compat` that this version knows. No pool is opened to be read alone
    /// (labels are mended): a bit that is not known is refused as an incompatible one is.
    pub const KNOWN_RO: u64 = 0;
    /// All that this version can decode.
    pub const KNOWN: u64 = MIRROR
        | PARITY
        | WEIGHTS
        | SUBPOOLS
        | RESHAPE
        | SUCCESSION
        | HOLES
        | ENDED
        | SUSPECTED
        | OFFLINE
        | PROPERTIES;
}

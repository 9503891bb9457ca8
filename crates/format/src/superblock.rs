//! The superblock: what a file system is and where its fixed parts lie. docs/FORMAT.md section 4.
//!
//! The fixed area, in order, each part a run of metadata slots unless said otherwise:
//! ```text
//!  slot 0        superblock (lock: "live": who may write the superblock)
//!  named         rename lock, counters, reserved ...
//!  plocks        buckets of program locks
//!  slots         node slot records, one lock sector each, packed   (not metadata slots)
//!  heartbeats    one lock sector each, packed                      (not metadata slots)
//!  node areas    per node: NodeInfo, Orphans x 4, Window x 16, JournalHeader x 2,
//!                FreeLog x 16, 1 spare
//!  journals      per node: `journal_blocks` plain blocks
//!  heads of data groups, where the pool has a data subpool
//!  resource groups
//!  last slot     copy of the superblock
//! ```
//! In a pool of one subpool that is all of it. Else all of it is the metadata subpool, but for the
//! journals where they have a subpool of their own; and the data subpool holds file data alone, in
//! groups that are nothing but blocks.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::meta::MetaHeader;

/// The superblock's body.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawSuperblock {
    /// Kind `Superblock`.
    pub header: MetaHeader,
    /// "BRAIDFS\0".
    pub fs_magic: [u8; 8],
    /// Format version, 3.
    pub version: U32,
    /// log2 of the block size.
    pub block_shift: U16,
    /// log2 of the lock sector size (9 or 12).
    pub lock_sector_shift: U16,
    /// The pool it lives on.
    pub pool_uuid: [u8; 16],
    /// The file system's own identity.
    pub fs_uuid: [u8; 16],
    /// Features an older version may ignore.
    pub features_compat: U64,
    /// Features an older version may ignore when it only reads.
    pub features_ro_compat: U64,
    /// Features an older version must refuse.
    pub features_incompat: U64,
    /// Blocks in the pool when the file system was made or last grown.
    pub total_blocks: U64,
    /// Nodes that may mount at once.
    pub node_slots: U16,
    /// Named locks.
    pub named_count: U16,
    /// Program-lock buckets.
    pub plock_count: U16,
    /// Metadata slots in a node's area.
    pub node_area_slots: U16,
    /// First named lock.
    pub named_start: U64,
    /// First program-lock bucket.
    pub plock_start: U64,
    /// First block of the packed node slot records.
    pub slot_area: U64,
    /// First block of the packed heartbeats.
    pub heartbeat_area: U64,
    /// First block of node 0's area.
    pub node_area: U64,
    /// First block of node 0's journal.
    pub journal_area: U64,
    /// Blocks in one journal.
    pub journal_blocks: U64,
    /// First resource group.
    pub rgrp_start: U64,
    /// Blocks from one resource group to the next; the last may be shorter.
    pub rgrp_blocks: U64,
    /// Number of resource groups.
    pub rgrp_count: U64,
    /// The root directory.
    pub root_inode: U64,
    /// Secret key of the directory hash.
    pub hash_seed: U64,
    /// Stripe unit in bytes, for alignment of large files.
    pub stripe_unit: U64,
    /// Stripe width in bytes.
    pub stripe_width: U64,
    /// The pool's name, UTF-8, padded with zero.
    pub name: [u8; 64],
    /// Blocks of the metadata subpool, from block 0; 0: the pool has one subpool for all, and
    /// all that follows is zero.
    pub meta_blocks: U64,
    /// First data group.
    pub data_start: U64,
    /// Blocks from one data group to the next; the last may be shorter.
    pub data_blocks: U64,
    /// Number of data groups. They are counted after the others.
    pub data_count: U64,
    /// One past the last block of the last data group.
    pub data_end: U64,
    /// Head of the first data group.
    pub data_heads: U64,
    /// Slots from the head of one data group to the next one's.
    pub data_head_slots: U64,
}
const _: () = assert!(size_of::<RawSuperblock>() == 360);

/// What was added to a file system, behind [`RawSuperblock`] in the same body.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawRegions {
    /// Blocks in the pool when the file system was made; 0 while nothing was added.
    pub base_blocks: U64,
    /// Regions.
    pub count: U64,
    /// In the order in which they were added.
    pub regions: [RawRegion; RawRegions::MAX],
}
const _: () = assert!(size_of::<RawRegions>() == 16 + 32 * 88);
// The smallest body is of a block of 4 KiB less a lock sector.
const _: () = assert!(size_of::<RawSuperblock>() + size_of::<RawRegions>() <= 4096 - 512);

impl RawRegions {
    /// Most regions.
    pub const MAX: usize = 32;
}

/// Space that was added to a file system. Its groups are counted after all others, those behind
/// their heads first.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawRegion {
    /// First resource group: for everything, or for metadata.
    pub rgrp_start: U64,
    /// Blocks from one to the next; the last may be shorter.
    pub rgrp_blocks: U64,
    /// How many; with a data part there may be none.
    pub rgrp_count: U64,
    /// One past the last block that the last one may have.
    pub rgrp_end: U64,
    /// First data group; zero, and all that follows but `end`, in a pool of one subpool.
    pub data_start: U64,
    /// Blocks from one data group to the next; the last may be shorter.
    pub data_blocks: U64,
    /// How many.
    pub data_count: U64,
    /// One past the last block of the last data group.
    pub data_end: U64,
    /// Head of the first data group.
    pub data_heads: U64,
    /// Slots from the head of one data group to the next one's.
    pub data_head_slots: U64,
    /// Blocks in the pool with this region.
    pub end: U64,
}
const _: () = assert!(size_of::<RawRegion>() == 88);

/// Where lock records and node slots are that are not on the pool, behind [`RawRegions`] in the same
/// body, whether there are regions or not.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawLockStore {
    /// What kind of store: 1 etcd.
    pub kind: U16,
    /// Bytes of the address.
    pub len: U16,
    /// Zero.
    pub reserved: [u8; 4],
    /// The address, UTF-8, padded with zero.
    pub address: [u8; 240],
}
const _: () = assert!(size_of::<RawLockStore>() == 248);
// The smallest body is of a block of 4 KiB less a lock sector.
const _: () = assert!(RawLockStore::AT + size_of::<RawLockStore>() <= 4096 - 512);

impl RawLockStore {
    /// Its place in the body.
    pub const AT: usize = size_of::<RawSuperblock>() + size_of::<RawRegions>();
    /// Kind: etcd.
    pub const ETCD: u16 = 1;
    /// Most bytes of an address.
    pub const ADDRESS_MAX: usize = 240;

    /// A store of `kind` at `address`; `None` if that is too long.
    pub fn new(kind: u16, address: &str) -> Option<Self> {
        let mut raw = Self::new_zeroed();
        raw.kind.set(kind);
        raw.len.set(u16::try_from(address.len()).ok()?);
        raw.address.get_mut(..address.len())?.copy_from_slice(address.as_bytes());
        Some(raw)
    }
    /// The address; `None` if it is not as a writer makes it.
    pub fn address(&self) -> Option<&str> {
        let (address, rest) = self.address.split_at_checked(usize::from(self.len.get()))?;
        let zero = rest.iter().chain(&self.reserved).all(|b| *b == 0);
        std::str::from_utf8(address).ok().filter(|a| zero && !a.is_empty())
    }
}

/// Regions that leave the file system, or have left it, behind [`RawLockStore`] in the same body,
/// whether there is a store or not. Bit `n` is region `n`.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
    PartialEq,
    Eq,
)]
#[repr(C)]
pub struct RawLeaving {
    /// Nothing more is put there, and what is there is moved elsewhere.
    pub closed: U32,
    /// Nothing of the pool stands there any more, or will in a moment. Numbers of groups and
    /// addresses stay taken.
    pub gone: U32,
}
const _: () = assert!(size_of::<RawLeaving>() == 8);
const _: () = assert!(RawLeaving::AT + size_of::<RawLeaving>() <= 4096 - 512);
const _: () = assert!(RawRegions::MAX <= 32);

impl RawLeaving {
    /// Its place in the body.
    pub const AT: usize = RawLockStore::AT + size_of::<RawLockStore>();
}

impl RawSuperblock {
    /// Incompatible feature: regions leave, or have left.
    pub const LEAVING: u64 = 8;
    /// Incompatible feature: there are regions.
    pub const REGIONS: u64 = 2;
    /// Incompatible feature: lock records and node slots are in a store of their own.
    pub const LOCK_STORE: u64 = 4;
    /// All that this version knows.
    pub const KNOWN: u64 = Self::SUBPOOLS | Self::REGIONS | Self::LOCK_STORE | Self::LEAVING;
    /// All bits of `features_ro_compat` that this version knows.
    pub const KNOWN_RO: u64 = 0;
    /// Identifies a Braid file system to a person with a hex editor.
    pub const FS_MAGIC: [u8; 8] = *b"BRAIDFS\0";
    /// Format version. A file system of any other version is refused: docs/FORMAT.md, *Versions*.
    pub const VERSION: u32 = 3;
    /// Incompatible feature: metadata and file data stand in subpools of their own.
    pub const SUBPOOLS: u64 = 1;
    /// Largest number of node slots that a superblock can say; lock records have room for fewer (section 3 of
    /// docs/FORMAT.md).
    pub const NODE_SLOTS_MAX: u16 = 1024;
    /// Named lock: renames that move a directory.
    pub const NAMED_RENAME: u64 = 0;
    /// Named lock: cluster-wide counters (kind `Counters`).
    pub const NAMED_COUNTERS: u64 = 1;
    /// Named lock: who holds it may have free space that no resource group knows of.
    pub const NAMED_SPACE: u64 = 2;
    /// Named lock: rebalancing, one node at a time.
    pub const NAMED_REBALANCE: u64 = 14;
    /// Named lock: recovery of a dead node's redundancy log, one at a time.
    pub const NAMED_RECOVERY: u64 = 15;
    /// Named locks with a meaning of their own, some kept for later.
    pub const NAMED_COUNT: u16 = 16;
    /// Further ones are locks of regions of the pool, at most so many.
    pub const REGION_LOCKS_MAX: u16 = 1024;
    /// Program-lock buckets.
    pub const PLOCK_COUNT: u16 = 64;
    /// In a node's area: counters.
    pub const AREA_INFO: u64 = 0;
    /// In a node's area: first orphan list.
    pub const AREA_ORPHANS: u64 = 1;
    /// Orphan lists per node.
    pub const ORPHAN_BLOCKS: u64 = 4;
    /// In a node's area: first window.
    pub const AREA_WINDOWS: u64 = 5;
    /// Windows per node.
    pub const WINDOWS: u64 = 16;
    /// In a node's area: two journal headers, written in turn.
    pub const AREA_JOURNAL_HEADERS: u64 = 21;
    /// In a node's area: first block of the free log.
    pub const AREA_FREELOG: u64 = 23;
    /// Free-log blocks per node.
    pub const FREELOG_BLOCKS: u64 = 16;
    /// Slots in a node's area.
    pub const AREA_SLOTS: u16 = 40;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_lock_store_is_read_as_it_was_written() {
        let longest = "h".repeat(RawLockStore::ADDRESS_MAX);
        for address in ["http://etcd:2379/pool", &longest] {
            let raw = RawLockStore::new(RawLockStore::ETCD, address).expect("it fits");
            assert_eq!((raw.kind.get(), raw.address()), (RawLockStore::ETCD, Some(address)));
        }
        assert!(RawLockStore::new(RawLockStore::ETCD, &format!("{longest}h")).is_none());
    }

    #[test]
    fn every_feature_is_a_known_bit_of_its_own() {
        let features = [
            RawSuperblock::SUBPOOLS,
            RawSuperblock::REGIONS,
            RawSuperblock::LOCK_STORE,
            RawSuperblock::LEAVING,
        ];
        assert!(features.iter().all(|bit| bit.is_power_of_two()));
        assert_eq!(features.iter().sum::<u64>(), RawSuperblock::KNOWN);
    }

    #[test]
    fn an_address_that_no_writer_makes_is_refused() {
        let refused = |change: fn(&mut RawLockStore)| {
            let mut raw = RawLockStore::new(RawLockStore::ETCD, "etcd").expect("it fits");
            change(&mut raw);
            assert_eq!(raw.address(), None);
        };
        refused(|raw| raw.len.set(0));
        refused(|raw| (raw.len, raw.address) = (U16::new(0), [0; 240]));
        refused(|raw| raw.len.set(3));
        refused(|raw| raw.len.set(241));
        refused(|raw| raw.reserved[0] = 1);
        refused(|raw| raw.address[239] = 1);
        refused(|raw| raw.address[0] = 0xff);
    }
}

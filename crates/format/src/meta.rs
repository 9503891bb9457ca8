//! The one layout of every metadata block. docs/FORMAT.md section 2.
//!
//! ```text
//!  slot = 1 block (2 where the block size equals the lock sector size)
//!  +-------------+-----------------------------------------------+
//!  | lock sector | body: MetaHeader, then what the kind says      |
//!  +-------------+-----------------------------------------------+
//!  changed only    written only in place by the holder of the lock
//!  by compare-     that covers it, or by replay; never together
//!  and-write       with the lock sector
//! ```
//! Because the body never includes the lock sector, a write of metadata cannot undo a change of
//! the lock, and one read brings both. The body's generation lets replay refuse to make a block
//! older. A chunk of metadata slots stays metadata for ever, so replay always finds a header.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;
use crate::crc::crc32c_with_hole;
use crate::units::{BlockNo, BlockSize, Bytes, Generation, LockNo};

/// What a metadata block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum MetaKind {
    /// Allocated to metadata, holds nothing now.
    Free = 1,
    /// The superblock.
    Superblock = 2,
    /// A resource group's header.
    Rgrp = 3,
    /// A resource group's allocation bitmap.
    Bitmap = 4,
    /// A dinode.
    Dinode = 5,
    /// Index node of a B+tree (extents or directory).
    Index = 6,
    /// Leaf of an extent tree.
    ExtentLeaf = 7,
    /// Leaf of a directory tree.
    DirLeaf = 8,
    /// Extended attributes that do not fit in the dinode.
    Xattr = 9,
    /// A node's private counters and orphan list.
    NodeInfo = 10,
    /// A node's allocation window.
    Window = 11,
    /// A bucket of byte-range and whole-file locks of programs.
    Plock = 12,
    /// A named lock without a body of its own.
    Named = 13,
    /// A node's journal header.
    JournalHeader = 14,
    /// Cluster-wide counters (free blocks, inodes).
    Counters = 15,
    /// Quota records.
    Quota = 16,
    /// A node's list of unlinked but open inodes.
    Orphans = 17,
    /// A node's log of freed blocks that the groups do not yet know of.
    FreeLog = 18,
    /// A part of an extended attribute's value that is too long to stand beside its name.
    XattrValue = 19,
}
impl MetaKind {
    /// From the number on disk.
    pub fn from_u16(v: u16) -> Option<Self> {
        use MetaKind as K;
        Some(match v {
            1 => K::Free,
            2 => K::Superblock,
            3 => K::Rgrp,
            4 => K::Bitmap,
            5 => K::Dinode,
            6 => K::Index,
            7 => K::ExtentLeaf,
            8 => K::DirLeaf,
            9 => K::Xattr,
            10 => K::NodeInfo,
            11 => K::Window,
            12 => K::Plock,
            13 => K::Named,
            14 => K::JournalHeader,
            15 => K::Counters,
            16 => K::Quota,
            17 => K::Orphans,
            18 => K::FreeLog,
            19 => K::XattrValue,
            _ => return None,
        })
    }
    /// The name used in messages.
    pub fn name(self) -> &'static str {
        use MetaKind as K;
        match self {
            K::Free => "free metadata block",
            K::Superblock => "superblock",
            K::Rgrp => "resource group header",
            K::Bitmap => "allocation bitmap",
            K::Dinode => "dinode",
            K::Index => "tree index node",
            K::ExtentLeaf => "extent leaf",
            K::DirLeaf => "directory leaf",
            K::Xattr => "attribute block",
            K::NodeInfo => "node information",
            K::Window => "allocation window",
            K::Plock => "program lock bucket",
            K::Named => "named lock",
            K::JournalHeader => "journal header",
            K::Counters => "counters",
            K::Quota => "quota block",
            K::Orphans => "orphan list",
            K::FreeLog => "free log",
            K::XattrValue => "attribute value",
        }
    }
    /// Revision of the layout of this kind's blocks.
    pub const fn revision(self) -> u16 {
        match self {
            // Names of attributes in 1 byte, values in 4; buckets of locks in chains.
            Self::Dinode | Self::Xattr | Self::Plock => 2,
            _ => 1,
        }
    }
}

/// First bytes of every metadata body.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MetaHeader {
    /// Always [`MetaHeader::MAGIC`].
    pub magic: U32,
    /// A [`MetaKind`].
    pub kind: U16,
    /// Revision of this kind's layout: [`MetaKind::revision`].
    pub revision: U16,
    /// Own slot's first block: exposes misdirected writes.
    pub block: U64,
    /// The lock that covers this block (an inode's number, a resource group's, ...).
    pub owner: U64,
    /// Writes of this body, counted from the time of the first; replay never lowers it.
    pub generation: U64,
    /// CRC-32C of the whole body with this field zero.
    pub crc: U32,
    /// Zero.
    pub reserved: U32,
}
const _: () = assert!(size_of::<MetaHeader>() == 40);
const _: () = assert!(core::mem::offset_of!(MetaHeader, block) == 8);
const _: () = assert!(core::mem::offset_of!(MetaHeader, generation) == 24);
const _: () = assert!(core::mem::offset_of!(MetaHeader, crc) == 32);

impl MetaHeader {
    /// "BRMB".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRMB");
    /// Size in bytes.
    pub const LEN: usize = size_of::<Self>();
    const CRC_AT: usize = core::mem::offset_of!(Self, crc);

    /// A header for a block that has never been written.
    pub fn new(kind: MetaKind, block: BlockNo, owner: LockNo) -> Self {
        Self {
            magic: U32::new(Self::MAGIC),
            kind: U16::new(kind as u16),
            revision: U16::new(kind.revision()),
            block: U64::new(block.0),
            owner: U64::new(owner.0),
            generation: U64::new(0),
            crc: U32::new(0),
            reserved: U32::new(0),
        }
    }
    /// Makes it the header of a block of `kind`.
    pub fn set_kind(&mut self, kind: MetaKind) {
        self.kind = U16::new(kind as u16);
        self.revision = U16::new(kind.revision());
    }
    /// The generation, typed.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.get())
    }
    /// Puts the checksum of `body` into its header. The caller has set all other fields.
    ///
    /// # Panics
    /// If `body` is shorter than a header.
    pub fn seal(body: &mut [u8]) {
        let crc = crc32c_with_hole(body, Self::CRC_AT);
        body[Self::CRC_AT..Self::CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
    /// Verifies a body read from `block`: magic, address, checksum, known kind and revision.
    ///
    /// # Errors
    /// Which of them failed, and what was found.
    pub fn decode(body: &[u8], block: BlockNo) -> Result<(Self, MetaKind), FormatError> {
        const WHAT: &str = "metadata block";
        let (header, _) = Self::read_from_prefix(body)
            .map_err(|_| FormatError::TooShort { what: WHAT, len: body.len() })?;
        let at = block.0;
        if header.magic.get() != Self::MAGIC {
            let found = u64::from(header.magic.get());
            return Err(FormatError::BadMagic { what: WHAT, at, found });
        }
        let expected = crc32c_with_hole(body, Self::CRC_AT);
        if header.crc.get() != expected {
            let found = header.crc.get();
            return Err(FormatError::ChecksumMismatch { what: WHAT, at, expected, found });
        }
        if header.block.get() != at {
            let found = header.block.get();
            return Err(FormatError::WrongAddress { what: WHAT, at, found });
        }
        let kind = MetaKind::from_u16(header.kind.get()).ok_or(FormatError::BadField {
            what: WHAT,
            at,
            field: "kind",
            value: u64::from(header.kind.get()),
        })?;
        if header.revision.get() != kind.revision() {
            let (found, known) = (header.revision.get().into(), kind.revision().into());
            return Err(FormatError::OtherRevision { what: WHAT, at, found, known });
        }
        Ok((header, kind))
    }
    /// As [`Self::decode`], and of kind `kind`.
    ///
    /// # Errors
    /// As `decode`, or [`FormatError::WrongKind`].
    pub fn decode_kind(body: &[u8], block: BlockNo, kind: MetaKind) -> Result<Self, FormatError> {
        let (header, found) = Self::decode(body, block)?;
        if found == kind {
            Ok(header)
        } else {
            Err(FormatError::WrongKind { expected: kind.name(), at: block.0, found: found as u16 })
        }
    }
}

/// The sizes that follow from a file system's block size and lock sector size. Everything that
/// computes a place in a metadata block asks here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// File-system block.
    pub block_size: BlockSize,
    /// Unit of compare-and-write: 512 or 4096 bytes.
    pub lock_sector: Bytes,
}
impl Geometry {
    /// 4 KiB blocks, 512-byte lock sectors.
    pub const DEFAULT: Self = Self { block_size: BlockSize::DEFAULT, lock_sector: Bytes(512) };
    /// Blocks in a metadata slot: 1, or 2 where a block is no larger than a lock sector.
    pub const fn slot_blocks(self) -> u64 {
        if self.block_size.bytes().0 > self.lock_sector.0 { 1 } else { 2 }
    }
    /// Bytes in a metadata slot.
    pub const fn slot_bytes(self) -> u64 {
        self.slot_blocks() << self.block_size.shift()
    }
    /// Bytes in a metadata body.
    #[expect(clippy::cast_possible_truncation, reason = "at most 64 KiB")]
    pub const fn body_len(self) -> usize {
        (self.slot_bytes() - self.lock_sector.0) as usize
    }
    /// Where in a slot the body begins.
    pub const fn body_at(self) -> Bytes {
        self.lock_sector
    }
    /// Blocks in a metadata chunk, the unit in which space becomes metadata: 64 slots.
    pub const fn chunk_blocks(self) -> u64 {
        Self::SLOTS_PER_CHUNK * self.slot_blocks()
    }
    /// Slots in a metadata chunk.
    pub const SLOTS_PER_CHUNK: u64 = 64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_body_decodes_and_any_flipped_bit_does_not() {
        let mut body = vec![0x5a_u8; Geometry::DEFAULT.body_len()];
        let h = MetaHeader::new(MetaKind::Dinode, BlockNo(77), LockNo(77));
        h.write_to_prefix(&mut body).unwrap();
        MetaHeader::seal(&mut body);
        let (h, kind) = MetaHeader::decode(&body, BlockNo(77)).unwrap();
        assert_eq!((kind, h.owner.get()), (MetaKind::Dinode, 77));
        assert!(matches!(
            MetaHeader::decode(&body, BlockNo(78)),
            Err(FormatError::WrongAddress { .. })
        ));
        for at in 0..body.len() {
            body[at] ^= 1 << (at % 8);
            assert!(MetaHeader::decode(&body, BlockNo(77)).is_err(), "flip at {at}");
            body[at] ^= 1 << (at % 8);
        }
    }

    #[test]
    fn every_kind_of_geometry_has_its_slots() {
        let geometry = |block, sector| Geometry {
            block_size: BlockSize::new(Bytes(block)).unwrap(),
            lock_sector: Bytes(sector),
        };
        // Blocks and bytes of a slot; bytes of its body; blocks of a chunk.
        for (block, sector, expected) in [
            (4096, 512, (1, 4096, 3584, 64)),
            (4096, 4096, (2, 8192, 4096, 128)),
            (65_536, 4096, (1, 65_536, 61_440, 64)),
        ] {
            let geo = geometry(block, sector);
            let found = (geo.slot_blocks(), geo.slot_bytes(), geo.body_len(), geo.chunk_blocks());
            assert_eq!((found, geo.body_at()), (expected, Bytes(sector)));
        }
    }

    #[test]
    fn a_header_says_its_kind_and_generation() {
        let mut h = MetaHeader::new(MetaKind::Dinode, BlockNo(77), LockNo(78));
        h.generation.set(9);
        assert_eq!(h.generation(), Generation(9));
        let mut body = vec![0; Geometry::DEFAULT.body_len()];
        h.set_kind(MetaKind::Rgrp);
        h.write_to_prefix(&mut body).unwrap();
        MetaHeader::seal(&mut body);
        assert!(MetaHeader::decode_kind(&body, BlockNo(77), MetaKind::Rgrp).is_ok());
        let other = MetaHeader::decode_kind(&body, BlockNo(77), MetaKind::Dinode);
        assert!(matches!(other, Err(FormatError::WrongKind { at: 77, .. })), "{other:?}");
    }

    #[test]
    fn every_kind_is_read_from_its_number_and_has_a_name_of_its_own() {
        let kinds: Vec<MetaKind> = (1..=19).filter_map(MetaKind::from_u16).collect();
        assert!(kinds.iter().map(|kind| *kind as u16).eq(1..=19));
        assert_eq!((MetaKind::from_u16(0), MetaKind::from_u16(20)), (None, None));
        let mut names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 19);
    }
}

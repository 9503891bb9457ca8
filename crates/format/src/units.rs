//! Quantities, each with its own type. A position minus a position is a length. Conversions are
//! checked methods here; no other file multiplies by a unit.

use core::fmt;

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);
        impl $name {
            /// The bare number.
            pub const fn get(self) -> $inner { self.0 }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { fmt::Display::fmt(&self.0, f) }
        }
        impl From<$inner> for $name {
            fn from(v: $inner) -> Self { Self(v) }
        }
    };
}

quantity!(/// A length in bytes.
    Bytes, u64);
quantity!(/// A position in bytes, in a pool's logical address space or on one member (the context says).
    ByteOffset, u64);
quantity!(/// A file-system block's position in the pool's logical address space.
    BlockNo, u64);
quantity!(/// A length in file-system blocks.
    BlockCount, u64);
quantity!(/// An inode's number: the block number of its dinode's slot.
    InodeNo, u64);
quantity!(/// A device lock's number: the block number of the slot in whose first sector its record stands.
    LockNo, u64);
quantity!(/// A node's slot, 0 to 1,023.
    NodeId, u16);
quantity!(/// How often a slot has been taken: tells a dead holder from a live one in the same slot.
    Incarnation, u32);
quantity!(/// How often a metadata block's body has been written; never goes back.
    Generation, u64);

quantity!(/// How often a pool's topology has been changed: the highest one committed on a majority is in force.
    Epoch, u64);
quantity!(/// A member's place in its pool's member table, 0 to 255.
    MemberIndex, u16);

impl ByteOffset {
    /// `self + len`, or `None` past 2^64.
    pub fn checked_add(self, len: Bytes) -> Option<Self> {
        self.0.checked_add(len.0).map(Self)
    }
}
impl core::ops::Add<Bytes> for ByteOffset {
    type Output = Self;
    /// Panics on overflow: positions are validated when they enter.
    fn add(self, len: Bytes) -> Self {
        Self(self.0.checked_add(len.0).expect("byte offset overflow"))
    }
}
impl core::ops::Sub for ByteOffset {
    type Output = Bytes;
    fn sub(self, other: Self) -> Bytes {
        Bytes(self.0.checked_sub(other.0).expect("negative length"))
    }
}
impl Bytes {
    /// KiB, MiB, GiB as lengths.
    pub const KIB: Self = Self(1 << 10);
    /// One MiB.
    pub const MIB: Self = Self(1 << 20);
    /// One GiB.
    pub const GIB: Self = Self(1 << 30);
    /// As a memory length.
    ///
    /// # Panics
    /// On a machine whose addresses cannot hold it.
    pub fn to_usize(self) -> usize {
        usize::try_from(self.0).expect("length exceeds the address space")
    }
}
impl From<usize> for Bytes {
    fn from(n: usize) -> Self {
        Self(n as u64)
    }
}
impl core::ops::Add<BlockCount> for BlockNo {
    type Output = Self;
    fn add(self, n: BlockCount) -> Self {
        Self(self.0.checked_add(n.0).expect("block number overflow"))
    }
}
impl core::ops::Sub for BlockNo {
    type Output = BlockCount;
    fn sub(self, other: Self) -> BlockCount {
        BlockCount(self.0.checked_sub(other.0).expect("negative block count"))
    }
}
impl From<InodeNo> for LockNo {
    fn from(ino: InodeNo) -> Self {
        Self(ino.0)
    }
}
impl From<InodeNo> for BlockNo {
    fn from(ino: InodeNo) -> Self {
        Self(ino.0)
    }
}
impl From<LockNo> for BlockNo {
    fn from(lock: LockNo) -> Self {
        Self(lock.0)
    }
}
impl From<BlockNo> for LockNo {
    fn from(block: BlockNo) -> Self {
        Self(block.0)
    }
}
impl From<BlockNo> for InodeNo {
    fn from(block: BlockNo) -> Self {
        Self(block.0)
    }
}

/// A file system's block size: a power of two, 4 KiB to 64 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSize {
    shift: u32,
}
impl BlockSize {
    /// The default, 4 KiB.
    pub const DEFAULT: Self = Self { shift: 12 };
    /// `bytes` as a block size, if it may be one.
    pub fn new(bytes: Bytes) -> Option<Self> {
        (bytes.0.is_power_of_two() && (4096..=65536).contains(&bytes.0))
            .then(|| Self { shift: bytes.0.trailing_zeros() })
    }
    /// In bytes.
    pub const fn bytes(self) -> Bytes {
        Bytes(1 << self.shift)
    }
    /// In bytes, as a memory length.
    pub const fn to_usize(self) -> usize {
        1 << self.shift
    }
    /// log2 of the byte count.
    pub const fn shift(self) -> u32 {
        self.shift
    }
    /// Where `block` begins.
    ///
    /// # Panics
    /// On overflow: block numbers are validated when they are read from disk.
    pub fn offset_of(self, block: BlockNo) -> ByteOffset {
        assert!(block.0 <= u64::MAX >> self.shift, "block number {block} overflows");
        ByteOffset(block.0 << self.shift)
    }
    /// The block that holds `offset`.
    pub const fn block_of(self, offset: ByteOffset) -> BlockNo {
        BlockNo(offset.0 >> self.shift)
    }
    /// Bytes in `n` blocks.
    ///
    /// # Panics
    /// On overflow.
    pub fn bytes_in(self, n: BlockCount) -> Bytes {
        assert!(n.0 <= u64::MAX >> self.shift, "block count {n} overflows");
        Bytes(n.0 << self.shift)
    }
    /// Blocks that `len` bytes touch from a block boundary (rounded up).
    pub const fn blocks_for(self, len: Bytes) -> BlockCount {
        BlockCount(len.0.div_ceil(1 << self.shift))
    }
}

/// Contiguous bytes on one member before the next: a multiple of 4 KiB, 4 KiB to 1 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripeUnit(Bytes);
impl StripeUnit {
    /// Smallest unit, and the grain of all units.
    pub const GRAIN: Bytes = Bytes(4096);
    /// Largest unit.
    pub const MAX: Bytes = Bytes(1 << 30);
    /// The unit when none is asked for, 256 KiB.
    pub const DEFAULT: Self = Self(Bytes(256 << 10));
    /// `bytes` as a stripe unit, if it may be one.
    pub fn new(bytes: Bytes) -> Option<Self> {
        (bytes.0 != 0 && bytes.0.is_multiple_of(Self::GRAIN.0) && bytes <= Self::MAX)
            .then_some(Self(bytes))
    }
    /// In bytes.
    pub const fn bytes(self) -> Bytes {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_lengths_add_up() {
        assert_eq!(ByteOffset(5) + Bytes(7), ByteOffset(12));
        assert_eq!(ByteOffset(12) - ByteOffset(5), Bytes(7));
        assert_eq!(BlockNo(5) + BlockCount(7), BlockNo(12));
        assert_eq!(BlockNo(12) - BlockNo(5), BlockCount(7));
        assert_eq!(ByteOffset(5).checked_add(Bytes(7)), Some(ByteOffset(12)));
        assert_eq!(ByteOffset(5).checked_add(Bytes(u64::MAX)), None);
        assert_eq!((Bytes(9).to_usize(), Bytes::from(9_usize)), (9, Bytes(9)));
        assert_eq!((Bytes::KIB.get(), Bytes::MIB.get()), (1024, 1_048_576));
        assert_eq!(Bytes::GIB.get(), 1_073_741_824);
        assert_eq!(BlockNo(7).to_string(), "7");
    }

    #[test]
    fn an_inode_its_slot_and_its_lock_have_one_number() {
        assert_eq!(BlockNo::from(InodeNo(7)), BlockNo(7));
        assert_eq!((LockNo::from(InodeNo(7)), InodeNo::from(BlockNo(7))), (LockNo(7), InodeNo(7)));
        assert_eq!((LockNo::from(BlockNo(7)), BlockNo::from(LockNo(7))), (LockNo(7), BlockNo(7)));
    }

    #[test]
    fn a_block_is_a_power_of_two_from_4_to_64_kib() {
        for bytes in [0, 2048, 4095, 12_288, 131_072] {
            assert_eq!(BlockSize::new(Bytes(bytes)), None, "{bytes}");
        }
        for bytes in [4096_u64, 8192, 16_384, 32_768, 65_536] {
            let size = BlockSize::new(Bytes(bytes)).unwrap();
            assert_eq!((size.bytes(), Bytes::from(size.to_usize())), (Bytes(bytes), Bytes(bytes)));
            assert_eq!(1_u64 << size.shift(), bytes);
            assert_eq!(size.offset_of(BlockNo(3)), ByteOffset(3 * bytes));
            assert_eq!(size.block_of(ByteOffset(3 * bytes)), BlockNo(3));
            assert_eq!(size.block_of(ByteOffset(3 * bytes - 1)), BlockNo(2));
            assert_eq!(size.bytes_in(BlockCount(3)), Bytes(3 * bytes));
            assert_eq!(size.blocks_for(Bytes(2 * bytes + 1)), BlockCount(3));
            assert_eq!(size.blocks_for(Bytes(2 * bytes)), BlockCount(2));
        }
        // The last block that has an address.
        let last = BlockNo(u64::MAX >> 12);
        assert_eq!(BlockSize::DEFAULT.offset_of(last), ByteOffset(u64::MAX - 4095));
        assert_eq!(BlockSize::DEFAULT.bytes_in(BlockCount(last.0)), Bytes(u64::MAX - 4095));
    }

    #[test]
    fn a_stripe_unit_is_a_multiple_of_4_kib_up_to_1_gib() {
        for bytes in [0, 4095, 6144, (1 << 30) + 4096] {
            assert_eq!(StripeUnit::new(Bytes(bytes)), None, "{bytes}");
        }
        for bytes in [4096, 12_288, 1 << 30] {
            assert_eq!(StripeUnit::new(Bytes(bytes)).map(StripeUnit::bytes), Some(Bytes(bytes)));
        }
        assert_eq!(StripeUnit::new(Bytes(262_144)), Some(StripeUnit::DEFAULT));
    }
}

//! Memory for I/O.
//!
//! Buffers of up to 64 KiB come from slabs of their own, by size: a general allocator that is asked for
//! aligned memory leaves a gap as large as the alignment beside each block, does not find such a block
//! again when one is asked for, and so takes many times what is in use at a time. A file system holds tens
//! of thousands of such buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::HugeBuf;
use crate::huge::fitting;

/// Blocks that nobody uses, by size: 4, 8, 16, 32 and 64 KiB.
static FREE: [Mutex<Blocks>; 5] = [const { Mutex::new(Blocks::new()) }; 5];
/// Bytes of free blocks of a size that stay with the process; of pages, all do.
const KEPT: usize = 4 << 20;
/// Bytes taken from the system at a time.
const SLAB: usize = 1 << 20;

struct Blocks {
    /// Of whatever bytes.
    kept: Vec<NonNull<u8>>,
    /// Zeroes, without memory until they are touched.
    given_back: Vec<NonNull<u8>>,
}
// SAFETY: owns the blocks in it.
unsafe impl Send for Blocks {}

impl Blocks {
    const fn new() -> Self {
        Self { kept: Vec::new(), given_back: Vec::new() }
    }
    /// A block of `size` bytes, and whether they are zeroes.
    fn take(&mut self, size: usize) -> (NonNull<u8>, bool) {
        if let Some(block) = self.kept.pop() {
            return (block, false);
        }
        if self.given_back.is_empty() {
            // SAFETY: new memory, wherever the kernel puts it.
            let slab = unsafe {
                let read_write = ProtFlags::READ | ProtFlags::WRITE;
                mmap_anonymous(ptr::null_mut(), SLAB, read_write, MapFlags::PRIVATE)
            };
            let Some(slab) = slab.ok().and_then(|slab| NonNull::new(slab.cast::<u8>())) else {
                handle_alloc_error(AlignedBuf::layout(SLAB));
            };
            for n in (0..SLAB / size).rev() {
                // SAFETY: inside the slab, which is never unmapped.
                self.given_back.push(unsafe { slab.add(n * size) });
            }
        }
        (self.given_back.pop().expect("a slab has blocks"), true)
    }
    /// Whether one more block of `size` bytes stays with the process.
    fn has_room(&self, size: usize) -> bool {
        size == AlignedBuf::ALIGN || self.kept.len() < fitting(KEPT / size)
    }
    /// Takes a block of `size` bytes back, which nobody uses any more.
    fn give(blocks: &Mutex<Self>, block: NonNull<u8>, size: usize) {
        let mut state = blocks.lock();
        if state.has_room(size) {
            return state.kept.push(block);
        }
        drop(state);
        // SAFETY: a part of a private mapping of nothing, used by nobody.
        let gone = unsafe { madvise(block.as_ptr().cast(), size, Advice::LinuxDontNeed) }.is_ok();
        let state = &mut *blocks.lock();
        if gone { &mut state.given_back } else { &mut state.kept }.push(block);
    }
}

/// Heap memory aligned to 4096 bytes, of a fixed length.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Whose memory it is, if it is not the heap's.
    huge: Option<Box<HugeBuf>>,
}

impl AlignedBuf {
    /// Alignment in bytes.
    pub const ALIGN: usize = 4096;
    /// Larger ones are not of [`FREE`].
    const BLOCK_MAX: usize = Self::ALIGN << (FREE.len() - 1);
    /// Where blocks for `len` bytes are, and their size.
    fn blocks(len: usize) -> (&'static Mutex<Blocks>, usize) {
        let size = len.next_power_of_two().clamp(Self::ALIGN, Self::BLOCK_MAX);
        (&FREE[(size / Self::ALIGN).ilog2() as usize], size)
    }
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, Self::ALIGN).expect("length below isize::MAX")
    }
    /// `len` zero bytes.
    ///
    /// # Panics
    /// If `len` exceeds the address space.
    pub fn zeroed(len: usize) -> Self {
        match len {
            0 => Self { ptr: NonNull::dangling(), len, huge: None },
            1..=Self::BLOCK_MAX => {
                let (blocks, size) = Self::blocks(len);
                let (ptr, zeroed) = blocks.lock().take(size);
                if !zeroed {
                    // SAFETY: a block of at least `len` bytes, that nobody else has.
                    unsafe { ptr.write_bytes(0, len) };
                }
                Self { ptr, len, huge: None }
            }
            _ => {
                let layout = Self::layout(len);
                // SAFETY: the layout's size is not 0.
                let raw = unsafe { alloc_zeroed(layout) };
                let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
                Self { ptr, len, huge: None }
            }
        }
    }
}
impl AlignedBuf {
    /// `len` zero bytes in huge pages, if the system has them and few are in use (see [`HugeBuf`]):
    /// a transfer of them is one segment to a device, not one a page. Meant to be kept.
    ///
    /// # Panics
    /// As [`HugeBuf::new`].
    pub fn huge(len: usize) -> Self {
        let mut huge = Box::new(HugeBuf::new(len));
        let ptr = NonNull::from(&mut **huge).cast();
        Self { ptr, len, huge: Some(huge) }
    }
}
impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.huge.is_some() {
            return;
        }
        match self.len {
            0 => {}
            1..=Self::BLOCK_MAX => {
                let (blocks, size) = Self::blocks(self.len);
                Blocks::give(blocks, self.ptr, size);
            }
            // SAFETY: allocated in `zeroed` with this layout, freed once.
            _ => unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) },
        }
    }
}
impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that this value owns (or none).
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}
impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}
impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len);
        copy.copy_from_slice(self);
        copy
    }
}
impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({})", self.len)
    }
}
// SAFETY: owns plain bytes.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access is read-only.
unsafe impl Sync for AlignedBuf {}

#[cfg(test)]
mod tests {
    use super::{AlignedBuf, Blocks, Mutex};

    #[test]
    fn zeroed_aligned_and_apart_whatever_was_there_before() {
        let lens = [0, 1, 512, 3584, 4096, 4097, 8192, 40_000, 65_536, 65_537, 1 << 20];
        for _ in 0..3 {
            let mut all: Vec<AlignedBuf> =
                lens.iter().chain([&3584; 600]).map(|&len| AlignedBuf::zeroed(len)).collect();
            all.extend([0, 1, 4097, 1 << 20, (2 << 20) + 1].map(AlignedBuf::huge));
            for (n, buf) in all.iter_mut().enumerate() {
                assert!(buf.iter().all(|b| *b == 0));
                assert!(buf.is_empty() || buf.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN));
                buf.fill(u8::try_from(n % 250 + 1).unwrap());
            }
            for (n, buf) in all.iter().enumerate() {
                assert!(buf.iter().all(|b| usize::from(*b) == n % 250 + 1));
                assert!(**buf == *buf.clone());
            }
        }
    }

    #[test]
    fn blocks_beyond_those_kept_are_given_back_and_used_again() {
        const SIZE: usize = 64 << 10;
        let blocks = Mutex::new(Blocks::new());
        let take = |n: usize| -> Vec<_> {
            let taken = (0..n).map(|_| {
                let (block, zeroed) = blocks.lock().take(SIZE);
                // SAFETY: a block that nobody else has.
                let bytes = unsafe { std::slice::from_raw_parts_mut(block.as_ptr(), SIZE) };
                assert!(!zeroed || bytes.iter().all(|b| *b == 0));
                bytes.fill(1);
                block
            });
            taken.collect()
        };
        for _ in 0..2 {
            take(100).into_iter().for_each(|block| Blocks::give(&blocks, block, SIZE));
            let state = blocks.lock();
            assert_eq!((state.kept.len(), state.given_back.len()), (64, 112 - 64));
        }
    }
}

//! Memory for large transfers that is used again and again.

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Huge pages that buffers of this process may ask for: what they take beyond what is used of them
/// is bounded by 64 MiB.
const PAGES_MAX: usize = 32;
/// Those asked for.
static PAGES: AtomicUsize = AtomicUsize::new(0);

/// Zeroed memory in huge pages, where the system has them and as long as there are few: the kernel looks up each page of a
/// transfer, and a transfer to one contiguous piece of memory is one segment to a device. Taken
/// from the machine as it is touched. Meant to be kept: making one costs system calls.
#[derive(Debug)]
pub struct HugeBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Huge pages asked for.
    pages: usize,
}

impl HugeBuf {
    /// Alignment and granularity in bytes.
    pub const ALIGN: usize = 2 << 20;

    /// At least `len` bytes: rounded up to whole huge pages.
    ///
    /// # Panics
    /// If the system has no memory left, or `len` exceeds the address space.
    pub fn new(len: usize) -> Self {
        let len = len.max(1).checked_next_multiple_of(Self::ALIGN).expect("length of memory");
        let mapped = len.checked_add(Self::ALIGN).expect("length of memory");
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new memory, wherever the kernel puts it.
        let base = unsafe {
            mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        let base = base.expect("memory for a buffer").cast::<u8>();
        let head = base.align_offset(Self::ALIGN);
        let pages = len / Self::ALIGN;
        let few = PAGES.fetch_add(pages, Ordering::Relaxed) + pages <= PAGES_MAX;
        if !few {
            PAGES.fetch_sub(pages, Ordering::Relaxed);
        }
        // SAFETY: `head` is less than the alignment, by which more was mapped than is needed: the
        // parts before and behind are inside the mapping, and nobody has their addresses.
        let start = unsafe {
            let start = base.add(head);
            if head > 0 {
                let _ = munmap(base.cast(), head);
            }
            if head < Self::ALIGN {
                let _ = munmap(start.add(len).cast(), Self::ALIGN - head);
            }
            if few {
                // Without huge pages it is memory all the same.
                let _ = madvise(start.cast(), len, Advice::LinuxHugepage);
            }
            start
        };
        let ptr = NonNull::new(start).expect("the kernel maps nothing at 0");
        Self { ptr, len, pages: if few { pages } else { 0 } }
    }
}
impl Drop for HugeBuf {
    fn drop(&mut self) {
        PAGES.fetch_sub(self.pages, Ordering::Relaxed);
        // SAFETY: mapped in `new`, unmapped once.
        let _ = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}
impl Deref for HugeBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes, zeroed by the kernel, that this value owns.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}
impl DerefMut for HugeBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}
// SAFETY: owns plain bytes.
unsafe impl Send for HugeBuf {}
// SAFETY: shared access is read-only.
unsafe impl Sync for HugeBuf {}

#[cfg(test)]
mod tests {
    use super::{HugeBuf, PAGES_MAX};

    #[test]
    fn zeroed_aligned_and_apart() {
        let lens = [0, 1, HugeBuf::ALIGN, HugeBuf::ALIGN + 1].into_iter().chain([1; PAGES_MAX]);
        let mut all: Vec<HugeBuf> = lens.map(HugeBuf::new).collect();
        let lens: Vec<usize> = all.iter().map(|b| b.len() / HugeBuf::ALIGN).collect();
        assert_eq!(lens[..5], [1, 1, 1, 2, 1]);
        let huge: Vec<usize> = all.iter().map(|b| b.pages).collect();
        assert!(huge.iter().sum::<usize>() <= PAGES_MAX && huge.last() == Some(&0), "{huge:?}");
        for (n, buf) in all.iter_mut().enumerate() {
            assert!(buf.as_ptr().addr().is_multiple_of(HugeBuf::ALIGN));
            assert!(buf.iter().all(|b| *b == 0));
            buf.fill(u8::try_from(n + 1).unwrap());
        }
        for (n, buf) in all.iter().enumerate() {
            assert!(buf.iter().all(|b| usize::from(*b) == n + 1));
        }
    }
}

//! Memory for large transfers that is used again and again.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use braid_format::Bytes;
use parking_lot::RwLock;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Memory of a process, in MiB, for which bounds of buffers are made: one that may have less keeps fewer
/// alike.
const MADE_FOR_MIB: usize = 512;
/// Memory that this process may have, MiB.
static MEMORY_MIB: AtomicUsize = AtomicUsize::new(MADE_FOR_MIB);

/// This process may have `bytes` of memory: with less than 512 MiB fewer huge pages are asked for, and
/// [`fitting`] buffers kept. Holds for what is asked for from then on.
pub fn fit_memory(bytes: Bytes) {
    let mib = usize::try_from(bytes.get() >> 20).unwrap_or(usize::MAX);
    MEMORY_MIB.store(mib, Ordering::Relaxed);
}
/// How many of `most` buffers may be kept in the memory that this process may have; at least one.
pub fn fitting(most: usize) -> usize {
    let mib = MEMORY_MIB.load(Ordering::Relaxed).min(MADE_FOR_MIB);
    (most * mib / MADE_FOR_MIB).max(1)
}
/// One `part`-th of the memory that this process may have, in bytes.
pub fn memory_part(part: usize) -> usize {
    MEMORY_MIB.load(Ordering::Relaxed).saturating_mul(1 << 20) / part
}

/// How many huge pages buffers of one use may ask for in this process, which bounds what they take
/// beyond what is used of them.
#[derive(Debug)]
pub struct HugePages {
    most: usize,
    asked: AtomicUsize,
}
impl HugePages {
    /// At most so many, of [`HugeBuf::ALIGN`] bytes each; fewer in little memory ([`fit_memory`]).
    pub const fn new(most: usize) -> Self {
        Self { most, asked: AtomicUsize::new(0) }
    }
    /// Whether so many more are within the bound; if so they count.
    fn ask(&self, pages: usize) -> bool {
        let few = self.asked.fetch_add(pages, Ordering::Relaxed) + pages <= fitting(self.most);
        if !few {
            self.give_back(pages);
        }
        few
    }
    fn give_back(&self, pages: usize) {
        self.asked.fetch_sub(pages, Ordering::Relaxed);
    }
}

/// Of all buffers that have no bound of their own: 64 MiB.
static COMMON: HugePages = HugePages::new(32);

/// Where the buffers are for which huge pages were asked: first address to length.
static PLACES: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());

/// Whether memory is in huge pages, as far as this process asked for them.
pub(crate) fn is_huge(base: *const u8, len: usize) -> bool {
    let places = PLACES.read();
    let before = places.range(..=base.addr()).next_back();
    before.is_some_and(|(start, size)| base.addr() - start <= size.saturating_sub(len))
}

/// Zeroed memory in huge pages, where the system has them and as long as there are few: the kernel looks up each page of a
/// transfer, and a transfer to one contiguous piece of memory is one segment to a device. Taken
/// from the machine as it is touched. Meant to be kept: making one costs system calls.
#[derive(Debug)]
pub struct HugeBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Huge pages asked for, and within which bound.
    pages: usize,
    of: &'static HugePages,
}

impl HugeBuf {
    /// Alignment and granularity in bytes.
    pub const ALIGN: usize = 2 << 20;

    /// At least `len` bytes, rounded up to whole huge pages, within the bound common to all uses.
    ///
    /// # Panics
    /// If the system has no memory left, or `len` exceeds the address space.
    pub fn new(len: usize) -> Self {
        Self::within(&COMMON, len)
    }
    /// The same within another bound.
    ///
    /// # Panics
    /// As [`HugeBuf::new`].
    pub fn within(of: &'static HugePages, len: usize) -> Self {
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
        let few = of.ask(pages);
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
        if few {
            PLACES.write().insert(start.addr(), len);
        }
        Self { ptr, len, pages: if few { pages } else { 0 }, of }
    }
    /// Whether huge pages were asked for: the first byte that is touched of each takes all of it.
    pub fn is_huge(&self) -> bool {
        self.pages > 0
    }
    /// Gives what is behind the first `from` bytes back to the machine, where huge pages were not asked
    /// for: it reads as zeroes, and is there again when touched.
    pub fn discard_from(&mut self, from: usize) {
        let from = from.next_multiple_of(4096);
        if self.is_huge() || from >= self.len {
            return;
        }
        // SAFETY: inside a private mapping of nothing, that this value owns.
        let done = unsafe {
            let behind = self.ptr.as_ptr().add(from);
            madvise(behind.cast(), self.len - from, Advice::LinuxDontNeed)
        };
        if done.is_err() {
            self[from..].fill(0);
        }
    }
    /// Gives it back to the machine: it reads as zeroes, and is there again when touched.
    pub fn discard(&mut self) {
        // SAFETY: a private mapping of nothing, that this value owns.
        if unsafe { madvise(self.ptr.as_ptr().cast(), self.len, Advice::LinuxDontNeed) }.is_err() {
            self.fill(0);
        }
    }
}
impl Drop for HugeBuf {
    fn drop(&mut self) {
        self.of.give_back(self.pages);
        if self.pages > 0 {
            PLACES.write().remove(&self.ptr.as_ptr().addr());
        }
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
    use super::{HugeBuf, HugePages, is_huge};

    static FEW: HugePages = HugePages::new(6);

    #[test]
    fn zeroed_aligned_and_apart() {
        let lens = [0, 1, HugeBuf::ALIGN, HugeBuf::ALIGN + 1].into_iter().chain([1; 3]);
        let mut all: Vec<HugeBuf> = lens.map(|len| HugeBuf::within(&FEW, len)).collect();
        let lens: Vec<usize> = all.iter().map(|b| b.len() / HugeBuf::ALIGN).collect();
        assert_eq!(lens[..5], [1, 1, 1, 2, 1]);
        let huge: Vec<usize> = all.iter().map(|b| b.pages).collect();
        assert_eq!(huge, [1, 1, 1, 2, 1, 0, 0]);
        for b in &all {
            assert_eq!(is_huge(b.as_ptr(), b.len()), b.pages > 0);
            assert_eq!(is_huge(b.as_ptr().wrapping_add(4096), b.len() - 4096), b.pages > 0);
            assert!(!is_huge(b.as_ptr().wrapping_add(4096), b.len()));
        }
        let outside = [0_u8; 8];
        assert!(!is_huge(outside.as_ptr(), 8));
        for (n, buf) in all.iter_mut().enumerate() {
            assert!(buf.as_ptr().addr().is_multiple_of(HugeBuf::ALIGN));
            assert!(buf.iter().all(|b| *b == 0));
            buf.fill(u8::try_from(n + 1).unwrap());
        }
        for (n, buf) in all.iter().enumerate() {
            assert!(buf.iter().all(|b| usize::from(*b) == n + 1));
        }
        drop(all);
        assert_eq!(HugeBuf::within(&FEW, 6 * HugeBuf::ALIGN).pages, 6);
    }
}

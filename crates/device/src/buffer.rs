//! Memory for I/O.
//!
//! Buffers of up to a page come from slabs of their own: a general allocator that is asked for
//! aligned memory leaves a gap as large as the alignment beside each block, and a file system holds
//! tens of thousands of such buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use parking_lot::Mutex;

use crate::HugeBuf;

/// Pages that nobody uses. What was ever in use at a time stays with the process.
static FREE: Mutex<Pages> = Mutex::new(Pages(Vec::new()));

struct Pages(Vec<NonNull<u8>>);
// SAFETY: owns the pages in it.
unsafe impl Send for Pages {}

impl Pages {
    /// Pages taken from the system at a time.
    const SLAB: usize = 256;

    /// A page of whatever bytes.
    fn take(&mut self) -> NonNull<u8> {
        if let Some(page) = self.0.pop() {
            return page;
        }
        let layout = AlignedBuf::layout(Self::SLAB * AlignedBuf::ALIGN);
        // SAFETY: the layout's size is not 0.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(slab) = NonNull::new(raw) else { handle_alloc_error(layout) };
        for n in 1..Self::SLAB {
            // SAFETY: inside the slab, which is never freed.
            self.0.push(unsafe { slab.add(n * AlignedBuf::ALIGN) });
        }
        slab
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
            1..=Self::ALIGN => {
                let ptr = FREE.lock().take();
                // SAFETY: a page, so at least `len` bytes, that nobody else has.
                unsafe { ptr.write_bytes(0, len) };
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
            1..=Self::ALIGN => FREE.lock().0.push(self.ptr),
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
    use super::AlignedBuf;

    #[test]
    fn zeroed_aligned_and_apart_whatever_was_there_before() {
        let lens = [0, 1, 512, 3584, 4096, 4097, 1 << 20];
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
}

//! Memory that a Python program lends: contiguous bytes of anything that has the buffer protocol (`bytearray`,
//! `memoryview`, `mmap`, arrays of NumPy). File contents go straight into it and out of it.
//!
//! Python does not keep a program from using memory that it has lent to a call; neither do `os.readv` and the like. What
//! such a program reads or writes is then any mixture of both, never another object's memory: the buffer is held until
//! the call has ended, and cannot move or shrink meanwhile.

use std::ptr::NonNull;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Largest part of a range that one request is for. Parts begin at multiples of it.
pub const PART_MAX: u64 = 4 << 20;

/// Memory of a Python object, which is held as long as this is.
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    held: Held,
}

enum Held {
    Buffer(PyUntypedBuffer),
    /// New: nobody else has it yet.
    Bytes(Py<PyBytes>),
}

impl Memory {
    /// To be read from.
    ///
    /// # Errors
    /// It is no buffer, or not contiguous.
    pub fn to_read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous: copy it first"));
        }
        let start = NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling());
        Ok(Self { start, len: buffer.len_bytes(), held: Held::Buffer(buffer) })
    }

    /// To be written to.
    ///
    /// # Errors
    /// As [`Self::to_read`]; it is read-only.
    pub fn to_fill(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let memory = Self::to_read(object)?;
        if let Held::Buffer(buffer) = &memory.held
            && buffer.readonly()
        {
            return Err(PyBufferError::new_err(
                "the buffer is read-only: pass a writable one, such as a bytearray or an mmap",
            ));
        }
        Ok(memory)
    }

    /// A new object of `len` zero bytes, to be filled.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new_bytes(py: Python<'_>, len: usize) -> PyResult<Self> {
        let bytes = PyBytes::new_with(py, len, |_| Ok(()))?;
        // SAFETY: a `bytes` object, under the GIL. The pointer is good as long as the object lives.
        let start = unsafe { ffi::PyBytes_AsString(bytes.as_ptr()) };
        let start = NonNull::new(start.cast()).unwrap_or(NonNull::dangling());
        Ok(Self { start, len, held: Held::Bytes(bytes.unbind()) })
    }

    /// The object made by [`Self::new_bytes`], of which `len` bytes were filled.
    pub fn into_bytes(self, py: Python<'_>, len: usize) -> Bound<'_, PyBytes> {
        match self.held {
            Held::Bytes(bytes) if len < self.len => {
                PyBytes::new(py, bytes.as_bytes(py).get(..len).unwrap_or_default())
            }
            Held::Bytes(bytes) => bytes.into_bound(py),
            Held::Buffer(_) => PyBytes::new(py, &[]),
        }
    }

    /// Cuts it into parts for requests of a file from `offset` on, for the range with this number.
    ///
    /// # Errors
    /// It would end behind the largest offset.
    pub fn parts(&self, offset: u64, range: usize, parts: &mut Vec<Part>) -> PyResult<()> {
        let end = offset.checked_add(self.len as u64).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(|| PyValueError::new_err("the range ends behind 2**63"))?;
        let mut at = offset;
        while at < end {
            let next = (at / PART_MAX + 1).saturating_mul(PART_MAX).min(end);
            let inside = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
            // SAFETY: `at` is below `end`, so the sum is inside of this memory.
            let start = unsafe { self.start.add(inside(at)) };
            parts.push(Part { start, len: inside(next) - inside(at), offset: at, range });
            at = next;
        }
        Ok(())
    }
}

/// Refuses memory in which two ranges would be put at the same place.
///
/// # Errors
/// Says so.
pub fn refuse_overlaps(all: &[Memory]) -> PyResult<()> {
    let places = all.iter().filter(|m| m.len > 0).map(|m| (m.start.as_ptr() as usize, m.len));
    let mut places: Vec<(usize, usize)> = places.collect();
    places.sort_unstable();
    let overlap = |pair: &[(usize, usize)]| matches!(pair, [(a, len), (b, _)] if a + len > *b);
    if places.windows(2).any(overlap) {
        return Err(PyValueError::new_err(
            "the buffers overlap: give each range memory of its own",
        ));
    }
    Ok(())
}

/// A part of lent memory, and the bytes of a file that belong there.
pub struct Part {
    start: NonNull<u8>,
    len: usize,
    /// In the file.
    pub offset: u64,
    /// Of which range it is a part.
    pub range: usize,
}

// SAFETY: it is plain memory, whichever thread uses it. Who may use it when: see the methods.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Part {
    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }
    /// The memory, to be filled.
    ///
    /// # Safety
    /// The [`Memory`] that this is a part of is writable (or new bytes) and still held, and nobody else in this
    /// process's native code uses this part.
    #[expect(clippy::mut_from_ref, reason = "the caller has it alone")]
    pub unsafe fn to_fill(&self) -> &mut [u8] {
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
    /// The memory, to be read.
    ///
    /// # Safety
    /// The [`Memory`] that this is a part of is still held.
    pub unsafe fn to_read(&self) -> &[u8] {
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

//! `File`: an open file of a native node.

#![expect(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::InodeNo;
use braid_fs::{Error, Fh, Fs, Plock, PlockKind, ReadRange, SetAttr, WriteFlags};
use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use rustix::io::Errno;

use crate::buffers::{Memory, PART_MAX, Part, refuse_overlaps};
use crate::closed::{Closed, in_repr};
use crate::errors;
use crate::locks::{self, Locked};
use crate::node::Node;
use crate::status::stat_result;

/// A part of a file that a program asks for: offset and length.
type Range = (u64, usize);

/// How a file is open.
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
#[derive(Debug, Clone)]
pub struct OpenAs {
    /// As in the call.
    pub path: PathBuf,
    /// As in the call.
    pub mode: String,
    /// May be read.
    pub readable: bool,
    /// May be written.
    pub writable: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// Writes go to the devices, past the cache.
    pub direct: bool,
}

/// An open file of a native node: raw and binary, with a position, so that `io.BufferedReader` and the like take it.
///
/// Offsets and lengths are bytes. Buffers are anything with contiguous memory; contents go straight in or out, and
/// memory that begins with a page (`braid.aligned_buffer`) saves a copy. Nothing else may use a buffer until the call
/// returns. What was written is seen by all nodes on return, and durable after `fsync`. Of a write that fails some parts
/// may have been written. Errors are OSError; of a closed file ValueError.
#[pyclass(frozen, weakref, module = "braid")]
pub struct File {
    node: Arc<Node>,
    fh: Fh,
    ino: InodeNo,
    how: OpenAs,
    /// Where `read` and `write` go on.
    position: Mutex<u64>,
    closed: Closed,
    /// Locks were asked for, which a close drops: of the whole file, of ranges.
    locked: [AtomicBool; 2],
}

/// What came of each part.
type Outcomes = Arc<Vec<Mutex<Option<Result<usize, Error>>>>>;

fn flags(how: &OpenAs) -> WriteFlags {
    WriteFlags {
        direct: how.direct,
        append: how.append,
        kill_privileges: !rustix::process::geteuid().is_root(),
        ..WriteFlags::default()
    }
}

/// Reads a part. Memory behind the end of the file gets zeros, up to the end of the block.
fn read_part(fs: &Fs, (fh, block): (Fh, usize), part: &Part) -> Result<usize, Error> {
    let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
    let range = ReadRange { offset: part.offset, len, fill: false };
    // SAFETY: whoever made the parts holds their memory, which can be written and does not overlap, until all are
    // done.
    let memory = unsafe { part.to_fill() };
    let (n, hold) = fs.read_into(fh, range, memory)?;
    drop(hold);
    let behind = n.next_multiple_of(block).min(memory.len());
    if let Some(behind) = memory.get_mut(n..behind) {
        behind.fill(0);
    }
    Ok(n)
}

/// Writes all of a part.
fn write_part(fs: &Fs, (fh, flags): (Fh, WriteFlags), part: &Part) -> Result<usize, Error> {
    // SAFETY: whoever made the parts holds their memory until all are done.
    let mut bytes = unsafe { part.to_read() };
    let mut offset = part.offset;
    while !bytes.is_empty() {
        let n = fs.write(fh, offset, bytes, flags)?;
        if n == 0 {
            return Err(Error::NoSpace);
        }
        offset += n as u64;
        bytes = bytes.get(n..).unwrap_or_default();
    }
    Ok(part.len())
}

impl File {
    /// Of a handle that the node has opened.
    pub fn new(node: Arc<Node>, (ino, fh): (InodeNo, Fh), how: OpenAs) -> Self {
        let position = Mutex::new(0);
        Self { node, fh, ino, how, position, closed: Closed::default(), locked: Default::default() }
    }

    fn fs(&self) -> PyResult<&Fs> {
        let fs = self.node.fs()?;
        self.closed.refuse("I/O operation on closed file")?;
        Ok(fs)
    }

    fn raise(&self, error: &Error) -> PyErr {
        errors::at(error, &self.how.path)
    }

    fn require(&self, may: bool, what: &str) -> PyResult<()> {
        if may {
            return Ok(());
        }
        let message = format!("the file is not open for {what} (mode {:?})", self.how.mode);
        Err(PyOSError::new_err((
            Errno::BADF.raw_os_error(),
            message,
            self.how.path.clone().into_os_string(),
        )))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let fs = self.fs()?;
        let attr = py.detach(|| fs.getattr(self.ino)).map_err(|error| self.raise(&error))?;
        Ok(attr.size)
    }

    /// Does all parts at once.
    fn run(
        &self,
        py: Python<'_>,
        parts: Vec<Part>,
        work: impl Fn(&Fs, Fh, &Part) -> Result<usize, Error> + Send + Sync + 'static,
    ) -> PyResult<Vec<(usize, usize, usize)>> {
        let (fs, fh) = (self.fs()?.clone(), self.fh);
        let outcomes: Outcomes = Arc::new(parts.iter().map(|_| Mutex::new(None)).collect());
        let lens: Vec<(usize, usize)> = parts.iter().map(|p| (p.range, p.len())).collect();
        let (count, told) = (parts.len(), outcomes.clone());
        py.detach(|| {
            self.node.workers().run(count, move |n| {
                if let (Some(part), Some(outcome)) = (parts.get(n), told.get(n)) {
                    let done = work(&fs, fh, part);
                    *outcome.lock() = Some(done);
                }
            });
        });
        let mut all = Vec::new();
        for ((range, len), outcome) in lens.into_iter().zip(outcomes.iter()) {
            // None: the thread panicked, which it does only over a mistake of ours.
            let done = outcome.lock().take().unwrap_or(Err(Error::Interrupted));
            all.push((range, len, done.map_err(|error| self.raise(&error))?));
        }
        Ok(all)
    }

    /// Fills memory from the offsets beside it: how many bytes each got, fewer only at the end of the file.
    fn fill(&self, py: Python<'_>, offsets: &[u64], memory: &[Memory]) -> PyResult<Vec<usize>> {
        self.require(self.how.readable, "reading")?;
        let mut parts = Vec::new();
        for (range, (offset, memory)) in offsets.iter().zip(memory).enumerate() {
            memory.parts(*offset, range, &mut parts)?;
        }
        let block = self.node.block;
        let read = move |fs: &Fs, fh, part: &Part| read_part(fs, (fh, block), part);
        let done = self.run(py, parts, read)?;
        let mut got = vec![0; memory.len()];
        let mut ended = vec![false; memory.len()];
        for (range, len, n) in done {
            if let (Some(got), Some(ended)) = (got.get_mut(range), ended.get_mut(range)) {
                // What stands behind a short part was written meanwhile.
                *got += if *ended { 0 } else { n };
                *ended |= n < len;
            }
        }
        Ok(got)
    }

    /// Writes memory to the offsets beside it.
    fn store(&self, py: Python<'_>, offsets: &[u64], memory: &[Memory]) -> PyResult<usize> {
        self.require(self.how.writable, "writing")?;
        let mut parts = Vec::new();
        for (range, (offset, memory)) in offsets.iter().zip(memory).enumerate() {
            memory.parts(*offset, range, &mut parts)?;
        }
        let flags = flags(&self.how);
        if flags.append {
            // In order: each goes to where the file then ends.
            let fs = self.fs()?;
            let write = |part: &Part| write_part(fs, (self.fh, flags), part);
            let done: Result<usize, Error> = py.detach(|| parts.iter().map(write).sum());
            return done.map_err(|error| self.raise(&error));
        }
        let done = self.run(py, parts, move |fs, fh, part| write_part(fs, (fh, flags), part))?;
        Ok(done.into_iter().map(|(.., n)| n).sum())
    }

    fn read_at(&self, py: Python<'_>, (offset, len): Range) -> PyResult<Py<PyBytes>> {
        let there = self.size(py)?.saturating_sub(offset);
        let len = len.min(usize::try_from(there).unwrap_or(usize::MAX));
        let memory = [Memory::new_bytes(py, len)?];
        let got = self.fill(py, &[offset], &memory)?;
        let [memory] = memory;
        Ok(memory.into_bytes(py, got.first().copied().unwrap_or(0)).unbind())
    }

    fn lock(&self, py: Python<'_>, whole: bool, lock: &Plock, waits: bool) -> PyResult<()> {
        self.fs()?;
        if let Some(locked) = self.locked.get(usize::from(whole)) {
            locked.store(true, Ordering::Release);
        }
        let on = Locked { ino: self.ino, whole };
        locks::set(py, &self.node, on, lock, waits)?;
        // Another thread may have closed it meanwhile, when there was nothing to drop yet.
        self.fs().map(drop).inspect_err(|_| {
            let unlock = Plock { kind: PlockKind::Unlock, ..*lock };
            locks::set(py, &self.node, on, &unlock, false).ok();
        })
    }

    fn plock(&self, kind: PlockKind, start: u64, end: u64) -> Plock {
        let uid = rustix::process::geteuid().as_raw();
        Plock { start, end, kind, owner: self.fh, pid: std::process::id(), uid }
    }

    /// Drops its locks and closes the handle.
    fn release(&self, fs: &Fs) -> Result<(), Error> {
        let [ranges, whole] = &self.locked;
        let unlock = self.plock(PlockKind::Unlock, 0, u64::MAX);
        let mut done = Ok(());
        if ranges.load(Ordering::Acquire) {
            done = done.and(fs.setlk(self.ino, &unlock, None));
        }
        if whole.load(Ordering::Acquire) {
            done = done.and(fs.flock(self.ino, &unlock, None));
        }
        done.and(fs.release(self.fh))
    }
}

#[pymethods]
impl File {
    /// Where it was opened.
    #[getter]
    fn name(&self) -> &OsStr {
        self.how.path.as_os_str()
    }
    /// As it was opened.
    #[getter]
    fn mode(&self) -> &str {
        &self.how.mode
    }
    /// Whether it is closed, or its file system is.
    #[getter]
    fn closed(&self) -> bool {
        self.closed.is_closed() || self.node.is_closed()
    }
    /// Whether it may be read.
    const fn readable(&self) -> bool {
        self.how.readable
    }
    /// Whether it may be written.
    const fn writable(&self) -> bool {
        self.how.writable
    }
    /// It has a position.
    #[staticmethod]
    const fn seekable() -> bool {
        true
    }
    /// It is no terminal.
    #[staticmethod]
    const fn isatty() -> bool {
        false
    }
    /// It has no descriptor: always raises.
    fn fileno(&self) -> PyResult<i32> {
        let message =
            "a native file has no descriptor: open it through a mount for calls that need one";
        Err(PyOSError::new_err((
            Errno::BADF.raw_os_error(),
            message,
            self.how.path.clone().into_os_string(),
        )))
    }

    /// At most `length` bytes from `offset`; fewer only at the end of the file.
    fn pread(&self, py: Python<'_>, length: usize, offset: u64) -> PyResult<Py<PyBytes>> {
        self.read_at(py, (offset, length))
    }
    /// Fills `buffer` from `offset`: how many bytes, fewer only at the end of the file.
    fn read_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let memory = [Memory::to_fill(buffer)?];
        Ok(self.fill(py, &[offset], &memory)?.into_iter().sum())
    }
    /// Contents of many ranges, given as (offset, length), at once.
    fn read_ranges(&self, py: Python<'_>, ranges: Vec<Range>) -> PyResult<Vec<Py<PyBytes>>> {
        let size = self.size(py)?;
        let mut memory = Vec::with_capacity(ranges.len());
        for (offset, len) in &ranges {
            let there = usize::try_from(size.saturating_sub(*offset)).unwrap_or(usize::MAX);
            memory.push(Memory::new_bytes(py, there.min(*len))?);
        }
        let offsets: Vec<u64> = ranges.iter().map(|(offset, _)| *offset).collect();
        let got = self.fill(py, &offsets, &memory)?;
        let filled = memory.into_iter().zip(got);
        Ok(filled.map(|(memory, n)| memory.into_bytes(py, n).unbind()).collect())
    }
    /// Fills many buffers, given as (offset, buffer), at once: how many bytes each got.
    fn read_ranges_into(
        &self,
        py: Python<'_>,
        ranges: Vec<(u64, Bound<'_, PyAny>)>,
    ) -> PyResult<Vec<usize>> {
        let memory = ranges.iter().map(|(_, buffer)| Memory::to_fill(buffer));
        let memory = memory.collect::<PyResult<Vec<_>>>()?;
        refuse_overlaps(&memory)?;
        let offsets: Vec<u64> = ranges.iter().map(|(offset, _)| *offset).collect();
        self.fill(py, &offsets, &memory)
    }
    /// Writes all of `data` at `offset`: how many bytes.
    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        self.store(py, &[offset], &[Memory::to_read(data)?])
    }
    /// Writes many pieces, given as (offset, data), at once: how many bytes in all.
    fn write_ranges(
        &self,
        py: Python<'_>,
        ranges: Vec<(u64, Bound<'_, PyAny>)>,
    ) -> PyResult<usize> {
        let memory = ranges.iter().map(|(_, data)| Memory::to_read(data));
        let memory = memory.collect::<PyResult<Vec<_>>>()?;
        let offsets: Vec<u64> = ranges.iter().map(|(offset, _)| *offset).collect();
        self.store(py, &offsets, &memory)
    }

    /// Reads from the position on: at most `size` bytes, or all.
    #[pyo3(signature = (size=None, /))]
    fn read(&self, py: Python<'_>, size: Option<isize>) -> PyResult<Py<PyBytes>> {
        let len = size.and_then(|size| usize::try_from(size).ok()).unwrap_or(usize::MAX);
        let offset = *self.position.lock();
        let bytes = self.read_at(py, (offset, len))?;
        *self.position.lock() = offset + bytes.as_bytes(py).len() as u64;
        Ok(bytes)
    }
    /// All from the position on.
    fn readall(&self, py: Python<'_>) -> PyResult<Py<PyBytes>> {
        self.read(py, None)
    }
    /// Fills `buffer` from the position on: how many bytes.
    #[pyo3(signature = (buffer, /))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let offset = *self.position.lock();
        let n = self.read_into(py, buffer, offset)?;
        *self.position.lock() = offset + n as u64;
        Ok(n)
    }
    /// Writes all of `data` at the position, or at the end if the file was opened to append: how many bytes.
    #[pyo3(signature = (data, /))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let offset = *self.position.lock();
        let n = self.pwrite(py, data, offset)?;
        let end = if self.how.append { self.size(py)? } else { offset + n as u64 };
        *self.position.lock() = end;
        Ok(n)
    }
    /// Moves the position: from the start (0), from where it is (1), from the end (2).
    #[pyo3(signature = (offset, whence=0, /))]
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        let from = match whence {
            0 => 0,
            1 => *self.position.lock(),
            2 => self.size(py)?,
            _ => return Err(PyValueError::new_err("whence is 0, 1 or 2")),
        };
        self.fs()?;
        let to = from.checked_add_signed(offset).filter(|to| i64::try_from(*to).is_ok());
        let to = to
            .ok_or_else(|| PyValueError::new_err("a position before the start, or behind 2**63"))?;
        *self.position.lock() = to;
        Ok(to)
    }
    /// The position.
    fn tell(&self) -> PyResult<u64> {
        self.fs()?;
        Ok(*self.position.lock())
    }
    /// Nothing is kept in this object: does nothing. `fsync` makes durable.
    fn flush(&self) -> PyResult<()> {
        self.fs().map(drop)
    }
    /// Makes the file as long as `size`, or as the position says.
    #[pyo3(signature = (size=None, /))]
    fn truncate(&self, py: Python<'_>, size: Option<u64>) -> PyResult<u64> {
        self.require(self.how.writable, "writing")?;
        let fs = self.fs()?;
        let size = size.unwrap_or(*self.position.lock());
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let done = py.detach(|| fs.setattr(self.ino, &set, Some(self.fh)));
        done.map_err(|error| self.raise(&error))?;
        Ok(size)
    }
    /// Makes durable on return what was written, and with `data_only` of the metadata only what leads to it.
    #[pyo3(signature = (data_only=false))]
    fn fsync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        let fs = self.fs()?;
        py.detach(|| fs.fsync(self.fh, data_only)).map_err(|error| self.raise(&error))
    }
    /// Gives the file space for `length` bytes from `offset`, and makes it at least as long.
    fn allocate(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.require(self.how.writable, "writing")?;
        let fs = self.fs()?;
        let done = py.detach(|| fs.fallocate(self.fh, 0, offset, length));
        done.map_err(|error| self.raise(&error))
    }
    /// Its attributes, as `os.fstat`.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let fs = self.fs()?;
        let attr = py.detach(|| fs.getattr(self.ino)).map_err(|error| self.raise(&error))?;
        stat_result(py, &attr)
    }
    /// A lock of the whole file among all nodes, as `fcntl.flock`; it belongs to this object. A signal whose handler
    /// raises ends the wait. Raises BlockingIOError if another has it and LOCK_NB is set.
    fn flock(&self, py: Python<'_>, operation: i32) -> PyResult<()> {
        let (kind, waits) = locks::operation(operation)?;
        self.lock(py, true, &self.plock(kind, 0, u64::MAX), waits)
    }
    /// A lock of bytes among all nodes, as `fcntl.lockf`; it belongs to this object, not to the process.
    #[pyo3(signature = (cmd, len=0, start=0, whence=0))]
    fn lockf(&self, py: Python<'_>, cmd: i32, len: u64, start: i64, whence: i32) -> PyResult<()> {
        let (kind, waits) = locks::operation(cmd)?;
        let from = match whence {
            0 => 0,
            1 => *self.position.lock(),
            2 => self.size(py)?,
            _ => return Err(PyValueError::new_err("whence is 0, 1 or 2")),
        };
        let bad =
            || PyValueError::new_err("the range begins before the start, or ends behind 2**63");
        let start = from.checked_add_signed(start).ok_or_else(bad)?;
        let end = match len {
            0 => u64::MAX,
            len => start
                .checked_add(len - 1)
                .filter(|end| i64::try_from(*end).is_ok())
                .ok_or_else(bad)?,
        };
        match kind {
            PlockKind::Shared => {
                self.require(self.how.readable, "reading, which a shared lock needs")?;
            }
            PlockKind::Exclusive => {
                self.require(self.how.writable, "writing, which an exclusive lock needs")?;
            }
            PlockKind::Unlock => {}
        }
        self.lock(py, false, &self.plock(kind, start, end), waits)
    }
    /// Drops its locks and closes it; makes nothing durable. Again: does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.node.refuse_child()?;
        if !self.closed.close() || self.node.is_closed() {
            return Ok(());
        }
        let fs = self.node.fs()?;
        py.detach(|| self.release(fs)).map_err(|error| self.raise(&error))
    }
    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        slf.fs()?;
        Ok(slf)
    }
    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
    fn __repr__(&self) -> String {
        let closed = in_repr(self.closed());
        format!("<braid.File '{}' mode='{}'{closed}>", self.how.path.display(), self.how.mode)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !self.closed.close() {
            return;
        }
        // In a child, or once the node has left, there is nothing to close.
        let Ok(fs) = self.node.fs() else { return };
        let released = Python::try_attach(|py| py.detach(|| self.release(fs)));
        drop(released.unwrap_or_else(|| self.release(fs)));
    }
}

/// For documents: the length of the parts that large requests are cut into.
pub const REQUEST_MAX: u64 = PART_MAX;

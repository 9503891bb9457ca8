//! A node of a pool in this process: how it joins and leaves, and what becomes of it when the process forks.
//!
//! A process that forks has its threads in the parent alone, so a child cannot use the node: its locks may be held by
//! threads that are not there, and its heartbeat has stopped. Each call compares the process id first. In the child
//! nothing of the node is used or dropped any more; only the descriptors of the members are closed, because they share
//! the parent's kernel locks: with them the node would seem to live as long as the child does.
//!
//! Nor can a child join by itself: what all nodes of a process share (locks, lists of threads that wait) is as the
//! parent's threads had it in the moment of the fork. So if a process has used a pool natively, its children are refused
//! that, unless they begin with a new program (`multiprocessing` with "spawn" or "forkserver").

use std::fs::Metadata;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use braid_fs::pool::Pool;
use braid_fs::{Fs, Holds, MountOptions, NoKernelCache};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use rustix::io::Errno;

use crate::closed::Closed;
use crate::errors;
use crate::workers::Workers;

/// The nodes of this process. Used under the GIL only, and never across a release of it, so that nobody holds it in the
/// moment of a fork.
static NODES: Mutex<Vec<Weak<Node>>> = Mutex::new(Vec::new());

/// Called when a node has joined: sees to it that it leaves when the process ends.
static ON_JOIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The process that has used a pool natively; 0: none has yet.
static USED_BY: AtomicU32 = AtomicU32::new(0);

/// What a child is to close, found just before the fork.
static OF_PARENT: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Notes that this process uses pools natively.
///
/// # Errors
/// It was forked from one that does.
pub fn uses_pools() -> PyResult<()> {
    let own = std::process::id();
    match USED_BY.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire) {
        Err(by) if by != own => Err(errors::os_error(
            Errno::BADF,
            format!(
                "this process was forked from process {by}, which has used a pool natively, so that it cannot do so \
                 itself: start it as a new program (multiprocessing: the start method \"spawn\" or \"forkserver\"), or \
                 read and write through a mount"
            ),
        )),
        _ => Ok(()),
    }
}

/// A node.
pub struct Node {
    fs: ManuallyDrop<Fs>,
    /// Other programs are kept from the members meanwhile.
    holds: ManuallyDrop<Mutex<Option<Holds>>>,
    workers: ManuallyDrop<Workers>,
    /// Bytes in a block.
    pub block: usize,
    /// The process that it belongs to.
    pid: u32,
    closed: Closed,
}

impl Node {
    /// Joins.
    ///
    /// # Errors
    /// As [`Fs::mount`].
    pub fn join(
        py: Python<'_>,
        pool: Pool,
        options: MountOptions,
        protected: bool,
    ) -> PyResult<Arc<Self>> {
        let joined = py.detach(|| {
            let mount = if protected { Fs::mount_protected } else { Fs::mount };
            let fs = mount(pool, options, Arc::new(NoKernelCache))?;
            let holds = Holds::of(&fs);
            Ok((fs, holds))
        });
        let (fs, holds) = joined.map_err(|error| errors::of(&error))?;
        let node = Arc::new(Self {
            block: usize::try_from(fs.space().block_size).unwrap_or(1).max(1),
            fs: ManuallyDrop::new(fs),
            holds: ManuallyDrop::new(Mutex::new(Some(holds))),
            workers: ManuallyDrop::default(),
            pid: std::process::id(),
            closed: Closed::default(),
        });
        let mut nodes = NODES.lock();
        nodes.retain(|node| node.strong_count() > 0);
        nodes.push(Arc::downgrade(&node));
        drop(nodes);
        if let Some(joined) = ON_JOIN.get(py) {
            joined.call0(py)?;
        }
        Ok(node)
    }

    /// The file system, to be called with the GIL released.
    ///
    /// # Errors
    /// This process is a child of the one that joined; the node has left.
    pub fn fs(&self) -> PyResult<&Fs> {
        self.refuse_child()?;
        self.closed.refuse("the file system is closed: open it again")?;
        Ok(&self.fs)
    }

    /// Threads for large requests.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Whether it has left.
    pub fn is_closed(&self) -> bool {
        self.closed.is_closed()
    }

    /// Whether this process is the one that joined.
    pub fn is_own(&self) -> bool {
        std::process::id() == self.pid
    }

    /// # Errors
    /// This process is a child of the one that joined.
    pub fn refuse_child(&self) -> PyResult<()> {
        if self.is_own() {
            return Ok(());
        }
        Err(errors::os_error(
            Errno::BADF,
            format!(
                "this file system was opened by process {}, from which this one was forked, and cannot be used here: \
                 start this process as a new program (multiprocessing: the start method \"spawn\" or \"forkserver\") and \
                 open the pool in it, or read and write through a mount",
                self.pid
            ),
        ))
    }

    /// Leaves: all that was written is durable on return, and the slot is free. Again: does nothing.
    ///
    /// # Errors
    /// A device failed; this process is a child of the one that joined.
    pub fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.refuse_child()?;
        if !self.closed.close() {
            return Ok(());
        }
        py.detach(|| self.unmount()).map_err(|error| errors::of(&error))
    }

    fn unmount(&self) -> Result<(), braid_fs::Error> {
        let left = self.fs.unmount();
        drop(self.holds.lock().take());
        left
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        if self.closed.close() {
            // As a file that nobody has closed. Nobody could do anything about an error: other nodes replay the journal.
            let left = Python::try_attach(|py| py.detach(|| self.unmount()));
            drop(left.unwrap_or_else(|| self.unmount()));
        }
        // SAFETY: here, once, and nobody uses them afterwards.
        unsafe {
            ManuallyDrop::drop(&mut self.workers);
            ManuallyDrop::drop(&mut self.holds);
            ManuallyDrop::drop(&mut self.fs);
        }
    }
}

/// Those of this process.
fn living() -> Vec<Arc<Node>> {
    let nodes: Vec<Arc<Node>> = NODES.lock().iter().filter_map(Weak::upgrade).collect();
    nodes.into_iter().filter(|node| node.is_own() && !node.is_closed()).collect()
}

/// Leaves all pools: when the process ends. The first error counts.
///
/// # Errors
/// As [`Node::leave`].
#[pyfunction]
pub fn _leave_all(py: Python<'_>) -> PyResult<()> {
    living().iter().map(|node| node.leave(py)).fold(Ok(()), Result::and)
}

/// Sets what is called whenever a node has joined.
#[pyfunction]
pub fn _on_join(py: Python<'_>, call: Py<PyAny>) {
    // Once only: the package is loaded once.
    ON_JOIN.set(py, call).ok();
}

/// Which device or file it is.
fn identity(meta: &Metadata) -> (bool, u64, u64) {
    if meta.file_type().is_block_device() {
        (true, meta.rdev(), 0)
    } else {
        (false, meta.dev(), meta.ino())
    }
}

/// Notes which descriptors the child closes: those of members. (A member that the program has opened itself is
/// one of them: nobody but nodes should have one open.)
#[pyfunction]
pub fn _before_fork() {
    let mut members = Vec::new();
    for node in living() {
        let devices = node.fs.pool().devices();
        let paths =
            devices.iter().filter(|d| d.info().is_path).map(|d| PathBuf::from(&d.info().name));
        members.extend(paths.filter_map(|path| Some(identity(&std::fs::metadata(path).ok()?))));
    }
    let mut found = Vec::new();
    if !members.is_empty() {
        for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
            let Ok(meta) = std::fs::metadata(entry.path()) else { continue };
            found.extend(number.filter(|_| members.contains(&identity(&meta))));
        }
    }
    *OF_PARENT.lock() = found;
}

/// Closes them, in the child.
#[pyfunction]
pub fn _after_fork_in_child() {
    for fd in std::mem::take(&mut *OF_PARENT.lock()) {
        // SAFETY: what owns it is never used nor dropped in this process.
        unsafe { rustix::io::close(fd) };
    }
}

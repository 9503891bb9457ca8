//! Python bindings: what `braid status` knows, and a native node of a pool in the Python process. The package around it
//! is in `python/braid`, its tests in `tests`.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  errors       what a program sees of an error
//!  closed       whether a handle is closed
//!  buffers      memory that a program lends
//!  workers      threads that do the parts of a large request
//!  status       attributes as os.stat_result
//!  sources      from a name to an open pool
//!  node         a node of this process, and what a fork makes of it
//!  paths        from a path to an inode
//!  locks        locks of programs
//!  pool         Pool
//!  file         File
//!  file_system  FileSystem
//! ```
//!
//! Every call into the file system is made with the GIL released. `unsafe` is in `buffers` (lent memory), in `file` where
//! that is used, and in `node` (what a child of a fork must not touch).

mod buffers;
mod closed;
mod errors;
mod file;
mod file_system;
mod locks;
mod node;
mod paths;
mod pool;
mod sources;
mod status;
mod workers;

use pyo3::prelude::*;
use tracing_subscriber::EnvFilter;

/// The compiled part of the package `braid`.
#[pymodule]
fn _braid(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Nodes say what befalls them (fences, disks that fail), as those of `braid mount` do. A program that has set up
    // messages of its own, which is impossible today, would keep them.
    let filter = EnvFilter::try_from_env("BRAID_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init()
        .ok();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("REQUEST_MAX", file::REQUEST_MAX)?;
    module.add_class::<pool::Pool>()?;
    module.add_class::<pool::Member>()?;
    module.add_class::<pool::NodeInfo>()?;
    module.add_class::<file_system::FileSystem>()?;
    module.add_class::<file_system::DirEntry>()?;
    module.add_class::<file::File>()?;
    module.add_function(wrap_pyfunction!(node::_leave_all, module)?)?;
    module.add_function(wrap_pyfunction!(node::_on_join, module)?)?;
    module.add_function(wrap_pyfunction!(node::_before_fork, module)?)?;
    module.add_function(wrap_pyfunction!(node::_after_fork_in_child, module)?)?;
    Ok(())
}

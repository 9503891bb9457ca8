//! Whether a handle that Python holds is closed: the same for files and file systems.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Whether a handle is closed. It starts open, and never opens again.
#[derive(Debug, Default)]
pub struct Closed(AtomicBool);

impl Closed {
    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Closes it. Returns whether it was open: of several threads that close it, one gets `true`, and releases what
    /// the handle held.
    pub fn close(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// # Errors
    /// It is closed: a ValueError with `message`.
    pub fn refuse(&self, message: &'static str) -> PyResult<()> {
        if self.is_closed() { Err(PyValueError::new_err(message)) } else { Ok(()) }
    }
}

/// What the `repr` of a handle says of that, behind the rest.
pub const fn in_repr(closed: bool) -> &'static str {
    if closed { ", closed" } else { "" }
}

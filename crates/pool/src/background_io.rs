//! I/O that a node does by itself does not count as use of the pool, so maintenance need not give
//! way to it.
//!
//! At intervals a node flushes what there is, and does its housekeeping: a few requests every few
//! seconds if no program asks for anything. Such requests are recognised by their thread.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static UNDER_WAY: Cell<u32> = const { Cell::new(0) };
}

/// While it is held, requests of this thread do not count in [`Pool::requests`](crate::pool::Pool::requests).
#[derive(Debug)]
#[must_use]
pub struct BackgroundIo(PhantomData<*const ()>);

impl BackgroundIo {
    /// Begins.
    pub fn begin() -> Self {
        UNDER_WAY.set(UNDER_WAY.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for BackgroundIo {
    fn drop(&mut self) {
        UNDER_WAY.set(UNDER_WAY.get().saturating_sub(1));
    }
}

/// Whether what this thread asks for is use of the pool.
pub(crate) fn is_foreground() -> bool {
    UNDER_WAY.get() == 0
}

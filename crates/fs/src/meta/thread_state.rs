//! What a thread does with metadata just now.

use std::cell::Cell;

thread_local! {
    /// Address of the `Meta` whose transaction this thread has open. A second one, or a commit,
    /// would wait for the first for ever.
    pub(super) static OPEN_HERE: Cell<usize> = const { Cell::new(0) };
    /// Whether the last transaction of this thread has changed a block.
    pub(super) static CHANGED_HERE: Cell<bool> = const { Cell::new(false) };
    /// This thread is in a closure that changes a body: a shard is locked.
    pub(super) static CHANGING: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as changing a body.
pub(super) struct Changing;

impl Changing {
    pub(super) fn enter() -> Self {
        CHANGING.set(true);
        Self
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.set(false);
    }
}

/// Runs `wait` as if nothing were open in this thread.
pub(crate) fn outside_transaction<T>(wait: impl FnOnce() -> T) -> T {
    let open = OPEN_HERE.replace(0);
    let changing = CHANGING.replace(false);
    let done = wait();
    CHANGING.set(changing);
    OPEN_HERE.set(open);
    done
}

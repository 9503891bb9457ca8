//! Locks of programs, as `fcntl.flock` and `fcntl.lockf` take them: cluster-wide, beside those of programs on mounts.

use std::sync::Arc;
use std::time::Duration;

use braid_fs::{Error, Plock, PlockKind};
use parking_lot::{Condvar, Mutex};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;
use crate::node::Node;

/// Of `fcntl`.
const LOCK_SH: i32 = 1;
const LOCK_EX: i32 = 2;
const LOCK_NB: i32 = 4;
const LOCK_UN: i32 = 8;

/// How often a wait looks for signals (Ctrl-C).
const LOOK: Duration = Duration::from_millis(50);

/// What a program asks for: the kind, and whether it waits.
///
/// # Errors
/// The number means nothing.
pub fn operation(number: i32) -> PyResult<(PlockKind, bool)> {
    let kind = match number & !LOCK_NB {
        LOCK_SH => PlockKind::Shared,
        LOCK_EX => PlockKind::Exclusive,
        LOCK_UN => PlockKind::Unlock,
        _ => {
            return Err(PyValueError::new_err(
                "not LOCK_SH, LOCK_EX or LOCK_UN of fcntl, with LOCK_NB or without",
            ));
        }
    };
    Ok((kind, number & LOCK_NB == 0))
}

/// The file that is locked.
#[derive(Clone, Copy)]
pub struct Locked {
    /// Its inode.
    pub ino: braid_format::InodeNo,
    /// A lock of the whole file, as by flock(2).
    pub whole: bool,
}

/// How a wait ended.
#[derive(Default)]
struct Outcome {
    how: Mutex<Option<Result<(), Error>>>,
    told: Condvar,
}

/// Takes or drops a lock.
///
/// # Errors
/// Another has it, and this call does not wait; a signal's handler raised; as `fcntl`.
pub fn set(py: Python<'_>, node: &Node, on: Locked, lock: &Plock, waits: bool) -> PyResult<()> {
    let fs = node.fs()?.clone();
    if !waits || lock.kind == PlockKind::Unlock {
        let done = py.detach(|| {
            if on.whole { fs.flock(on.ino, lock, None) } else { fs.setlk(on.ino, lock, None) }
        });
        return done.map_err(|error| errors::of(&error));
    }
    let outcome = Arc::new(Outcome::default());
    let tell = outcome.clone();
    let done = Box::new(move |how| {
        *tell.how.lock() = Some(how);
        tell.told.notify_all();
    });
    let asked = py.detach(|| fs.lock_later(on.ino, lock, on.whole, done));
    let Some(wait) = asked.map_err(|error| errors::of(&error))? else { return Ok(()) };
    loop {
        let how = py.detach(|| {
            let mut how = outcome.how.lock();
            if how.is_none() {
                outcome.told.wait_for(&mut how, LOOK);
            }
            how.take()
        });
        if let Some(how) = how {
            return how.map_err(|error| errors::of(&error));
        }
        if let Err(signal) = py.check_signals() {
            let unlock = Plock { kind: PlockKind::Unlock, ..*lock };
            py.detach(|| {
                fs.end_lock_wait(wait);
                let mut how = outcome.how.lock();
                while how.is_none() {
                    outcome.told.wait(&mut how);
                }
                // It may have been granted meanwhile.
                if how.take().is_some_and(|how| how.is_ok()) {
                    if on.whole {
                        fs.flock(on.ino, &unlock, None).ok();
                    } else {
                        fs.setlk(on.ino, &unlock, None).ok();
                    }
                }
            });
            return Err(signal);
        }
    }
}

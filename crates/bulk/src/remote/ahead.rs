//! Which contents are read before a program asks for them, and by whom.
//!
//! Contents are kept in pieces of as many bytes as go by one message, under leases ([`super::leases`]). A file that is
//! read in order is read ahead by threads of their own; each piece is asked for by one thread at a time. No I/O.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use braid_format::InodeNo;
use braid_fs::lock::interrupt;
use parking_lot::{Condvar, Mutex};

use super::files::RemoteFile;

/// Between two looks at whether a program that waits is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Threads that read ahead. Each has a connection while it does.
pub const READERS_MAX: usize = 8;
/// A piece that is to be read.
#[derive(Debug)]
pub struct Wanted {
    /// Of this file.
    pub file: Arc<RemoteFile>,
    /// Which.
    pub piece: u64,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Wanted>,
    under_way: HashSet<(InodeNo, u64)>,
    readers: usize,
    idle: usize,
    ended: bool,
}

/// What is being read.
#[derive(Debug, Default)]
pub struct Ahead {
    state: Mutex<State>,
    changed: Condvar,
}

impl Ahead {
    /// These pieces are to be read by somebody. Whether there should be one more reader.
    pub fn want(&self, file: &Arc<RemoteFile>, pieces: std::ops::Range<u64>) -> bool {
        let mut state = self.state.lock();
        for piece in pieces {
            state.queue.push_back(Wanted { file: Arc::clone(file), piece });
        }
        self.changed.notify_all();
        let more = state.queue.len() > state.idle && state.readers < READERS_MAX && !state.ended;
        state.readers += usize::from(more);
        more
    }
    /// A reader was not started.
    pub fn no_reader(&self) {
        self.state.lock().readers -= 1;
    }
    /// What a reader is to do next; waits for something. `None`: it ends.
    pub fn next(&self) -> Option<Wanted> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(wanted) = state.queue.pop_front() {
                return Some(wanted);
            }
            state.idle += 1;
            self.changed.wait(&mut state);
            state.idle -= 1;
        }
    }
    /// A piece is about to be read by the caller. `false`: somebody else has just read it, or the caller is to end.
    pub fn begin(&self, ino: InodeNo, piece: u64) -> bool {
        let mut state = self.state.lock();
        if state.under_way.insert((ino, piece)) {
            return true;
        }
        while state.under_way.contains(&(ino, piece)) {
            self.changed.wait_for(&mut state, LOOK);
            if interrupt::is_interrupted() {
                break;
            }
        }
        false
    }
    /// It was read, or cannot be.
    pub fn end(&self, ino: InodeNo, piece: u64) {
        self.state.lock().under_way.remove(&(ino, piece));
        self.changed.notify_all();
    }
    /// Readers end.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.queue.clear();
        self.changed.notify_all();
    }
}

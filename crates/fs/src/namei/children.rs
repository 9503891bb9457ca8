//! The locks of a directory's children, taken side by side: each is a round trip to a device, and the
//! dinode under it another. One after the other, listing a directory with attributes on a SAN would be
//! as slow as its files are many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use braid_format::{InodeNo, LockNo};
use braid_lock::Mode;
use braid_pool::device::processors;

use crate::core::Core;

/// Threads that take locks beside the calling one.
const THREADS: usize = 7;
/// A lock that comes sooner than this costs less than beginning a thread.
const SLOW: Duration = Duration::from_micros(50);

/// Takes the shared locks of those children whose locks this node does not have, and keeps them as
/// it keeps any; not after `until`. Ignores failures: the next request for the child meets them again. No
/// lock may be held.
pub(super) fn take_locks(core: &Arc<Core>, children: &[InodeNo], until: Option<Instant>) {
    let is_over = || until.is_some_and(|until| Instant::now() >= until);
    let missing = |ino: &InodeNo| !core.locks.held(LockNo::from(*ino)).covers(Mode::Shared);
    let mut missing = children.iter().copied().filter(missing);
    let Some(first) = missing.next() else { return };
    let began = Instant::now();
    if is_over() {
        return;
    }
    core.prefetch(first, &is_over);
    if began.elapsed() < SLOW {
        return;
    }
    let rest: Vec<InodeNo> = missing.collect();
    let next = AtomicUsize::new(0);
    let take = || {
        while let Some(ino) = rest.get(next.fetch_add(1, Ordering::Relaxed))
            && !is_over()
        {
            core.prefetch(*ino, &is_over);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(rest.len().saturating_sub(1)) {
            // Without further threads it only takes longer.
            let _ = std::thread::Builder::new().name("children".into()).spawn_scoped(scope, || {
                processors::roam();
                take();
            });
        }
        take();
    });
}

//! The locks of a directory's children. Those that another node holds are asked of it by one message. All others are
//! taken side by side: each is a round trip to a device, and the dinode under it another. One after the other, listing
//! a directory with attributes on a SAN would be as slow as its files are many.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use braid_format::{InodeNo, LockNo};
use braid_lock::Mode;
use braid_pool::device::processors;

use crate::core::Core;
use crate::dir;
use crate::error::Result;
use crate::inode::Locked;
use crate::inode_tree::Reader;
use crate::stat_ahead::{Advice, FILES_MAX};

/// Entries read at a time, to list a directory.
const LISTED_AT_A_TIME: usize = 1024;
/// A directory is listed for one page of it for no longer.
const LISTING_MAX: Duration = Duration::from_millis(50);
/// Threads that take locks beside the calling one.
const THREADS: usize = 7;
/// A lock that comes sooner than this costs less than beginning a thread.
const SLOW: Duration = Duration::from_micros(50);

fn is_missing(core: &Core, ino: InodeNo) -> bool {
    !core.locks.held(LockNo::from(ino)).covers(Mode::Shared)
}

/// Has those locks of inodes come here, shared, that other nodes hold and can be asked for together, and the dinodes
/// under them. Ignores failures. Takes none.
pub(super) fn fetch(core: &Core, inos: &[InodeNo], is_over: &dyn Fn() -> bool) {
    let valid = |ino: &InodeNo| core.check_ino(*ino).is_ok() && is_missing(core, *ino);
    let missing: Vec<InodeNo> = inos.iter().copied().filter(valid).collect();
    let locks: Vec<LockNo> = missing.iter().map(|ino| LockNo::from(*ino)).collect();
    if core.check_alive().is_ok() {
        core.locks.fetch_together(&locks, Mode::Shared, is_over);
        core.read_ahead(&missing);
    }
}

/// `ino`, which was found in `dir`, and what will probably be looked up next, if locks of other nodes are to be asked
/// for together.
pub(super) fn expected(core: &Core, dir: &Locked, ino: InodeNo) -> Vec<InodeNo> {
    if !is_missing(core, ino) || core.cluster.is_none() {
        return Vec::new();
    }
    let stride = core.volume.geo.slot_blocks();
    let mut advice = core.stat_ahead.lookup(dir.ino(), ino, stride);
    if advice == Advice::List && !core.membership.is_alone() {
        // It is a guess: a page that cannot be read is an error for whoever needs what is in it.
        core.stat_ahead.listed(dir.ino(), files(core, dir, &|| false).unwrap_or_default());
        advice = core.stat_ahead.lookup(dir.ino(), ino, stride);
    }
    if let Advice::Fetch(next) = advice { next } else { Vec::new() }
}

/// What is in a directory, unless that is too much; only a part if it is over before.
fn files(core: &Core, dir: &Locked, is_over: &dyn Fn() -> bool) -> Result<Vec<InodeNo>> {
    if dir.st().raw.entries.get() > FILES_MAX {
        return Ok(Vec::new());
    }
    let (mut files, mut batch, mut cookie) = (Vec::new(), Vec::new(), dir::DOT_DOT);
    let mut nodes = Reader { meta: &core.meta, inode: &dir.inode };
    let mut more = true;
    while more && !is_over() {
        more = dir::list_after(&mut nodes, cookie, LISTED_AT_A_TIME, &mut batch)?;
        cookie = batch.last().map_or(cookie, |last| last.cookie);
        files.extend(batch.drain(..).map(|listed| listed.ino));
    }
    Ok(files)
}

/// What is to be asked for with these files of a page of `dir`, which are to be listed with attributes.
fn expected_of_page(
    core: &Core,
    dir: InodeNo,
    missing: &[InodeNo],
    is_over: &dyn Fn() -> bool,
) -> Vec<InodeNo> {
    if core.cluster.is_none() || core.membership.is_alone() {
        return Vec::new();
    }
    let mut advice = core.stat_ahead.page(dir, missing);
    if advice == Advice::List {
        let began = Instant::now();
        let is_over = || is_over() || began.elapsed() > LISTING_MAX;
        let Some(locked) = core.lock_shared_unless(dir, &is_over) else { return Vec::new() };
        core.stat_ahead.listed(dir, files(core, &locked, &is_over).unwrap_or_default());
        drop(locked);
        advice = core.stat_ahead.page(dir, missing);
    }
    if let Advice::Fetch(files) = advice { files } else { Vec::new() }
}

/// Takes the shared locks of those children of `dir` whose locks this node does not have, and keeps them as
/// it keeps any; not after `until`. Ignores failures: the next request for the child meets them again. No
/// lock may be held.
pub(super) fn take_locks(
    core: &Arc<Core>,
    dir: InodeNo,
    children: &[InodeNo],
    until: Option<Instant>,
) {
    let is_over = || until.is_some_and(|until| Instant::now() >= until);
    let is_missing = |ino: &InodeNo| is_missing(core, *ino);
    let mut missing: Vec<InodeNo> = children.iter().copied().filter(is_missing).collect();
    missing.sort_unstable();
    let mut expected = expected_of_page(core, dir, &missing, &is_over);
    expected.extend(&missing);
    expected.sort_unstable();
    expected.dedup();
    fetch(core, &expected, &is_over);
    // Side by side only what takes long one by one: twice in succession, so not by chance.
    let (mut rest, mut slow) = (missing.as_slice(), 0);
    while let [first, others @ ..] = rest
        && slow < 2
        && !is_over()
    {
        let came = is_missing(first);
        let began = Instant::now();
        core.prefetch(*first, &is_over);
        slow = if began.elapsed() < SLOW { 0 } else { slow + 1 };
        rest = others;
        // Who had it probably has those, too.
        if came && slow > 0 {
            fetch(core, rest, &is_over);
        }
    }
    if !rest.is_empty() {
        side_by_side(core, rest, &is_over);
    }
}

fn side_by_side(core: &Core, children: &[InodeNo], is_over: &(dyn Fn() -> bool + Sync)) {
    let next = AtomicUsize::new(0);
    let take = || {
        while let Some(ino) = children.get(next.fetch_add(1, Ordering::Relaxed))
            && !is_over()
        {
            core.prefetch(*ino, &is_over);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(children.len().saturating_sub(1)) {
            // Without further threads it only takes longer.
            let _ = std::thread::Builder::new().name("children".into()).spawn_scoped(scope, || {
                processors::roam();
                take();
            });
        }
        take();
    });
}

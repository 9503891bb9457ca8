//! What is free of the locks that are waited for is granted.

use std::collections::VecDeque;

use braid_lock::Keep;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::plock_table::bucket::{Bucket, Served, TURN};
use crate::plock_table::table::{Growth, Lock};
use crate::plock_table::waits::{self, Ended};

/// By how many entries the bucket may grow: any number, if there is space for `more`.
pub(super) fn room_for(core: &Core, bucket: &Bucket, more: usize) -> Result<Growth> {
    match bucket.make_room(core, more) {
        Ok(()) => Ok(Growth::MAX),
        Err(Error::NoLocks) => Ok(0),
        Err(e) => Err(e),
    }
}

/// Grants what is free of the locks on a file that are waited for, after somebody gave up some of
/// `freed`. The bucket's lock is held exclusively.
pub(super) fn serve(
    core: &Core,
    bucket: &Bucket,
    freed: &Lock,
    ended: &mut Vec<Ended>,
) -> Result<()> {
    let keys = bucket.state().waits.touched(freed);
    serve_these(core, bucket, keys, ended)
}

/// Tells nodes whose requests can be granted now. The bucket's lock is held.
pub(super) fn tell_turns(core: &Core, bucket: &Bucket) {
    let turns = bucket.state().turns();
    for node in turns {
        core.locks.your_turn(node, bucket.lock);
    }
}

/// Grants what is free of these, and tells other nodes of the rest.
pub(super) fn serve_these(
    core: &Core,
    bucket: &Bucket,
    keys: Vec<waits::Key>,
    ended: &mut Vec<Ended>,
) -> Result<()> {
    let users = &core.plocks.users;
    let (mut keys, before) = (VecDeque::from(keys), ended.len());
    while let Some(key) = keys.pop_front() {
        // Who waits to hold less than he does (to read what he has changed) frees something, too.
        let weakened = bucket.state().weakened_by(key);
        let room = bucket.room(core);
        let mut served = bucket.state().serve(users, key, room, false);
        if matches!(served, Served::NeedsRoom) {
            let room = room_for(core, bucket, 2)?;
            served = bucket.state().serve(users, key, room, true);
        }
        if let Served::Ended(how) = served {
            ended.push(how);
            if let Some(lock) = weakened {
                keys.extend(bucket.state().waits.touched(&lock));
            }
        }
    }
    if ended.len() > before {
        // The bucket will be needed for the unlocks.
        core.locks.keep(bucket.lock, Keep::For(TURN));
    }
    tell_turns(core, bucket);
    Ok(())
}

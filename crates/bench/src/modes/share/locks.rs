//! All nodes want one lock all the time.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::round::Round;
use crate::modes::at_once::all_at_once;

/// Takes the lock, or gives it up.
type Lock = fn(&File, FlockOperation) -> rustix::io::Result<()>;
const LOCKS: [(&str, Lock); 2] = [
    ("flock, all nodes", |f, how| flock(f, how)),
    ("fcntl, all nodes", |f, how| fcntl_lock(f, how)),
];

pub(super) fn measure(round: &mut Round) -> Result<()> {
    let time = Duration::from_secs_f64(round.args.seconds);
    for (what, lock) in LOCKS {
        if !round.args.wants(what) {
            continue;
        }
        let seen = round.file("lock")?;
        let files = seen.open(false)?;
        let (_, stop) = crate::progress::hooks();
        round.row(what, || {
            all_at_once(&files, |file, latency| {
                let (began, mut done) = (Instant::now(), 0);
                while began.elapsed() < time {
                    let asked = Instant::now();
                    lock(file, FlockOperation::LockExclusive).context("the lock")?;
                    lock(file, FlockOperation::Unlock).context("the lock")?;
                    latency.add(asked.elapsed());
                    done += 1;
                    crate::progress::check_stop(stop.as_deref())?;
                }
                Ok(done)
            })
        })?;
    }
    Ok(())
}

//! All nodes want one lock all the time.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::args::Args;
use super::counts::Counts;
use super::shared_file::{SharedFile, read_write};
use crate::modes::at;
use crate::modes::at_once::{ThreadResult, all_at_once, fairness, sum};
use crate::report::{Report, Row};
use crate::statistics::float;

/// Takes the lock, and gives it up.
type LockAndUnlock = fn(&File) -> rustix::io::Result<()>;

const LOCKS: [(&str, LockAndUnlock); 2] = [
    ("flock, all nodes", |file| {
        flock(file, FlockOperation::LockExclusive)?;
        flock(file, FlockOperation::Unlock)
    }),
    ("fcntl, all nodes", |file| {
        fcntl_lock(file, FlockOperation::LockExclusive)?;
        fcntl_lock(file, FlockOperation::Unlock)
    }),
];

/// The rate is that of all nodes together; the row says how the slowest node did beside the fastest.
pub(super) fn measure(args: &Args, round: usize, report: &mut Report) -> Result<()> {
    for (what, lock) in LOCKS {
        if !args.wants(what) {
            continue;
        }
        let seen = SharedFile::new(args, "lock", round)?;
        let files = seen.open(&read_write())?;
        crate::progress::row(what.to_owned());
        let before = Counts::of(&args.dirs());
        let done = lock_all_the_time(&files, Duration::from_secs_f64(args.seconds), lock)?;
        crate::progress::row_done();
        let (operations, latency, seconds) = sum(&done).context("no nodes")?;
        let operations = operations as u64;
        let row = report.sample("nodes", what, &at(&[]), float(operations) / seconds);
        row.took(&latency);
        before.show(&args.dirs(), operations, row);
        show_fairness(&done, row);
    }
    Ok(())
}

/// Adds to `row` how the slowest node did beside the fastest.
pub(super) fn show_fairness(done: &[ThreadResult], row: &mut Row) {
    let fair = fairness(done);
    row.add("slowest over fastest", fair);
    let issued = row.issued.get_or_insert_default();
    let apart = if issued.is_empty() { "" } else { "; " };
    *issued = format!("{issued}{apart}slowest node over fastest {fair:.2}");
}

/// How often each got the lock, and how long that took.
fn lock_all_the_time(
    files: &[File],
    time: Duration,
    lock: LockAndUnlock,
) -> Result<Vec<ThreadResult>> {
    let (_, stop) = crate::progress::hooks();
    all_at_once(files, |file, latency| {
        let (began, mut done) = (Instant::now(), 0);
        while began.elapsed() < time {
            let asked = Instant::now();
            lock(file).context("the lock")?;
            latency.add(asked.elapsed());
            done += 1;
            crate::progress::check_stop(stop.as_deref())?;
        }
        Ok(done)
    })
}

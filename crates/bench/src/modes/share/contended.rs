//! All nodes want one lock all the time.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::args::Args;
use super::counts::Counts;
use super::shared_file::{SharedFile, read_write};
use crate::engine::{Latency, StartBarrier, on_threads};
use crate::modes::at;
use crate::report::Report;
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
        let (done, seconds) = all_at_once(&files, Duration::from_secs_f64(args.seconds), lock)?;
        crate::progress::row_done();
        let operations: u64 = done.iter().map(|(n, _)| n).sum();
        let row = report.sample("nodes", what, &at(&[]), float(operations) / seconds);
        let mut all = Latency::default();
        for (_, latency) in &done {
            all.merge(latency);
        }
        row.took(&all);
        before.show(&args.dirs(), operations, row);
        let (slowest, fastest) = (done.iter().map(|d| d.0).min(), done.iter().map(|d| d.0).max());
        let fair = float(slowest.unwrap_or(0)) / float(fastest.unwrap_or(0).max(1));
        row.add("slowest over fastest", fair);
        let issued = row.issued.get_or_insert_default();
        *issued = format!("{issued}; slowest node over fastest {fair:.2}");
    }
    Ok(())
}

/// How often each got the lock, and how long that took; and the seconds in all.
fn all_at_once(
    files: &[File],
    time: Duration,
    lock: LockAndUnlock,
) -> Result<(Vec<(u64, Latency)>, f64)> {
    let (_, stop) = crate::progress::hooks();
    let stop = stop.as_deref();
    let start = &StartBarrier::of(files.len() + 1);
    let works = files.iter().map(|file| {
        move || {
            let _guard = start.cancel_on_panic();
            let (mut done, mut latency) = (0, Latency::default());
            let all = start.wait();
            let began = Instant::now();
            while all && began.elapsed() < time {
                let asked = Instant::now();
                lock(file).context("the lock")?;
                latency.add(asked.elapsed());
                done += 1;
                crate::progress::check_stop(stop)?;
            }
            Ok((done, latency))
        }
    });
    let (began, done) = on_threads(start, works, || (start.wait(), Instant::now()))?;
    Ok((done, began.elapsed().as_secs_f64().max(1e-9)))
}

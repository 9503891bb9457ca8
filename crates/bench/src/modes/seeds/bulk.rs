//! The bulk data service on disks and a wire of 1999: read, durable write and buffered write, each against the less
//! of what the disks and the wire give.

use anyhow::Result;

use super::devices::{Own, compare, take};
use super::experiment::Args;
use crate::arguments::{Common, DeviceKind};
use crate::modes::bulk::{BULK, Job, Streams};
use crate::modes::{RunOptions, at, ladder};
use crate::report::published::BDS;
use crate::report::{Goal, Parameters, Report};
use crate::statistics::Samples;
use crate::testbed::make_braid;
use crate::testbed::members::Members;
use crate::testbed::service::{Reach, Service};

/// A row of the original's table: disks and stripe unit in KiB, and rates in MB/s ([`BDS`]).
type Published = ((u32, u32), [f64; 5]);

/// HIPPI, bytes per second.
const WIRE: u32 = 100_000_000;
/// Bytes of a phase: a second or two of each row.
const SIZE: u64 = 96 << 20;
/// Programs on the client, each with a file.
const STREAMS: usize = 4;

/// What the disks of a row gave, and what the service reached by them, MB/s; and what part of what disks and wire let
/// through is to be reached now.
fn of_job([read, write, bulk_read, bulk_write, buffered]: [f64; 5], job: Job) -> (f64, f64, f64) {
    match job {
        Job::Read => (read, bulk_read, 0.97),
        Job::Durable => (write, bulk_write, 0.95),
        Job::Buffered => (write, buffered, 0.97),
    }
}

/// KiB of a row of the stripe, which the original moved at a time.
fn width(((disks, unit), _): &Published) -> u32 {
    disks * unit
}

fn place(row: &Published) -> Parameters {
    at(&[("disks", f64::from(row.0.0)), ("width KiB", f64::from(width(row)))])
}

/// The seven rows of the table.
pub(super) fn s1_6(args: &Args, report: &mut Report) -> Result<()> {
    let own = Own { id: "bulk", base: BULK, unit: "MB/s", rows: Job::ALL.len() };
    // What is modelled is the same each time.
    let once = RunOptions { repeats: 1, least: 1, ..args.how.clone() };
    let args = &Args { how: once, ..args.clone() };
    let rows = compare(args, report, own, &BDS, |report, row| one(args, row, report))?;
    for published in &BDS {
        for job in Job::ALL {
            let (disks, reached, goal) = of_job(published.1, job);
            let limit = disks.min(f64::from(WIRE) / 1e6);
            let Some(row) = rows.find(BULK, job.name(), &place(published)) else { continue };
            let ratio = Samples(row.rate.0.iter().map(|rate| rate / limit).collect());
            let what = "S1.6 bulk service over the less of disks and wire";
            let (count, width) = (published.0.0, width(published));
            let cell = format!("{count} disks, {width} KiB, {}, {limit} MB/s", job.name());
            let original = format!("{:.2}", reached / limit);
            report.verdict((what, &original, &cell), Goal::AtLeast(goal), &ratio);
        }
    }
    take(report, rows, "bulk");
    Ok(())
}

fn one(args: &Args, published: &Published, report: &mut Report) -> Result<()> {
    let [read, write, ..] = published.1;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of the table")]
    let each = |rate: f64| rate as u64 * 1_000_000;
    let kind = DeviceKind::Throttled { read: each(read), write: each(write) };
    let bytes = SIZE + ladder::SLACK;
    let devices = Members::new(&args.dir, "s1_6", (1, bytes), kind)?;
    make_braid(&devices.paths)?;
    let service =
        Service::new(&devices.paths, &devices.work, Reach { wire: Some(WIRE.into()), tls: false })?;
    let remote = service.mount(devices.work.join("remote"))?;
    let common = Common {
        dir: args.dir.clone(),
        members: 1,
        size: SIZE,
        streams: STREAMS,
        throttle: None,
        loop_devices: true,
    };
    let request = (u64::from(width(published)) << 10).next_power_of_two();
    let streams = Streams { devices: &devices, dir: &remote.dir, request, common: &common };
    for job in Job::ALL {
        streams.measure(report, (BULK, job), place(published))?;
    }
    Ok(())
}

//! The bulk data service on disks and a wire of 1999: read, durable write and buffered write, each against the less
//! of what the disks and the wire give.

use anyhow::Result;

use super::devices::{Own, compare, take};
use super::experiment::Args;
use crate::arguments::{Common, DeviceKind};
use crate::modes::bulk::{BULK, Job, Streams};
use crate::modes::{RunOptions, at, ladder};
use crate::report::{Goal, Parameters, Report};
use crate::statistics::Samples;
use crate::testbed::make_braid;
use crate::testbed::members::Members;
use crate::testbed::service::{Reach, Service};

/// A row of the original's table: what the disks gave, MB/s, and what the service reached of it.
struct Published {
    disks: u32,
    /// KiB.
    width: u64,
    read: u64,
    write: u64,
    /// Of the disks' rates: read, unbuffered write, buffered write.
    reached: [f64; 3],
}

const fn published(
    disks: u32,
    width: u64,
    (read, write): (u64, u64),
    reached: [f64; 3],
) -> Published {
    Published { disks, width, read, write, reached }
}

const TABLE: [Published; 7] = [
    published(7, 1792, (52, 40), [1.00, 0.38, 0.78]),
    published(14, 1792, (79, 43), [0.87, 0.65, 0.98]),
    published(14, 3584, (83, 50), [0.88, 0.62, 0.96]),
    published(14, 7168, (84, 53), [0.88, 0.62, 1.00]),
    published(36, 9216, (196, 120), [0.45, 0.43, 0.78]),
    published(68, 4080, (189, 121), [0.43, 0.42, 0.76]),
    published(68, 8160, (221, 163), [0.36, 0.36, 0.56]),
];

/// HIPPI, bytes per second.
const WIRE: u64 = 100_000_000;
/// Bytes of a phase: a second or two of each row.
const SIZE: u64 = 96 << 20;
/// Programs on the client, each with a file.
const STREAMS: usize = 4;

impl Published {
    /// What disks and wire let through, MB/s.
    fn limit(&self, job: Job) -> u64 {
        let disks = if job == Job::Read { self.read } else { self.write };
        disks.min(WIRE / 1_000_000)
    }
    /// What the original reached of that, and what is to be reached.
    fn goal(&self, job: Job) -> (f64, f64) {
        let (of_disks, goal) = match job {
            Job::Read => (self.reached[0], 0.97),
            Job::Durable => (self.reached[1], 0.95),
            Job::Buffered => (self.reached[2], 0.97),
        };
        let disks = if job == Job::Read { self.read } else { self.write };
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let ratio = of_disks * disks as f64 / self.limit(job) as f64;
        (ratio, goal)
    }
    #[expect(clippy::cast_precision_loss, reason = "small")]
    fn at(&self) -> Parameters {
        at(&[("disks", f64::from(self.disks)), ("width KiB", self.width as f64)])
    }
    fn name(&self) -> String {
        format!("{} disks, {} KiB", self.disks, self.width)
    }
}

/// The seven rows of the table.
pub(super) fn s1_6(args: &Args, report: &mut Report) -> Result<()> {
    let own = Own { id: "bulk", base: BULK, unit: "MB/s", rows: Job::ALL.len() };
    // What is modelled is the same each time.
    let once = RunOptions { repeats: 1, least: 1, ..args.how.clone() };
    let args = &Args { how: once, ..args.clone() };
    let rows =
        compare(args, report, own, &TABLE, |report, published| one(args, published, report))?;
    for published in &TABLE {
        for job in Job::ALL {
            let (original, goal) = published.goal(job);
            let limit = published.limit(job);
            let Some(row) = rows.find(BULK, job.name(), &published.at()) else {
                continue;
            };
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let ratio = Samples(row.rate.0.iter().map(|rate| rate / limit as f64).collect());
            let what = "S1.6 bulk service over the less of disks and wire";
            let cell = format!("{}, {}, {limit} MB/s", published.name(), job.name());
            let original = format!("{original:.2}");
            report.verdict((what, &original, &cell), Goal::AtLeast(goal), &ratio);
        }
    }
    take(report, rows, "bulk");
    Ok(())
}

fn one(args: &Args, published: &Published, report: &mut Report) -> Result<()> {
    let each = |rate: u64| rate * 1_000_000;
    let kind = DeviceKind::Throttled { read: each(published.read), write: each(published.write) };
    let bytes = SIZE + ladder::SLACK;
    let devices = Members::new(&args.dir, "s1_6", (1, bytes), kind)?;
    make_braid(&devices.paths)?;
    let service =
        Service::new(&devices.paths, &devices.work, Reach { wire: Some(WIRE), tls: false })?;
    let remote = service.mount(devices.work.join("remote"))?;
    let common = Common {
        dir: args.dir.clone(),
        members: 1,
        size: SIZE,
        streams: STREAMS,
        throttle: None,
        loop_devices: true,
    };
    // The original moved a row of the stripe at a time.
    let request = (published.width << 10).next_power_of_two();
    let streams = Streams { devices: &devices, dir: &remote.dir, request, common: &common };
    for job in Job::ALL {
        streams.measure(report, (BULK, job), published.at())?;
    }
    Ok(())
}

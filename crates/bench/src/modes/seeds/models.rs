//! Experiments on modelled disks in virtual time, through the pool's real mapping. Their figures are the same
//! on every machine.

use anyhow::Result;
use braid_format::Bytes;
use braid_pool::device::model::{DiskModel, Rate, presets};
use braid_pool::modelled::{Job, ModelledPool};

use super::experiment::verdict;
use crate::modes::at;
use crate::report::published::FILES_3;
use crate::report::{Goal, Report, Verdict};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
fn at_least(what: &str, original: &str, goal: f64, measured: f64) -> Verdict {
    verdict(what, original, Goal::AtLeast(goal), measured)
}

pub(super) const NUMBERS: [&str; 10] =
    ["S0.5", "S0.6", "S0.7", "S1.3", "S1.4", "S1.5", "S3.1", "S3.2", "S3.4", "S3.5"];

/// All of them, into the report's verdicts.
pub(super) fn all(report: &mut Report) -> Result<()> {
    let began = report.verdicts.len();
    let curves = s0_5(report)?;
    report.verdicts.extend(curves);
    for experiment in [s0_6, s0_7, s1_3, s1_4, s1_5, s3] {
        report.verdicts.extend(experiment()?);
    }
    for v in report.verdicts.iter_mut().skip(began) {
        "modelled disks".clone_into(&mut v.note);
    }
    Ok(())
}

/// A stripe of n over one disk, files written and read: the least of all file sizes.
fn s0_5(report: &mut Report) -> Result<Vec<Verdict>> {
    let unit = 128 * KIB;
    let testbeds = (1..=4)
        .map(|n| ModelledPool::equal(n, presets::NASA_SCSI_1992, unit))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let time = |testbed: &ModelledPool, mib: u64| -> Result<f64> {
        let total = crate::statistics::float(mib * MIB);
        let mut sum = 0.0;
        for job in [Job::write(MIB, 4, mib * MIB), Job::read(MIB, 4, mib * MIB)] {
            sum += total / testbed.stream(job)?;
        }
        Ok(sum)
    };
    let mut out = Vec::new();
    let Some((one, more)) = testbeds.split_first() else { return Ok(out) };
    let goals = [("2", "1.22 on average", 1.95), ("3", "1.21", 2.90), ("4", "1.56", 3.85)];
    for (testbed, (n, original, goal)) in more.iter().zip(goals) {
        let mut least = f64::INFINITY;
        for megabytes in FILES_3 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole")]
            let mib = megabytes as u64;
            let speedup = time(one, mib)? / time(testbed, mib)?;
            let place = at(&[("file", crate::statistics::float(mib * MIB))]);
            let phase = "S0.5 speed-up over one disk, written and read, modelled disks";
            let row = report.sample(&format!("{n}-way"), phase, &place, speedup);
            "of one disk".clone_into(&mut row.unit);
            if mib >= 10 {
                least = least.min(speedup);
            }
        }
        let what = "S0.5 n-way over one disk, 10 to 300 MiB, the least";
        out.push(at_least(what, original, goal, least).cell(format!("{n}-way")));
    }
    Ok(out)
}

/// Members grouped by bus, and alternating between buses.
fn s0_6() -> Result<Vec<Verdict>> {
    let (model, unit, total) = (presets::NASA_SCSI_1992, 128 * KIB, 32 * MIB);
    let bus = presets::NASA_SCSI_BUS_1992;
    let rate = |buses: &[usize], job| {
        let members: Vec<_> = buses.iter().map(|b| (model, ModelledPool::SIZE, Some(*b))).collect();
        ModelledPool::new(&members, &[bus, bus], unit)?.stream(job)
    };
    let shallow = Job::read(2 * unit, 1, total);
    let grouped = rate(&[0, 0, 1, 1], shallow)? / rate(&[0, 1, 0, 1], shallow)?;
    let what = "S0.6 members grouped by bus over alternating, half a row at a time";
    let slow = verdict(what, "grouped is wrong", Goal::AtMost(0.6), grouped);
    let one = rate(&[0], Job::read(unit, 1, total))?;
    let four = rate(&[0, 1, 0, 1], Job::read(4 * unit, 1, total))? / one;
    let said = "S0.6 4-way on two buses that are held, over one disk (2 at best)";
    Ok(vec![slow, at_least(said, "1.51 from 90 MB on", 1.75, four)])
}

/// Members of different size and speed.
fn s0_7() -> Result<Vec<Verdict>> {
    let (slow, unit) = (presets::BDSPRO_5MB, 64 * KIB);
    let fast = DiskModel { track: Bytes(2 * slow.track.0), ..slow };
    let members = [(slow, 34 * MIB, None), (slow, 34 * MIB, None), (fast, 66 * MIB, None)];
    let testbed = ModelledPool::new(&members, &[], unit)?;
    let info = testbed.pool.info();
    let sum: u64 = info.members.iter().map(|m| m.data_len.0).sum();
    let used = crate::statistics::float(info.size.0) / crate::statistics::float(sum);
    let zone = info.zones.first().map_or(0, |z| z.len.0);
    let rate = testbed.stream(Job::read(8 * 3 * unit, 4, zone))?;
    Ok(vec![
        at_least(
            "S0.7 part of unequal members' space that is used",
            "the rest is wasted",
            0.99,
            used,
        ),
        at_least("S0.7 unequal speed, over N times the slowest", "2 at best", 0.97, rate / 15.0),
    ])
}

/// Disks add up until their bus is full.
fn s1_3() -> Result<Vec<Verdict>> {
    let unit = 256 * KIB;
    let disk = DiskModel { write_fill: Bytes(unit), ..presets::BDSPRO_5MB };
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for buses in [1_usize, 2] {
        for n in 1..=8_u32 {
            let members: Vec<_> =
                (0..n as usize).map(|i| (disk, ModelledPool::SIZE, Some(i % buses))).collect();
            let testbed = ModelledPool::new(&members, &vec![presets::FAST_WIDE_SCSI; buses], unit)?;
            let width = u64::from(n) * unit;
            let full = if buses == 1 { 20.0 } else { 40.0 };
            let expected = (5.0 * f64::from(n)).min(full);
            for job in [Job::read(2 * width, 4, 100 * width), Job::write(2 * width, 4, 100 * width)]
            {
                let part = testbed.stream(job)? / expected;
                (least, most) = (least.min(part), most.max(part));
            }
        }
    }
    let what = "S1.3 1 to 8 disks on 1 and 2 buses over min(5 n, 20 buses), the least";
    let above = verdict("S1.3 the same, the most", "", Goal::AtMost(1.03), most);
    Ok(vec![at_least(what, "4 disks fill a bus", 0.97, least), above])
}

/// A request of half the stripe's width.
fn s1_4() -> Result<Vec<Verdict>> {
    let (unit, total) = (64 * KIB, 64 * MIB);
    let model = DiskModel {
        overhead: presets::BDSPRO_5MB.overhead,
        ..DiskModel::flat(presets::BDSPRO_5MB.media_rate())
    };
    let rate = |request, depth| {
        ModelledPool::equal(10, model, unit)?.stream(Job::read(request, depth, total))
    };
    let whole = rate(10 * unit, 1)?;
    let half = rate(5 * unit, 1)? / whole;
    let what = "S1.4 320 KB over 640 KB on 10 disks, one at a time";
    let naive = verdict(what, "0.50", Goal::Between(0.47, 0.53), half);
    let queued = rate(5 * unit, 2)? / whole;
    Ok(vec![naive, at_least("S1.4 the same, two at a time", "", 0.95, queued)])
}

/// A writer that waits loses a rotation with each unit.
fn s1_5() -> Result<Vec<Verdict>> {
    let model = presets::BDSPRO_TRACK_100K;
    let track = model.track.0;
    let ahead = DiskModel { read_ahead: Bytes(8 * track), ..model };
    let mut out = Vec::new();
    for (n, original) in [(1_u32, "1/2"), (2, "2/3"), (3, "3/4"), (4, "4/5")] {
        let unit = u64::from(n) * track;
        let (row, total) = (4 * unit, 240 * 4 * track);
        let read = ModelledPool::equal(4, ahead, unit)?.stream(Job::read(row, 1, total))?;
        let naive = ModelledPool::equal(4, model, unit)?.stream(Job::write(row, 1, total))? / read;
        let expected = f64::from(n) / (f64::from(n) + 1.0);
        let what = "S1.5 write over read, a row at a time";
        let goal = Goal::Between(expected * 0.98, expected * 1.02);
        let cell = format!("unit of {n} tracks");
        out.push(verdict(what, original, goal, naive).cell(cell.clone()));
        let queued = ModelledPool::equal(4, model, unit)?.stream(Job::write(row, 2, total))? / read;
        out.push(at_least("S1.5 the same, two rows under way", "", 0.95, queued).cell(cell));
    }
    Ok(out)
}

/// Two arrays of 96 MB/s: alone, together, and striped with units of 1 MiB.
fn s3() -> Result<Vec<Verdict>> {
    // The port's time for a command passes while the last one's bytes move.
    let array = presets::CIPRICO_RF7000;
    let total = 256 * MIB;
    let rate = |n: usize, job: Job| ModelledPool::equal(n, array, MIB)?.stream(job);
    let one = rate(1, Job::read(8 * MIB, 2, total))?;
    let written = rate(1, Job::write(8 * MIB, 2, total))?;
    let mut out = vec![at_least("S3.1 one array, write over read", "1.00", 0.95, written / one)];
    let two = rate(2, Job::read(8 * MIB, 2, total))?;
    out.push(at_least("S3.2 two arrays over one", "1.99", 1.98, two / one));
    let sum = 2.0 * Rate::mega(96).megabytes();
    for (word, original, job) in [
        ("read", "0.87", Job::read(2 * MIB, 2, total)),
        ("write", "0.85", Job::write(2 * MIB, 2, total)),
    ] {
        let part = rate(2, job)? / sum;
        let what = "S3.4 striped volume over two raw arrays, a row at a time";
        out.push(at_least(what, original, 0.98, part).cell(word));
    }
    let step = rate(2, Job::read(2 * MIB, 1, total))? / rate(2, Job::read(MIB, 1, total))?;
    out.push(at_least("S3.5 step from 1 to 2 MiB, one request at a time", "about 2", 1.8, step));
    let queued = rate(2, Job::read(2 * MIB, 4, total))? / rate(2, Job::read(MIB, 4, total))?;
    let what = "S3.5 the same, four at a time: no step";
    out.push(verdict(what, "", Goal::AtMost(1.1), queued));
    Ok(out)
}

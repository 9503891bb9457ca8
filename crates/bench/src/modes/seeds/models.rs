//! Experiments on modelled disks, in virtual time, through the pool's real mapping: the same figures
//! on every machine. The closed forms stand with the models.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use braid_format::{ByteOffset, Bytes};
use braid_pool::device::model::{
    Bus, Client, DiskModel, ModelClock, ModelDevice, Rate, Touch, drive, presets,
};
use braid_pool::device::{Device, MemoryDevice};
use braid_pool::map::Place;
use braid_pool::{CreateOptions, Pool};

use super::verdict;
use crate::modes::at;
use crate::report::originals::FILES_3;
use crate::report::{Report, Verdict};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Of a modelled disk; nothing is stored but labels.
const SIZE: u64 = 400 * MIB;

/// A pool of modelled disks.
struct Rig {
    clock: ModelClock,
    disks: Vec<Arc<ModelDevice>>,
    pool: Pool,
}

/// Sequential requests: bytes of one, how many at a time, bytes of all.
#[derive(Clone, Copy)]
struct Job {
    write: bool,
    request: u64,
    depth: usize,
    total: u64,
}

fn reads(request: u64, depth: usize, total: u64) -> Job {
    Job { write: false, request, depth, total }
}
fn writes(request: u64, depth: usize, total: u64) -> Job {
    Job { write: true, request, depth, total }
}

impl Rig {
    /// Members: model, bytes, and the place of their bus in `buses`.
    fn new(members: &[(DiskModel, u64, Option<usize>)], buses: &[Bus], unit: u64) -> Result<Self> {
        let clock = ModelClock::virtual_time();
        let buses: Vec<_> = buses.iter().map(|b| clock.bus(*b)).collect();
        let disks = members
            .iter()
            .enumerate()
            .map(|(i, (model, size, bus))| {
                let inner = MemoryDevice::new(&format!("disk{i}"), Bytes(*size), Bytes(512));
                let bus = bus.and_then(|b| buses.get(b));
                Ok(ModelDevice::new(&clock, inner, *model, bus)?)
            })
            .collect::<Result<Vec<_>>>()?;
        let devices = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let options =
            CreateOptions::new("seeds").stripe_unit(Bytes(unit)).context("stripe unit")?;
        let pool = Pool::create(devices, &options)?;
        Ok(Self { clock, disks, pool })
    }
    /// `n` equal members, each on its own.
    fn equal(n: usize, model: DiskModel, unit: u64) -> Result<Self> {
        Self::new(&vec![(model, SIZE, None); n], &[], unit)
    }
    /// MB/s of one stream.
    fn stream(&self, job: Job) -> Result<f64> {
        let map = self.pool.map();
        let touches = |i: u64| -> Vec<Touch<'_>> {
            let at = i * job.request;
            let len = job.request.min(job.total - at);
            let pieces = map.pieces(ByteOffset(at), Bytes(len));
            let touch = |p: braid_pool::Piece| {
                let Place::Member(member) = p.place else { return None };
                let device = &**self.disks.get(usize::from(member.0))?;
                Some(Touch { device, write: job.write, at: p.at, len: p.len })
            };
            pieces.filter_map(touch).collect()
        };
        let requests = job.total.div_ceil(job.request);
        let client = Client::new(job.depth, (0..requests).map(touches));
        let outcomes = drive(&self.clock, vec![client])?;
        match outcomes.first() {
            Some(outcome) => Ok(outcome.rate().megabytes()),
            None => bail!("no outcome"),
        }
    }
}

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
    let rigs = (1..=4)
        .map(|n| Rig::equal(n, presets::NASA_SCSI_1992, unit))
        .collect::<Result<Vec<_>>>()?;
    let time = |rig: &Rig, mib: u64| -> Result<f64> {
        let total = crate::engine::float(mib * MIB);
        let mut sum = 0.0;
        for job in [writes(MIB, 4, mib * MIB), reads(MIB, 4, mib * MIB)] {
            sum += total / rig.stream(job)?;
        }
        Ok(sum)
    };
    let mut out = Vec::new();
    let Some((one, more)) = rigs.split_first() else { return Ok(out) };
    let goals = [("2", "1.22 on average", 1.95), ("3", "1.21", 2.90), ("4", "1.56", 3.85)];
    for (rig, (n, original, goal)) in more.iter().zip(goals) {
        let mut least = f64::INFINITY;
        for megabytes in FILES_3 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole")]
            let mib = megabytes as u64;
            let speedup = time(one, mib)? / time(rig, mib)?;
            let place = at(&[("file", crate::engine::float(mib * MIB))]);
            let phase = "S0.5 speed-up over one disk, written and read, modelled disks";
            let row = report.row(&format!("{n}-way"), phase, &place);
            "of one disk".clone_into(&mut row.unit);
            row.rate.0.push(speedup);
            if mib >= 10 {
                least = least.min(speedup);
            }
        }
        out.push(verdict(
            &format!("S0.5 {n}-way over one disk, 10 to 300 MiB"),
            original,
            goal,
            least,
        ));
    }
    Ok(out)
}

/// Members grouped by bus, and alternating between buses.
fn s0_6() -> Result<Vec<Verdict>> {
    let (model, unit, total) = (presets::NASA_SCSI_1992, 128 * KIB, 32 * MIB);
    let bus = presets::NASA_SCSI_BUS_1992;
    let rate = |buses: &[usize], job| {
        let members: Vec<_> = buses.iter().map(|b| (model, SIZE, Some(*b))).collect();
        Rig::new(&members, &[bus, bus], unit)?.stream(job)
    };
    let shallow = reads(2 * unit, 1, total);
    let grouped = rate(&[0, 0, 1, 1], shallow)? / rate(&[0, 1, 0, 1], shallow)?;
    let what = "S0.6 members grouped by bus over alternating, half a row at a time";
    let mut slow = verdict(what, "grouped is wrong", 0.6, grouped);
    (slow.at_most, slow.met) = (true, grouped <= 0.6);
    let one = rate(&[0], reads(unit, 1, total))?;
    let four = rate(&[0, 1, 0, 1], reads(4 * unit, 1, total))? / one;
    let said = "S0.6 4-way on two buses that are held, over one disk (2 at best)";
    Ok(vec![slow, verdict(said, "1.51 from 90 MB on", 1.75, four)])
}

/// Members of different size and speed.
fn s0_7() -> Result<Vec<Verdict>> {
    let (slow, unit) = (presets::BDSPRO_5MB, 64 * KIB);
    let fast = DiskModel { track: Bytes(2 * slow.track.0), ..slow };
    let members = [(slow, 34 * MIB, None), (slow, 34 * MIB, None), (fast, 66 * MIB, None)];
    let rig = Rig::new(&members, &[], unit)?;
    let info = rig.pool.info();
    let sum: u64 = info.members.iter().map(|m| m.data_len.0).sum();
    let used = crate::engine::float(info.size.0) / crate::engine::float(sum);
    let zone = info.zones.first().map_or(0, |z| z.len.0);
    let rate = rig.stream(reads(8 * 3 * unit, 4, zone))?;
    Ok(vec![
        verdict(
            "S0.7 part of unequal members' space that is used",
            "the rest is wasted",
            0.99,
            used,
        ),
        verdict("S0.7 unequal speed, over N times the slowest", "2 at best", 0.97, rate / 15.0),
    ])
}

/// Disks add up until their bus is full.
fn s1_3() -> Result<Vec<Verdict>> {
    let unit = 256 * KIB;
    let disk = DiskModel { write_fill: Bytes(unit), ..presets::BDSPRO_5MB };
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for buses in [1_usize, 2] {
        for n in 1..=8_u32 {
            let members: Vec<_> = (0..n as usize).map(|i| (disk, SIZE, Some(i % buses))).collect();
            let rig = Rig::new(&members, &vec![presets::FAST_WIDE_SCSI; buses], unit)?;
            let width = u64::from(n) * unit;
            let full = if buses == 1 { 20.0 } else { 40.0 };
            let expected = (5.0 * f64::from(n)).min(full);
            for job in [reads(2 * width, 4, 100 * width), writes(2 * width, 4, 100 * width)] {
                let part = rig.stream(job)? / expected;
                (least, most) = (least.min(part), most.max(part));
            }
        }
    }
    let what = "S1.3 1 to 8 disks on 1 and 2 buses over min(5 n, 20 buses), the least";
    let mut above = verdict("S1.3 the same, the most", "", 1.03, most);
    (above.at_most, above.met) = (true, most <= 1.03);
    Ok(vec![verdict(what, "4 disks fill a bus", 0.97, least), above])
}

/// A request of half the stripe's width.
fn s1_4() -> Result<Vec<Verdict>> {
    let (unit, total) = (64 * KIB, 64 * MIB);
    let model = DiskModel {
        overhead: presets::BDSPRO_5MB.overhead,
        ..DiskModel::flat(presets::BDSPRO_5MB.media_rate())
    };
    let rate = |request, depth| Rig::equal(10, model, unit)?.stream(reads(request, depth, total));
    let whole = rate(10 * unit, 1)?;
    let half = rate(5 * unit, 1)? / whole;
    let mut naive =
        verdict("S1.4 320 KB over 640 KB on 10 disks, one at a time", "0.50", 0.53, half);
    (naive.at_most, naive.met) = (true, (0.47..=0.53).contains(&half));
    let queued = rate(5 * unit, 2)? / whole;
    Ok(vec![naive, verdict("S1.4 the same, two at a time", "", 0.95, queued)])
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
        let read = Rig::equal(4, ahead, unit)?.stream(reads(row, 1, total))?;
        let naive = Rig::equal(4, model, unit)?.stream(writes(row, 1, total))? / read;
        let expected = f64::from(n) / (f64::from(n) + 1.0);
        let mut v = verdict(
            &format!("S1.5 write over read, unit of {n} tracks, a row at a time"),
            original,
            expected * 0.98,
            naive,
        );
        v.met = (naive / expected - 1.0).abs() <= 0.02;
        out.push(v);
        let queued = Rig::equal(4, model, unit)?.stream(writes(row, 2, total))? / read;
        out.push(verdict(
            &format!("S1.5 the same, {n} tracks, two rows under way"),
            "",
            0.95,
            queued,
        ));
    }
    Ok(out)
}

/// Two arrays of 96 MB/s: alone, together, and striped with units of 1 MiB.
fn s3() -> Result<Vec<Verdict>> {
    // The port's time for a command passes while the last one's bytes move.
    let array = presets::CIPRICO_RF7000;
    let total = 256 * MIB;
    let rate = |n: usize, job: Job| Rig::equal(n, array, MIB)?.stream(job);
    let one = rate(1, reads(8 * MIB, 2, total))?;
    let written = rate(1, writes(8 * MIB, 2, total))?;
    let mut out = vec![verdict("S3.1 one array, write over read", "1.00", 0.95, written / one)];
    let two = rate(2, reads(8 * MIB, 2, total))?;
    out.push(verdict("S3.2 two arrays over one", "1.99", 1.98, two / one));
    let sum = 2.0 * Rate::mega(96).megabytes();
    for (word, original, job) in
        [("read", "0.87", reads(2 * MIB, 2, total)), ("write", "0.85", writes(2 * MIB, 2, total))]
    {
        let part = rate(2, job)? / sum;
        let what = format!("S3.4 striped volume over two raw arrays, {word}, a row at a time");
        out.push(verdict(&what, original, 0.98, part));
    }
    let step = rate(2, reads(2 * MIB, 1, total))? / rate(2, reads(MIB, 1, total))?;
    out.push(verdict("S3.5 step from 1 to 2 MiB, one request at a time", "about 2", 1.8, step));
    let queued = rate(2, reads(2 * MIB, 4, total))? / rate(2, reads(MIB, 4, total))?;
    let mut flat = verdict("S3.5 the same, four at a time: no step", "", 1.1, queued);
    (flat.at_most, flat.met) = (true, queued <= 1.1);
    out.push(flat);
    Ok(out)
}

//! The experiments of the founding documents, on modelled disks in virtual time and against closed
//! forms. `cargo test -p braid-pool --test experiments -- --nocapture` prints the tables.
//!
//! The members are modelled disks, the addresses go through the pool's real mapping, and where
//! bytes move they move through the pool's real submission. No run depends on the machine.

#![expect(clippy::unwrap_used, reason = "a failing step is a failing test")]
#![expect(clippy::cast_precision_loss, reason = "figures are compared within percents")]

use std::sync::Arc;

use braid_format::label::NodeKind;
use braid_format::{ByteOffset, Bytes, Epoch};
use braid_pool::device::model::{Bus, DiskModel, presets};
use braid_pool::device::modelled::Client;
use braid_pool::device::{AlignedBuf, Device};
use braid_pool::labels::write_epoch;
use braid_pool::modelled::{self, Job};
use braid_pool::{Pool, PoolOp, PoolQueue};
use uuid::Uuid;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SIZE: u64 = modelled::ModelledPool::SIZE;

/// A [`modelled::ModelledPool`] whose every step succeeds.
struct Fixture(modelled::ModelledPool);
impl std::ops::Deref for Fixture {
    type Target = modelled::ModelledPool;
    fn deref(&self) -> &modelled::ModelledPool {
        &self.0
    }
}

impl Fixture {
    fn new(members: &[(DiskModel, u64, Option<usize>)], buses: &[Bus], unit: u64) -> Self {
        Self(modelled::ModelledPool::new(members, buses, unit).unwrap())
    }
    fn equal(n: usize, model: DiskModel, unit: u64) -> Self {
        Self(modelled::ModelledPool::equal(n, model, unit).unwrap())
    }
    fn stream(&self, job: Job) -> f64 {
        self.0.stream(job).unwrap()
    }
    /// The same through the pool's own window, with bytes.
    fn stream_bytes(&self, job: Job) -> f64 {
        let mut queue = PoolQueue::new(self.pool.clone(), job.depth).unwrap();
        let (mut next, mut done) = (0, 0);
        let began = self.clock.now();
        while done < job.total {
            while next < job.total && !queue.is_full() {
                let buf = AlignedBuf::zeroed(job.request.try_into().unwrap());
                let op = if job.write { PoolOp::Write(buf) } else { PoolOp::Read(buf) };
                queue.submit(next, ByteOffset(next), op).unwrap();
                next += job.request;
            }
            let (_, buf, result) = queue.complete();
            result.unwrap();
            done += buf.len() as u64;
        }
        let time = self.clock.now() - began;
        done as f64 / time.as_secs_f64() / 1e6
    }
}

/// A table: what was expected, what was measured.
struct Table(Vec<(String, f64, f64)>);
impl Table {
    fn new(title: &str) -> Self {
        println!("\n{title}\n{:<44} {:>9} {:>9} {:>6}", "", "expected", "measured", "ratio");
        Self(Vec::new())
    }
    fn row(&mut self, what: impl Into<String>, expected: f64, measured: f64) {
        let what = what.into();
        println!("{what:<44} {expected:>9.3} {measured:>9.3} {:>6.3}", measured / expected);
        self.0.push((what, expected, measured));
    }
    /// Every row within `part` of what was expected.
    #[track_caller]
    fn within(&self, part: f64) {
        for (what, expected, measured) in &self.0 {
            let off = (measured / expected - 1.0).abs();
            assert!(off <= part, "{what}: {measured:.3}, expected {expected:.3} +- {part}");
        }
    }
}

/// The sixteen file sizes of Lam's table 3, in million bytes; here MiB.
const LAM_SIZES: [u64; 16] = [1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 150, 200, 250, 300];

#[test]
fn s0_5_a_stripe_of_n_is_n_times_as_fast_at_every_file_size() {
    let unit = 128 * KIB;
    for model in [presets::NASA_SCSI_1992, presets::IBM_2GB_INNER] {
        let rigs: Vec<Fixture> = (1..=4).map(|n| Fixture::equal(n, model, unit)).collect();
        // Written, then read, four requests under way: what the stripe is wide, for each disk.
        let time = |fixture: &Fixture, mib: u64| -> f64 {
            let total = mib * MIB;
            let jobs = [Job::write(MIB, 4, total), Job::read(MIB, 4, total)];
            jobs.iter().map(|j| total as f64 / fixture.stream(*j)).sum()
        };
        for (n, goal) in [(2_usize, 1.95), (3, 2.90), (4, 3.85)] {
            let mut t = Table::new(&format!("S0.5: {n}-way over one disk"));
            for mib in LAM_SIZES {
                let speedup = time(&rigs[0], mib) / time(&rigs[n - 1], mib);
                t.row(format!("{mib} MiB"), n as f64, speedup);
                assert!(speedup >= 1.0, "{n}-way at {mib} MiB: {speedup}");
                // Below ten units for each disk the ends of the file count: some disk has one
                // unit more than its share.
                assert!(mib < 10 || speedup >= goal, "{n}-way at {mib} MiB: {speedup}");
            }
        }
    }
}

#[test]
fn s0_5_holds_through_the_pools_own_submission() {
    let rigs = [1, 4].map(|n| Fixture::equal(n, presets::IBM_2GB_INNER, 256 * KIB));
    let mut t = Table::new("S0.5 with bytes: 4-way over one disk");
    for job in [Job::write(MIB, 4, 16 * MIB), Job::read(MIB, 4, 16 * MIB)] {
        let [one, four] = rigs.each_ref().map(|r| r.stream_bytes(job));
        t.row(if job.write { "write" } else { "read" }, 4.0, four / one);
    }
    t.within(0.0375);
}

#[test]
fn s0_5_a_copy_gains_what_its_requests_grow() {
    let (model, unit, total) = (presets::IBM_2GB_INNER, 128 * KIB, 96 * MIB);
    let rigs: Vec<Fixture> = (1..=4).map(|n| Fixture::equal(n, model, unit)).collect();
    // From one half of the pool to the other, a piece read, a piece written: each disk seeks
    // between any two pieces.
    let copy = |fixture: &Fixture, piece: u64| {
        let middle = fixture.pool.info().size.0 / 2 / piece * piece;
        let touch = |i: u64| {
            let at = i / 2 * piece;
            if i.is_multiple_of(2) {
                fixture.touches(false, at, piece)
            } else {
                fixture.touches(true, middle + at, piece)
            }
        };
        fixture.rate(Client::new(4, (0..2 * total / piece).map(touch))).unwrap().megabytes()
    };
    let one = copy(&rigs[0], MIB);
    let mut t = Table::new("S0.5: copying on n disks over copying on one, pieces of n MiB");
    for n in [2, 3, 4] {
        t.row(format!("{n}-way"), n as f64, copy(&rigs[n - 1], n as u64 * MIB) / one);
    }
    t.within(0.03);
    // Pieces that do not grow with the stripe are shorter on each disk, and the seeks are not: with
    // c of a piece's time p / v + c not in moving, (p / v + c) / (p / (n v) + c).
    let (alone, moving) = (1.0 / one, 1.0 / model.sequential_rate().megabytes());
    let mut t = Table::new("S0.5: the same, pieces of 1 MiB on all");
    for n in [2, 3, 4] {
        let expected = alone / (moving / n as f64 + (alone - moving));
        t.row(format!("{n}-way"), expected, copy(&rigs[n - 1], MIB) / one);
    }
    t.within(0.05);
}

#[test]
fn s0_6_members_that_alternate_between_buses_are_twice_as_fast_as_grouped_ones() {
    let (model, unit) = (presets::NASA_SCSI_1992, 128 * KIB);
    let fixture = |buses: &[usize], bus: Bus| {
        let members: Vec<_> = buses.iter().map(|b| (model, SIZE, Some(*b))).collect();
        Fixture::new(&members, &[bus, bus], unit)
    };
    let held = presets::NASA_SCSI_BUS_1992;
    let total = 32 * MIB;
    let ratio = |bus: Bus, job: Job| {
        fixture(&[0, 0, 1, 1], bus).stream(job) / fixture(&[0, 1, 0, 1], bus).stream(job)
    };
    // Half a row at a time: grouped, it is on one bus, whose disks take turns.
    let mut t = Table::new("S0.6: grouped over interleaved, requests of half a row, no disconnect");
    let shallow = ratio(held, Job::read(2 * unit, 1, total));
    t.row("one request at a time", 0.5, shallow);
    assert!(shallow <= 0.6, "{shallow}");
    // Deep queues keep both buses busy in either order.
    t.row("eight at a time", 1.0, ratio(held, Job::read(2 * unit, 8, total)));
    t.within(0.1);
    // The guidelines of the document: rows at a time, against one disk alone. Whoever has to wait
    // for the bus is late for its sector, too: a tenth less than by turns alone.
    let mut t = Table::new("S0.6: speed-up on two buses without disconnect");
    let one = fixture(&[0], held).stream(Job::read(unit, 1, total));
    for (what, buses, expected) in [
        ("2-way, one bus (measured 1992: 1.02)", &[0, 0][..], 1.0),
        ("2-way, two buses", &[0, 1], 2.0),
        ("3-way, interleaved (1992: 1.21)", &[0, 1, 0], 1.5),
        ("4-way, interleaved (1992: 1.51)", &[0, 1, 0, 1], 2.0),
    ] {
        let n = buses.len() as u64;
        let rate = fixture(buses, held).stream(Job::read(n * unit, 1, total));
        t.row(what, expected, rate / one);
    }
    t.within(0.1);
    // With disconnect and a bus that is fast enough, order matters no more.
    let modern = ratio(presets::FAST_WIDE_SCSI, Job::read(2 * unit, 1, total));
    let mut t = Table::new("S0.6: the same with disconnect");
    t.row("one request at a time", 1.0, modern);
    t.within(0.05);
}

/// The pool of `fixture` with these shares of each row.
fn weigh(fixture: Fixture, weights: &[u16]) -> Fixture {
    let mut label = fixture.pool.label().clone();
    label.epoch = Epoch(label.epoch.0 + 1);
    label.change_id = Uuid::new_v4();
    let (unit, mut total) = (label.stripe_unit.0, 0);
    for (node, w) in label.nodes.iter_mut().zip(weights) {
        total += node.len.0 / (unit * u64::from(*w)) * unit * u64::from(*w);
    }
    let stripe = label.nodes.last_mut().unwrap();
    let NodeKind::Stripe { children, .. } = &mut stripe.kind else { panic!("a stripe") };
    for (child, w) in children.iter_mut().zip(weights) {
        child.weight = *w;
    }
    stripe.len = Bytes(total);
    label.segments[0].len = Bytes(total);
    let devices: Vec<_> = fixture.disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    write_epoch(&devices, &label).unwrap();
    let pool = Pool::assemble(devices).unwrap();
    Fixture(modelled::ModelledPool { pool, ..fixture.0 })
}

#[test]
fn s0_7_all_space_is_used_and_weights_free_the_fast_from_the_slow() {
    let (slow, unit) = (presets::BDSPRO_5MB, 64 * KIB);
    let fast = DiskModel { track: Bytes(2 * slow.track.0), ..slow };
    let fixture = || {
        let members = [(slow, 34 * MIB, None), (slow, 34 * MIB, None), (fast, 66 * MIB, None)];
        Fixture::new(&members, &[], unit)
    };
    let plain = fixture();
    let info = plain.pool.info();
    let sum: u64 = info.members.iter().map(|m| m.data_len.0).sum();
    let mut t = Table::new("S0.7: members of 32, 32 and 64 MiB, 5, 5 and 10 MB/s");
    t.row("space, MiB", (sum / MIB) as f64, (info.size.0 / MIB) as f64);
    assert!(info.size.0 > sum - 3 * unit);
    // Equal shares: as three of the slowest, as far as all three reach.
    let zone = info.zones[0].len.0;
    let job = |total| Job::read(8 * 3 * unit, 4, total);
    t.row("equal shares: N x slowest, MB/s", 15.0, plain.stream(job(zone)));
    t.within(0.03);
    let weighted = weigh(fixture(), &[1, 1, 2]);
    assert!(weighted.pool.info().size.0 > sum - 4 * unit);
    let mut t = Table::new("S0.7: shares by speed");
    let whole = weighted.pool.info().size.0;
    t.row("sum of speeds, MB/s", 20.0, weighted.stream(Job::read(8 * 4 * unit, 4, whole)));
    let written = weighted.stream(Job::write(8 * 4 * unit, 4, whole));
    t.row("the same, written", 20.0, written);
    t.within(0.05);
}

#[test]
fn s1_3_disks_add_up_until_their_bus_is_full() {
    let unit = 256 * KIB;
    // Disks that begin to write when they have a unit: no burst that waits for the bus is too late.
    let disk = DiskModel { write_fill: Bytes(unit), ..presets::BDSPRO_5MB };
    let mut t = Table::new("S1.3: n disks of 5 MB/s on buses of 20 MB/s");
    for buses in [1_usize, 2] {
        for n in 1..=8_usize {
            let members: Vec<_> = (0..n).map(|i| (disk, SIZE, Some(i % buses))).collect();
            let fixture = Fixture::new(&members, &vec![presets::FAST_WIDE_SCSI; buses], unit);
            let width = n as u64 * unit;
            let expected = (5.0 * n as f64).min(20.0 * buses as f64);
            for write in [false, true] {
                let job = Job { write, request: 2 * width, depth: 4, total: 200 * width };
                let verb = if write { "write" } else { "read" };
                t.row(format!("{n} disks, {buses} buses, {verb}"), expected, fixture.stream(job));
            }
        }
    }
    t.within(0.03);
}

#[test]
fn s1_4_a_request_of_half_the_width_halves_the_rate_unless_queued() {
    let (unit, total) = (64 * KIB, 64 * MIB);
    let (half, full) = (5 * unit, 10 * unit);
    // A service time that does not depend on when it begins: what the document assumes.
    let flat = DiskModel {
        overhead: presets::BDSPRO_5MB.overhead,
        ..DiskModel::flat(presets::BDSPRO_5MB.media_rate())
    };
    let fixture = |model| Fixture::equal(10, model, unit);
    let whole = fixture(flat).stream(Job::read(full, 1, total));
    let mut t = Table::new("S1.4: 10 disks, unit 64 KB; against 640 KB, one at a time");
    t.row("320 KB, one at a time", 0.5, fixture(flat).stream(Job::read(half, 1, total)) / whole);
    t.within(0.03);
    // Five of ten disks work: their mechanisms' time says so.
    let r = fixture(flat);
    let began = r.clock.now();
    let before: Vec<_> = r.disks.iter().map(|d| d.stats().mechanism.busy).collect();
    r.stream_bytes(Job::read(half, 1, 10 * half));
    let busy: f64 = r
        .disks
        .iter()
        .zip(before)
        .map(|(d, b)| (d.stats().mechanism.busy.saturating_sub(b)).as_secs_f64())
        .sum();
    let overhead = 10.0 * flat.overhead.as_secs_f64();
    let active = busy / ((r.clock.now() - began).as_secs_f64() - overhead);
    t.row("disks at work, of 10", 5.0, active);
    t.within(0.03);
    for depth in [2, 4, 8] {
        let ratio = fixture(flat).stream(Job::read(half, depth, total)) / whole;
        t.row(format!("320 KB, {depth} at a time"), 1.0, ratio);
        assert!(ratio >= 0.95, "{depth} at a time: {ratio}");
    }
    // On rotating disks, a track to a unit: whoever comes too late for its sector waits for a
    // rotation and then takes one. A row at a time is two rotations, two halves are four.
    let spinning = DiskModel { overhead: flat.overhead, ..DiskModel::spinning(7200, Bytes(unit)) };
    let mut t = Table::new("S1.4: the same on rotating disks, a unit a track");
    let media = 10.0 * spinning.media_rate().megabytes();
    t.row(
        "640 KB, one at a time, MB/s",
        media / 2.0,
        fixture(spinning).stream(Job::read(full, 1, total)),
    );
    t.row(
        "320 KB, one at a time, MB/s",
        media / 4.0,
        fixture(spinning).stream(Job::read(half, 1, total)),
    );
    t.row(
        "320 KB, four at a time, MB/s",
        media,
        fixture(spinning).stream(Job::read(half, 4, total)),
    );
    let ahead = DiskModel { read_ahead: Bytes(4 * unit), ..spinning };
    t.row("320 KB, one, disks read ahead", media, fixture(ahead).stream(Job::read(half, 1, total)));
    t.within(0.05);
}

#[test]
fn s1_5_a_naive_writer_loses_a_rotation_with_each_unit_and_a_queued_one_does_not() {
    let model = presets::BDSPRO_TRACK_100K;
    let track = model.track.0;
    let ahead = DiskModel { read_ahead: Bytes(8 * track), ..model };
    let mut naive = Table::new("S1.5: write over read, 4 disks, unit of n tracks, a row at a time");
    let mut ours = Vec::new();
    for n in 1..=4_u64 {
        let (unit, total) = (n * track, 240 * 4 * track);
        let row = 4 * unit;
        let read = Fixture::equal(4, ahead, unit).stream(Job::read(row, 1, total));
        let write = Fixture::equal(4, model, unit).stream(Job::write(row, 1, total));
        naive.row(format!("{n} tracks"), n as f64 / (n as f64 + 1.0), write / read);
        let queued = Fixture::equal(4, model, unit).stream(Job::write(row, 2, total));
        ours.push((format!("{n} tracks, two rows under way"), queued / read));
        // One command at a time, but long ones: the host joins what waits.
        let joins = DiskModel { tags: 1, transfer_max: Bytes(40 * track), ..model };
        let coalesced = Fixture::equal(4, joins, unit).stream(Job::write(row, 80, total));
        ours.push((format!("{n} tracks, joined to 40"), coalesced / read));
    }
    naive.within(0.02);
    let mut t = Table::new("S1.5: the same, queued and coalesced");
    for (what, ratio) in ours {
        t.row(&what, 1.0, ratio);
        assert!(ratio >= 0.95, "{what}: {ratio}");
    }
}

#[test]
fn s1_5_with_switches_the_skew_takes_its_part_of_the_lost_rotation() {
    // The skew that hides the switches lets a late request wait for less than a rotation: the ratio
    // lies between n / (n + 1) and 1.
    let model = presets::IBM_2GB_OUTER;
    let unit = 16 * 4096 * 4;
    let total = 400 * unit;
    let read = Fixture::equal(4, model, unit).stream(Job::read(4 * unit, 4, total));
    let write = Fixture::equal(4, model, unit).stream(Job::write(4 * unit, 1, total));
    let tracks = unit as f64 / model.track.0 as f64;
    let ratio = write / read;
    println!("{tracks:.2} tracks: {ratio:.3} of {read:.2} MB/s");
    assert!((tracks / (tracks + 1.0) - 0.02..0.95).contains(&ratio), "{ratio}");
}

//! On modelled disks in virtual time, against closed forms; and the rules alone.

use std::sync::Arc;
use std::time::Duration;

use braid_device::model::{Bus, DiskModel, ModelClock, presets};
use braid_device::modelled::{Client, ModelDevice, Touch, drive};
use braid_device::{Device, DeviceError, MemoryDevice};
use braid_format::{ByteOffset, Bytes, StripeUnit};

use super::classes::{Answers, Choice, LEAST, Why, answers, choose};
use super::measure::{DEEP, REQUESTS};
use super::rules::{CONTROLLER, ORDER, SLOWEST, UNIT, cost_of_request, half_rows, loss};
use super::*;
use crate::assembly::create::CreateOptions;
use crate::layout::measure::small_read;
use crate::layout::{Classes, Redundancy};
use crate::pool::Pool;

const SIZE: u64 = 400 << 20;

/// Modelled disks, read in virtual time.
struct Models {
    clock: ModelClock,
    disks: Vec<Arc<ModelDevice>>,
    /// What each gave alone, so that members that run together end together.
    alone: Vec<u64>,
}

impl Models {
    /// `disks`: the model, and the place of its bus in `buses`.
    fn new(disks: &[(DiskModel, Option<usize>)], buses: &[Bus]) -> Self {
        let clock = ModelClock::virtual_time();
        let buses: Vec<_> = buses.iter().map(|b| clock.bus(*b)).collect();
        let disk = |(i, (model, bus)): (usize, &(DiskModel, Option<usize>))| {
            let inner = MemoryDevice::new(&format!("disk{i}"), Bytes(SIZE), Bytes(512));
            ModelDevice::new(&clock, inner, *model, bus.map(|b| &buses[b])).unwrap()
        };
        let disks: Vec<_> = disks.iter().enumerate().map(disk).collect();
        Self { clock, alone: vec![0; disks.len()], disks }
    }
    fn measured(&mut self) -> Measurements {
        let mut last = (0, 0);
        let found = measure(self, &mut |done, all| last = (done, all)).unwrap();
        assert_eq!(last.0, last.1, "the progress ends");
        found
    }
    /// A pool of them in this order, as a plain stripe.
    fn pool(&self, unit: u64) -> Pool {
        let unit = StripeUnit::new(Bytes(unit)).unwrap();
        let devices = self.disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let options = CreateOptions { stripe_unit: unit, force: true, ..CreateOptions::new("p") };
        Pool::create(devices, &options).unwrap()
    }
}

impl Bench for Models {
    fn members(&self) -> usize {
        self.disks.len()
    }
    fn rates(&mut self, run: &Run) -> Result<Vec<u64>, DeviceError> {
        let most = run.members.iter().map(|i| self.alone[*i]).max().unwrap_or(0).max(1);
        let clients = run.members.iter().map(|i| {
            let device = &*self.disks[*i];
            let part = if run.members.len() == 1 { most } else { self.alone[*i] };
            let count = (160 << 20) / run.request * part / most;
            let touch = move |n| {
                let at = ByteOffset(n * run.request);
                vec![Touch { device, write: false, at, len: Bytes(run.request) }]
            };
            Client::new(run.depth, (0..count).map(touch))
        });
        let outcomes = drive(&self.clock, clients.collect())?;
        let rates: Vec<u64> = outcomes.iter().map(|o| o.rate().0).collect();
        if run.members.len() == 1 && run.depth == DEEP {
            self.alone[run.members[0]] = rates[0];
        }
        Ok(rates)
    }
    fn latency(&mut self, member: usize) -> Result<Option<Duration>, DeviceError> {
        let device = &*self.disks[member];
        let touch =
            |n| vec![Touch { device, write: false, at: small_read(n, SIZE), len: Bytes(4096) }];
        let mut took = drive(&self.clock, vec![Client::new(1, (0..200).map(touch))])?;
        let took = &mut took[0].latencies;
        took.sort_unstable();
        Ok(Some(took[took.len() / 2]))
    }
}

#[track_caller]
fn near(measured: u64, expected: u64, percent: u64) {
    let off = measured.abs_diff(expected) * 100;
    assert!(off <= expected * percent, "{measured}, expected {expected} +- {percent} %");
}

/// S1.3: `min(5 n, 20)` MB/s on one bus.
#[test]
fn a_full_bus_is_found_with_what_it_carries_and_how_many_fill_it() {
    let disk = presets::BDSPRO_5MB;
    for (n, full) in [(3, false), (8, true)] {
        let mut models = Models::new(&vec![(disk, Some(0)); n], &[presets::FAST_WIDE_SCSI]);
        let found = models.measured();
        found.alone.iter().for_each(|rate| near(*rate, 5_000_000, 3));
        let advice = advise(&found);
        near(advice.sums.1, 5_000_000 * (n as u64).min(4), 3);
        if !full {
            assert!(found.shared.is_empty() && advice.buses == vec![0; n], "{found:?}");
            continue;
        }
        assert_eq!(found.shared.len(), 1, "{found:?}");
        assert_eq!(found.shared[0].members, (0..n).collect::<Vec<_>>());
        near(found.shared[0].rate, 20_000_000, 3);
        assert_eq!(advice.disks_per_bus, [4]);
        let label = models.pool(advice.unit).label();
        let findings = judge(&label, &found, &advice);
        let bus = findings.iter().find(|f| f.guideline == CONTROLLER).unwrap();
        assert!((bus.percent - 50.0).abs() < 2.0, "{bus:?}");
        assert!(bus.what.contains("which 4 of them fill"), "{bus:?}");
    }
}

#[test]
fn two_buses_are_told_apart_whatever_the_order_and_free_members_are_on_neither() {
    let disk = presets::BDSPRO_5MB;
    let on = [0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0].map(Some);
    let mut disks: Vec<_> = on.iter().map(|bus| (disk, *bus)).collect();
    disks.push((disk, None));
    let mut models = Models::new(&disks, &[presets::FAST_WIDE_SCSI; 2]);
    let found = models.measured();
    let members = |bus| (0..12).filter(|i| on[*i] == Some(bus)).collect::<Vec<_>>();
    let shared: Vec<_> = found.shared.iter().map(|s| s.members.clone()).collect();
    assert_eq!(shared, [members(0), members(1)], "{found:?}");
    found.shared.iter().for_each(|s| near(s.rate, 20_000_000, 3));
    let advice = advise(&found);
    assert_eq!((advice.disks_per_bus.clone(), advice.buses[12]), (vec![4, 4], 0));
}

/// S1.5: a unit of n tracks loses 1 / (n + 1).
#[test]
fn the_unit_is_the_least_that_loses_no_more_than_four_tracks_do() {
    let track = presets::BDSPRO_TRACK_100K.track.0;
    for scale in [1, 2, 4] {
        let model = DiskModel { track: Bytes(track * scale), ..presets::BDSPRO_TRACK_100K };
        let mut models = Models::new(&[(model, None), (model, None)], &[]);
        let found = models.measured();
        let cost = cost_of_request(found.alone[0], &found.by_request[0]);
        for n in 1..=4_u32 {
            let lost = loss(found.alone[0], cost, u64::from(n) * model.track.0);
            let expected = 1.0 / (f64::from(n) + 1.0);
            assert!((lost - expected).abs() < 0.02, "{n} tracks: {lost}, expected {expected}");
        }
        let advice = advise(&found);
        let right = (16..64).map(|power| 1_u64 << power).find(|u| *u >= 4 * model.track.0);
        assert_eq!(Some(advice.unit), right, "track of {} bytes", model.track.0);
        assert_eq!(advice.width, 2 * advice.unit);
        // A present unit of one track loses half of it all.
        let unit = model.track.0 / 4096 * 4096;
        let findings = judge(&models.pool(unit).label(), &found, &advice);
        let finding = findings.iter().find(|f| f.guideline == UNIT).unwrap();
        let expected = 100.0 * (1.0 - 0.5 / (1.0 - advice.unit_loss));
        assert!((finding.percent - expected).abs() < 3.0, "{finding:?}, expected {expected}");
        let good = judge(&models.pool(advice.unit).label(), &found, &advice);
        assert!(good.is_empty(), "{good:?}");
    }
    // Disks that read ahead lose nothing at any size: the least unit will do.
    let ahead = DiskModel { read_ahead: Bytes(8 << 20), ..presets::BDSPRO_TRACK_100K };
    let found = Models::new(&[(ahead, None)], &[]).measured();
    let advice = advise(&found);
    assert_eq!((advice.unit, advice.enough), (64 << 10, Some(REQUESTS[0])), "{found:?}");
}

/// S0.6: without disconnect the disks of a bus take turns; half a row on one bus is half as fast.
#[test]
fn members_grouped_by_bus_cost_half_of_small_requests() {
    let disk = presets::NASA_SCSI_1992;
    let buses = [presets::NASA_SCSI_BUS_1992; 2];
    let findings = |on: [usize; 4]| {
        let mut models = Models::new(&on.map(|bus| (disk, Some(bus))), &buses);
        let found = models.measured();
        let advice = advise(&found);
        let shared: Vec<_> = found.shared.iter().map(|s| s.members.clone()).collect();
        let on_bus = |bus| (0..4).filter(|i| on[*i] == bus).collect::<Vec<usize>>();
        assert_eq!(shared, [on_bus(0), on_bus(1)], "{found:?}");
        (judge(&models.pool(advice.unit).label(), &found, &advice), advice)
    };
    let (grouped, advice) = findings([0, 0, 1, 1]);
    let order = grouped.iter().find(|f| f.guideline == ORDER).unwrap();
    assert!((order.percent - 50.0).abs() < 5.0, "{order:?}");
    assert_eq!(advice.order, [0, 2, 1, 3]);
    let (interleaved, _) = findings([0, 1, 0, 1]);
    assert!(interleaved.iter().all(|f| f.guideline != ORDER), "{interleaved:?}");
}

/// What was measured of members without buses, each giving all it has at every request size.
fn free(alone: &[u64]) -> Measurements {
    Measurements {
        alone: alone.to_vec(),
        by_request: alone.iter().map(|rate| vec![*rate; REQUESTS.len()]).collect(),
        together: alone.to_vec(),
        ..Measurements::default()
    }
}

/// S0.7: n equal shares are n times the slowest.
#[test]
fn unequal_members_get_shares_and_equal_shares_cost_what_the_slowest_holds_back() {
    let models = Models::new(&[(DiskModel::flat(braid_device::model::Rate(1)), None); 3], &[]);
    let label = models.pool(256 << 10).label();
    let found = free(&[10_000_000, 5_000_000, 5_000_000]);
    let advice = advise(&found);
    assert_eq!(advice.weights, [2, 1, 1]);
    assert_eq!(advice.width, 4 * advice.unit);
    let findings = judge(&label, &found, &advice);
    // 3 x 5 of 20 MB/s.
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!((findings[0].percent - 25.0).abs() < 0.1 && findings[0].guideline == SLOWEST);
    let equal = free(&[5_000_000; 3]);
    assert!(judge(&label, &equal, &advise(&equal)).is_empty());
}

#[test]
fn halves_of_rows_without_a_full_bus_are_half_as_fast() {
    let found = free(&[1_000_000; 4]);
    let half = half_rows(&found, &[0; 4], &[0, 1, 2, 3]);
    assert!((half - 0.5).abs() < 1e-9, "{half}");
}

#[test]
fn nothing_measured_gives_no_nonsense() {
    for found in [Measurements::default(), free(&[0, 0])] {
        let advice = advise(&found);
        assert!(
            advice.unit_loss.is_finite() && advice.width.is_multiple_of(advice.unit),
            "{advice:?}"
        );
    }
}

/// Small disks in memory beside turning ones: what they answer in is their overhead alone.
const MEMORY: DiskModel = DiskModel {
    overhead: Duration::from_micros(80),
    ..DiskModel::flat(braid_device::model::Rate(2_000_000_000))
};

#[test]
fn what_answers_small_reads_sooner_gets_metadata() {
    let turning = presets::BARRACUDA_50;
    let mut models =
        Models::new(&[turning, MEMORY, turning, turning, MEMORY].map(|m| (m, None)), &[]);
    let mut last = (0, 0);
    let found = answers(&mut models, &[], &mut |done, all| last = (done, all)).unwrap();
    assert_eq!(last, (5, 5), "the progress ends");
    assert!(found[1].small.unwrap() < Duration::from_micros(100), "{found:?}");
    // Half a turn at 7200 a minute, and a seek.
    assert!(found[0].small.unwrap() > Duration::from_millis(4), "{found:?}");
    let members = members(&[4 << 40, 300 << 30, 4 << 40, 4 << 40, 300 << 30]);
    for redundancy in [Redundancy::None, Redundancy::Mirror(2), Redundancy::Parity(1)] {
        let choice = choose(&found, &members, redundancy);
        let Choice::Split { classes, rotates: false, .. } = &choice else { panic!("{choice}") };
        assert_eq!(*classes, Classes { metadata: vec![1, 4], journal: Vec::new() }, "{choice}");
        assert!(choice.to_string().contains("2 devices that answer small reads in 8"), "{choice}");
    }
    let alike = answers(&mut Models::new(&[(turning, None); 4], &[]), &[], &mut |_, _| {}).unwrap();
    let choice = choose(&alike, &members[..4], Redundancy::None);
    assert!(matches!(choice, Choice::Whole(Why::Alike { .. })), "{choice}");
}

/// Members of these sizes, as a label has them.
fn members(sizes: &[u64]) -> Vec<braid_format::label::Member> {
    let devices: Vec<Arc<dyn Device>> = (0..sizes.len())
        .map(|i| MemoryDevice::new(&format!("m{i}"), Bytes(8 << 20), Bytes(512)) as _)
        .collect();
    let mut members = Pool::plan(devices, &CreateOptions::new("p")).unwrap().label.members;
    for (member, size) in members.iter_mut().zip(sizes) {
        member.data_len = Bytes(*size);
    }
    members
}

/// What members answered, in microseconds.
fn answered(micros: &[u64], rotates: &[Option<bool>]) -> Vec<Answers> {
    let small = |us: &u64| Some(Duration::from_micros(*us)).filter(|d| !d.is_zero());
    let rotates = rotates.iter().copied().chain(std::iter::repeat(None));
    micros.iter().zip(rotates).map(|(us, rotates)| Answers { small: small(us), rotates }).collect()
}

#[test]
fn nothing_is_chosen_where_it_is_not_clear_or_not_safe() {
    let sizes = |fast: u64, n: usize| {
        let mut sizes = vec![1 << 40; n];
        (sizes[0], sizes[1]) = (fast, fast);
        members(&sizes)
    };
    let (none, two) = (Redundancy::None, Redundancy::Mirror(2));
    let of = |micros: &[u64], rotates: &[Option<bool>], fast, redundancy| {
        choose(&answered(micros, rotates), &sizes(fast, micros.len()), redundancy)
    };
    let split = |choice: &Choice| matches!(choice, Choice::Split { .. });
    let clear = of(&[100, 90, 400, 500, 450, 600], &[], 100 << 30, none);
    assert!(split(&clear), "{clear}");
    // Not four times; not by 50 us.
    for micros in [[100, 90, 390, 500, 450, 600], [10, 9, 59, 80, 70, 90]] {
        let choice = of(&micros, &[], 100 << 30, none);
        assert!(matches!(choice, Choice::Whole(Why::Alike { .. })), "{choice}");
    }
    assert!(split(&of(&[10, 9, 60, 80, 70, 90], &[], 100 << 30, none)) && LEAST.as_micros() == 50);
    // Twice as fast is enough if the system says which devices rotate, but not if it says the
    // opposite, or nothing.
    let (turns, still) = (Some(true), Some(false));
    let told = [still, still, turns, turns, turns, turns];
    let micros = [1000, 900, 2000, 2500, 2200, 3000];
    let choice = of(&micros, &told, 100 << 30, none);
    assert!(choice.to_string().contains("they rotate"), "{choice}");
    for told in [&[] as &[_], &[turns; 6], &[turns, turns, still, still, still, still]] {
        assert!(!split(&of(&micros, told, 100 << 30, none)), "{told:?}");
    }
    assert!(!split(&of(&[1000, 900, 1990, 2500, 2200, 3000], &told, 100 << 30, none)));
    // Of three classes the one that is fit.
    let three = of(&[20, 400, 8000, 9000, 8000, 9000], &[], 100 << 30, two);
    let Choice::Split { classes, .. } = &three else { panic!("{three}") };
    assert_eq!(classes.metadata, [0, 1], "one alone makes no two copies: {three}");
    for (choice, why) in [
        (of(&[100, 5000, 5000, 5000], &[], 100 << 30, two), "it would take 2 for metadata"),
        (of(&[100, 100, 5000, 5000], &[], 100 << 30, Redundancy::Parity(1)), "and 3 for data"),
        (of(&[100, 100, 5000, 5000, 5000], &[], 1 << 30, two), "metadata wants 125829"),
        (of(&[100, 100, 5000, 5000, 5000], &[], 1 << 40, two), "40 % of the space"),
        (of(&[100, 0, 5000, 5000], &[], 100 << 30, none), "too small to be measured"),
        (choose(&[], &[], none), "too small to be measured"),
    ] {
        assert!(!split(&choice) && choice.to_string().contains(why), "{choice}; expected {why}");
    }
}

#[test]
fn devices_are_asked_for_small_reads_and_not_written() {
    let device = braid_device::FaultyDevice::new(
        MemoryDevice::new("m", Bytes(8 << 20), Bytes(512)),
        braid_device::FaultPlan::default(),
    );
    let small: Arc<dyn Device> = MemoryDevice::new("s", Bytes(1 << 20), Bytes(512));
    let mut bench = DeviceBench::new(vec![device.clone(), small], Duration::from_millis(1));
    assert!(bench.latency(0).unwrap().is_some());
    assert_eq!(bench.latency(1).unwrap(), None);
    let counts = device.counts();
    assert!(counts.reads >= 16 && counts.writes == 0, "{counts:?}");
    let places: std::collections::BTreeSet<_> = (0..512).map(|n| small_read(n, 1 << 40)).collect();
    assert_eq!(places.len(), 512);
    assert!(places.iter().all(|at| at.0 < 1 << 40 && at.0.is_multiple_of(4096)));
}

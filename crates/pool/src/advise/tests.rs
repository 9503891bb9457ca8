//! On modelled disks in virtual time, against closed forms; and the rules alone.

use std::sync::Arc;

use braid_device::model::{Bus, Client, DiskModel, ModelClock, ModelDevice, Touch, drive, presets};
use braid_device::{Device, DeviceError, MemoryDevice};
use braid_format::{ByteOffset, Bytes, StripeUnit};

use super::measure::{DEEP, REQUESTS};
use super::rules::{CONTROLLER, ORDER, SLOWEST, UNIT, cost_of_request, half_rows, loss};
use super::*;
use crate::{CreateOptions, Pool};

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
        let right = (16..).map(|power| 1_u64 << power).find(|u| *u >= 4 * model.track.0);
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
        assert!(advice.unit_loss.is_finite() && advice.width % advice.unit == 0, "{advice:?}");
    }
}

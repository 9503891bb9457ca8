//! The rules: pure functions of the measurements.
//!
//! With `m` what a member gives at most and `c` what a request costs it beyond its bytes (a lost rotation,
//! the command), one request of `L` at a time gives `L / (L / m + c)`: with `c` the rotation of a track of
//! `T = m c` bytes and `L = n T` that is `n / (n + 1)` of `m`.

use braid_format::label::{Label, NodeKind};

use super::measure::{Measurements, REQUESTS};
use crate::layout::bus::interleave;
use crate::layout::weights::by_speed;

/// A guideline, and where it is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guideline {
    /// What it says, in its words.
    pub says: &'static str,
    /// Where.
    pub source: &'static str,
}

/// Of the stripe unit.
pub const UNIT: Guideline = Guideline {
    says: "small stripe units degrade write performance",
    source: "BDSpro guide, ch. 2, table 2-1",
};
/// Of the request's size.
pub const REQUEST: Guideline = Guideline {
    says: "The transfer size should be a multiple of both the system's page size and the stripe width",
    source: "BDSpro guide, ch. 2",
};
/// Of disks on a controller.
pub const CONTROLLER: Guideline = Guideline {
    says: "use one controller for every three or four disks",
    source: "BDSpro guide, ch. 2",
};
/// Of the order of members.
pub const ORDER: Guideline = Guideline {
    says: "Striping of multiple disks per controller should be specified in a way that interleaves access to the two buses or controllers",
    source: "T. Lam, Improving File System Performance by Striping, NASA Ames 1992",
};
/// Of unequal members.
pub const SLOWEST: Guideline = Guideline {
    says: "the performance of the striped file system is limited by the performance of the slower drive",
    source: "T. Lam, Improving File System Performance by Striping, NASA Ames 1992",
};

/// The part of its time that one request at a time may lose with a unit: four tracks.
const LOSS_MAX: f64 = 0.2;
/// The part of the best rate at which a request size counts as large enough.
const REACHED: f64 = 0.95;
/// Units that are advised.
const UNITS: std::ops::RangeInclusive<u64> = 64 << 10..=4 << 20;
/// The part of a disk that a bus must have left to carry one more disk.
const SLACK: f64 = 0.1;
/// Costs below this part are noise.
const NOISE: f64 = 0.02;

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// Bytes on one member before the next.
    pub unit: u64,
    /// The part of the write rate that one request at a time loses with this unit.
    pub unit_loss: f64,
    /// The request size from which a member alone gives all it has, one request at a time.
    pub enough: Option<u64>,
    /// Shares of a row.
    pub weights: Vec<u16>,
    /// Bytes of a row, and of a good request.
    pub width: u64,
    /// By member, its bus: 0 where it shares none that is full.
    pub buses: Vec<u16>,
    /// Members in a good order.
    pub order: Vec<usize>,
    /// Members that a full bus carries, of each of [`Measurements::shared`].
    pub disks_per_bus: Vec<u64>,
    /// Bytes per second: the members alone, and together as they are.
    pub sums: (u64, u64),
}

/// Something wrong with a present layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// What, for people.
    pub what: String,
    /// What it costs, in percent of the bandwidth that could be.
    pub percent: f64,
    /// The guideline.
    pub guideline: Guideline,
}

#[expect(clippy::cast_precision_loss, reason = "rates and sizes far below 2^53")]
const fn float(n: u64) -> f64 {
    n as f64
}

/// What a request costs a member beyond its bytes, in seconds: the median over the request sizes.
pub fn cost_of_request(alone: u64, by_request: &[u64]) -> f64 {
    let one = |(len, rate): (&u64, &u64)| {
        float(*len) / float((*rate).max(1)) - float(*len) / float(alone.max(1))
    };
    let mut costs: Vec<f64> = REQUESTS.iter().zip(by_request).map(one).collect();
    costs.sort_by(f64::total_cmp);
    costs.get(costs.len() / 2).copied().unwrap_or(0.0).max(0.0)
}

/// The part of a member's rate that is lost with requests of `len`, one at a time: `1 / (n + 1)`.
pub fn loss(alone: u64, cost: f64, len: u64) -> f64 {
    let moving = float(len) / float(alone.max(1));
    cost / (cost + moving)
}

/// The part lost with `unit`, of the member that loses the most.
fn worst_loss(m: &Measurements, unit: u64) -> f64 {
    let each = m.alone.iter().zip(&m.by_request);
    each.map(|(alone, curve)| loss(*alone, cost_of_request(*alone, curve), unit))
        .fold(0.0, f64::max)
}

/// What members give while all work: alone, or less on a bus that is full.
fn in_use(m: &Measurements) -> &[u64] {
    if m.shared.is_empty() { &m.alone } else { &m.together }
}

/// Advice for a stripe over the members.
pub fn advise(m: &Measurements) -> Advice {
    let mut unit = *UNITS.start();
    while worst_loss(m, unit) > LOSS_MAX && unit < *UNITS.end() {
        unit *= 2;
    }
    let reached = |i: usize| {
        let all = m.alone.iter().zip(&m.by_request);
        all.into_iter().all(|(a, c)| c.get(i).is_some_and(|r| float(*r) >= REACHED * float(*a)))
    };
    let weights = by_speed(in_use(m));
    let row: u64 = weights.iter().map(|w| u64::from(*w)).sum();
    let mut buses = vec![0; m.alone.len()];
    for (number, shared) in (1..).zip(&m.shared) {
        for member in &shared.members {
            if let Some(bus) = buses.get_mut(*member) {
                *bus = number;
            }
        }
    }
    let disks_per_bus = m.shared.iter().map(|s| {
        let sum: u64 = s.members.iter().filter_map(|i| m.alone.get(*i)).sum();
        let mean = sum / s.members.len().max(1) as u64;
        // The least number that fills it; what measurement adds beyond a whole disk does not count.
        fill(float(s.rate) / float(mean.max(1)))
    });
    Advice {
        unit,
        unit_loss: worst_loss(m, unit),
        enough: REQUESTS.iter().enumerate().find(|(i, _)| reached(*i)).map(|(_, r)| *r),
        width: row * unit,
        weights,
        order: interleave(&own_buses(&buses)),
        buses,
        disks_per_bus: disks_per_bus.collect(),
        sums: (m.alone.iter().sum(), m.together.iter().sum()),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
fn fill(disks: f64) -> u64 {
    ((disks - SLACK).ceil() as u64).max(1)
}

/// Members that share no full bus are each on one of their own.
fn own_buses(buses: &[u16]) -> Vec<u16> {
    let most = buses.iter().copied().max().unwrap_or(0);
    let free = (most + 1..).zip(buses);
    free.map(|(own, bus)| if *bus == 0 { own } else { *bus }).collect()
}

/// What a request of half a row gives, one at a time, against one of the whole row: the mean over the
/// places where it may begin. `columns`: the members of a row.
pub fn half_rows(m: &Measurements, buses: &[u16], columns: &[usize]) -> f64 {
    let half = columns.len() / 2;
    let time = |columns: &mut dyn Iterator<Item = usize>| -> f64 {
        let mut on_bus: Vec<f64> = vec![0.0; m.shared.len()];
        let mut longest = 0.0_f64;
        for column in columns {
            let alone = m.alone.get(column).copied().unwrap_or(0).max(1);
            longest = longest.max(1.0 / float(alone));
            let bus = buses.get(column).copied().unwrap_or(0);
            let bus = usize::from(bus).checked_sub(1);
            if let Some(slot) = bus.and_then(|b| on_bus.get_mut(b)) {
                *slot += 1.0;
            }
        }
        let carried = on_bus.iter().zip(&m.shared).map(|(n, s)| n / float(s.rate.max(1)));
        carried.fold(longest, f64::max)
    };
    let n = columns.len();
    if half == 0 {
        return 1.0;
    }
    let begin = (0..n).step_by(half);
    let windows =
        begin.map(|from| time(&mut columns.iter().cycle().skip(from).take(half).copied()));
    let windows: Vec<f64> = windows.collect();
    let mean = windows.iter().sum::<f64>() / float(windows.len() as u64);
    let whole = time(&mut columns.iter().copied());
    // Units per second of a half, against those of the whole.
    (float(half as u64) / mean) / (float(n as u64) / whole)
}

/// What is wrong with a label's stripes, and what it costs; the dearest first.
pub fn judge(label: &Label, m: &Measurements, advice: &Advice) -> Vec<Finding> {
    let mut findings = Vec::new();
    for node in &label.nodes {
        let (NodeKind::Stripe { unit, children } | NodeKind::Parity { unit, children, .. }) =
            &node.kind
        else {
            continue;
        };
        let columns: Vec<(usize, u16)> = children
            .iter()
            .filter_map(|c| Some((first_member(label, c.node)?, c.weight)))
            .collect();
        findings.extend(unit_finding(m, advice, unit.0));
        findings.extend(share_finding(m, &columns));
        findings.extend(order_finding(m, advice, &columns));
    }
    findings.extend(bus_finding(m, advice));
    findings.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    findings.dedup();
    findings
}

/// The member that a subtree begins with: of a mirror its first copy, of a concat its first part.
fn first_member(label: &Label, node: u16) -> Option<usize> {
    match &label.nodes.get(usize::from(node))?.kind {
        NodeKind::Slice { member, .. } => Some(usize::from(member.0)),
        kind => {
            let child = kind.children().first()?.node;
            // Children stand before their parents, so this ends.
            (child < node).then(|| first_member(label, child))?
        }
    }
}

fn unit_finding(m: &Measurements, advice: &Advice, unit: u64) -> Option<Finding> {
    let lost = worst_loss(m, unit);
    // Against the advised unit: (1 - lost) / (1 - advised).
    let percent = 100.0 * (1.0 - (1.0 - lost) / (1.0 - advice.unit_loss));
    let what = format!(
        "the stripe unit of {} KiB: requests of one row, one at a time, lose {:.0} % of the bandwidth ({:.0} % with \
         {} KiB); several at a time hide it",
        unit >> 10,
        100.0 * lost,
        100.0 * advice.unit_loss,
        advice.unit >> 10
    );
    (percent > 100.0 * NOISE).then_some(Finding { what, percent, guideline: UNIT })
}

fn share_finding(m: &Measurements, columns: &[(usize, u16)]) -> Option<Finding> {
    let rates = in_use(m);
    let rate = |i: &usize| float(rates.get(*i).copied().unwrap_or(0).max(1));
    let row = |weights: &[u16]| {
        let time = |((i, _), w): (&(usize, u16), &u16)| f64::from(*w) / rate(i);
        let time = columns.iter().zip(weights).map(time).fold(0.0, f64::max);
        weights.iter().map(|w| f64::from(*w)).sum::<f64>() / time
    };
    let present: Vec<u16> = columns.iter().map(|c| c.1).collect();
    let speeds: Vec<u64> = columns.iter().filter_map(|c| rates.get(c.0).copied()).collect();
    let best = by_speed(&speeds);
    let percent = 100.0 * (1.0 - row(&present) / row(&best));
    let what = format!(
        "the shares {present:?} of members of unequal speed: {best:?} would move more in the same time (`--weights`)"
    );
    (columns.len() > 1 && percent > 100.0 * NOISE).then_some(Finding {
        what,
        percent,
        guideline: SLOWEST,
    })
}

fn order_finding(m: &Measurements, advice: &Advice, columns: &[(usize, u16)]) -> Option<Finding> {
    let present: Vec<usize> = columns.iter().map(|c| c.0).collect();
    let buses: Vec<u16> = present.iter().filter_map(|i| advice.buses.get(*i).copied()).collect();
    let order = interleave(&own_buses(&buses));
    let better: Vec<usize> = order.iter().filter_map(|i| present.get(*i).copied()).collect();
    let (now, then) = (half_rows(m, &advice.buses, &present), half_rows(m, &advice.buses, &better));
    let percent = 100.0 * (1.0 - now / then);
    let what = format!(
        "the order {present:?}: requests of half a row fall on one bus; {better:?} takes turns"
    );
    (percent > 100.0 * NOISE).then_some(Finding { what, percent, guideline: ORDER })
}

fn bus_finding(m: &Measurements, advice: &Advice) -> Option<Finding> {
    let (alone, together) = (float(advice.sums.0), float(advice.sums.1));
    let percent = 100.0 * (1.0 - together / alone.max(1.0));
    let buses = m.shared.iter().zip(&advice.disks_per_bus).map(|(s, n)| {
        format!("members {:?} share {} MB/s, which {n} of them fill", s.members, s.rate / 1_000_000)
    });
    let buses: Vec<String> = buses.collect();
    let what = if buses.is_empty() {
        "all members together give less than their sum: something that all share is full".to_owned()
    } else {
        format!("{}: put the others on another controller", buses.join("; "))
    };
    (percent > 100.0 * (1.0 - super::measure::SHORT)).then_some(Finding {
        what,
        percent,
        guideline: CONTROLLER,
    })
}

//! What is measured: each member alone at several request sizes, all together, and, where that falls
//! short of the sum, all but one, which shows who shares a bus with whom.

use std::time::Duration;

use braid_device::DeviceError;

/// One measurement: these members at the same time, each reading sequentially.
#[derive(Debug, Clone)]
pub struct Run {
    /// The members, by number.
    pub members: Vec<usize>,
    /// Bytes of a request.
    pub request: u64,
    /// Requests under way at each member.
    pub depth: usize,
}

/// Who measures: devices in real time, or models in virtual time.
pub trait Bench {
    /// How many members there are.
    fn members(&self) -> usize;
    /// Bytes per second that each member of `run` gave while all of them were reading.
    ///
    /// # Errors
    /// A member cannot be read.
    fn rates(&mut self, run: &Run) -> Result<Vec<u64>, DeviceError>;
    /// How long a member takes, alone, to answer a small read anywhere, one at a time; `None`: it is
    /// too small to tell.
    ///
    /// # Errors
    /// It cannot be read.
    fn latency(&mut self, member: usize) -> Result<Option<Duration>, DeviceError>;
}

/// Request sizes that are tried.
pub const REQUESTS: [u64; 7] =
    [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// Requests under way where the most is wanted of a member.
pub const DEEP: usize = 4;
/// The size of requests where members run together.
pub const TOGETHER: u64 = 1 << 20;
/// Of the sum of the members, below which something that they share is taken to be full.
pub const SHORT: f64 = 0.95;
/// Most members of which each is left out once.
const LEFT_OUT_MAX: usize = 32;

/// A bus that cannot carry all of its members at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// The members on it.
    pub members: Vec<usize>,
    /// Bytes per second that it carries.
    pub rate: u64,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measurements {
    /// By member: the most it gives alone, bytes per second.
    pub alone: Vec<u64>,
    /// By member: what it gives alone with one request at a time, for each of [`REQUESTS`].
    pub by_request: Vec<Vec<u64>>,
    /// By member: what it gives while all others run.
    pub together: Vec<u64>,
    /// Buses that are full.
    pub shared: Vec<Shared>,
    /// There were too many members to find out which of them share a bus.
    pub buses_not_sought: bool,
}

/// Measures everything; `progress` gets the number of runs that are done, and of all.
///
/// # Errors
/// A member cannot be read.
pub fn measure(
    bench: &mut dyn Bench,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Measurements, DeviceError> {
    let n = bench.members();
    let each = REQUESTS.len() as u64 + 1;
    let (mut done, all) = (0, n as u64 * each + 1);
    let mut found = Measurements::default();
    let one = |members: Vec<usize>, request, depth| Run { members, request, depth };
    let mut first = |bench: &mut dyn Bench, run: &Run| -> Result<u64, DeviceError> {
        let rate = bench.rates(run)?.first().copied().unwrap_or(0);
        done += 1;
        progress(done, all);
        Ok(rate)
    };
    for member in 0..n {
        let deep = first(bench, &one(vec![member], TOGETHER, DEEP))?;
        let mut curve = Vec::new();
        for request in REQUESTS {
            curve.push(first(bench, &one(vec![member], request, 1))?);
        }
        found.alone.push(curve.iter().copied().fold(deep, u64::max));
        found.by_request.push(curve);
    }
    found.together = bench.rates(&one((0..n).collect(), TOGETHER, DEEP))?;
    progress(all, all);
    let sum = |rates: &[u64]| rates.iter().map(|r| u128::from(*r)).sum::<u128>();
    if n > 1 && !enough(sum(&found.together), sum(&found.alone)) {
        found.buses_not_sought = n > LEFT_OUT_MAX;
        if n <= LEFT_OUT_MAX {
            found.shared = buses(bench, &found, progress)?;
        }
    }
    Ok(found)
}

#[expect(clippy::cast_precision_loss, reason = "rates far below 2^53")]
fn enough(together: u128, alone: u128) -> bool {
    together as f64 >= SHORT * alone as f64
}

/// Leaves out one member after the other: those that then become faster share its bus.
#[expect(clippy::cast_precision_loss, reason = "rates far below 2^53")]
fn buses(
    bench: &mut dyn Bench,
    found: &Measurements,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Shared>, DeviceError> {
    let n = bench.members();
    let rate = |i: usize| found.together.get(i).copied().unwrap_or(0).max(1);
    let alone = |i: usize| found.alone.get(i).copied().unwrap_or(0);
    let slowed: Vec<usize> =
        (0..n).filter(|i| !enough(rate(*i).into(), alone(*i).into())).collect();
    // If m members share a bus and one is left out, each of the others gains 1 / (m - 1).
    let least = 0.5 / (slowed.len().max(2) - 1) as f64;
    let mut gains = vec![vec![0.0; n]; n];
    for (count, out) in (1..).zip(&slowed) {
        let members: Vec<usize> = (0..n).filter(|i| i != out).collect();
        let rates =
            bench.rates(&Run { members: members.clone(), request: TOGETHER, depth: DEEP })?;
        for (i, now) in members.into_iter().zip(rates) {
            if let Some(gain) = gains.get_mut(*out).and_then(|row| row.get_mut(i)) {
                *gain = now as f64 / rate(i) as f64 - 1.0;
            }
        }
        progress(count, slowed.len() as u64);
    }
    let gain = |a: usize, b: usize| gains.get(a).and_then(|r| r.get(b)).copied().unwrap_or(0.0);
    let mut left = slowed;
    let mut buses = Vec::new();
    while let Some(seed) = left.first().copied() {
        let mut members = vec![seed];
        left.retain(|i| *i != seed);
        // A member that shares a bus with one of them shares it with all.
        while let Some(at) = left.iter().position(|i| {
            members.iter().any(|m| f64::midpoint(gain(*m, *i), gain(*i, *m)) >= least)
        }) {
            members.push(left.remove(at));
        }
        if members.len() > 1 {
            members.sort_unstable();
            let rate = members.iter().map(|i| rate(*i)).sum();
            buses.push(Shared { members, rate });
        }
    }
    Ok(buses)
}

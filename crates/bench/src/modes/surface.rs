//! Bandwidth over request size and transfer size; each system is compared with the first (GFS for IRIX, S4.1
//! and S4.2). A summary has mean, deviation, least and most of the cells.

use anyhow::{Result, ensure};
use itertools::iproduct;

use super::{Cell, Measure, RunOptions, SpaceNeeds, System, at, base, distinct, test_areas};
use crate::arguments::{Sizes, size};
use crate::engine::{Direction, Limits, Pattern, Stream};
use crate::report::{Report, Summary};
use crate::run::cache::Cache;
use crate::statistics::{Samples, float};

/// The request sizes of the original: 64 KB to 4 MB.
pub(crate) const REQUESTS: &str = "64K,128K,256K,512K,1M,2M,4M";
/// Its transfer sizes: 64 KB to 512 MB.
pub(crate) const TRANSFERS: &str = "64K,128K,256K,512K,1M,2M,4M,8M,16M,32M,64M,128M,256M,512M";

/// Bandwidth over request size and transfer size
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Files, devices or directories; the others are compared with the first
    #[arg(value_name = "[NAME=]PATH", required = true)]
    systems: Vec<System>,
    /// Request sizes
    #[arg(long, default_value = REQUESTS)]
    requests: Sizes,
    /// Transfer sizes (bytes moved in a row); a transfer is never smaller than a request
    #[arg(long, default_value = TRANSFERS)]
    transfers: Sizes,
    /// Small transfers repeat until at least this much has moved
    #[arg(long, default_value = "8M", value_parser = size)]
    at_least: u64,
    /// Read or write
    #[arg(long, value_enum, value_delimiter = ',', default_value = "write,read")]
    ops: Vec<Direction>,
    /// Cache states to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "direct")]
    cache: Vec<Cache>,
    /// Queue depth
    #[arg(long, default_value_t = 1)]
    depth: usize,
}

impl Measure for Args {
    fn begin(&self) -> Report {
        let mut report = Report::new("surface").against(base(&self.systems), "MB/s");
        report.fact("job", "sequential, one stream, request by transfer size");
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        distinct(&self.systems)?;
        let bytes = self.transfers.iter().copied().max().unwrap_or(0);
        let least = self.requests.iter().copied().min().unwrap_or(0);
        ensure!(least > 0 && bytes >= least, "--transfers: none is as large as a request");
        ensure!((1..=4096).contains(&self.depth), "--depth: 1 to 4096");
        let write = self.ops.contains(&Direction::Write);
        let room = SpaceNeeds { streams: 1, bytes, write, force: how.force_destroy };
        let areas = test_areas(&self.systems, room, report)?;
        let (caches, ops) = (self.cache.iter().copied(), self.ops.iter().copied());
        let cells = cells(&self.requests, &self.transfers);
        let plan: Vec<_> = iproduct!(caches, ops, cells).collect();
        how.compare(report, &areas, plan.len(), |report, area| {
            plan.iter().copied().try_for_each(|(cache, op, sizes)| {
                let pattern = pattern(sizes, op, self.at_least);
                let stream = area.stream(0, pattern, cache == Cache::Direct, self.depth)?;
                cell(report, (&area.name, stream), (cache, op), &Limits::default())
            })
        })
    }
    fn conclude(&self, report: &mut Report) {
        report.summaries = summaries(report);
    }
}

/// Of a request and a transfer size; small transfers are repeated until `at_least` has moved.
pub(crate) fn pattern((request, transfer): (u64, u64), op: Direction, at_least: u64) -> Pattern {
    let count = transfer.max(at_least / transfer * transfer) / request;
    Pattern { count, ..Pattern::sequential(0, transfer, request, op == Direction::Read) }
}

/// One more repeat of a cell of a system.
pub(crate) fn cell(
    report: &mut Report,
    (name, stream): (&str, Stream),
    (cache, op): (Cache, Direction),
    limits: &Limits,
) -> Result<()> {
    let (request, transfer) = (stream.pattern.request, stream.pattern.span);
    let phase = format!("{} {}", op.word(), cache.word());
    let at = at(&[("request", float(request)), ("transfer", float(transfer))]);
    let flush = op == Direction::Write && cache != Cache::Direct;
    let streams = [Stream { flush, ..stream }];
    let row =
        Cell { name, phase: &phase, at }.run_cached(report, &streams, limits, (cache, None))?;
    // A surface has many cells: their shapes over time would fill the file.
    row.series = None;
    Ok(())
}

/// Every request size with every transfer size that is not smaller.
pub(crate) fn cells(requests: &[u64], transfers: &[u64]) -> Vec<(u64, u64)> {
    let all = iproduct!(requests.iter().copied(), transfers.iter().copied());
    all.filter(|(request, transfer)| transfer >= request).collect()
}

const ALL: &str = "all";

/// Mean, deviation, least and most of the cells' median ratios: by system and phase, and by system.
pub(crate) fn summaries(report: &Report) -> Vec<Summary> {
    let mut groups: Vec<(&str, &str, Vec<f64>)> = Vec::new();
    for row in report.rows.iter().filter(|r| r.name != report.base) {
        let ratio = report.base_of(row).and_then(|base| row.ratio_to(base).known_median());
        let Some(ratio) = ratio else { continue };
        for phase in [row.phase.as_str(), ALL] {
            match groups.iter_mut().find(|(n, p, _)| *n == row.name && *p == phase) {
                Some((.., ratios)) => ratios.push(ratio),
                None => groups.push((&row.name, phase, vec![ratio])),
            }
        }
    }
    // The phases of a system in their order, and all of them behind the last.
    groups.sort_by_key(|(name, phase, _)| (*name, *phase == ALL));
    let of = |(name, phase, ratios): (&str, &str, Vec<f64>)| {
        let ratios = Samples(ratios);
        let (min, max) = ratios.spread();
        Summary {
            name: name.to_owned(),
            base: report.base.clone(),
            phase: phase.to_owned(),
            cells: ratios.0.len(),
            mean: ratios.mean(),
            deviation: ratios.deviation(),
            min,
            max,
        }
    };
    groups.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Figure;

    #[test]
    fn the_original_had_77_cells() {
        let sizes = |text: &str| text.parse::<Sizes>().unwrap();
        let all = cells(&sizes(REQUESTS), &sizes(TRANSFERS));
        assert_eq!(all.len(), 77);
        assert!(all.iter().all(|(request, transfer)| transfer >= request));
    }
    #[test]
    fn the_efficiency_table() {
        let mut report = Report::default().against("raw", "MB/s");
        for (n, ratio) in [(1.0, 0.5), (2.0, 1.0), (3.0, 1.5)] {
            for (name, rate) in [("raw", 100.0), ("fs", 100.0 * ratio)] {
                let row = report.row(name, "read direct", &at(&[("request", n)]));
                row.rate.0.push(Figure::new(1, 1.0, 0.0).mb_per_s.max(rate));
            }
        }
        let s = summaries(&report);
        assert_eq!(s.len(), 2);
        assert_eq!((s[0].phase.as_str(), s[1].phase.as_str()), ("read direct", "all"));
        assert_eq!(s[0].cells, 3);
        for (found, expected) in
            [(s[0].mean, 1.0), (s[0].deviation, 0.5), (s[0].min, 0.5), (s[0].max, 1.5)]
        {
            assert!((found - expected).abs() < 1e-9, "{:?}", s[0]);
        }
    }
}

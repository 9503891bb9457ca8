//! Bandwidth over request size and transfer size; each system is compared with the first (GFS for IRIX, S4.1
//! and S4.2). A summary has mean, deviation, least and most of the cells.

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::{
    Cell, Measure, RunOptions, SpaceNeeds, System, TestArea, at, base, distinct, test_areas,
};
use crate::arguments::{Sizes, size};
use crate::engine::{Direction, Limits, Pattern, Stream, Target};
use crate::report::{Report, Summary};
use crate::run::cache::{Cache, label, prepare};
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
    #[command(flatten)]
    how: RunOptions,
}

impl Measure for Args {
    fn how(&self) -> &RunOptions {
        &self.how
    }
    fn begin(&self) -> Report {
        let mut report = Report::new("surface").against(base(&self.systems), "MB/s");
        report.fact("job", "sequential, one stream, request by transfer size");
        report
    }
    fn measure(&self, report: &mut Report) -> Result<()> {
        distinct(&self.systems)?;
        let bytes = self.transfers.iter().copied().max().unwrap_or(0);
        let least = self.requests.iter().copied().min().unwrap_or(0);
        ensure!(least > 0 && bytes >= least, "--transfers: none is as large as a request");
        ensure!((1..=4096).contains(&self.depth), "--depth: 1 to 4096");
        let write = self.ops.contains(&Direction::Write);
        let room = SpaceNeeds { streams: 1, bytes, write, force: self.how.force_destroy };
        let areas = test_areas(&self.systems, room, report)?;
        let cells = cells(&self.requests, &self.transfers);
        let rows = cells.len() * self.cache.len() * self.ops.len();
        self.how.compare(report, &areas, rows, |report, area| {
            for cache in &self.cache {
                for op in &self.ops {
                    for size in &cells {
                        self.cell(area, (*cache, *op), *size, report)?;
                    }
                }
            }
            Ok(())
        })
    }
    fn conclude(&self, report: &mut Report) {
        report.summaries = summaries(report);
    }
}

impl Args {
    fn cell(
        &self,
        area: &TestArea,
        (cache, op): (Cache, Direction),
        (request, transfer): (u64, u64),
        report: &mut Report,
    ) -> Result<()> {
        let target = area.target(0, op == Direction::Write, cache == Cache::Direct)?;
        let (at_least, depth) = (self.at_least, self.depth);
        let surface_cell = SurfaceCell { from: 0, request, transfer, at_least, depth };
        surface_cell.measure(report, (&area.name, target), (cache, op), &Limits::default())
    }
}

/// A cell of a surface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SurfaceCell {
    /// First byte.
    pub from: u64,
    pub request: u64,
    pub transfer: u64,
    /// Small transfers are repeated until so much has moved.
    pub at_least: u64,
    pub depth: usize,
}
impl SurfaceCell {
    /// One more repeat of it.
    ///
    /// # Errors
    /// It is impossible, or a request failed.
    pub fn measure(
        self,
        report: &mut Report,
        (name, target): (&str, Arc<Target>),
        (cache, op): (Cache, Direction),
        limits: &Limits,
    ) -> Result<()> {
        let Self { from, request, transfer, at_least, depth } = self;
        let read = op == Direction::Read;
        target.check(request, from, from.saturating_add(transfer), read)?;
        let moved = transfer.max(at_least / transfer * transfer);
        let mut pattern = Pattern::sequential(from, transfer, request, read);
        pattern.count = moved / request;
        let prepared = prepare(&target.path, cache, (from, transfer));
        let flush = !read && cache != Cache::Direct;
        let stream = Stream { depth, flush, ..Stream::plain(target, pattern) };
        let phase = format!("{} {}", op.word(), word(cache));
        let at = at(&[("request", float(request)), ("transfer", float(transfer))]);
        let (row, _) = Cell { name, phase: &phase, at }.run(report, &[stream], limits)?;
        row.cache = Some(label(&prepared, cache, transfer, crate::run::environment::memory()));
        // A surface has many cells: their shapes over time would fill the file.
        row.series = None;
        Ok(())
    }
}

/// Every request size with every transfer size that is not smaller.
pub(crate) fn cells(requests: &[u64], transfers: &[u64]) -> Vec<(u64, u64)> {
    let all = requests.iter().flat_map(|r| transfers.iter().map(|t| (*r, *t)));
    all.filter(|(r, t)| t >= r).collect()
}

/// How a phase is called after its cache.
pub(crate) fn word(cache: Cache) -> &'static str {
    match cache {
        Cache::Direct => "direct",
        Cache::Cold => "cold",
        Cache::Warm => "warm",
    }
}

/// Mean, deviation, least and most of the cells' median ratios: by system and phase, and by system.
pub(crate) fn summaries(report: &Report) -> Vec<Summary> {
    let mut names: Vec<(String, Option<String>)> = Vec::new();
    for row in report.rows.iter().filter(|r| r.name != report.base) {
        for phase in [Some(row.phase.clone()), None] {
            let key = (row.name.clone(), phase);
            if !names.contains(&key) {
                names.push(key);
            }
        }
    }
    names.sort_by_key(|(name, phase)| (name.clone(), phase.is_none()));
    let of = |(name, phase): (String, Option<String>)| {
        let cells = report.rows.iter().filter(|r| r.name == name);
        let cells = cells.filter(|r| phase.as_ref().is_none_or(|p| r.phase == *p));
        let ratios: Vec<f64> = cells
            .filter_map(|r| Some(r.ratio_to(report.base_of(r)?)))
            .filter(|r| !r.0.is_empty())
            .map(|r| r.median())
            .collect();
        let cells = Samples(ratios);
        let (min, max) = cells.spread();
        let phase = phase.unwrap_or_else(|| "all".to_owned());
        let (mean, deviation) = (cells.mean(), cells.deviation());
        let base = report.base.clone();
        Summary { name, base, phase, cells: cells.0.len(), mean, deviation, min, max }
    };
    names.into_iter().map(of).filter(|s| s.cells > 0).collect()
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

//! Bandwidth over request size and number of streams: direct and buffered; reads, writes and mixes. (NCAR's
//! CXFS tests, S2: their forty plots are rows of this one table.)

use anyhow::{Result, ensure};
use itertools::iproduct;

use super::{Cell, Measure, RunOptions, SpaceNeeds, System, TestArea};
use super::{at, base, distinct, holds, test_areas};
use crate::arguments::{Sizes, size};
use crate::engine::{Limits, Order, Pattern, Stream};
use crate::report::Report;
use crate::run::cache::Cache;
use crate::statistics::float;

/// Bandwidth over request size, streams, direct and buffered
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Files, devices or directories; the others are compared with the first
    #[arg(value_name = "[NAME=]PATH", required = true)]
    systems: Vec<System>,
    /// Request sizes
    #[arg(long, default_value = "4K,8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,8M")]
    requests: Sizes,
    /// Streams, each on a file (or a part) of its own
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    streams: Vec<usize>,
    /// File size of each stream
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Percentages of reads: 100 reads only, 0 writes only, 70 a mix
    #[arg(long, value_delimiter = ',', default_value = "0,100")]
    reads: Vec<u8>,
    /// Cache states to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "direct,cold")]
    cache: Vec<Cache>,
    /// Random order, not sequential
    #[arg(long)]
    random: bool,
    /// Queue depth of each stream
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Longest time of a cell, seconds
    #[arg(long, value_name = "SECONDS")]
    time: Option<f64>,
}

impl Args {
    /// A short one, on these.
    pub fn of(systems: &[System], size: u64) -> Self {
        Self {
            systems: systems.to_vec(),
            requests: Sizes::of(&[4 << 10, 64 << 10, 256 << 10, 1 << 20]),
            streams: vec![1, 2],
            size,
            reads: vec![0, 100],
            cache: vec![Cache::Direct, Cache::Cold],
            random: false,
            depth: 1,
            // Small requests need not see the whole file.
            time: Some(0.25),
        }
    }
    /// Reads of what is in the page cache.
    pub fn cached(systems: &[System], size: u64) -> Self {
        let (reads, cache) = (vec![100], vec![Cache::Warm]);
        Self { streams: vec![1], reads, cache, ..Self::of(systems, size) }
    }
}

impl Measure for Args {
    fn begin(&self) -> Report {
        let mut report = Report::new("sweep").against(base(&self.systems), "MB/s");
        let order = if self.random { "random" } else { "sequential" };
        let each = format!("depth {}, {} MiB a stream", self.depth, self.size >> 20);
        report.fact("job", format!("{order}, {each}"));
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        distinct(&self.systems)?;
        let streams = self.streams.iter().copied().max().unwrap_or(0);
        ensure!((1..=1024).contains(&streams), "--streams: 1 to 1024");
        ensure!(self.streams.iter().all(|s| *s > 0), "--streams: at least 1");
        ensure!(self.reads.iter().all(|r| *r <= 100), "--reads: 0 to 100 percent");
        ensure!((1..=4096).contains(&self.depth), "--depth: 1 to 4096");
        holds(self.size, &self.requests)?;
        let (bytes, write) = (self.size, self.reads.iter().any(|r| *r < 100));
        let room = SpaceNeeds { streams, bytes, write, force: how.force_destroy };
        let areas = test_areas(&self.systems, room, report)?;
        let (caches, reads) = (self.cache.iter().copied(), self.reads.iter().copied());
        let (streams, requests) = (self.streams.iter().copied(), self.requests.iter().copied());
        let plan: Vec<_> = iproduct!(caches, reads, streams, requests).collect();
        how.compare(report, &areas, plan.len(), |report, area| {
            plan.iter().copied().try_for_each(|(cache, reads, streams, request)| {
                self.cell(area, (cache, reads), (streams, request), report)
            })
        })
    }
}

impl Args {
    fn cell(
        &self,
        area: &TestArea,
        (cache, reads): (Cache, u8),
        (count, request): (usize, u64),
        report: &mut Report,
    ) -> Result<()> {
        let direct = cache == Cache::Direct;
        let order = if self.random { Order::Random } else { Order::Sequential };
        let pattern = Pattern::sequential(0, self.size, request, true).ordered(order);
        let pattern = Pattern { reads, ..pattern };
        let flush = reads < 100 && !direct;
        let stream = |n| Ok(Stream { flush, ..area.stream(n, pattern, direct, self.depth)? });
        let streams = (0..count).map(stream).collect::<Result<Vec<_>>>()?;
        let time = self.time.map(std::time::Duration::try_from_secs_f64).transpose()?;
        let what = match reads {
            0 => "write".to_owned(),
            100 => "read".to_owned(),
            part => format!("{part} % read"),
        };
        let phase = format!("{what} {}", cache.word());
        let at = at(&[("request", float(request)), ("streams", float(count as u64))]);
        let cell = Cell { name: &area.name, phase: &phase, at };
        let limits = Limits { time, ..Limits::default() };
        cell.run_cached(report, &streams, &limits, (cache, None))?.series = None;
        Ok(())
    }
}

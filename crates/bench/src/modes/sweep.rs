//! Bandwidth over request size and number of streams: direct and buffered; reads, writes and mixes. (NCAR's
//! CXFS tests, S2: their forty plots are rows of this one table.)

use anyhow::{Result, ensure};

use super::surface::word;
use super::{
    Cell, Measure, RunOptions, SpaceNeeds, System, TestArea, at, base, distinct, test_areas,
};
use crate::arguments::{Sizes, size};
use crate::engine::{Limits, Order, Pattern, Stream};
use crate::report::Report;
use crate::run::cache::{Cache, label, prepare};
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
    #[command(flatten)]
    how: RunOptions,
}

impl Args {
    /// A short one, on these.
    pub fn of(systems: &[System], size: u64, how: &RunOptions) -> Self {
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
            how: RunOptions { accept: Vec::new(), ..how.clone() },
        }
    }
    /// Reads of what is in the page cache.
    pub fn cached(systems: &[System], size: u64, how: &RunOptions) -> Self {
        let (reads, cache) = (vec![100], vec![Cache::Warm]);
        Self { streams: vec![1], reads, cache, ..Self::of(systems, size, how) }
    }
}

impl Measure for Args {
    fn how(&self) -> &RunOptions {
        &self.how
    }
    fn begin(&self) -> Report {
        let mut report = Report::new("sweep").against(base(&self.systems), "MB/s");
        let order = if self.random { "random" } else { "sequential" };
        let each = format!("depth {}, {} MiB a stream", self.depth, self.size >> 20);
        report.fact("job", format!("{order}, {each}"));
        report
    }
    fn measure(&self, report: &mut Report) -> Result<()> {
        distinct(&self.systems)?;
        let streams = self.streams.iter().copied().max().unwrap_or(0);
        ensure!((1..=1024).contains(&streams), "--streams: 1 to 1024");
        ensure!(self.streams.iter().all(|s| *s > 0), "--streams: at least 1");
        ensure!(self.reads.iter().all(|r| *r <= 100), "--reads: 0 to 100 percent");
        ensure!((1..=4096).contains(&self.depth), "--depth: 1 to 4096");
        let most = self.requests.iter().copied().max().unwrap_or(0);
        ensure!(self.size >= most, "--size: {} bytes are less than a request of {most}", self.size);
        let (bytes, write) = (self.size, self.reads.iter().any(|r| *r < 100));
        let room = SpaceNeeds { streams, bytes, write, force: self.how.force_destroy };
        let areas = test_areas(&self.systems, room, report)?;
        let rows = self.cache.len() * self.reads.len() * self.streams.len() * self.requests.len();
        self.how.compare(report, &areas, rows, |report, area| {
            for cache in &self.cache {
                for reads in &self.reads {
                    for streams in &self.streams {
                        for request in self.requests.iter().copied() {
                            self.cell(area, (*cache, *reads), (*streams, request), report)?;
                        }
                    }
                }
            }
            Ok(())
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
        let mut prepared: Vec<String> = Vec::new();
        let mut streams = Vec::with_capacity(count);
        for (n, (_, from)) in area.places.iter().enumerate().take(count) {
            let target = area.target(n, reads < 100, direct)?;
            target.check(request, *from, from + self.size, reads > 0)?;
            prepared.push(prepare(&target.path, cache, (*from, self.size)));
            let mut pattern = Pattern::sequential(*from, self.size, request, true);
            pattern.reads = reads;
            if self.random {
                pattern = pattern.ordered(Order::Random);
            }
            let flush = reads < 100 && !direct;
            streams.push(Stream { depth: self.depth, flush, ..Stream::plain(target, pattern) });
        }
        let time = self.time.map(std::time::Duration::try_from_secs_f64).transpose()?;
        let what = match reads {
            0 => "write".to_owned(),
            100 => "read".to_owned(),
            part => format!("{part} % read"),
        };
        let phase = format!("{what} {}", word(cache));
        let at = at(&[("request", float(request)), ("streams", float(count as u64))]);
        let cell = Cell { name: &area.name, phase: &phase, at };
        let (row, _) = cell.run(report, &streams, &Limits { time, ..Limits::default() })?;
        let bytes = self.size.saturating_mul(count as u64);
        prepared.dedup();
        let (prepared, memory) = (prepared.join("; "), crate::run::environment::memory());
        row.cache = Some(label(&prepared, cache, bytes, memory));
        row.series = None;
        Ok(())
    }
}

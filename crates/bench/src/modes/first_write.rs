//! First write of a file, rewrite, and read, as separate phases: what allocation costs (S3.6 to S3.9).
//! The measured time includes the flush.

use anyhow::{Result, ensure};
use itertools::iproduct;

use super::{Cell, Measure, RunOptions, System, TestArea, at, base, distinct, holds};
use crate::arguments::{Sizes, size};
use crate::engine::{Limits, Pattern, Stream};
use crate::report::Report;
use crate::run::cache::Cache;
use crate::statistics::float;

/// First write, rewrite and read of a file
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories (or names of new files); the others are compared with the first
    #[arg(value_name = "[NAME=]DIR", required = true)]
    systems: Vec<System>,
    /// Request sizes
    #[arg(long, default_value = "64K,256K,1M,4M")]
    requests: Sizes,
    /// File size
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Cache states to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "direct")]
    cache: Vec<Cache>,
    /// Queue depth
    #[arg(long, default_value_t = 1)]
    depth: usize,
}

impl Args {
    /// A short one, on these.
    pub fn of(systems: &[System], size: u64) -> Self {
        Self {
            systems: systems.to_vec(),
            requests: Sizes::of(&[64 << 10, 1 << 20]),
            size,
            cache: vec![Cache::Direct],
            depth: 1,
        }
    }
}

impl Measure for Args {
    fn begin(&self) -> Report {
        let mut report = Report::new("first-write").against(base(&self.systems), "MB/s");
        report.fact("job", format!("{} MiB, depth {}", self.size >> 20, self.depth));
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        distinct(&self.systems)?;
        ensure!((1..=4096).contains(&self.depth), "--depth: 1 to 4096");
        holds(self.size, &self.requests)?;
        let (caches, requests) = (self.cache.iter().copied(), self.requests.iter().copied());
        let plan: Vec<_> = iproduct!(caches, requests).collect();
        how.compare(report, &self.systems, plan.len() * PHASES.len(), |report, system| {
            plan.iter().copied().try_for_each(|case| {
                // A new file each time: it is removed with the area.
                let area = TestArea::new(system, 1, self.size, how.force_destroy)?;
                self.phases(&area, case, report)
            })
        })
    }
    fn conclude(&self, report: &mut Report) {
        for (name, phase, ratio) in firsts(report) {
            report.note(format!("{name}, {phase}: first write over rewrite {ratio:.2}"));
        }
    }
}

const FIRST: &str = "first write";
const PHASES: [(&str, bool); 3] = [(FIRST, false), ("rewrite", false), ("read", true)];

impl Args {
    fn phases(
        &self,
        area: &TestArea,
        (cache, request): (Cache, u64),
        report: &mut Report,
    ) -> Result<()> {
        for (what, read) in PHASES {
            let pattern = Pattern::sequential(0, self.size, request, read);
            let stream = area.stream(0, pattern, cache == Cache::Direct, self.depth)?;
            let new = (what == FIRST).then_some("new file");
            ensure!(
                new.is_none() || stream.target.len() == 0,
                "{}: has been written before; name a new file",
                stream.target.path.display()
            );
            let phase = format!("{what} {}", cache.word());
            let at = at(&[("request", float(request))]);
            let cell = Cell { name: &area.name, phase: &phase, at };
            let streams = [Stream { flush: !read, ..stream }];
            cell.run_cached(report, &streams, &Limits::default(), (cache, new))?;
        }
        Ok(())
    }
}

/// First write over rewrite: system, at what, median ratio.
fn firsts(report: &Report) -> Vec<(String, String, f64)> {
    let first = |r: &crate::report::Row| {
        let cache = r.phase.strip_prefix("first write ")?;
        let again = report.find(&r.name, &format!("rewrite {cache}"), &r.parameters)?;
        let ratio = r.rate.ratio_to(&again.rate).median();
        Some((r.name.clone(), format!("{cache}, {}", r.at()), ratio))
    };
    report.rows.iter().filter_map(first).collect()
}

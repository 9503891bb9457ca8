//! xdd: each pass of each target has a line, then each target's average, then all targets combined.

mod options;
mod table;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::engine::{
    Limits, OpenMode, Order, Outcome, Pace, Pattern as Places, Stream, Target, capacity, in_turns,
    run as go,
};
use options::{Job, Options, Seek, Throttle, request};
use table::{Line, Table};

/// Runs it.
///
/// # Errors
/// The words make no sense, or a target cannot be opened.
pub(super) fn run(words: &[String]) -> Result<ExitCode> {
    if words.iter().any(|w| matches!(w.as_str(), "-help" | "-h" | "--help" | "-fullhelp")) {
        println!("{}", options::HELP);
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::parse(words)?;
    for job in options.jobs.iter().filter(|j| j.reads < 100) {
        capacity(&job.path, moved(job))?;
    }
    let targets =
        options.jobs.iter().map(|j| open(j, options.force)).collect::<Result<Vec<_>>>()?;
    for (job, target) in options.jobs.iter().zip(&targets) {
        fits(job, target, options.passes)?;
    }
    let mut session = Session { options: &options, table: Table::default(), failed: Vec::new() };
    let head = session.head();
    session.say(&head)?;
    if options.dry {
        return Ok(ExitCode::SUCCESS);
    }
    // What was measured before a pass that could not be is told.
    let passed = session.passes(&targets);
    session.end()?;
    passed?;
    for (job, target) in options.jobs.iter().zip(&targets) {
        if job.delete && !target.is_block() {
            std::fs::remove_file(&job.path).ok();
        }
    }
    for why in &session.failed {
        eprintln!("xdd: {why}");
    }
    Ok(if session.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn open(job: &Job, force: bool) -> Result<Arc<Target>> {
    let (write, direct) = (job.reads < 100, job.direct);
    let how = OpenMode { write, direct, force, overwrite: true, ..OpenMode::default() };
    Ok(Target::open(&job.path, how)?)
}

/// Bytes of a pass in places of their own; 0: only time ends it.
fn moved(job: &Job) -> u64 {
    let p = places(job, 0);
    let told = job.bytes.is_some() || job.requests.is_some();
    if told { p.span.min(p.count.saturating_mul(p.request)) } else { 0 }
}

fn places(job: &Job, pass: u64) -> Places {
    let request = request(job);
    let by_bytes = job.bytes.map(|b| b / request);
    let count = job.requests.or(by_bytes).unwrap_or(u64::MAX / 2 / request);
    let all = count.saturating_mul(request);
    let range = job.range.map(|r| r.saturating_mul(job.block).max(request));
    let offset = pass.saturating_mul(job.pass_offset);
    let from = job.start.saturating_add(offset).saturating_mul(job.block);
    let (order, span) = match job.seek {
        Seek::Sequential => (Order::Sequential, range.unwrap_or(all)),
        Seek::Random => (Order::Random, range.unwrap_or(all)),
        Seek::None => (Order::Same, request),
        Seek::Stagger(blocks) => {
            let span = range.unwrap_or(all);
            let even = (span.saturating_sub(request) / count.max(1)).max(request);
            let told = blocks.map(|b| b.saturating_mul(job.block));
            // Whole blocks, so that direct I/O can be staggered.
            let step = told.unwrap_or(even).max(request) / job.block * job.block;
            (Order::Stride(step), span)
        }
    };
    let mut places = Places::sequential(from, span, request, true).ordered(order);
    (places.count, places.reads, places.seed) = (count, job.reads, job.seed);
    places
}

/// Refuses what goes beyond the target in the first pass or in the last, or is no whole sectors.
fn fits(job: &Job, target: &Target, passes: u64) -> Result<()> {
    for pass in [0, passes.saturating_sub(1)] {
        let p = places(job, pass);
        let bytes = match (job.range, job.bytes, job.requests) {
            (Some(_), ..) => p.span,
            (None, None, None) => 0,
            _ => p.span.min(p.count.saturating_mul(p.request).max(p.request)),
        };
        target.check(p.request, p.from, p.from.saturating_add(bytes), job.reads > 0)?;
    }
    Ok(())
}

fn streams(job: &Job, target: &Arc<Target>, pass: u64) -> Vec<Stream> {
    let pattern = places(job, pass);
    let interval = job.throttle.map(|t| match t {
        Throttle::Rate(mb) => crate::statistics::float(pattern.request) / (mb * 1e6),
        Throttle::Ops(n) => 1.0 / n,
        Throttle::Delay(s) => s,
    });
    let first = Duration::from_secs_f64(job.start_delay);
    let interval = interval.map(|s| Duration::from_secs_f64(s.clamp(0.0, 1e6)));
    let delayed = (!first.is_zero()).then_some(Duration::ZERO);
    let pace = interval.or(delayed).map(|interval| Pace { interval, first });
    let Job { depth, content, sync: flush, .. } = *job;
    let stream = Stream { target: target.clone(), pattern, depth, pace, content, flush };
    if pace.is_some() { in_turns(&stream, job.depth) } else { vec![stream] }
}

struct Session<'a> {
    options: &'a Options,
    table: Table,
    failed: Vec<String>,
}

impl Session<'_> {
    fn head(&self) -> String {
        let mut head = format!("IOIOIOI IOIOIOI xdd on braid {}\n", env!("CARGO_PKG_VERSION"));
        let o = self.options;
        let _ = writeln!(head, "ID for this run, {}", o.id);
        let _ = writeln!(head, "Passes, {}   Targets, {}", o.passes, o.jobs.len());
        for (n, job) in o.jobs.iter().enumerate() {
            let _ = writeln!(
                head,
                "  Target[{n}] {}, {} % read, requests of {} bytes, queue depth {}, {}",
                job.path.display(),
                job.reads,
                request(job),
                job.depth,
                if job.direct { "direct" } else { "buffered" }
            );
        }
        head + &Table::header()
    }
    fn say(&self, text: &str) -> Result<()> {
        print!("{text}");
        std::io::stdout().flush()?;
        append(self.options.output.as_deref(), text)
    }
    fn passes(&mut self, targets: &[Arc<Target>]) -> Result<()> {
        let began = Instant::now();
        for pass in 0..self.options.passes {
            let all = self.options.runtime.map(Duration::from_secs_f64);
            let left = || all.map(|all| all.saturating_sub(began.elapsed()));
            if pass > 0 {
                // Not beyond the end, after which no pass begins.
                let delay = Duration::from_secs_f64(self.options.pass_delay);
                std::thread::sleep(left().map_or(delay, |left| delay.min(left)));
            }
            let time = left();
            if time.is_some_and(|left| left.is_zero()) {
                break;
            }
            let jobs = self.options.jobs.iter().zip(targets);
            let of_jobs: Vec<_> = jobs.map(|(job, target)| streams(job, target, pass)).collect();
            let shares: Vec<_> = of_jobs.iter().map(Vec::len).collect();
            let outcome = self.beating(&of_jobs.concat(), time)?;
            self.take(pass, &outcome, &shares)?;
            if self.options.stop_on_error && !self.failed.is_empty() {
                break;
            }
        }
        Ok(())
    }
    /// Runs a pass; says meanwhile how far it is.
    fn beating(&self, streams: &[Stream], time: Option<Duration>) -> Result<Outcome> {
        let progress = Arc::new(AtomicU64::new(0));
        let limits = Limits {
            time,
            progress: Some(progress.clone()),
            every: self.options.stamps.is_some(),
            ..Limits::default()
        };
        let Some(seconds) = self.options.heartbeat else { return go(streams, &limits) };
        let all: u64 = streams
            .iter()
            .map(|s| s.pattern.count.saturating_mul(s.pattern.request))
            .fold(0, u64::saturating_add);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = &over;
            let shows = move || {
                let began = Instant::now();
                let mut next = seconds;
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                    let elapsed = began.elapsed().as_secs_f64();
                    if elapsed >= next {
                        next += seconds;
                        let bytes = progress.load(Ordering::Relaxed);
                        eprintln!("{}", heartbeat(bytes, all, elapsed));
                    }
                }
            };
            // Without a thread for it, the heartbeat is not shown.
            std::thread::Builder::new().spawn_scoped(scope, shows).ok();
            let result = go(streams, &limits);
            over.store(true, Ordering::Relaxed);
            result
        })
    }
    fn take(&mut self, pass: u64, outcome: &Outcome, shares: &[usize]) -> Result<()> {
        let mut results = outcome.streams.iter();
        let mut text = String::new();
        for (n, share) in shares.iter().enumerate() {
            let mine: Vec<_> = results.by_ref().take(*share).cloned().collect();
            let Some(job) = self.options.jobs.get(n) else { continue };
            for done in &mine {
                if let Some(why) = &done.failed {
                    self.failed.push(format!("target {n}, pass {}: {why}", pass + 1));
                }
                if let (true, Some(m)) = (job.verify, done.mismatch) {
                    self.failed.push(format!(
                        "target {n}, pass {}: {} requests differ, the first at byte {}",
                        pass + 1,
                        done.mismatches,
                        m.at
                    ));
                }
            }
            self.stamp(pass, n, &mine)?;
            let line = Line::of(n, job, &mine, outcome);
            text.push_str(&line.text(&format!("PASS{:04}", pass + 1)));
            self.table.add(n, line);
        }
        self.table.passed(outcome);
        self.say(&text)
    }
    fn stamp(
        &self,
        pass: u64,
        target: usize,
        results: &[crate::engine::StreamResult],
    ) -> Result<()> {
        let Some(stamps) = &self.options.stamps else { return Ok(()) };
        let mut text = String::new();
        let mut every: Vec<_> = results.iter().flat_map(|d| &d.every).collect();
        every.sort();
        let (ops, kept) = (results.iter().map(|d| d.ops).sum::<u64>(), every.len());
        if ops > kept as u64 {
            eprintln!("xdd: time stamps of {kept} of {ops} requests");
        }
        for (op, (end, took)) in every.iter().enumerate() {
            let began = end.saturating_sub(*took);
            let (from, to) = (began.as_secs_f64(), end.as_secs_f64());
            let _ = writeln!(text, "{target},{},{op},{from:.9},{to:.9}", pass + 1);
        }
        match &stamps.file {
            Some(file) => {
                if pass == 0 && target == 0 {
                    std::fs::write(file, "target,pass,request,began,ended\n")
                        .with_context(|| file.display().to_string())?;
                }
                append(Some(file), &text)
            }
            None if stamps.detailed => self.say(&text),
            None => Ok(()),
        }
    }
    fn end(&self) -> Result<()> {
        let mut text = String::new();
        for n in 0..self.options.jobs.len() {
            if let Some(line) = self.table.average(n) {
                text.push_str(&line.text("Average"));
            }
        }
        let combined = self.table.combined(self.options);
        let line = combined.text("Combined");
        text.push_str(&line);
        if self.options.deskew {
            let _ = writeln!(text, "Deskewed: {}", self.table.deskewed());
        }
        let _ = writeln!(
            text,
            "Ending time for this run, {}",
            crate::run::environment::utc(std::time::SystemTime::now())
        );
        self.say(&text)?;
        append(self.options.combined.as_deref(), &line)?;
        if let Some(csv) = &self.options.csv {
            std::fs::write(csv, self.table.csv(self.options))
                .with_context(|| csv.display().to_string())?;
        }
        Ok(())
    }
}

fn append(path: Option<&std::path::Path>, text: &str) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut f| f.write_all(text.as_bytes())).with_context(|| path.display().to_string())
}

/// How far a pass is.
fn heartbeat(bytes: u64, all: u64, elapsed: f64) -> String {
    let done = crate::statistics::float(bytes);
    let rate = done / 1e6 / elapsed.max(1e-9);
    let mut said = format!("+{elapsed:06.1} s, {:.1} MB, {rate:.2} MB/s", done / 1e6);
    if all < u64::MAX / 4 && all > 0 {
        let part = done / crate::statistics::float(all);
        let left = elapsed * (1.0 - part) / part.max(1e-9);
        let _ = write!(said, ", {:.1} %, {left:.0} s to go", part * 100.0);
    }
    said
}

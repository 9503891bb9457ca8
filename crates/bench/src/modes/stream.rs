//! Playback with deadlines: each stream needs a frame at fixed times, and a late frame is lost, whatever the
//! bandwidth (S4.5: film frames of 126 MiB).

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Cell, Measure, RunOptions, SpaceNeeds, System, TestArea};
use super::{at, base, distinct, test_areas};
use crate::arguments::size;
use crate::engine::{Direction, Limits, Pace, Pattern, Stream, in_turns};
use crate::report::{Report, Row};
use crate::run::cache::left;
use crate::statistics::float;

/// Playback with deadlines: late frames rather than MB/s
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Files, devices or directories
    #[arg(value_name = "[NAME=]PATH", required = true)]
    systems: Vec<System>,
    /// Frame size (the default: 4096 x 6144 pixels of 3 x 14 bits)
    #[arg(long, default_value = "126M", value_parser = size)]
    frame: u64,
    /// Frames per second of each stream
    #[arg(long, default_value_t = 24.0)]
    fps: f64,
    /// Streams, each on a file (or a part) of its own
    #[arg(long, value_delimiter = ',', default_value = "1")]
    streams: Vec<usize>,
    /// Frames that a player buffers: a frame is requested this many frame times before it is shown
    #[arg(long, default_value_t = 2)]
    ahead: u32,
    /// Frames in each stream's file, which is played in a loop
    #[arg(long, default_value_t = 8)]
    frames: u64,
    /// Duration, seconds
    #[arg(long, default_value_t = 5.0)]
    time: f64,
    /// `read`: playback, `write`: recording
    #[arg(long, value_enum, default_value = "read")]
    op: Direction,
    /// Through the page cache (no direct I/O)
    #[arg(long)]
    buffered: bool,
}

impl Args {
    /// The film of the original, on these.
    pub fn film(systems: Vec<System>) -> Self {
        Self {
            systems,
            frame: 126 << 20,
            fps: 24.0,
            streams: vec![1],
            ahead: 2,
            frames: 4,
            time: 2.0,
            op: Direction::Read,
            buffered: false,
        }
    }
}

impl Measure for Args {
    fn begin(&self) -> Report {
        let mut report = Report::new("stream").against(base(&self.systems), "% on time");
        report.fact(
            "job",
            format!(
                "frames of {} bytes, {} per second, asked for {} frames ahead",
                self.frame, self.fps, self.ahead
            ),
        );
        report
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        distinct(&self.systems)?;
        ensure!(self.frame > 0, "--frame: at least 1 byte");
        ensure!(self.fps.is_finite() && self.fps > 0.0 && self.fps <= 1e6, "--fps: above 0");
        ensure!((1..=64).contains(&self.ahead), "--ahead: 1 to 64 frames");
        ensure!(self.time > 0.0 && self.time <= 86_400.0, "--time: above 0, at most a day");
        ensure!(self.frames > 0, "--frames: at least 1");
        let streams = self.streams.iter().copied().max().unwrap_or(0);
        ensure!((1..=1024).contains(&streams), "--streams: 1 to 1024");
        let bytes = self.frame.saturating_mul(self.frames);
        let write = self.op == Direction::Write;
        let room = SpaceNeeds { streams, bytes, write, force: how.force_destroy };
        let areas = test_areas(&self.systems, room, report)?;
        how.compare(report, &areas, self.streams.len(), |report, area| {
            self.streams.iter().try_for_each(|count| self.play(area, *count, report))
        })
    }
    fn conclude(&self, report: &mut Report) {
        let sum = |row: &Row, key| row.more.get(key).map_or(0.0, |s| s.0.iter().sum::<f64>());
        let said = |row: &Row| {
            let (late, frames) = (sum(row, "frames late"), sum(row, "frames"));
            format!("{}: {late:.0} of {frames:.0} frames late", row.title())
        };
        for note in report.rows.iter().map(said).collect::<Vec<_>>() {
            report.note(note);
        }
    }
}

impl Args {
    fn play(&self, area: &TestArea, count: usize, report: &mut Report) -> Result<()> {
        let interval = Duration::from_secs_f64(1.0 / self.fps);
        let read = self.op == Direction::Read;
        let mut pattern = Pattern::sequential(0, area.bytes, self.frame, read);
        // Whole frames that are due within the time.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        let frames = (self.time * self.fps).ceil() as u64;
        pattern.count = frames.max(1);
        let mut streams = Vec::new();
        for n in 0..count {
            // Players do not begin in the same instant.
            let parts = u32::try_from(count).unwrap_or(1);
            let first = interval * u32::try_from(n).unwrap_or(0) / parts;
            let pace = Some(Pace { interval, first });
            let stream = Stream { pace, ..area.stream(n, pattern, !self.buffered, 1)? };
            streams.extend(in_turns(&stream, self.ahead as usize));
        }
        let limits = Limits { deadline: Some(interval * self.ahead), ..Limits::default() };
        let at = at(&[("streams", float(count as u64))]);
        let cell = Cell { name: &area.name, phase: self.op.word(), at };
        let (row, outcome) = cell.run(report, &streams, &limits)?;
        let (frames, late) = (float(outcome.all.ops), float(outcome.all.late));
        row.replace_rate(100.0 * (1.0 - late / frames.max(1.0)));
        row.cache = Some(left(!self.buffered).to_owned());
        row.add("frames", frames);
        row.add("frames late", late);
        row.add("MB/s", outcome.mb_per_s());
        Ok(())
    }
}

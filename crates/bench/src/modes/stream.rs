//! Playback with deadlines: every stream needs a frame at fixed times, and a frame that is late is
//! lost, however many megabytes per second went through (S4.5: film frames of 126 MiB).

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{How, Subject, System, at, configuration};
use crate::cli::size;
use crate::engine::{Content, Direction, Limits, Pace, Pattern, Stream, in_turns, run as go};
use crate::report::Report;

/// Deadline playback: frames late, not MB/s
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Files, devices or directories
    #[arg(value_name = "[NAME=]PATH", required = true)]
    systems: Vec<System>,
    /// Bytes of a frame (the default: 4096 x 6144 pixels of 3 x 14 bits)
    #[arg(long, default_value = "126M", value_parser = size)]
    frame: u64,
    /// Frames per second of each stream
    #[arg(long, default_value_t = 24.0)]
    fps: f64,
    /// Streams, each on a file (or a part) of its own
    #[arg(long, value_delimiter = ',', default_value = "1")]
    streams: Vec<usize>,
    /// Frames that a player holds: a frame is asked for so many frame times before it is shown
    #[arg(long, default_value_t = 2)]
    ahead: u32,
    /// Frames of each stream's file; it is played round and round
    #[arg(long, default_value_t = 8)]
    frames: u64,
    /// Seconds
    #[arg(long, default_value_t = 5.0)]
    time: f64,
    /// `read`: playback, `write`: recording
    #[arg(long, value_enum, default_value = "read")]
    op: Direction,
    /// Through the page cache
    #[arg(long)]
    buffered: bool,
    #[command(flatten)]
    how: How,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let Some(base) = args.systems.first() else { return Ok(()) };
    let mut report = Report::new("stream").against(&base.name, "% on time");
    report.configuration = configuration(args);
    report.fact(
        "job",
        format!(
            "frames of {} bytes, {} per second, asked for {} frames ahead",
            args.frame, args.fps, args.ahead
        ),
    );
    let result = measure(args, &mut report);
    args.how.finish(report, result)
}

fn measure(args: &Args, report: &mut Report) -> Result<()> {
    ensure!(args.fps.is_finite() && args.fps > 0.0 && args.fps <= 1e6, "--fps: above 0");
    ensure!((1..=64).contains(&args.ahead), "--ahead: 1 to 64 frames");
    ensure!(args.time > 0.0 && args.time <= 86_400.0, "--time: above 0, at most a day");
    ensure!(args.frames > 0, "--frames: at least 1");
    let most = args.streams.iter().copied().max().unwrap_or(0);
    ensure!((1..=1024).contains(&most), "--streams: 1 to 1024");
    let bytes = args.frame.saturating_mul(args.frames);
    let subjects = args
        .systems
        .iter()
        .map(|s| Subject::new(s, most, bytes, args.how.force_destroy))
        .collect::<Result<Vec<_>>>()?;
    for subject in &subjects {
        subject.target(0, args.op == Direction::Write, !args.buffered)?;
        subject.fill()?;
        report.targets.push(subject.target(0, false, false)?.describe());
    }
    args.how.rounds(report, subjects.len(), |report, _, system| {
        let Some(subject) = subjects.get(system) else { return Ok(()) };
        for count in args.streams.iter().copied() {
            play(args, subject, count, report)?;
        }
        Ok(())
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts of frames")]
fn play(args: &Args, subject: &Subject, count: usize, report: &mut Report) -> Result<()> {
    let interval = Duration::from_secs_f64(1.0 / args.fps);
    let read = args.op == Direction::Read;
    let mut streams = Vec::new();
    for (n, (_, from)) in subject.places.iter().enumerate().take(count) {
        let target = subject.target(n, !read, !args.buffered)?;
        target.check(args.frame, *from, from + subject.bytes, read)?;
        let mut pattern = Pattern::sequential(*from, subject.bytes, args.frame, read);
        // Whole frames that are due within the time.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        let frames = (args.time * args.fps).ceil() as u64;
        pattern.count = frames.max(1);
        // Players do not begin in the same instant.
        let shift = interval * u32::try_from(n).unwrap_or(0) / u32::try_from(count).unwrap_or(1);
        let stream = Stream {
            target,
            pattern,
            depth: 1,
            pace: Some(Pace { interval, first: shift }),
            content: Content::Random,
            flush: false,
        };
        streams.extend(in_turns(&stream, args.ahead as usize));
    }
    let limits = Limits { deadline: Some(interval * args.ahead), ..Limits::default() };
    let outcome = go(&streams, &limits)?.ok()?;
    let place = at(&[("streams", count as f64)]);
    let row = report.add_outcome(&subject.name, args.op.word(), &place, &outcome);
    let (frames, late) = (outcome.all.ops as f64, outcome.all.late as f64);
    if let Some(rate) = row.rate.0.last_mut() {
        *rate = 100.0 * (1.0 - late / frames.max(1.0));
    }
    row.more.entry("frames".to_owned()).or_default().0.push(frames);
    row.more.entry("frames late".to_owned()).or_default().0.push(late);
    row.more.entry("MB/s".to_owned()).or_default().0.push(outcome.mb_per_s());
    report.note(format!("{} {count} streams: {late:.0} of {frames:.0} frames late", subject.name));
    Ok(())
}

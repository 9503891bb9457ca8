//! Whether acknowledged data is there after a crash or a power cut.
//!
//! `write` writes batches of recognisable data, flushes each, and then notes it in a journal. The note is
//! durable before the next batch begins. The program may be killed, or lose power, at any moment. `check`
//! reads all data that the journal lists: each 512 bytes must be of the last batch noted for that address,
//! or of a later one.
//!
//! The journal is text: a head with all that is needed to repeat the addresses, then one line for each
//! batch. An incomplete last line was not acknowledged. The journal belongs on another disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use braid_pool::device::AlignedBuf;

use crate::arguments::size;
use crate::engine::{
    Content, Limits, OpenMode, Order, PIECE, Pattern, Stream, Target, generation_of,
};
use crate::engine::{mix, room_for_buffers, run as go};
use crate::run::journal::{self, Journal};
use crate::run::names::sync_name;

/// Write recognisable data and a journal of acknowledged writes; check the data after a crash
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum What {
    /// Write until the time is up or the machine stops
    Write(WriteArgs),
    /// Check that all acknowledged data is there
    Check {
        /// File or device; without it, the one that the journal names
        path: Option<PathBuf>,
        /// The journal
        #[arg(long)]
        journal: PathBuf,
    },
}

#[derive(Debug, Clone, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent options")]
struct WriteArgs {
    /// File or device
    path: PathBuf,
    /// The journal of acknowledged batches: on another disk, if this one may fail
    #[arg(long)]
    journal: PathBuf,
    /// Size of the range that is overwritten again and again
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Request size
    #[arg(long, default_value = "64K", value_parser = size)]
    request: u64,
    /// Requests of a batch, which ends with a flush
    #[arg(long, default_value_t = 64)]
    batch: u64,
    /// Queue depth
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// Duration, seconds
    #[arg(long, default_value_t = 10.0)]
    time: f64,
    /// Most batches; without it as many as fit into the time
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    batches: u64,
    /// Sequential order, not random
    #[arg(long)]
    sequential: bool,
    /// Through the page cache (no direct I/O)
    #[arg(long)]
    buffered: bool,
    /// No flushes: tests a killed program, not a power cut
    #[arg(long)]
    no_flush: bool,
    /// Overwrite devices that are mounted or in a pool, and files and devices that hold data
    #[arg(long)]
    force_destroy: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Write(args) => write(args),
        What::Check { path, journal } => check(path.as_deref(), journal),
    }
}

/// Requests of a batch, at most.
const BATCH_MAX: u64 = 1 << 16;
/// Places that are written over and over, at most: each is remembered when they are checked.
const PLACES_MAX: u64 = 1 << 26;
/// Bytes of a request, at most.
const REQUEST_MAX: u64 = 1 << 30;

/// First word of a journal.
const MARK: &str = "braid-verify-1";

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Head {
    mark: String,
    path: PathBuf,
    run: u64,
    size: u64,
    request: u64,
    batch: u64,
    random: bool,
}

impl Head {
    /// Refuses what cannot be written, or not be checked: also of a journal, which anybody may have
    /// changed.
    fn check(&self) -> Result<()> {
        let piece = PIECE as u64;
        ensure!(
            self.request > 0 && self.request.is_multiple_of(piece),
            "--request: a multiple of {PIECE}, of which each says what it is"
        );
        ensure!(self.request <= REQUEST_MAX, "--request: 1 GiB at most");
        ensure!((1..=BATCH_MAX).contains(&self.batch), "--batch: 1 to {BATCH_MAX} requests");
        let places = self.size / self.request;
        ensure!(places > 0, "--size: at least one request");
        ensure!(places <= PLACES_MAX, "--size: {places} requests; {PLACES_MAX} are the most");
        ensure!(i64::try_from(self.size).is_ok(), "--size: beyond the largest file");
        Ok(())
    }
    /// Requests of batch `n` (from 1).
    fn pattern(&self, n: u64) -> Pattern {
        let order = if self.random { Order::Random } else { Order::Sequential };
        let mut pattern = Pattern::sequential(0, self.size, self.request, false).ordered(order);
        pattern.seed = self.run;
        pattern.every(1, n.saturating_sub(1).wrapping_mul(self.batch), self.batch)
    }
}

fn write(args: &WriteArgs) -> Result<()> {
    ensure!((1..=4096).contains(&args.depth), "--depth: 1 to 4096");
    ensure!(args.time.is_finite() && args.time >= 0.0, "--time: a number of seconds");
    ensure!(args.batches > 0, "--batches: at least 1");
    let size = args.size / args.request.max(1) * args.request;
    let mut head = Head {
        mark: MARK.to_owned(),
        path: PathBuf::new(),
        run: u64::from_le_bytes(*uuid::Uuid::new_v4().as_bytes().first_chunk().unwrap_or(&[7; 8])),
        size,
        request: args.request,
        batch: args.batch,
        random: !args.sequential,
    };
    head.check()?;
    room_for_buffers(u128::from(args.request) * args.depth as u128)?;
    let how = OpenMode {
        write: true,
        direct: !args.buffered,
        force: args.force_destroy,
        ..OpenMode::default()
    };
    let target = Target::open(&args.path, how)?;
    target.check(head.request, 0, head.size, false)?;
    head.path = args.path.canonicalize()?;
    // A new name must outlast a power cut.
    if !target.is_block() {
        sync_name(&head.path)?;
    }
    let mut journal = Journal::create(&args.journal, &head)?;
    let began = Instant::now();
    let mut n = 0;
    let mut bytes = 0;
    while n < args.batches && began.elapsed() < Duration::from_secs_f64(args.time.min(1e9)) {
        n += 1;
        let stream = Stream {
            depth: args.depth,
            content: Content::Verified { run: head.run, generation: n },
            flush: !args.no_flush,
            ..Stream::plain(target.clone(), head.pattern(n))
        };
        let done = go(&[stream], &Limits::default())?;
        if let Some(why) = done.all.failed {
            bail!("batch {n} was not acknowledged: {why}; {} before it were", n - 1);
        }
        bytes += done.all.bytes;
        journal.note(&noted(n))?;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{n} batches acknowledged, {bytes} bytes in {seconds:.1} s");
    Ok(())
}

/// The line of a batch that was acknowledged.
fn noted(batch: u64) -> String {
    format!("{batch} {:016x}", mix(0x70a1, batch))
}

/// The head of a journal, and the last batch that was acknowledged.
fn acknowledged(path: &Path) -> Result<(Head, u64)> {
    let (head, lines) =
        journal::read(path).with_context(|| format!("journal {}", path.display()))?;
    let head = head.filter(|h: &Head| h.mark == MARK);
    let head = head.with_context(|| format!("{}: not a journal of verify", path.display()))?;
    head.check().with_context(|| format!("{}: its head", path.display()))?;
    // After a power cut the journal may end in what was never written.
    let whole = (1..).zip(lines).take_while(|(batch, line)| *line == noted(*batch));
    Ok((head, whole.last().map_or(0, |(batch, _)| batch)))
}

/// What is wrong with a place.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    good: u64,
    /// Acknowledged, but older data stands there.
    lost: u64,
    /// Nothing of this run.
    foreign: u64,
    /// Of a batch that was never begun.
    future: u64,
    first: Option<String>,
}

fn check(path: Option<&Path>, journal: &Path) -> Result<()> {
    let (head, last) = acknowledged(journal)?;
    let found = look(path.unwrap_or(&head.path), &head, last)?;
    println!(
        "{last} batches acknowledged: {} pieces of {PIECE} bytes as they should be, {} lost, {} \
         foreign, {} of the future",
        found.good, found.lost, found.foreign, found.future
    );
    match found.first {
        Some(first) => bail!("what was acknowledged is not there: {first}"),
        None => Ok(()),
    }
}

fn look(path: &Path, head: &Head, last: u64) -> Result<Found> {
    // The last batch that wrote each place; 0: none.
    let mut places = vec![0_u64; usize::try_from(head.size / head.request)?];
    for batch in 1..=last {
        let pattern = head.pattern(batch);
        for i in 0..head.batch {
            let place = usize::try_from(pattern.at(i).0 / head.request)?;
            if let Some(place) = places.get_mut(place) {
                *place = batch;
            }
        }
    }
    let target = reader(path, head)?;
    let mut buf = AlignedBuf::zeroed(usize::try_from(head.request)?);
    let mut found = Found::default();
    for (place, batch) in (0..).zip(places).filter(|(_, batch)| *batch > 0) {
        let at = place * head.request;
        if let Err(e) = target.layer.read(at, &mut buf) {
            found.lost += head.request / PIECE as u64;
            found.first.get_or_insert(e);
            continue;
        }
        for (n, piece) in (0..).zip(buf.chunks(PIECE)) {
            let here = at + n * PIECE as u64;
            let said = match generation_of(head.run, here, piece) {
                // One batch may be under way beyond those acknowledged.
                Some(g) if g >= batch && g <= last + 1 => {
                    found.good += 1;
                    continue;
                }
                Some(g) if g > last + 1 => {
                    found.future += 1;
                    format!("byte {here} is of batch {g}, which never began")
                }
                Some(g) => {
                    found.lost += 1;
                    format!("byte {here} is of batch {g}; batch {batch} was acknowledged")
                }
                None => {
                    found.foreign += 1;
                    format!("byte {here} is none of this run's; batch {batch} was acknowledged")
                }
            };
            found.first.get_or_insert(said);
        }
    }
    Ok(found)
}

/// What the disk has, not what the page cache has, if that is possible.
fn reader(path: &Path, head: &Head) -> Result<Arc<Target>> {
    let direct = Target::open(path, OpenMode { direct: true, ..OpenMode::default() });
    if let Ok(target) = direct
        && target.check(head.request, 0, 0, false).is_ok()
    {
        return Ok(target);
    }
    Ok(Target::open(path, OpenMode::default())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::os::unix::fs::FileExt;

    fn args(dir: &Path, more: &[&str]) -> WriteArgs {
        let (path, journal) = (dir.join("data"), dir.join("journal"));
        let names = [path.to_str().unwrap(), "--journal", journal.to_str().unwrap()];
        let usual = ["--size", "1M", "--request", "4K", "--batch", "16", "--depth", "4"];
        let usual = [usual.as_slice(), &["--time", "3600", "--buffered"]].concat();
        crate::modes::typed(&[&names, usual.as_slice(), more].concat())
    }
    fn written(dir: &Path, batches: u64) -> (PathBuf, PathBuf) {
        let args = args(dir, &["--batches", &batches.to_string()]);
        write(&args).unwrap();
        (args.path, args.journal)
    }

    #[test]
    fn what_was_acknowledged_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (path, journal) = written(dir.path(), 20);
        check(None, &journal).unwrap();
        let (head, last) = acknowledged(&journal).unwrap();
        assert_eq!(last, 20);
        let found = look(&path, &head, last).unwrap();
        assert!(found.good > 1000 && found.lost == 0 && found.foreign == 0, "{found:?}");
    }
    #[test]
    fn a_lost_a_torn_and_a_misplaced_write_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (path, journal) = written(dir.path(), 20);
        let (head, last) = acknowledged(&journal).unwrap();
        let (at, _) = head.pattern(last).at(0);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut now = [0; 4096];
        file.read_exact_at(&mut now, at).unwrap();
        // Lost: what an earlier batch wrote there.
        let mut old = [0; 4096];
        Content::Verified { run: head.run, generation: 1 }.fill(at, &mut old);
        file.write_all_at(&old, at).unwrap();
        let found = look(&path, &head, last).unwrap();
        assert_eq!((found.lost, found.foreign), (8, 0), "{found:?}");
        assert!(check(None, &journal).is_err());
        // Torn inside a sector.
        file.write_all_at(&now, at).unwrap();
        file.write_all_at(&old[700..900], at + 700).unwrap();
        let found = look(&path, &head, last).unwrap();
        assert_eq!((found.lost, found.foreign), (0, 1), "{found:?}");
        // Misplaced: good data of another place.
        file.write_all_at(&now, at).unwrap();
        let other = if at == 0 { 4096 } else { at - 4096 };
        let mut elsewhere = [0; 4096];
        Content::Verified { run: head.run, generation: last }.fill(other, &mut elsewhere);
        file.write_all_at(&elsewhere, at).unwrap();
        let found = look(&path, &head, last).unwrap();
        assert_eq!(found.foreign, 8, "{found:?}");
        // A later batch under way is no fault, one that never began is.
        for (generation, future) in [(last + 1, 0), (last + 2, 8)] {
            Content::Verified { run: head.run, generation }.fill(at, &mut elsewhere);
            file.write_all_at(&elsewhere, at).unwrap();
            assert_eq!(look(&path, &head, last).unwrap().future, future);
        }
        // A file that is too short lost its end.
        file.set_len(4096).unwrap();
        assert!(look(&path, &head, last).unwrap().lost > 0);
    }
    #[test]
    fn a_journal_cut_anywhere_is_read_as_far_as_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (_, journal) = written(dir.path(), 5);
        let text = std::fs::read(&journal).unwrap();
        let head = text.iter().position(|b| *b == b'\n').unwrap();
        let mut before = 0;
        for cut in 0..=text.len() {
            std::fs::write(&journal, &text[..cut]).unwrap();
            let read = acknowledged(&journal).map(|(_, last)| last);
            if cut <= head {
                assert!(read.is_err(), "{cut}");
                continue;
            }
            let last = read.unwrap();
            assert!(last >= before && last <= 5, "{cut}");
            before = last;
        }
        assert_eq!(before, 5);
        for garbage in ["", "x", "{}\n", "\0\0\0\n\n"] {
            std::fs::write(&journal, garbage).unwrap();
            assert!(acknowledged(&journal).is_err(), "{garbage:?}");
        }
    }
    #[test]
    fn numbers_of_a_journal_are_not_calculated_with_unseen() {
        let dir = tempfile::tempdir().unwrap();
        let (_, journal) = written(dir.path(), 3);
        let text = std::fs::read_to_string(&journal).unwrap();
        for (from, to, why) in [
            ("\"request\":4096", "\"request\":0", "--request"),
            ("\"request\":4096", "\"request\":1000", "--request"),
            ("\"request\":4096", "\"request\":18446744073709551104", "1 GiB"),
            ("\"batch\":16", "\"batch\":0", "--batch"),
            ("\"batch\":16", "\"batch\":18446744073709551615", "--batch"),
            ("\"size\":1048576", "\"size\":0", "--size"),
            ("\"size\":1048576", "\"size\":18446744073709551615", "are the most"),
        ] {
            assert!(text.contains(from), "{text}");
            std::fs::write(&journal, text.replace(from, to)).unwrap();
            let said = format!("{:#}", check(None, &journal).unwrap_err());
            assert!(said.contains(why), "{to}: {said}");
        }
    }
    #[test]
    fn a_second_run_does_not_write_over_a_journal() {
        let dir = tempfile::tempdir().unwrap();
        written(dir.path(), 1);
        let args = args(dir.path(), &["--batches", "1", "--force-destroy"]);
        assert!(write(&args).unwrap_err().to_string().starts_with("journal"));
    }
}

//! A file from one place to another, whole: several requests under way, resumable after it was
//! interrupted, and verified by reading the copy again from its disk.
//!
//! `DST.braid-copy` says, piece by piece, what has been flushed, with a hash of each piece; it is removed
//! when the copy is complete. A source that changed meanwhile (size or time) is begun again.

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use braid_format::ByteOffset;
use braid_pool::device::{AlignedBuf, Device};
use xxhash_rust::xxh3::Xxh3;

use super::{How, Measure, at};
use crate::cli::size;
use crate::engine::{Refusal, Target, Use};
use crate::live::{self, Now};
use crate::report::{Figure, Report};
use crate::run::cache::{Cache, prepare};
use crate::run::load::Meter;

/// Copy a file end to end: resumable, verified
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// File or device
    source: PathBuf,
    /// File or device
    destination: PathBuf,
    /// Bytes of a request
    #[arg(long, default_value = "1M", value_parser = size)]
    request: u64,
    /// Requests under way
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// Requests between two flushes: what an interruption may cost
    #[arg(long, default_value_t = 256)]
    piece: u64,
    /// Through the page cache
    #[arg(long)]
    buffered: bool,
    /// The copy is not read again
    #[arg(long)]
    no_verify: bool,
    /// End after so many pieces, as if interrupted
    #[arg(long, hide = true)]
    stop_after: Option<u64>,
    #[command(flatten)]
    how: How,
}

impl Measure for Args {
    fn how(&self) -> &How {
        &self.how
    }
    fn begin(&self) -> Report {
        Report::new("copy").against("", "MB/s")
    }
    fn measure(&self, report: &mut Report) -> Result<()> {
        copy(self, report)
    }
}

/// What a journal is about.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Head {
    source: PathBuf,
    size: u64,
    modified: (i64, i64),
    request: u64,
    piece: u64,
}

/// Pieces that are flushed, with their hashes.
struct Progress {
    file: File,
    path: PathBuf,
    hashes: Vec<u64>,
}

impl Progress {
    /// Carries on where an earlier copy of the same source ended.
    fn open(path: PathBuf, head: &Head) -> Result<Self> {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let whole = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or_default();
        let mut lines = whole.lines();
        let before: Option<Head> = lines.next().and_then(|l| serde_json::from_str(l).ok());
        let mut hashes = Vec::new();
        if before.as_ref() == Some(head) {
            hashes.extend(lines.map_while(|l| u64::from_str_radix(l, 16).ok()));
        }
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        writeln!(file, "{}", serde_json::to_string(head)?)?;
        for hash in &hashes {
            writeln!(file, "{hash:016x}")?;
        }
        file.sync_data()?;
        Ok(Self { file, path, hashes })
    }
    fn done(&mut self, hash: u64) -> Result<()> {
        writeln!(self.file, "{hash:016x}")?;
        self.file.sync_data()?;
        self.hashes.push(hash);
        Ok(())
    }
}

fn copy(args: &Args, report: &mut Report) -> Result<()> {
    ensure!((1..=1024).contains(&args.depth), "--depth: 1 to 1024");
    ensure!(args.piece > 0, "--piece: at least 1");
    let meta =
        std::fs::metadata(&args.source).with_context(|| args.source.display().to_string())?;
    let source = open(&args.source, Use { direct: !args.buffered, ..Use::default() })?;
    let same = std::fs::canonicalize(&args.destination).ok() == args.source.canonicalize().ok();
    ensure!(!same, "{}: is the source itself", args.destination.display());
    let journal = journal_of(&args.destination);
    // A copy that was begun may be written over; anything else may not.
    let overwrite = args.how.force_destroy || journal.exists();
    let how = Use { write: true, direct: !args.buffered, force: args.how.force_destroy, overwrite };
    let destination = open(&args.destination, how)?;
    let head = Head {
        source: args.source.canonicalize()?,
        size: source.len(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        request: args.request,
        piece: args.piece,
    };
    source.check(args.request, 0, 0, true)?;
    destination.check(args.request, 0, head.size, false)?;
    report.targets = vec![source.describe(), destination.describe()];
    let mut progress = Progress::open(journal, &head)?;
    let resumed = progress.hashes.len() as u64;
    if resumed > 0 {
        report.note(format!("{resumed} pieces of {} requests were there already", args.piece));
    }
    let (meter, began) = (Meter::start(), Instant::now());
    let bytes = pieces(args, (&source, &destination), head.size, &mut progress)?;
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    report.add("copy", "copy", Figure::new(bytes.max(1), seconds, meter.stop().cpu_machine));
    if args.stop_after.is_some() {
        bail!("interrupted after {} pieces; run it again to carry on", progress.hashes.len());
    }
    report.row("copy", "copy", &at(&[])).cache = Some("flushed".to_owned());
    if !args.no_verify {
        verify(args, &destination, head.size, &progress.hashes, report)?;
    }
    std::fs::remove_file(&progress.path).ok();
    Ok(())
}

/// Direct where that is possible.
fn open(path: &Path, how: Use) -> Result<std::sync::Arc<Target>, Refusal> {
    match Target::keep(path, how) {
        Err(Refusal::NoDirect { .. }) => Target::keep(path, Use { direct: false, ..how }),
        other => other,
    }
}

fn journal_of(destination: &Path) -> PathBuf {
    let mut name = destination.as_os_str().to_owned();
    name.push(".braid-copy");
    name.into()
}

/// Copies what is not there yet; bytes that were moved.
fn pieces(
    args: &Args,
    (source, destination): (&Target, &Target),
    size: u64,
    progress: &mut Progress,
) -> Result<u64> {
    let piece = args.piece * args.request;
    let mut moved = 0;
    let first = progress.hashes.len() as u64;
    let rows = usize::try_from(size.div_ceil(piece) - first).unwrap_or(usize::MAX);
    let budget = std::time::Duration::MAX;
    live::rounds(Now { mode: "copy".to_owned(), rounds: 1, rows, budget, ..Now::default() });
    for n in first..size.div_ceil(piece) {
        live::go_on()?;
        if args.stop_after.is_some_and(|most| n - first >= most) {
            break;
        }
        let (from, end) = (n * piece, ((n + 1) * piece).min(size));
        let hash = in_parallel(args, from, end, |at, buf| {
            read(source, at, buf)?;
            write(destination, at, buf)
        })?;
        destination.layer.flush().map_err(anyhow::Error::msg)?;
        progress.done(hash)?;
        live::row_done();
        moved += end - from;
    }
    if !destination.is_block() && args.stop_after.is_none() {
        OpenOptions::new().write(true).open(&destination.path)?.set_len(size)?;
    }
    Ok(moved)
}

fn verify(
    args: &Args,
    copy: &Target,
    size: u64,
    hashes: &[u64],
    report: &mut Report,
) -> Result<()> {
    let cache = if copy.direct { Cache::Direct } else { Cache::Cold };
    let said = prepare(&copy.path, cache);
    let piece = args.piece * args.request;
    let (meter, began) = (Meter::start(), Instant::now());
    for (n, expected) in (0..).zip(hashes) {
        let (from, end) = (n * piece, ((n + 1) * piece).min(size));
        let found = in_parallel(args, from, end, |at, buf| read(copy, at, buf))?;
        ensure!(
            found == *expected,
            "{}: bytes {from} to {end} differ from what was read of the source",
            copy.path.display()
        );
    }
    let seconds = began.elapsed().as_secs_f64().max(1e-9);
    report.add("copy", "verify", Figure::new(size.max(1), seconds, meter.stop().cpu_machine));
    report.row("copy", "verify", &at(&[])).cache = Some(said.to_owned());
    report.note("verified: every byte was read again");
    Ok(())
}

/// Several requests of a piece under way; the hash of their hashes, in order.
fn in_parallel(
    args: &Args,
    from: u64,
    end: u64,
    work: impl Fn(u64, &mut [u8]) -> Result<()> + Sync,
) -> Result<u64> {
    let count = (end - from).div_ceil(args.request);
    let next = AtomicU64::new(0);
    let hashes = Mutex::new(vec![0_u64; usize::try_from(count)?]);
    let request = usize::try_from(args.request)?;
    let one = || -> Result<()> {
        let mut buf = AlignedBuf::zeroed(request);
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return Ok(());
            }
            let at = from + n * args.request;
            let len = usize::try_from((end - at).min(args.request))?;
            let part = buf.split_at_mut(len).0;
            work(at, part)?;
            let mut hasher = Xxh3::new();
            hasher.update(part);
            let mut hashes = hashes.lock().map_err(|_| anyhow::anyhow!("a copier panicked"))?;
            if let Some(place) = hashes.get_mut(usize::try_from(n)?) {
                *place = hasher.digest();
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.depth).map(|_| scope.spawn(one)).collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a copier panicked"))??;
        }
        anyhow::Ok(())
    })?;
    let mut whole = Xxh3::new();
    for hash in hashes.into_inner().map_err(|_| anyhow::anyhow!("a copier panicked"))? {
        whole.write_u64(hash);
    }
    Ok(whole.digest())
}

/// Whole sectors by the device, the rest of a file's last one through the page cache.
fn split(target: &Target, len: usize) -> usize {
    let sector = usize::try_from(target.sector()).unwrap_or(1).max(1);
    len / sector * sector
}

fn device(target: &Target) -> Result<&dyn Device> {
    target.layer.device().context("neither a file nor a device")
}

fn read(target: &Target, at: u64, buf: &mut [u8]) -> Result<()> {
    let whole = split(target, buf.len());
    let (head, tail) = buf.split_at_mut(whole);
    if !head.is_empty() {
        device(target)?.read(ByteOffset(at), head)?;
    }
    if !tail.is_empty() {
        File::open(&target.path)?.read_exact_at(tail, at + whole as u64)?;
    }
    Ok(())
}

fn write(target: &Target, at: u64, buf: &[u8]) -> Result<()> {
    let (head, tail) = buf.split_at(split(target, buf.len()));
    if !head.is_empty() {
        device(target)?.write(ByteOffset(at), head)?;
    }
    if !tail.is_empty() {
        let file = OpenOptions::new().write(true).open(&target.path)?;
        file.write_all_at(tail, at + head.len() as u64)?;
        file.sync_data()?;
    }
    Ok(())
}

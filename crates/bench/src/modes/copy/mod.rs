//! Copies a file: several requests in flight, resumable after an interruption, verified by reading the copy again
//! from its disk.
//!
//! The journal `DST.braid-copy` lists each flushed piece with its hash. It is removed when the copy is complete.
//! If verification fails it is cut back to the good pieces. If the source has changed since the journal was
//! written (inode, size or time), the copy begins anew; if it changes during the copy, that is an error.
//! An existing destination is overwritten only if its journal says that this copy began it, or with
//! `--force-destroy`. Changes of a source that is a block device cannot be noticed.

mod journal;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use braid_format::ByteOffset;
use braid_pool::device::{AlignedBuf, Device};
use xxhash_rust::xxh3::Xxh3;

use super::{Measure, RunOptions, at};
use crate::arguments::size;
use crate::engine::{OpenMode, Refusal, StartBarrier, Target, on_threads, room_for_buffers};
use crate::progress::{self, Now};
use crate::report::{Figure, Report};
use crate::run::cache::{Cache, prepare};
use crate::run::load::Meter;
use crate::run::names::{parent, sync_name};
use journal::{Head, Identity, Progress, Source};

/// Copy a file: resumable, verified
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// File or device
    source: PathBuf,
    /// File or device
    destination: PathBuf,
    /// Request size
    #[arg(long, default_value = "1M", value_parser = size)]
    request: u64,
    /// Queue depth
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// Requests of a piece, which ends with a flush: an interruption costs at most one piece
    #[arg(long, default_value_t = 256)]
    piece: u64,
    /// Through the page cache (no direct I/O)
    #[arg(long)]
    buffered: bool,
    /// Do not read the copy again
    #[arg(long)]
    no_verify: bool,
    /// End after so many pieces, as if interrupted
    #[arg(long, hide = true)]
    stop_after: Option<u64>,
}

impl Measure for Args {
    fn begin(&self) -> Report {
        Report::new("copy").against("", "MB/s")
    }
    fn measure(&self, how: &RunOptions, report: &mut Report) -> Result<()> {
        copy(self, how.force_destroy, report, &mut |_| ())
    }
}

/// Requests of a piece, at most: what an interruption may cost.
const PIECE_MAX: u64 = 1 << 20;

/// `after` is called when a piece is flushed.
fn copy(args: &Args, force: bool, report: &mut Report, after: &mut dyn FnMut(u64)) -> Result<()> {
    ensure!((1..=1024).contains(&args.depth), "--depth: 1 to 1024");
    ensure!((1..=PIECE_MAX).contains(&args.piece), "--piece: 1 to {PIECE_MAX} requests");
    let source = open(&args.source, OpenMode { direct: !args.buffered, ..OpenMode::default() })?;
    source.check(args.request, 0, 0, true)?;
    room_for_buffers(u128::from(args.request) * args.depth as u128)?;
    let state = Source::of(&args.source, source.len())?;
    let path = journal::path_of(&args.destination);
    let found = if force { journal::read(&path).ok().flatten() } else { journal::read(&path)? };
    let dir = parent(&args.destination);
    let home = std::fs::metadata(dir).with_context(|| dir.display().to_string())?.dev();
    let before = match std::fs::metadata(&args.destination) {
        Ok(meta) => Some(Identity::of(&meta, home)),
        Err(_) => None,
    };
    let itself = Identity::of(&std::fs::metadata(&args.source)?, home);
    ensure!(
        before.as_ref() != Some(&itself),
        "{}: is the source itself",
        args.destination.display()
    );
    // A copy of the same source that was begun there may be written over; anything else may not.
    let begun = found.as_ref().is_some_and(|f| {
        f.head.source.path == state.path && Some(&f.head.destination) == before.as_ref()
    });
    let direct = !args.buffered;
    let how = OpenMode { write: true, direct, force, begun, ..OpenMode::default() };
    let destination = open(&args.destination, how)?;
    destination.check(args.request, 0, state.size, false)?;
    let head = Head {
        mark: journal::MARK.to_owned(),
        source: state,
        destination: Identity::of(&std::fs::metadata(&destination.path)?, home),
        request: args.request,
        piece: args.piece,
    };
    report.targets = vec![source.describe(), destination.describe()];
    let hashes = journal::believed(found, &head, destination.len())?;
    if !hashes.is_empty() {
        let (pieces, requests) = (hashes.len(), args.piece);
        report.note(format!("{pieces} pieces of {requests} requests were there already"));
    }
    let mut progress = Progress::create(&path, &head, hashes)?;
    let (meter, began, mut moved) = (Meter::start(), Instant::now(), 0);
    let result = pieces(args, (&source, &destination), &head, &mut progress, &mut |n, bytes| {
        moved += bytes;
        after(n);
    });
    // What was moved is told, whatever ended it.
    if moved > 0 {
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        report.add("copy", "copy", Figure::new(moved, seconds, meter.stop().cpu_machine));
        report.row("copy", "copy", &at(&[])).cache = Some("flushed".to_owned());
    }
    result?;
    if args.stop_after.is_some() {
        bail!("interrupted after {} pieces; run it again to carry on", progress.hashes.len());
    }
    ensure!(
        Source::of(&args.source, source.len())? == head.source,
        "{}: changed while it was copied; run again, the copy begins anew",
        args.source.display()
    );
    if !args.no_verify
        && let Some((bad, why)) = verify(args, &destination, &head, &progress.hashes, report)?
    {
        progress.cut(&head, bad)?;
        return Err(why.context("run it again: what was copied before this place stays"));
    }
    progress.remove();
    Ok(())
}

/// Direct where that is possible.
fn open(path: &Path, how: OpenMode) -> Result<std::sync::Arc<Target>, Refusal> {
    match Target::open(path, how) {
        Err(Refusal::NoDirect { .. }) => Target::open(path, OpenMode { direct: false, ..how }),
        other => other,
    }
}

/// Copies what is not there yet; `after` is told each piece and its bytes.
fn pieces(
    args: &Args,
    (source, destination): (&Target, &Target),
    head: &Head,
    progress: &mut Progress,
    after: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let (size, piece) = (head.source.size, head.bytes()?);
    let (first, all) = (progress.hashes.len() as u64, size.div_ceil(piece));
    let rows = usize::try_from(all.saturating_sub(first)).unwrap_or(usize::MAX);
    let budget = std::time::Duration::MAX;
    progress::rounds(Now { mode: "copy".to_owned(), rounds: 1, rows, budget, ..Now::default() });
    for n in first..all {
        progress::check_interrupted()?;
        if args.stop_after.is_some_and(|most| n - first >= most) {
            return Ok(());
        }
        let (from, end) = bounds(n, piece, size);
        let hash = in_parallel(args, from, end, |at, buf| {
            read(source, at, buf)?;
            write(destination, at, buf)
        })?;
        destination.layer.flush().map_err(anyhow::Error::msg)?;
        progress.done(hash)?;
        progress::row_done();
        after(n, end - from);
    }
    if !destination.is_block() && args.stop_after.is_none() {
        // Whatever was longer before; its length, too, must be on the disk before the journal goes.
        let file = OpenOptions::new().write(true).open(&destination.path)?;
        file.set_len(size)?;
        file.sync_all()?;
        sync_name(&destination.path)?;
    }
    Ok(())
}

/// First byte of piece `n`, and the byte behind it.
fn bounds(n: u64, piece: u64, size: u64) -> (u64, u64) {
    let from = n.saturating_mul(piece).min(size);
    (from, from.saturating_add(piece).min(size))
}

/// Reads the copy again; the first piece that is not as it was copied, and what is wrong with it.
fn verify(
    args: &Args,
    copy: &Target,
    head: &Head,
    hashes: &[u64],
    report: &mut Report,
) -> Result<Option<(usize, anyhow::Error)>> {
    let cache = if copy.direct { Cache::Direct } else { Cache::Cold };
    let (size, piece) = (head.source.size, head.bytes()?);
    let said = prepare(&copy.path, cache, (0, size));
    let (meter, began) = (Meter::start(), Instant::now());
    for (n, expected) in hashes.iter().enumerate() {
        progress::check_interrupted()?;
        let (from, end) = bounds(n as u64, piece, size);
        let place = || format!("{}: bytes {from} to {end}", copy.path.display());
        match in_parallel(args, from, end, |at, buf| read(copy, at, buf)) {
            Ok(found) if found == *expected => {}
            Ok(_) => {
                let why = anyhow!("{} differ from what was read of the source", place());
                return Ok(Some((n, why)));
            }
            Err(e) => return Ok(Some((n, e.context(place())))),
        }
    }
    if size > 0 {
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        report.add("copy", "verify", Figure::new(size, seconds, meter.stop().cpu_machine));
        report.row("copy", "verify", &at(&[])).cache = Some(said);
    }
    report.note("verified: every byte was read again");
    Ok(None)
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
    let barrier = StartBarrier::of(args.depth);
    on_threads(&barrier, std::iter::repeat_n(one, args.depth), || (true, ()))?;
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

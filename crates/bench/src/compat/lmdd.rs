//! lmbench's lmdd: `lmdd if=F of=G bs=4m move=500m direct=1`.
//!
//! It moves one block after the other, as dd does, and prints one line at the end, in millions of bytes:
//! `524.29 MB in 5.39 secs, 97.27 MB/sec`. As in lmbench, `k`, `m` and `g` behind a number are powers of
//! 1024, `K`, `M` and `G` powers of 1000. `awrite=1` (from the BDS client) keeps two blocks in flight.
//! `depth=N` (blocks in flight) and `force-destroy=1` are additions of this program.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use braid_pool::device::AlignedBuf;

use crate::engine::{
    Content, Latency, Limits, OpenMode, Order, Pattern, Stream, Target, capacity, mix,
    room_for_buffers, run as go,
};
use crate::statistics::float;

/// Options that are numbers, with their meaning.
const NUMBERS: &[(&str, &str)] = &[
    ("bs", "bytes of a block"),
    ("bufs", "buffers, used in turn"),
    ("count", "blocks to move"),
    ("move", "bytes to move, instead of count"),
    ("skip", "blocks skipped at the beginning of both"),
    ("seek", "blocks skipped at the beginning of the output"),
    ("direct", "direct I/O on both"),
    ("idirect", "direct I/O on the input"),
    ("odirect", "direct I/O on the output"),
    ("sync", "sync(2) at the end"),
    ("fsync", "fsync(2) of the output at the end"),
    ("osync", "every write is durable when it returns"),
    ("rand", "random blocks in a range of N bytes"),
    ("start", "first byte of that range"),
    ("end", "only within N bytes of the ends of that range"),
    ("norepeat", "no random block twice"),
    ("srand", "another random order"),
    ("ipat", "verify the pattern of the input"),
    ("opat", "write the pattern to the output"),
    ("mismatch", "stop after N mismatches"),
    ("print", "0 nothing, 1 latency, 2 us per block, 3 KB/sec, 4 MB/sec, 5 two columns"),
    ("time", "stop after N seconds"),
    ("touch", "write to each page of the buffer after each block"),
    ("usleep", "microseconds between two blocks"),
    ("hash", "a # for each block"),
    ("poff", "print each place"),
    ("append", "at the end of the output"),
    ("notrunc", "the output keeps its length"),
    ("nocreate", "the output must exist"),
    ("timeopen", "the time includes opening"),
    ("padin", "read one more block first, not timed"),
    ("rusage", "print CPU time and context switches"),
    ("flush", "drop the file from the page cache at the end"),
    ("rtmax", "reports reads slower than N milliseconds"),
    ("rtmin", "reports reads faster than N milliseconds"),
    ("wtmax", "reports writes slower than N milliseconds"),
    ("wtmin", "reports writes faster than N milliseconds"),
    ("fork", "accepted, without effect"),
    ("realtime", "accepted, without effect"),
    ("mpin", "accepted, without effect"),
    ("awrite", "two blocks in flight"),
    ("depth", "N blocks in flight (not in lmbench)"),
    ("force-destroy", "overwrite devices in use (not in lmbench)"),
];
/// Options that mean nothing where several blocks are under way.
const ONE_AT_A_TIME: [&str; 13] = [
    "append", "osync", "end", "usleep", "touch", "hash", "poff", "padin", "timeopen", "rtmax",
    "rtmin", "wtmax", "wtmin",
];
/// Options that are words.
const TEXTS: [&str; 3] = ["if", "of", "label"];

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Options {
    numbers: BTreeMap<String, u64>,
    texts: BTreeMap<String, String>,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self> {
        let mut options = Self::default();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            if TEXTS.contains(&key) && word.contains('=') {
                options.texts.insert(key.to_owned(), value.to_owned());
            } else if NUMBERS.iter().any(|(name, _)| *name == key) && word.contains('=') {
                let n = number(value).with_context(|| word.clone())?;
                options.numbers.insert(key.to_owned(), n);
            } else {
                bail!("Bad arg: {word}, possible arguments are:\n{}", help());
            }
        }
        Ok(options)
    }
    fn number(&self, key: &str) -> Option<u64> {
        self.numbers.get(key).copied()
    }
    fn is(&self, key: &str) -> bool {
        self.number(key).is_some_and(|n| n > 0)
    }
    /// A file, if it is one: `internal` is none.
    fn file(&self, key: &str) -> Option<&str> {
        let name = self.texts.get(key).map(String::as_str);
        name.filter(|n| *n != "internal" && !n.is_empty())
    }
}

fn help() -> String {
    let names = TEXTS.iter().map(|t| format!("  {t}=NAME\n"));
    let numbers = NUMBERS.iter().map(|(name, what)| format!("  {name}=N  {what}\n"));
    names.chain(numbers).collect()
}

/// `4m` is 4 x 2^20, `4M` 4 x 10^6.
fn number(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text.get(digits.len()..).unwrap_or_default() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "K" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        other => bail!("'{other}' is none of k, m, g, K, M, G"),
    };
    let n: u64 = digits.parse().with_context(|| format!("'{text}' is not a number"))?;
    n.checked_mul(unit).with_context(|| format!("'{text}' is too large"))
}

/// The line at the end.
fn bandwidth(bytes: u64, seconds: f64) -> String {
    let mb = float(bytes) / 1e6;
    let rate = mb / seconds.max(1e-9);
    if mb < 1.0 {
        return format!("{mb:.6} MB in {seconds:.6} secs, {rate:.2} MB/sec");
    }
    format!("{mb:.2} MB in {seconds:.2} secs, {rate:.2} MB/sec")
}

#[derive(Default)]
struct Moved {
    bytes: u64,
    blocks: u64,
    seconds: f64,
    mismatches: u64,
    reads: Latency,
    writes: Latency,
    /// Why it ended before its end.
    failed: Option<anyhow::Error>,
}

/// Runs it.
///
/// # Errors
/// The words make no sense, or nothing could be moved.
pub(super) fn run(words: &[String]) -> Result<ExitCode> {
    if words.iter().any(|w| matches!(w.as_str(), "-help" | "-h" | "--help")) {
        println!("lmdd: moves blocks and times it, as `lmdd if=F of=G bs=4m move=500m direct=1`");
        print!("{}", help());
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::parse(words)?;
    let block = options.number("bs").unwrap_or(8192);
    ensure!((4..=1 << 30).contains(&block), "bs: a block has 4 bytes to 1 GiB");
    let pattern = options.number("ipat").is_some() || options.number("opat").is_some();
    ensure!(!pattern || block.is_multiple_of(4), "bs: patterns are words of 4 bytes");
    for (min, max) in [("rtmin", "rtmax"), ("wtmin", "wtmax")] {
        let (least, most) = (options.number(min), options.number(max));
        ensure!(least.is_none() || most.is_some(), "{min} needs {max}");
        ensure!(least <= most, "{min} is above {max}");
    }
    if let (Some(from), Some(to)) = (options.file("if"), options.file("of")) {
        let same = std::fs::canonicalize(from).ok();
        ensure!(
            same.is_none() || same != std::fs::canonicalize(to).ok(),
            "{to}: is the input itself"
        );
    }
    if let (None, Some(to), Some(blocks)) =
        (options.file("if"), options.file("of"), blocks(&options, block))
        && standard(to, false).is_none()
    {
        // In a range it is written again and again.
        let once = options.number("rand").unwrap_or(u64::MAX);
        capacity(Path::new(to), blocks.saturating_mul(block).min(once))?;
    }
    let counter = crate::run::load::Meter::start();
    let moved =
        if queued(&options) { by_queue(&options, block)? } else { by_blocks(&options, block)? };
    finish(&options, &moved, counter)?;
    if let Some(e) = moved.failed {
        return Err(e);
    }
    let wrong = options.is("mismatch") && moved.mismatches > 0;
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Blocks wanted, by `count` or by `move`.
fn blocks(options: &Options, block: u64) -> Option<u64> {
    options.number("move").map(|m| m / block).or_else(|| options.number("count"))
}

/// Blocks under way.
fn depth(options: &Options) -> Result<usize> {
    let usual = if options.is("awrite") { 2 } else { 1 };
    let depth = options.number("depth").map_or(usual, |d| usize::try_from(d).unwrap_or(usize::MAX));
    ensure!((1..=4096).contains(&depth), "depth: 1 to 4096");
    Ok(depth)
}

/// Whether several blocks are to be under way: one file only, read or written.
fn queued(options: &Options) -> bool {
    depth(options).map_or(true, |d| d > 1)
}

fn by_queue(options: &Options, block: u64) -> Result<Moved> {
    let (path, read) = match (options.file("if"), options.file("of")) {
        (Some(path), None) => (path, true),
        (None, Some(path)) => (path, false),
        _ => bail!("depth and awrite go with either if= or of="),
    };
    for key in ONE_AT_A_TIME {
        ensure!(!options.is(key), "{key} goes with one block at a time, without depth and awrite");
    }
    let direct = options.is("direct") || options.is(if read { "idirect" } else { "odirect" });
    let force = options.is("force-destroy");
    let how = OpenMode { write: !read, direct, force, overwrite: true, ..OpenMode::default() };
    let from = place(options, &["skip", "seek"], block)?;
    let exists = Path::new(path).exists();
    ensure!(exists || !options.is("nocreate"), "{path}: not there, and nocreate=1");
    let target = Target::open(Path::new(path), how)?;
    let there = target.len().saturating_sub(from) / block;
    let count = match blocks(options, block) {
        Some(n) if read => n.min(there),
        Some(n) => n,
        None if read => there,
        None => bail!("count or move: how much is to be written?"),
    };
    let total = count.max(1).checked_mul(block).context("count: beyond the largest file")?;
    let mut pattern = Pattern::sequential(from, total, block, read);
    pattern.count = count;
    if let Some(range) = options.number("rand") {
        random_range(options, block)?;
        pattern = pattern.ordered(Order::Random);
        pattern.span = range / block * block;
        let start = options.number("start").unwrap_or(0) / block * block;
        pattern.from = pattern.from.saturating_add(start);
        pattern.seed = options.number("srand").unwrap_or(1);
    }
    let end = pattern.from.saturating_add(pattern.span);
    ensure!(i64::try_from(end).is_ok(), "byte {end} is beyond the largest file");
    target.check(block, pattern.from, from, read)?;
    let depth = depth(options)?;
    room_for_buffers(u128::from(block) * depth as u128)?;
    if !read && !target.is_block() && !options.is("notrunc") && !options.is("nocreate") {
        OpenOptions::new().write(true).open(path)?.set_len(0)?;
    }
    let wanted = options.number(if read { "ipat" } else { "opat" }).is_some();
    let content = if wanted { Content::Words } else { Content::Byte(0) };
    let flush = !read && options.is("fsync");
    let stream = Stream { target, pattern, depth, pace: None, content, flush };
    let time = options.number("time").map(Duration::from_secs);
    let done = go(&[stream], &Limits { time, ..Limits::default() })?;
    if let Some(m) = done.all.mismatch {
        eprintln!("off={} want={:x} got={:x}", m.at, m.expected, m.found);
    }
    Ok(Moved {
        bytes: done.all.bytes,
        blocks: done.all.ops,
        seconds: done.seconds,
        mismatches: done.all.mismatches,
        reads: done.all.reads,
        writes: done.all.writes,
        failed: done.all.failed.map(anyhow::Error::msg),
    })
}

/// Where so many blocks end.
fn place(options: &Options, keys: &[&str], block: u64) -> Result<u64> {
    let sum = keys.iter().try_fold(0_u64, |n, k| n.checked_add(options.number(k).unwrap_or(0)));
    let at = sum.and_then(|n| n.checked_mul(block)).filter(|at| i64::try_from(*at).is_ok());
    at.with_context(|| format!("{}: beyond the largest file", keys.join(" and ")))
}

/// An open end: where blocks are counted from, or a stream without places.
struct End {
    file: File,
    /// Places can be named.
    places: bool,
}

/// What the names mean that are no files.
fn standard(name: &str, read: bool) -> Option<&'static str> {
    match (name, read) {
        ("-" | "0" | "stdin", true) => Some("/dev/stdin"),
        ("-" | "1" | "stdout", false) => Some("/dev/stdout"),
        ("2" | "stderr", false) => Some("/dev/stderr"),
        _ => None,
    }
}

fn open(options: &Options, read: bool) -> Result<Option<End>> {
    let Some(name) = options.file(if read { "if" } else { "of" }) else { return Ok(None) };
    let standard = standard(name, read);
    let direct = options.is("direct") || options.is(if read { "idirect" } else { "odirect" });
    let mut how = OpenOptions::new();
    let mut flags = if direct { libc::O_DIRECT } else { 0 };
    if read {
        how.read(true);
    } else {
        how.write(true);
        let regular = std::fs::metadata(name).map_or(true, |m| m.is_file());
        if standard.is_none() && regular {
            how.create(!options.is("nocreate"));
            let keep = ["notrunc", "nocreate", "append"].iter().any(|o| options.is(o));
            how.truncate(!keep);
        }
        if options.is("osync") {
            flags |= libc::O_DSYNC;
        }
        // Devices that somebody uses are asked about, files are written over as dd does.
        let there = Path::new(name).exists() && standard.is_none();
        if there && !options.is("force-destroy") {
            crate::engine::may_write(Path::new(name))?;
        }
    }
    let file = how.custom_flags(flags).open(standard.unwrap_or(name)).map_err(|e| {
        let why = if direct && e.raw_os_error() == Some(libc::EINVAL) {
            " (direct I/O is not possible here)"
        } else {
            ""
        };
        anyhow::anyhow!("{name}: {e}{why}")
    })?;
    let meta = file.metadata()?;
    let places =
        meta.is_file() || std::os::unix::fs::FileTypeExt::is_block_device(&meta.file_type());
    Ok(Some(End { file, places }))
}

struct Mover<'a> {
    options: &'a Options,
    block: u64,
    input: Option<End>,
    output: Option<End>,
    moved: Moved,
    /// Place of the next block of each end.
    from: u64,
    to: u64,
}

fn by_blocks(options: &Options, block: u64) -> Result<Moved> {
    let opening = Instant::now();
    let from = place(options, &["skip"], block)?;
    let mut to = place(options, &["skip", "seek"], block)?;
    let count = usize::try_from(options.number("bufs").unwrap_or(1)).unwrap_or(usize::MAX);
    ensure!((1..=10).contains(&count), "bufs: 1 to 10");
    room_for_buffers(u128::from(block) * count as u128)?;
    random_range(options, block)?;
    let bounded =
        blocks(options, block).is_some() || options.is("time") || options.file("if").is_some();
    ensure!(bounded, "count, move or time: without an input nothing ends it");
    let (input, output) = (open(options, true)?, open(options, false)?);
    if options.is("append")
        && let Some(out) = &output
    {
        to = out.file.metadata()?.len();
    }
    let mut mover = Mover { options, block, input, output, moved: Moved::default(), from, to };
    let mut bufs = vec![AlignedBuf::zeroed(usize::try_from(block)?); count];
    if options.is("padin")
        && let Some(input) = &mut mover.input
    {
        let first = bufs.first_mut().context("a buffer")?;
        take(input, mover.from, first)?;
        mover.from += block;
    }
    let began = if options.is("timeopen") { opening } else { Instant::now() };
    if let Err(e) = mover.all(&mut bufs, began) {
        mover.moved.failed = Some(e);
    }
    if options.is("sync") {
        rustix::fs::sync();
    }
    if let (true, Some(out)) = (options.is("fsync"), &mover.output)
        && let Err(e) = out.file.sync_all()
    {
        mover.moved.failed.get_or_insert_with(|| anyhow::anyhow!("fsync: {e}"));
    }
    mover.moved.seconds = began.elapsed().as_secs_f64();
    Ok(mover.moved)
}

/// Refuses a range for random blocks that none fits into, or that no file has.
fn random_range(options: &Options, block: u64) -> Result<()> {
    let Some(range) = options.number("rand") else { return Ok(()) };
    ensure!(range >= block, "rand: at least one block");
    let end = options.number("start").unwrap_or(0).checked_add(range);
    ensure!(end.is_some_and(|e| i64::try_from(e).is_ok()), "rand: beyond the largest file");
    Ok(())
}

/// Reads a block, or as much as there is.
fn take(input: &mut End, at: u64, buf: &mut [u8]) -> std::io::Result<usize> {
    if input.places { input.file.read_at(buf, at) } else { input.file.read(buf) }
}

impl Mover<'_> {
    fn all(&mut self, bufs: &mut [AlignedBuf], began: Instant) -> Result<()> {
        let count = blocks(self.options, self.block).unwrap_or(u64::MAX);
        let time = self.options.number("time").map(Duration::from_secs);
        for n in 0..count {
            if time.is_some_and(|t| began.elapsed() >= t) {
                break;
            }
            if let Some(at) = self.random(n) {
                (self.from, self.to) = (at, at);
            }
            let place = usize::try_from(n % bufs.len().max(1) as u64)?;
            let Some(buf) = bufs.get_mut(place) else { break };
            if !self.one(buf)? {
                break;
            }
            if let Some(us) = self.options.number("usleep") {
                let left = time.map(|t| t.saturating_sub(began.elapsed()));
                let pause = Duration::from_micros(us);
                std::thread::sleep(left.map_or(pause, |left| pause.min(left)));
            }
        }
        Ok(())
    }
    /// The place of random block `n`.
    fn random(&self, n: u64) -> Option<u64> {
        let range = self.options.number("rand")?;
        let seed = self.options.number("srand").unwrap_or(1);
        let slots = range / self.block;
        let start = self.options.number("start").unwrap_or(0);
        let near = self.options.number("end").map(|e| (e.min(range) / self.block).max(1));
        let slot = match near {
            // By turns at one end and at the other.
            Some(near) if n.is_multiple_of(2) => slots - 1 - mix(seed, n) % near,
            Some(near) => mix(seed, n) % near,
            // A step that has no factor in common with the range meets every block once.
            None if self.options.is("norepeat") => {
                let step =
                    (slots / 2 + 1..=slots + 1).find(|s| common(*s, slots) == 1).unwrap_or(1);
                let nth = u128::from(n % slots) * u128::from(step) + u128::from(seed);
                u64::try_from(nth % u128::from(slots)).unwrap_or(0)
            }
            None => mix(seed, n) % slots,
        };
        Some((start + slot * self.block) / self.block * self.block)
    }
    /// One block; whether there may be more.
    fn one(&mut self, buf: &mut [u8]) -> Result<bool> {
        let mut len = buf.len();
        if self.options.is("poff") {
            eprint!("{} ", self.from);
        }
        if let Some(input) = &mut self.input {
            let began = Instant::now();
            len = take(input, self.from, buf).with_context(|| format!("read at {}", self.from))?;
            let took = began.elapsed();
            self.moved.reads.add(took);
            told(self.options, "READ", "rt", took, self.from);
            if len == 0 {
                return Ok(false);
            }
        }
        let part = buf.split_at_mut(len).0;
        if self.options.number("ipat").is_some()
            && let Some(m) = Content::Words.check(self.from, part)
        {
            eprintln!("off={} want={:x} got={:x}", m.at, m.expected, m.found);
            self.moved.mismatches += 1;
            if self.options.number("mismatch").is_some_and(|n| self.moved.mismatches >= n.max(1)) {
                return Ok(false);
            }
        }
        if self.options.number("opat").is_some() {
            Content::Words.fill(self.to, part);
        }
        if let Some(output) = &mut self.output {
            let began = Instant::now();
            let wrote = if output.places {
                output.file.write_all_at(part, self.to)
            } else {
                output.file.write_all(part)
            };
            wrote.with_context(|| format!("write at {}", self.to))?;
            let took = began.elapsed();
            self.moved.writes.add(took);
            told(self.options, "WRITE", "wt", took, self.to);
        }
        if self.options.is("touch") {
            part.iter_mut().step_by(4096).for_each(|b| *b = 0);
        }
        if self.options.is("hash") {
            eprint!("#");
        }
        self.from += len as u64;
        self.to += len as u64;
        self.moved.bytes += len as u64;
        self.moved.blocks += 1;
        Ok(true)
    }
}

/// The greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

/// Says so if a block took longer, or less long, than told.
fn told(options: &Options, what: &str, which: &str, took: Duration, at: u64) {
    let most = options.number(&format!("{which}max"));
    let least = options.number(&format!("{which}min")).unwrap_or(0);
    let Some(most) = most else { return };
    let ms = took.as_secs_f64() * 1e3;
    if ms > float(most.max(10)) || ms < float(least) {
        eprintln!("{what}: {ms:.2} milliseconds offset {at}");
    }
}

fn finish(options: &Options, moved: &Moved, meter: crate::run::load::Meter) -> Result<()> {
    if options.is("flush") {
        for name in [options.file("if"), options.file("of")].into_iter().flatten() {
            crate::run::cache::prepare(Path::new(name), crate::run::cache::Cache::Cold, (0, 0));
        }
    }
    if options.is("rusage") {
        let m = meter.stop();
        eprintln!("real={:.2} cpu={:.2} ctx={}", moved.seconds, m.cpu_own, m.switches);
    }
    if options.is("hash") || options.is("poff") {
        eprintln!();
    }
    // lmbench writes to standard error, so that data may go to standard output.
    let mut out = std::io::stderr().lock();
    if let Some(label) = options.texts.get("label") {
        write!(out, "{label}")?;
    }
    let blocks = float(moved.blocks.max(1));
    let (bytes, seconds) = (float(moved.bytes), moved.seconds.max(1e-9));
    match options.number("print") {
        Some(0) => {}
        Some(1) => writeln!(
            out,
            "{:.0} xfers in {seconds:.2} secs, {:.4} millisec/xfer, {:.2} KB/sec",
            blocks,
            seconds * 1e3 / blocks,
            bytes / 1e3 / seconds
        )?,
        Some(2) => writeln!(out, "{:.4} microseconds", seconds * 1e6 / blocks)?,
        Some(3) => writeln!(out, "{:.2} KB/sec", bytes / 1e3 / seconds)?,
        Some(4) => writeln!(out, "{:.2} MB/sec", bytes / 1e6 / seconds)?,
        Some(5) => writeln!(out, "{:.6} {:.2}", bytes / 1e6, bytes / 1e6 / seconds)?,
        _ => writeln!(out, "{}", bandwidth(moved.bytes, moved.seconds))?,
    }
    let told = [("rtmax", "READ", &moved.reads), ("wtmax", "WRITE", &moved.writes)];
    for (_, what, latency) in told.iter().filter(|(key, ..)| options.number(key).is_some()) {
        let p = latency.percentiles();
        writeln!(
            out,
            "{what} operation latencies\np50 {:.2} p90 {:.2} p99 {:.2} p99.99 {:.2} max {:.2} ms",
            p.p50 / 1e3,
            p.p90 / 1e3,
            p.p99 / 1e3,
            p.p99_99 / 1e3,
            p.max / 1e3
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }
    fn lmdd(line: &str) -> Result<ExitCode> {
        run(&words(line))
    }

    #[test]
    fn the_line_is_lmbenchs() {
        // The founding document's own figures: 524.29 MB (500m) in 5.39 seconds.
        assert_eq!(bandwidth(500 << 20, 5.39), "524.29 MB in 5.39 secs, 97.27 MB/sec");
        assert_eq!(bandwidth(500 << 20, 3.79), "524.29 MB in 3.79 secs, 138.33 MB/sec");
    }
    #[test]
    fn numbers_are_lmbenchs() {
        for (text, n) in [("8192", 8192), ("4k", 4096), ("4K", 4000), ("500m", 500 << 20)] {
            assert_eq!(number(text).unwrap(), n, "{text}");
        }
        assert_eq!(number("2G").unwrap(), 2_000_000_000);
        for bad in ["", "x", "4kb", "-1", "1.5m", "99999999999999999999", "9999999999999g"] {
            assert!(number(bad).is_err(), "{bad}");
        }
    }
    #[test]
    fn the_founding_documents_commands_move_the_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("local_xfs_file");
        let f = file.display();
        // As written there but for the size; direct where the directory has it.
        let direct =
            if Target::open(&file, OpenMode { write: true, direct: true, ..OpenMode::default() })
                .is_ok()
            {
                "direct=1"
            } else {
                "direct=0"
            };
        lmdd(&format!("of={f} bs=4m move=8m {direct} opat=1")).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 8 << 20);
        lmdd(&format!("if={f} bs=4m move=8m {direct} ipat=1 mismatch=1")).unwrap();
        lmdd(&format!("if={f} bs=1m {direct} ipat=1 mismatch=1 depth=4")).unwrap();
        lmdd(&format!("of={f} bs=1m move=8m {direct} opat=1 awrite=1 fsync=1")).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 8 << 20);
        lmdd(&format!("if={f} bs=64k count=16 rand=8m ipat=1 mismatch=1 norepeat=1")).unwrap();
        let copy = dir.path().join("copy");
        lmdd(&format!("if={f} of={} bs=1000", copy.display())).unwrap();
        assert!(std::fs::read(&file).unwrap() == std::fs::read(&copy).unwrap());
        lmdd(&format!("of={} bs=1k count=1 seek=2 notrunc=1 opat=1", copy.display())).unwrap();
        assert_eq!(std::fs::metadata(&copy).unwrap().len(), 8 << 20);
    }
    #[test]
    fn a_mismatch_is_a_failure_when_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        let f = file.display();
        lmdd(&format!("of={f} bs=4k count=4 opat=1")).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[9000] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        for depth in ["", " depth=4"] {
            let code = lmdd(&format!("if={f} bs=4k ipat=1 mismatch=1{depth}")).unwrap();
            assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
        }
    }
    #[test]
    fn one_block_at_a_time_has_its_options() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        let f = file.display();
        for one in ONE_AT_A_TIME {
            let also = one.replace("min", "max");
            let done = lmdd(&format!("of={f} bs=4k count=1 {one}=1 {also}=1"));
            done.unwrap_or_else(|e| panic!("{one}: {e}"));
        }
        lmdd(&format!("of={f} bs=4k count=2")).unwrap();
        lmdd(&format!("of={f} bs=4k count=1 append=1")).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 3 * 4096);
        // A pause ends with the time.
        lmdd(&format!("if={f} bs=4k usleep=3600000000 time=1")).unwrap();
    }
    #[test]
    fn numbers_beyond_anything_are_refused_and_nothing_panics() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, [0; 8192]).unwrap();
        let (f, most) = (file.display(), u64::MAX);
        for bad in [
            format!("of={f} bs=4k count=1 skip={most}"),
            format!("of={f} bs=4k count=1 skip={most} seek=1"),
            format!("of={f} bs=4k count=1 seek={most}"),
            format!("of={f} bs=4k count=1 rand={most}"),
            format!("of={f} bs=4k count=1 rand=8192 start={most}"),
            format!("of={f} bs=4k count=1 bufs={most}"),
            format!("of={f} bs=4k count={most} depth=2"),
            format!("of={f} bs=4k count=1 depth=2 rand=8192 start={most}"),
            format!("of={f} bs=4k count=1 depth={most}"),
            format!("if={f} bs=1g count=1 depth=4096"),
        ] {
            let said = format!("{:#}", lmdd(&bad).unwrap_err());
            assert!(!said.contains("panicked"), "{bad}: {said}");
            assert_eq!(std::fs::metadata(&file).unwrap().len(), 8192, "{bad}");
        }
        // Large, and possible.
        for good in [
            format!("if={f} bs=4k count={most} rand=8192 norepeat=1 srand={most} time=1"),
            format!("if={f} bs=4k time={most}"),
            format!("if={f} bs=4k depth=2 time={most}"),
            format!("if={f} bs=4k rtmax={most} rtmin={most} count=1"),
        ] {
            lmdd(&good).unwrap_or_else(|e| panic!("{good}: {e:#}"));
        }
    }
    #[test]
    fn bad_words_are_refused() {
        for bad in [
            "xx=1",
            "bs",
            "bs=0 count=1",
            "bs=3 count=1",
            "bs=2G count=1",
            "rtmin=5",
            "of=/tmp/x",
            "if=/no/such/file",
            "bs=6 opat=1 count=1",
            "depth=0 count=1",
            "bufs=11 count=1",
            "rtmax=5 rtmin=9",
        ] {
            assert!(lmdd(bad).is_err(), "{bad}");
        }
        assert!(lmdd("if=/tmp of=internal bs=4k").is_err());
        // What a queue of blocks cannot do is refused before anything is touched.
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "kept").unwrap();
        let of = format!("of={} bs=4k count=1", file.display());
        for bad in [
            "append=1 depth=2",
            "append=1 awrite=1",
            "osync=1 depth=2",
            "depth=2 seek=9007199254740993",
        ] {
            assert!(lmdd(&format!("{of} {bad}")).is_err(), "{bad}");
        }
        assert!(
            lmdd(&format!("of={}/g bs=4k count=1 depth=2 nocreate=1", dir.path().display()))
                .is_err()
        );
        assert_eq!(std::fs::read(&file).unwrap(), b"kept");
        assert!(!dir.path().join("g").exists());
    }
}

//! `braid cp`

use std::ffi::OsString;
use std::fs::{File, FileTimes, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use braid_bulk::client::{Client, ClientOptions};
use braid_bulk::copy::{Copied, CopyError, CopyOptions, Download, Upload, download, upload};
use braid_bulk::error::Error;
use braid_format::InodeNo;
use braid_fs::{Attr, Errno, SetAttr, Time, TimeSet};

use crate::commands::{identity, remote::Remote};
use crate::control::session::NOTHING_CHANGED;
use crate::process::asker;
use crate::terminal::{
    answer::{self, say},
    size, ui,
};

/// Copy a file to a pool that another host serves (`braid serve`), or from it.
///
/// One side is braid://HOST[:PORT]/POOL/PATH; if several servers of the pool are named (HOST,HOST...), the copy goes on
/// with another when one dies. The copy is parallel, checked by CRC-32C on the way, and durable when the
/// command returns. It gets its name when it is whole; if it is broken off, the same command goes on from what is there.
/// It is encrypted, and wants an identity (`braid serve invite`), by default the one in ~/.config/braid/bulk/POOL.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub struct Args {
    /// The file
    #[arg(value_name = "SRC")]
    source: OsString,
    /// The copy, or the directory for it
    #[arg(value_name = "DST")]
    target: OsString,
    /// Identity to present to the server: a file, a token, or - for standard input. Default: $BRAID_IDENTITY. (A token
    /// is taken off the command line at once, but other users may have seen it)
    #[arg(long, value_name = "FILE|TOKEN")]
    identity: Option<String>,
    /// Copy without encryption and authentication
    #[arg(long, conflicts_with = "identity")]
    insecure: bool,
    /// Keep times, and all permission bits
    #[arg(short, long)]
    preserve: bool,
    /// Read everything back once it is durable, and compare
    #[arg(long)]
    verify: bool,
    /// Connections for data
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=31))]
    connections: u16,
    /// Bytes in a request [default: as many as the server takes, 1M]
    #[arg(long, value_name = "SIZE", value_parser = chunk)]
    chunk: Option<u32>,
    /// How long a server that does not answer is tried
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = asker::seconds)]
    retry: Duration,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

fn chunk(word: &str) -> Result<u32, String> {
    let bytes = size::parse(word)?;
    let bytes = u32::try_from(bytes).ok().filter(|n| (4096..=4 << 20).contains(n));
    bytes.ok_or_else(|| "between 4K and 4M".to_owned())
}

impl Remote {
    fn connect(&self, args: &Args) -> Result<Client> {
        let identity = if args.insecure {
            None
        } else {
            Some(Arc::new(identity::for_pool(args.identity.as_deref(), &self.pool)?))
        };
        let options = ClientOptions {
            identity,
            name: Self::client_name(),
            connections: args.connections,
            patience: args.retry,
            servers: self.servers.clone(),
            ..ClientOptions::new("", &self.pool)
        };
        let place = format!("braid://{}/{}", self.servers.join(","), self.pool);
        Client::connect(options).context(place)
    }

    /// The inode of each directory on the path, and what its last name leads to, if anything.
    fn walk(&self, client: &Client) -> Result<(InodeNo, Option<Attr>)> {
        let mut dir = client.root();
        let Some((last, parents)) = self.path.split_last() else {
            return Ok((dir, Some(client.getattr(dir)?)));
        };
        for (n, name) in parents.iter().enumerate() {
            let found = client.lookup(dir, name).with_context(|| self.show(n + 1))?;
            if !found.is_dir() {
                bail!("{}: not a directory", self.show(n + 1));
            }
            dir = found.ino;
        }
        match client.lookup(dir, last) {
            Ok(found) => Ok((dir, Some(found))),
            Err(Error::Errno(Errno::NOENT)) => Ok((dir, None)),
            Err(error) => Err(error).with_context(|| self.show(self.path.len())),
        }
    }

    /// The first `names` of the path.
    fn show(&self, names: usize) -> String {
        let path = self.path.get(..names).unwrap_or_default();
        format!("/{}/{}", self.pool, String::from_utf8_lossy(&path.join(&b'/')))
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let sides = (Remote::parse(&args.source)?, Remote::parse(&args.target)?);
    let options = CopyOptions {
        chunk: args.chunk.unwrap_or(0),
        verify: args.verify,
        progress: Arc::default(),
    };
    let begun = Instant::now();
    let copied = match &sides {
        (None, Some(target)) => put(args, target, &options),
        (Some(source), None) => get(args, source, &options),
        (None, None) => bail!("neither side is braid://HOST[:PORT]/POOL/PATH: use cp"),
        (Some(_), Some(_)) => bail!("one side must be a local file"),
    }?;
    if args.dry_run {
        answer::add("bytes", copied.size);
        let (from, to) = (args.source.display(), args.target.display());
        say!("{from} would be copied to {to}: {}", size::show(copied.size));
        say!("{NOTHING_CHANGED}");
        return Ok(ExitCode::SUCCESS);
    }
    let seconds = begun.elapsed().as_secs_f64().max(1e-6);
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = copied.size as f64 / seconds / 1e6;
    answer::add("bytes", copied.size);
    answer::add("bytes_sent", copied.sent);
    answer::add("seconds", seconds);
    answer::add("bytes_in_holes", copied.holes);
    let part = |bytes: u64, what: &str| match bytes {
        0 => String::new(),
        _ => format!(", {} of it {what}", size::show(bytes)),
    };
    let resumed = copied.size.saturating_sub(copied.sent + copied.holes);
    let (holes, resumed) = (part(copied.holes, "holes"), part(resumed, "was there"));
    say!("{} in {seconds:.2} s, {rate:.0} MB/s{holes}{resumed}", size::show(copied.size));
    Ok(ExitCode::SUCCESS)
}

/// Of what a copy does not replace.
const NO_FILE: &str = "not a regular file: it is not replaced";

/// Permission bits that a copy gets.
fn mode(args: &Args, mode: u32) -> u32 {
    if args.preserve {
        // The copy has another owner: it must not run with his rights.
        return mode & 0o1777;
    }
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    mode & 0o777 & !umask.bits()
}

/// What a copy would have to do.
fn would_copy(size: u64) -> Copied {
    Copied { size, ..Copied::default() }
}

/// To the server.
fn put(args: &Args, target: &Remote, options: &CopyOptions) -> Result<Copied> {
    let path = Path::new(&args.source);
    let source = File::open(path).with_context(|| path.display().to_string())?;
    let meta = source.metadata()?;
    if !meta.is_file() {
        bail!("{}: not a regular file", path.display());
    }
    let client = target.connect(args)?;
    let (mut dir, found) = target.walk(&client)?;
    let own = path.file_name().unwrap_or_default().as_bytes();
    let mut name = target.path.last().map_or(own, |name| name);
    match &found {
        Some(found) if found.is_dir() => {
            (dir, name) = (found.ino, own);
            if client.lookup(dir, name).is_ok_and(|there| !there.is_regular()) {
                let own = String::from_utf8_lossy(own);
                bail!("{own} in {}: {NO_FILE}", args.target.display());
            }
        }
        Some(_) if target.is_dir => bail!("{}: not a directory", args.target.display()),
        Some(found) if !found.is_regular() => bail!("{}: {NO_FILE}", args.target.display()),
        None if target.is_dir => bail!("{}: no such directory", args.target.display()),
        _ => {}
    }
    let time = |sec, nsec: i64| {
        let nsec = u32::try_from(nsec).unwrap_or(0);
        args.preserve.then_some(TimeSet::At(Time { sec, nsec }))
    };
    let set = SetAttr {
        mode: Some(mode(args, meta.mode())),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ..SetAttr::default()
    };
    if args.dry_run {
        return Ok(would_copy(meta.len()));
    }
    let what = Upload { source: &source, dir, name, set };
    watched(options, meta.len(), || upload(&client, &what, options))
}

/// From the server.
fn get(args: &Args, source: &Remote, options: &CopyOptions) -> Result<Copied> {
    let client = source.connect(args)?;
    let (_, found) = source.walk(&client)?;
    let shown = source.show(source.path.len());
    let found = found.with_context(|| format!("{shown}: no such file"))?;
    if !found.is_regular() {
        bail!("{shown}: not a regular file");
    }
    let own = OsString::from_vec(source.path.last().cloned().unwrap_or_default());
    let mut target = PathBuf::from(&args.target);
    if target.is_dir() {
        target.push(&own);
    }
    if target.is_symlink() {
        target = target.canonicalize().with_context(|| target.display().to_string())?;
    }
    match target.symlink_metadata() {
        Ok(meta) if meta.is_dir() => bail!("{}: is a directory", target.display()),
        Ok(meta) if !meta.is_file() => bail!("{}: {NO_FILE}", target.display()),
        _ => {}
    }
    let name =
        target.file_name().with_context(|| format!("{}: names no file", target.display()))?;
    let dir = match target.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let mode = mode(args, found.mode);
    let finish = |file: &File| {
        file.set_permissions(Permissions::from_mode(mode))?;
        if args.preserve {
            let times = FileTimes::new().set_accessed(moment(found.atime));
            file.set_times(times.set_modified(moment(found.mtime)))?;
        }
        Ok(())
    };
    if args.dry_run {
        return Ok(would_copy(found.size));
    }
    let what = Download { source: &found, dir, name };
    watched(options, found.size, || download(&client, &what, options, finish))
}

fn moment(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let part = Duration::from_nanos(time.nsec.into());
    let second =
        if time.sec < 0 { SystemTime::UNIX_EPOCH - whole } else { SystemTime::UNIX_EPOCH + whole };
    second + part
}

/// Shows how far a copy is while it runs.
fn watched(
    options: &CopyOptions,
    len: u64,
    copy: impl FnOnce() -> Result<Copied, CopyError>,
) -> Result<Copied> {
    const LOOK: Duration = Duration::from_millis(100);
    let bar = ui::byte_bar("copying", len);
    let (done, progress): (_, &AtomicU64) = (std::sync::mpsc::channel::<()>(), &options.progress);
    let (ends, ended) = done;
    let copied = std::thread::scope(|scope| {
        let shows = || {
            let ended = ended;
            while ended.recv_timeout(LOOK) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                bar.set_position(progress.load(Ordering::Relaxed));
            }
        };
        // Without a thread for it, nothing is shown.
        std::thread::Builder::new().spawn_scoped(scope, shows).ok();
        let copied = copy();
        drop(ends);
        copied
    });
    bar.finish_and_clear();
    copied.map_err(|error| match error {
        CopyError::Differs { .. }
        | CopyError::Busy
        | CopyError::Changed
        | CopyError::InTheWay { .. }
        | CopyError::NoRoom { .. } => error.into(),
        error => anyhow::Error::from(error)
            .context("what was copied stays: the same command goes on from it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_1970_are_right() {
        let time = Time { sec: -2, nsec: 500_000_000 };
        let before = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
        assert_eq!(moment(time), before);
    }
}

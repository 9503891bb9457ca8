//! A mount: from mount(2) and the greeting to the last answer.
//!
//! [`Session::mount`] leaves the kernel's requests queued until [`Session::serve`] has threads for
//! them. A panic while answering a request ends the process at once: an invariant is broken, and
//! a node that stops is repaired by the others, while one that goes on might not be.

pub(crate) mod connect;
mod ring_threads;
mod threads;
mod workers;

use std::path::Path;
use std::sync::Arc;

use braid_format::Bytes;
use braid_fs::FileSystem;
use rustix::io::Errno;

use crate::abi::{self, InitIn, InitOut, init, op};
use crate::caches::notify::KernelLink;
use crate::counts::RequestCounters;
use crate::error::{BadRequest, FuseError};
use crate::handlers::Server;
use crate::options::{CacheNames, FuseOptions};
use crate::terms::Terms;
use crate::transport::reply::{Device, Reply, Way};
use crate::transport::request::{Request, RequestBuf};

use self::ring_threads::PreparedRing;

const PAGE: u64 = 4096;
/// Pages in a request where the kernel has no limit to be asked for.
const PAGES_USUAL: u64 = 256;
const PAGE_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
/// Whether the kernel offers requests by io_uring; root may change it.
const RING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// What is always asked for, if the kernel offers it. Not among it: write-back caching (it dirties
/// pages without asking, after the lock is gone), splicing, and `EXPLICIT_INVAL_DATA`. An answer that tells
/// another size than the kernel has makes it cut its pages there, some time later (`fuse_change_attributes`,
/// fs/fuse/inode.c): bytes appended meanwhile, and read into the last page, become zeros. Without that flag
/// it then drops all pages of the file, so that they do not stay.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::ATOMIC_O_TRUNC
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::HANDLE_KILLPRIV_V2
    | init::POSIX_ACL
    | init::SETXATTR_EXT
    | init::EXT
    | init::DIRECT_IO_ALLOW_MMAP;

/// Something mounted and not yet served.
#[derive(Debug)]
pub struct Session {
    device: Device,
    options: FuseOptions,
    terms: Terms,
    link: Arc<KernelLink>,
    counters: Arc<RequestCounters>,
    /// The host's switch of requests by io_uring was off.
    switched_on: bool,
    /// Where requests come by io_uring, or why they do not, if that was asked for.
    ring: Option<Result<PreparedRing, String>>,
    served: bool,
}

impl Session {
    /// Mounts and settles the terms with the kernel. `source` is shown as the device in the mount
    /// table, e.g. the pool's name. Programs that use the mount wait until [`Session::serve`].
    /// Dropping the session without serving unmounts it.
    ///
    /// # Errors
    /// See [`FuseError`]; nothing stays mounted.
    pub fn mount(source: &str, options: FuseOptions) -> Result<Self, FuseError> {
        let max_write = settle_max_write(&options);
        let switch = options.rings.then(|| switch_rings_on(Path::new(RING_SWITCH)));
        let switched_on = matches!(switch, Some(Ok(true)));
        let device: Device = Arc::new(connect::mount(source, &options)?);
        let unmount_on_error = Unmount(Some(&options.mount_point));
        let prepare = || PreparedRing::new(&device, max_write.to_usize(), &options);
        let mut ring = switch.map(|on| on.and_then(|_| prepare()));
        let ready = matches!(ring, Some(Ok(_)));
        let terms = greet(&device, max_write, &options, ready)?;
        if ready && terms.flags & init::OVER_IO_URING == 0 {
            ring = Some(Err("this kernel does not offer it (Linux 6.14)".to_owned()));
        }
        unmount_on_error.disarm();
        if options.read_ahead > Bytes(0) {
            connect::set_read_ahead(&options.mount_point, options.read_ahead.get() / 1024);
        }
        let link = KernelLink::new();
        let counters = Arc::default();
        Ok(Self { device, options, terms, link, counters, switched_on, ring, served: false })
    }
    /// What was agreed on.
    pub fn terms(&self) -> Terms {
        self.terms
    }
    /// The way to the kernel's caches, for `Fs::mount`. It does nothing until the session serves.
    pub fn kernel_cache(&self) -> Arc<KernelLink> {
        Arc::clone(&self.link)
    }
    /// Counts of the requests that it answers.
    pub fn counters(&self) -> Arc<RequestCounters> {
        Arc::clone(&self.counters)
    }
    /// Gives the mount up without having served it; programs that wait for it get an error.
    pub fn abort(self) {
        drop(self);
    }
    /// Answers requests until the file system is unmounted, on threads of its own; the caller's
    /// waits.
    ///
    /// # Errors
    /// The device failed, or no thread could be started; the mount is then taken away.
    pub fn serve<F: FileSystem>(mut self, files: F) -> Result<(), FuseError> {
        // What no other node can change stays true.
        let drop_names = self.terms.cache_names && !files.is_single_node();
        if self.options.cache_names != CacheNames::Never {
            self.terms.cache_names |= files.is_single_node();
        }
        self.link.connect(Arc::clone(&self.device), files.root(), drop_names);
        if !files.is_single_node() {
            self.link.moves().connect(self.options.mount_point.clone());
        }
        let threads = self.options.workers_max;
        let server = Server::new(files, Arc::clone(&self.link), self.terms, threads);
        let server = Arc::new(server.counting(Arc::clone(&self.counters)));
        server.end_waits_of_killed();
        let ring = self.ring.take().and_then(|ring| self.say(ring));
        let result = workers::run(&self.device, &server, &self.options, ring);
        self.link.disconnect();
        server.close();
        // After a clean end the kernel has already let go of the mount.
        self.served = result.is_ok();
        result
    }
}

impl Session {
    /// What became of `uring`. Said once somebody reads the log.
    fn say(&self, ring: Result<PreparedRing, String>) -> Option<PreparedRing> {
        if self.switched_on {
            tracing::info!("uring: switched {RING_SWITCH} on, for this whole host");
        }
        match ring {
            Ok(ring) => Some(ring),
            Err(why) => {
                tracing::warn!("uring: requests come from /dev/fuse, not by io_uring: {why}");
                None
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.served {
            drop(Unmount(Some(&self.options.mount_point)));
        }
    }
}

/// Takes a mount away that nobody serves.
struct Unmount<'a>(Option<&'a Path>);

impl Unmount<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        if let Some(mount_point) = self.0
            && let Err(error) = connect::unmount(mount_point, true)
        {
            tracing::error!(%error, "cannot remove a mount that nobody serves");
        }
    }
}

/// Reads the kernel's greeting and answers it.
fn greet(
    device: &Device,
    max_write: Bytes,
    options: &FuseOptions,
    rings: bool,
) -> Result<Terms, FuseError> {
    let mut buf = RequestBuf::new(max_write.to_usize());
    loop {
        let len = match rustix::io::read(device, buf.space()) {
            Ok(len) => len,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(FuseError::Device(errno)),
        };
        let mut request = Request::parse(buf.filled(len))?;
        if request.header.opcode != op::INIT {
            return Err(BadRequest::Opcode(request.header.opcode).into());
        }
        let greeting: InitIn = request.body.take_grown(16)?;
        let reply = Reply { way: Way::Device(device), unique: request.header.unique };
        if greeting.major > abi::MAJOR {
            // The kernel then greets again, in the version it is told.
            reply.value(&InitOut { major: abi::MAJOR, minor: abi::MINOR, ..InitOut::default() });
            continue;
        }
        if greeting.major < abi::MAJOR || greeting.minor < abi::MINOR_LEAST {
            reply.error(Errno::PROTO);
            let (major, minor) = (greeting.major, greeting.minor);
            return Err(FuseError::Version { major, minor });
        }
        let (terms, answer) = agree(&greeting, max_write, options, rings);
        reply.value(&answer);
        tracing::debug!(?terms, "mounted");
        return Ok(terms);
    }
}

/// Has the kernel offer requests by io_uring on this machine. Returns whether it did not before.
fn switch_rings_on(switch: &Path) -> Result<bool, String> {
    let said = |e: std::io::Error| format!("{}: {e}", switch.display());
    let on = std::fs::read_to_string(switch).map_err(said)?;
    let off = on.trim() != "Y";
    if off {
        std::fs::write(switch, "Y").map_err(said)?;
    }
    Ok(off)
}

/// The largest request this machine allows, up to what was asked for.
fn settle_max_write(options: &FuseOptions) -> Bytes {
    let wanted = options.max_write.get().div_ceil(PAGE).max(1);
    let limit = || {
        let text = std::fs::read_to_string(PAGE_LIMIT).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let mut allowed = limit().unwrap_or(PAGES_USUAL);
    if wanted > allowed && options.raise_page_limit {
        if let Err(error) = std::fs::write(PAGE_LIMIT, wanted.to_string()) {
            tracing::warn!(%error, "cannot raise {PAGE_LIMIT}");
        }
        allowed = limit().unwrap_or(PAGES_USUAL);
    }
    if wanted > allowed {
        tracing::warn!(pages = allowed, "requests are limited by {PAGE_LIMIT}");
    }
    Bytes(wanted.min(allowed) * PAGE)
}

/// The answer to the kernel's greeting.
fn agree(
    greeting: &InitIn,
    max_write: Bytes,
    options: &FuseOptions,
    rings: bool,
) -> (Terms, InitOut) {
    let offered = u64::from(greeting.flags)
        | if u64::from(greeting.flags) & init::EXT != 0 {
            u64::from(greeting.flags2) << 32
        } else {
            0
        };
    let minor = greeting.minor.min(abi::MINOR);
    let mut wanted = WANTED | if rings { init::OVER_IO_URING } else { 0 };
    if !options.keep_pages {
        // Nobody says when they are old: the kernel drops them when it sees another time of change.
        wanted |= init::AUTO_INVAL_DATA;
    }
    let flags = offered & wanted;
    if flags & init::DIRECT_IO_ALLOW_MMAP == 0 {
        tracing::warn!("this kernel cannot map files shared that are open for writing (Linux 6.6)");
    }
    let terms = Terms {
        minor,
        flags,
        max_write,
        cache_attributes: options.cache_attributes,
        cache_names: options.cache_names == CacheNames::Always && minor >= abi::MINOR_EPOCH,
        cache_data: options.cache_data,
        keep_pages: options.keep_pages,
    };
    let pages = max_write.get() / PAGE;
    let low = |n: u64| u32::try_from(n & 0xffff_ffff).unwrap_or(0);
    let answer = InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        max_readahead: greeting.max_readahead.max(low(options.read_ahead.get())),
        flags: low(flags),
        max_background: options.background(),
        congestion_threshold: (options.background() / 4).saturating_mul(3).max(1),
        max_write: low(max_write.get()),
        time_gran: 1,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        flags2: low(flags >> 32),
        ..InitOut::default()
    };
    (terms, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(minor: u32, flags: u64) -> InitIn {
        InitIn {
            major: 7,
            minor,
            max_readahead: 131_072,
            flags: (flags & 0xffff_ffff) as u32,
            flags2: (flags >> 32) as u32,
            ..InitIn::default()
        }
    }

    #[test]
    fn the_switch_is_set_if_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("switch");
        assert!(switch_rings_on(&file).unwrap_err().contains("switch: "));
        std::fs::write(&file, "N\n").unwrap();
        assert_eq!(switch_rings_on(&file), Ok(true));
        assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), "Y");
        assert_eq!(switch_rings_on(&file), Ok(false));
    }

    #[test]
    fn only_what_is_offered_is_taken() {
        let mut options = FuseOptions::new("/mnt".into());
        let (terms, _) = agree(&greeting(45, u64::MAX), Bytes::MIB, &options, false);
        assert!(!terms.cache_names, "other nodes may change them");
        options.cache_names = CacheNames::Always;
        let (terms, answer) = agree(&greeting(45, u64::MAX), Bytes::MIB, &options, false);
        assert_eq!(terms.flags, WANTED);
        assert!(terms.cache_names);
        assert_eq!((answer.max_pages, answer.max_write), (256, 1 << 20));
        assert_eq!(
            answer.max_background,
            u16::MAX,
            "the kernel is to keep no page from us that it writes back"
        );
        assert_eq!(u64::from(answer.flags2) << 32, init::DIRECT_IO_ALLOW_MMAP);
        let (terms, _) = agree(&greeting(38, init::ASYNC_READ), Bytes::MIB, &options, false);
        assert_eq!(terms.flags, init::ASYNC_READ);
        assert!(!terms.cache_names && terms.cache_attributes);
        assert_eq!(terms.minor, 38);
        let (terms, answer) = agree(&greeting(45, u64::MAX), Bytes::MIB, &options, true);
        assert_eq!(terms.flags, WANTED | init::OVER_IO_URING);
        assert_eq!(answer.flags2, 1 << (36 - 32) | 1 << (41 - 32));
        let (terms, _) = agree(&greeting(45, WANTED), Bytes::MIB, &options, true);
        assert_eq!(terms.flags, WANTED, "not offered, not taken");
        options.keep_pages = false;
        let (terms, _) = agree(&greeting(45, u64::MAX), Bytes::MIB, &options, false);
        let differs = terms.flags ^ WANTED;
        assert_eq!(differs, init::AUTO_INVAL_DATA);
        assert!(!terms.keep_pages);
        options.keep_pages = true;
        // Without EXT the second half is not there, whatever stands in its place.
        let high = init::DIRECT_IO_ALLOW_MMAP;
        assert_eq!(agree(&greeting(36, high), Bytes::MIB, &options, false).0.flags, 0);
    }
}

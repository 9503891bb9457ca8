//! What may be chosen when mounting, and the `-o` words for it.

use std::path::PathBuf;

use braid_format::Bytes;
use rustix::mount::MountFlags;

use crate::error::FuseError;

/// When the kernel may cache names, so that it finds a path without asking.
///
/// The kernel can be told to drop cached names in two ways. One takes the lock of the directory,
/// which a request of that directory may hold that waits for another node: two nodes would wait for
/// each other. The other drops every name of the mount, and whatever is mounted inside it with them.
/// So names that another node may change are not cached, unless that price is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheNames {
    /// Each step of a path is a request.
    Never,
    /// If no other node can ever mount the file system ([`braid_fs::FileSystem::is_single_node`]).
    SingleNode,
    /// Always: another node that changes a directory in use here takes away what is mounted inside
    /// this mount. Needs Linux 6.16; as [`CacheNames::SingleNode`] before.
    Always,
}

/// Choices of the transport; the file system has its own.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct FuseOptions {
    /// Where to mount.
    pub mount_point: PathBuf,
    /// Nothing is written through this mount.
    pub read_only: bool,
    /// Set-user-ID and set-group-ID bits do not count.
    pub nosuid: bool,
    /// Device files are not devices.
    pub nodev: bool,
    /// No programs are run from it.
    pub noexec: bool,
    /// Every change is durable before the program goes on.
    pub sync: bool,
    /// Users other than the one who mounts may use it. Default: if root mounts; fusermount3 grants
    /// it to others only if /etc/fuse.conf says so. Permissions are checked by the kernel in any
    /// case.
    pub allow_other: bool,
    /// The largest WRITE and READ. More than 1 MiB needs `raise_page_limit`, or a
    /// `fs.fuse.max_pages_limit` raised beforehand.
    pub max_write: Bytes,
    /// May raise `fs.fuse.max_pages_limit` of this machine to what `max_write` needs.
    pub raise_page_limit: bool,
    /// The kernel reads so far ahead of a program that reads in sequence. Needs root.
    pub read_ahead: Bytes,
    /// Requests that the kernel may have under way of its own accord: readahead, asynchronous reads and writes of
    /// programs, and pages that it writes back. It keeps what is beyond that to itself, in order: reads that wait for
    /// another node then hold up pages that this node's demotions wait for. Default: see [`FuseOptions::background`].
    pub background_max: Option<u16>,
    /// Threads that answer requests, at most. All of them can be waiting for locks of other
    /// nodes, so this bounds how many programs wait at a time without holding up the rest.
    pub workers_max: usize,
    /// The kernel may cache attributes under held locks. Off for tests and diagnosis.
    pub cache_attributes: bool,
    /// When the kernel may cache names.
    pub cache_names: CacheNames,
    /// Files open for reading only may be read through the kernel's page cache, except while other
    /// nodes pull at them (`crate::caches::nodes`). Off: reads are exact whatever happens, and slower.
    pub cache_data: bool,
    /// Pages of mapped files may stay in the kernel from one open to the next: the file system drops them when others
    /// change the file. Off: each open drops them.
    pub keep_pages: bool,
    /// While requests come fast, the processors of this machine may not sleep deeply when idle
    /// (`crate::transport::cpu_latency`): programs get their answers sooner, for some power. Needs root.
    pub keep_awake: bool,
    /// Requests come by io_uring, answered on the processor of the program that makes them, if the
    /// kernel can do that (Linux 6.14; `crate::transport::ring`). Root switches it on for the whole host.
    pub rings: bool,
    /// Mount through fusermount3 even as root.
    pub use_helper: bool,
}

/// Largest request that kernels take without a raised limit.
pub const MAX_WRITE_USUAL: Bytes = Bytes::MIB;
/// See [`FuseOptions::background`].
const BACKGROUND_RINGS: u16 = 64;
/// Largest request that can be chosen.
pub const MAX_WRITE_LARGEST: Bytes = Bytes(4 << 20);

impl FuseOptions {
    /// What is usual, on this mount point.
    pub fn new(mount_point: PathBuf) -> Self {
        Self {
            mount_point,
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            sync: false,
            allow_other: rustix::process::geteuid().is_root(),
            max_write: MAX_WRITE_USUAL,
            raise_page_limit: false,
            read_ahead: Bytes(8 << 20),
            background_max: None,
            workers_max: 512,
            cache_attributes: true,
            cache_names: CacheNames::SingleNode,
            cache_data: true,
            keep_pages: true,
            keep_awake: true,
            rings: false,
            use_helper: false,
        }
    }
    /// Requests that the kernel may have under way of its own accord: as many as it can count, so that it keeps no page
    /// back that it writes. With `rings` that would not help, because all come to the same threads in order.
    pub fn background(&self) -> u16 {
        self.background_max.unwrap_or(if self.rings { BACKGROUND_RINGS } else { u16::MAX })
    }
    /// As mount(2) takes them.
    pub(crate) fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.nosuid);
        flags.set(MountFlags::NODEV, self.nodev);
        flags.set(MountFlags::NOEXEC, self.noexec);
        // Reading changes no access time: the mount table says so, whatever was asked for.
        flags.insert(MountFlags::NOATIME);
        flags.set(MountFlags::SYNCHRONOUS, self.sync);
        flags
    }
    /// As `fusermount3` takes them.
    pub(crate) fn words(&self) -> Vec<&'static str> {
        [
            (self.read_only, "ro"),
            (self.nosuid, "nosuid"),
            (self.nodev, "nodev"),
            (self.noexec, "noexec"),
            (true, "noatime"),
            (self.sync, "sync"),
            (self.allow_other, "allow_other"),
        ]
        .into_iter()
        .filter_map(|(on, word)| on.then_some(word))
        .collect()
    }

    /// Takes in one word of a comma-separated `-o` string. Returns whether it was the transport's:
    /// the others are the file system's, or nobody's.
    ///
    /// # Errors
    /// A value makes no sense.
    // A test in crates/cli, `mount_options.rs`, reads the words in the arms out of this source text, from
    // the next line to the line "The same, with something behind it."
    pub fn apply(&mut self, word: &str) -> Result<bool, FuseError> {
        let starts = |prefix: &&str| word.starts_with(prefix);
        if IGNORED.contains(&word) || IGNORED_PREFIXES.iter().any(starts) {
            return Ok(true);
        }
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "nosuid" => self.nosuid = true,
            "suid" => self.nosuid = false,
            "nodev" => self.nodev = true,
            "dev" => self.nodev = false,
            "noexec" => self.noexec = true,
            "exec" => self.noexec = false,
            "sync" | "dirsync" => self.sync = true,
            "async" => self.sync = false,
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            "raise_page_limit" => self.raise_page_limit = true,
            "nocacheattr" => self.cache_attributes = false,
            "cachenames" => self.cache_names = CacheNames::Always,
            "nocachenames" => self.cache_names = CacheNames::Never,
            "nocachedata" => self.cache_data = false,
            "noalert" => self.keep_awake = false,
            "uring" => self.rings = true,
            _ => return self.apply_value(word),
        }
        Ok(true)
    }

    fn apply_value(&mut self, word: &str) -> Result<bool, FuseError> {
        let bad = |what| FuseError::Option { option: word.to_owned(), what };
        let Some((key, value)) = word.split_once('=') else { return Ok(false) };
        let number = || value.parse::<u64>().map_err(|_| bad("needs a number"));
        let size = || parse_size(value).ok_or_else(|| bad("needs a size, such as 1M"));
        match key {
            "max_write" => {
                let size = size()?;
                let fits = (Bytes(4096)..=MAX_WRITE_LARGEST).contains(&size);
                if !fits || !size.get().is_multiple_of(4096) {
                    return Err(bad("must be a multiple of 4K between 4K and 4M"));
                }
                self.max_write = size;
            }
            "read_ahead" => {
                let size = size()?;
                if size > Bytes::GIB {
                    return Err(bad("must be at most 1G"));
                }
                self.read_ahead = size;
            }
            "background_max" => {
                let n = u16::try_from(number()?).ok().filter(|n| *n > 0);
                self.background_max = Some(n.ok_or_else(|| bad("must be between 1 and 65535"))?);
            }
            "workers_max" => {
                let n = usize::try_from(number()?).ok().filter(|n| (2..=65_536).contains(n));
                self.workers_max = n.ok_or_else(|| bad("must be between 2 and 65536"))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Words that mean something to mount(8), fstab or systemd, and nothing here; and hints about
/// access times and versions that a file system may leave aside.
const IGNORED: [&str; 25] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "nofail",
    "fail",
    "_netdev",
    "default_permissions",
    "nomand",
    "silent",
    "loud",
    "atime",
    "noatime",
    "relatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
];
/// The same, with something behind it.
const IGNORED_PREFIXES: [&str; 5] = ["x-", "X-", "comment=", "user=", "uhelper="];

/// A number with an optional K, M or G behind it (powers of 1024).
fn parse_size(text: &str) -> Option<Bytes> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)? {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_sorted_out() {
        let mut options = FuseOptions::new("/mnt".into());
        let words = "rw,nosuid,relatime,slot=3,x-systemd.automount,max_write=512K,_netdev,rubbish";
        let others: Vec<_> =
            words.split(',').filter(|word| !options.apply(word).unwrap()).collect();
        assert_eq!(others, ["slot=3", "rubbish"]);
        assert_eq!(options.flags(), MountFlags::NOSUID | MountFlags::NOATIME);
        options.apply("noallow_other").unwrap();
        assert_eq!(options.words(), ["nosuid", "noatime"]);
        assert_eq!(options.max_write, Bytes(512 << 10));
    }

    #[test]
    fn nonsense_is_refused() {
        for word in [
            "max_write=5",
            "max_write=8M",
            "max_write=",
            "max_write=9999999999G",
            "max_write=1X",
            "read_ahead=-1",
            "read_ahead=2G",
            "workers_max=1",
            "workers_max=x",
            "background_max=0",
            "background_max=70000",
        ] {
            let refused = FuseOptions::new("/mnt".into()).apply(word);
            assert!(matches!(refused, Err(FuseError::Option { .. })), "{word}");
        }
    }
}

//! What may be chosen when mounting, and the `-o` words for it.

use braid_format::Bytes;
use rustix::mount::MountFlags;

use crate::error::FuseError;

/// Choices of the transport; the file system has its own.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct Options {
    /// Shown as the device in the mount table, e.g. the pool's name.
    pub source: String,
    /// `ro`, `nosuid`, `nodev`, `noexec`, `noatime`, ... as mount(2) takes them.
    pub flags: MountFlags,
    /// Users other than the one who mounts may use it. Default yes; permissions are checked by
    /// the kernel in any case.
    pub allow_other: bool,
    /// The largest WRITE and READ. More than 1 MiB needs `raise_page_limit`, or a
    /// `fs.fuse.max_pages_limit` raised beforehand.
    pub max_io: Bytes,
    /// May raise `fs.fuse.max_pages_limit` of this machine to what `max_io` needs.
    pub raise_page_limit: bool,
    /// The kernel reads so far ahead of a program that reads in sequence. Needs root.
    pub read_ahead: Bytes,
    /// Requests that the kernel may have under way of its own accord (readahead, page writeback).
    pub background_max: u16,
    /// Threads that answer requests, at most. All of them can be waiting for locks of other
    /// nodes, so this bounds how many programs wait at a time without holding up the rest.
    pub workers_max: usize,
    /// The kernel may cache attributes and names under held locks. Off for tests and diagnosis.
    pub cache: bool,
    /// Mount through fusermount3 even as root.
    pub use_helper: bool,
}

/// Largest request that kernels take without a raised limit.
pub const MAX_IO_USUAL: Bytes = Bytes::MIB;
/// Largest request that can be chosen.
pub const MAX_IO_LARGEST: Bytes = Bytes(4 << 20);

impl Default for Options {
    fn default() -> Self {
        Self {
            source: "braid".into(),
            flags: MountFlags::empty(),
            allow_other: true,
            max_io: MAX_IO_USUAL,
            raise_page_limit: false,
            read_ahead: Bytes(8 << 20),
            background_max: 64,
            workers_max: 512,
            cache: true,
            use_helper: false,
        }
    }
}

/// Words that are flags of mount(2): the word, the flag, whether it is set or cleared.
const FLAGS: [(&str, MountFlags, bool); 19] = [
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("silent", MountFlags::SILENT, true),
];

/// Words that mean something to mount(8), fstab or systemd, and nothing here.
const IGNORED: [&str; 9] =
    ["defaults", "auto", "noauto", "user", "nouser", "users", "nofail", "_netdev", "default_permissions"];

impl Options {
    /// Takes in a comma-separated `-o` string and returns the words that are not the
    /// transport's, for the file system's options.
    ///
    /// # Errors
    /// A value makes no sense.
    pub fn apply(&mut self, words: &str) -> Result<Vec<String>, FuseError> {
        let mut rest = Vec::new();
        for word in words.split(',').filter(|w| !w.is_empty()) {
            if IGNORED.contains(&word) || word.starts_with("x-") || word.starts_with("comment=") {
                continue;
            }
            if let Some((_, flag, set)) = FLAGS.iter().find(|(name, _, _)| *name == word) {
                self.flags.set(*flag, *set);
            } else if !self.apply_own(word)? {
                rest.push(word.to_owned());
            }
        }
        Ok(rest)
    }

    /// Returns whether the word was one of the transport's own.
    fn apply_own(&mut self, word: &str) -> Result<bool, FuseError> {
        let bad = |what| FuseError::Option { option: word.to_owned(), what };
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse::<u64>().map_err(|_| bad("needs a number"));
        match key {
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            "fsname" if !value.is_empty() => value.clone_into(&mut self.source),
            "max_io" => {
                let size = parse_size(value).ok_or_else(|| bad("needs a size, such as 1M"))?;
                if size < Bytes(4096) || size > MAX_IO_LARGEST || !size.get().is_multiple_of(4096) {
                    return Err(bad("must be a multiple of 4K between 4K and 4M"));
                }
                self.max_io = size;
            }
            "raise_page_limit" => self.raise_page_limit = true,
            "read_ahead" => {
                let size = parse_size(value).ok_or_else(|| bad("needs a size, such as 8M"))?;
                if size > Bytes(1 << 30) {
                    return Err(bad("must be at most 1G"));
                }
                self.read_ahead = size;
            }
            "background_max" => {
                let n = u16::try_from(number()?).ok().filter(|n| *n > 0);
                self.background_max = n.ok_or_else(|| bad("must be between 1 and 65535"))?;
            }
            "workers_max" => {
                let n = usize::try_from(number()?).ok().filter(|n| (2..=65_536).contains(n));
                self.workers_max = n.ok_or_else(|| bad("must be between 2 and 65536"))?;
            }
            "nokernelcache" => self.cache = false,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

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
        let mut options = Options::default();
        let rest = options
            .apply("rw,nosuid,noatime,slot=3,x-systemd.automount,max_io=512K,_netdev,fsname=p0")
            .unwrap();
        assert_eq!(rest, ["slot=3"]);
        assert_eq!(options.flags, MountFlags::NOSUID | MountFlags::NOATIME);
        assert_eq!(options.max_io, Bytes(512 << 10));
        assert_eq!(options.source, "p0");
        options.apply("suid,ro").unwrap();
        assert_eq!(options.flags, MountFlags::RDONLY | MountFlags::NOATIME);
    }

    #[test]
    fn nonsense_is_refused() {
        for word in [
            "max_io=5", "max_io=8M", "max_io=", "max_io=9999999999G", "max_io=1X", "read_ahead=-1",
            "workers_max=1", "workers_max=x", "background_max=0", "background_max=70000",
            "read_ahead=2G",
        ] {
            let refused = Options::default().apply(word);
            assert!(matches!(refused, Err(FuseError::Option { .. })), "{word}");
        }
    }
}

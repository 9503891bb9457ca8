//! The state of the page cache when a phase begins: how it is brought about, and a label that says exactly
//! what was done.

use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use rustix::fs::Advice;

/// How a phase finds the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cache {
    /// Direct I/O.
    Direct,
    /// Buffered; the pages are written back and dropped before, so that the device is read.
    Cold,
    /// Buffered; read into the page cache just before.
    Warm,
}

impl Cache {
    /// How a phase is called after it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }
}

/// Bytes of a read that warms.
const WARMING: usize = 1 << 20;
/// Of file systems that have nothing but memory.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether a file is nowhere but in memory: on tmpfs or ramfs.
pub(crate) fn in_memory(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file()) && on_memory(path)
}

/// Whether what stands in a file or directory takes memory and nothing else.
pub(crate) fn on_memory(path: &Path) -> bool {
    let kind = |s: rustix::fs::StatFs| u64::try_from(s.f_type).unwrap_or(0);
    rustix::fs::statfs(path).is_ok_and(|s| IN_MEMORY.contains(&kind(s)))
}

/// Brings it about for a part of a file or device (`(0, 0)`: all of it); says what was done.
pub(crate) fn prepare(path: &Path, cache: Cache, (from, len): (u64, u64)) -> String {
    let memory = in_memory(path);
    match cache {
        Cache::Direct if memory => "direct, to a file in memory".to_owned(),
        Cache::Direct => "direct".to_owned(),
        Cache::Cold if memory => "memory: this file system has no cold state".to_owned(),
        Cache::Cold => {
            let dropped = File::open(path).and_then(|file| {
                file.sync_all()?;
                Ok(rustix::fs::fadvise(
                    &file,
                    from,
                    std::num::NonZeroU64::new(len),
                    Advice::DontNeed,
                )?)
            });
            dropped.map_or_else(
                |e| format!("unknown (pages stay: {e})"),
                |()| "cold (pages dropped)".to_owned(),
            )
        }
        Cache::Warm => match warm(path, from, len) {
            Ok(0) => "empty before".to_owned(),
            Ok(n) if n < len => format!("warm ({n} bytes, all there were, read before)"),
            Ok(_) => "warm (read before)".to_owned(),
            Err(e) => format!("unknown (could not be read before: {e})"),
        },
    }
}

/// Reads a part into the page cache; how many bytes there were.
fn warm(path: &Path, from: u64, len: u64) -> std::io::Result<u64> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let part = file.take(if len == 0 { u64::MAX } else { len });
    std::io::copy(&mut BufReader::with_capacity(WARMING, part), &mut std::io::sink())
}

/// What is said of a phase for which nothing is brought about.
pub(crate) fn left(direct: bool) -> &'static str {
    if direct { "direct" } else { "buffered, the cache as it was left" }
}

/// What is said of a phase whose bytes fit in memory though it is buffered: memory is measured.
pub(crate) fn label(prepared: &str, cache: Cache, bytes: u64, memory: u64) -> String {
    match cache {
        Cache::Warm if bytes < memory => format!("{prepared}: memory (the bytes fit in it)"),
        Cache::Warm => format!("{prepared}: more than memory"),
        _ => prepared.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that this thread has read so far.
    fn read_here() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix("rchar: ")).unwrap();
        line.parse().unwrap()
    }

    #[test]
    fn warm_is_what_was_read_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![1; 3 << 20]).unwrap();
        let before = read_here();
        assert_eq!(prepare(&path, Cache::Warm, (1 << 20, 2 << 20)), "warm (read before)");
        assert!(read_here() - before >= 2 << 20);
        let said = prepare(&path, Cache::Warm, (1 << 20, 4 << 20));
        assert!(said.contains("2097152 bytes, all there were"), "{said}");
        assert_eq!(prepare(&path, Cache::Warm, (4 << 20, 1)), "empty before");
        assert!(prepare(&dir.path().join("no"), Cache::Warm, (0, 0)).starts_with("unknown"));
        assert_eq!(label("warm", Cache::Warm, 1, 2), "warm: memory (the bytes fit in it)");
        assert_eq!(label("warm", Cache::Warm, 2, 2), "warm: more than memory");
        assert_eq!(label("cold", Cache::Cold, 1, 2), "cold");
    }
    #[test]
    fn a_file_in_memory_is_never_cold() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            braid_testkit::skip("no /dev/shm here");
            return;
        };
        let path = dir.path().join("f");
        std::fs::write(&path, [1; 4096]).unwrap();
        assert!(in_memory(&path));
        assert!(prepare(&path, Cache::Cold, (0, 0)).contains("no cold state"));
        assert!(prepare(&path, Cache::Direct, (0, 0)).contains("in memory"));
        assert!(!in_memory(Path::new("/proc/self/stat")) && !in_memory(&dir.path().join("no")));
    }
}

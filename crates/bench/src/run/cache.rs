//! What the kernel has of a file in memory when a phase begins: brought about, and said.

use std::fs::File;
use std::path::Path;

use rustix::fs::Advice;

/// How a phase finds the page cache.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Cache {
    /// Past it.
    Direct,
    /// Written back, and its pages given back: the device gives the bytes.
    Cold,
    /// As the phases before have left it.
    Warm,
}

/// Brings it about for a file or device; says what was done.
pub(crate) fn prepare(path: &Path, cache: Cache) -> &'static str {
    match cache {
        Cache::Direct => "direct",
        Cache::Warm => "warm",
        Cache::Cold => {
            let dropped = File::open(path).and_then(|file| {
                file.sync_all()?;
                Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?)
            });
            if dropped.is_ok() { "cold (pages dropped)" } else { "unknown (pages stay)" }
        }
    }
}

/// What is said of a phase whose bytes fit in memory though it is buffered: memory is measured.
pub(crate) fn label(prepared: &str, cache: Cache, bytes: u64, memory: u64) -> String {
    if cache == Cache::Warm && bytes < memory {
        return format!("{prepared}: memory (the bytes fit in it)");
    }
    prepared.to_owned()
}

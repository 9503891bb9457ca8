//! A test area: a file, a device, or a directory in which the mode makes its files.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use itertools::Itertools as _;

use crate::engine::{Limits, OpenMode, Pattern, Refusal, Stream, Target, room, run};
use crate::report::Report;

/// A path with a name: `NAME=PATH`, or a path alone, which is then its own name.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct System {
    pub name: String,
    pub path: PathBuf,
}
impl FromStr for System {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = match text.split_once('=') {
            Some((name, path)) if !name.contains('/') => (name, path),
            _ => (text, text),
        };
        if name.is_empty() || path.is_empty() {
            return Err(format!("'{text}': [NAME=]PATH is needed"));
        }
        Ok(Self { name: name.to_owned(), path: path.into() })
    }
}

/// Places for streams on one system; files made here are removed when it is dropped.
#[derive(Debug)]
pub(crate) struct TestArea {
    pub name: String,
    /// File or device, and the first byte, of each stream.
    pub places: Vec<(PathBuf, u64)>,
    ours: Vec<PathBuf>,
    force: bool,
    /// Bytes that each stream has.
    pub bytes: u64,
}

impl Drop for TestArea {
    fn drop(&mut self) {
        for path in &self.ours {
            std::fs::remove_file(path).ok();
        }
    }
}

impl TestArea {
    /// Room for `streams` of `bytes` each. In a directory every stream has a file of its own; on a
    /// file or device they have parts of it.
    ///
    /// # Errors
    /// There is no room, or no right.
    pub fn new(system: &System, streams: usize, bytes: u64, force: bool) -> Result<Self> {
        let System { name, path } = system.clone();
        let mut area = Self { name, places: Vec::new(), ours: Vec::new(), force, bytes };
        let total = bytes.saturating_mul(streams as u64);
        ensure!(bytes > 0, "--size: nothing is to be moved");
        ensure!(i64::try_from(total).is_ok(), "{total} bytes: beyond the largest file");
        let make = |path: &Path| {
            std::fs::File::create_new(path).map(drop).with_context(|| path.display().to_string())
        };
        let meta = std::fs::metadata(&path);
        if meta.as_ref().is_ok_and(std::fs::Metadata::is_dir) {
            room(&path.join("new"), total)?;
            for n in 0..streams {
                let file =
                    path.join(format!("braid-bench-{}-{}-{n}", std::process::id(), serial()));
                make(&file)?;
                area.ours.push(file.clone());
                area.places.push((file, 0));
            }
            return Ok(area);
        }
        if meta.is_err() {
            room(&path, total)?;
            make(&path)?;
            area.ours.push(path.clone());
        }
        area.places = (0..streams as u64).map(|n| (path.clone(), n * bytes)).collect();
        Ok(area)
    }
    /// How its targets are opened.
    pub fn how(&self, write: bool, direct: bool) -> OpenMode {
        let overwrite = !self.ours.is_empty();
        OpenMode { write, direct, force: self.force, overwrite, ..OpenMode::default() }
    }
    /// Opens the target of a stream.
    pub fn target(&self, stream: usize, write: bool, direct: bool) -> Result<Arc<Target>, Refusal> {
        let nowhere = || Refusal::Missing { path: format!("stream {stream} of {}", self.name) };
        let (path, _) = self.places.get(stream).ok_or_else(nowhere)?;
        Target::open(path, self.how(write, direct))
    }
    /// A stream on one of its places, whose first byte `pattern` counts from.
    pub fn stream(&self, n: usize, pattern: Pattern, direct: bool, depth: usize) -> Result<Stream> {
        let from = self.places.get(n).map_or(0, |(_, from)| from.saturating_add(pattern.from));
        let target = self.target(n, pattern.reads < 100, direct)?;
        stream_on(target, Pattern { from, ..pattern }, depth)
    }
    /// Makes sure that there is something to read: what was not written is.
    pub fn fill(&self) -> Result<()> {
        for (n, (path, from)) in self.places.iter().enumerate() {
            let there = Target::open(path, self.how(false, false))?;
            if there.len() >= from + self.bytes {
                continue;
            }
            let request = (1_u64 << 20).min(self.bytes);
            let target = match self.target(n, true, true) {
                Ok(target) if request.is_multiple_of(target.sector()) => target,
                // Whether what is measured can be direct is asked when it is known how.
                Ok(_) | Err(Refusal::NoDirect { .. }) => self.target(n, true, false)?,
                Err(e) => return Err(e.into()),
            };
            let is_block = target.is_block();
            let pattern = Pattern::sequential(*from, self.bytes, request, false);
            let stream = Stream { flush: true, ..stream_on(target, pattern, 4)? };
            run(&[stream], &Limits::default())?.ok()?;
            if !self.bytes.is_multiple_of(request) && !is_block {
                let file = std::fs::OpenOptions::new().write(true).open(path)?;
                file.set_len(from + self.bytes)?;
            }
        }
        Ok(())
    }
}

/// A stream that its target can take.
pub(crate) fn stream_on(target: Arc<Target>, pattern: Pattern, depth: usize) -> Result<Stream> {
    let end = pattern.from.saturating_add(pattern.span);
    target.check(pattern.request, pattern.from, end, pattern.reads > 0)?;
    Ok(Stream { depth, ..Stream::plain(target, pattern) })
}

/// Directories that are removed with what is left in them.
pub(crate) struct RemoveOnDrop(pub Vec<PathBuf>);
impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        for dir in &self.0 {
            std::fs::remove_dir_all(dir).ok();
        }
    }
}

/// What a mode needs of each system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpaceNeeds {
    pub streams: usize,
    /// Of each stream.
    pub bytes: u64,
    /// They are written, too.
    pub write: bool,
    pub force: bool,
}

/// Whether all names differ: those of the same name would be one row.
pub(crate) fn distinct(systems: &[System]) -> Result<()> {
    if let Some(name) = systems.iter().map(|s| &s.name).duplicates().next() {
        bail!("two systems are called '{name}'; give one another name: NAME=PATH");
    }
    Ok(())
}

/// All systems, filled; what is refused is refused before anything is measured.
pub(crate) fn test_areas(
    systems: &[System],
    room: SpaceNeeds,
    report: &mut Report,
) -> Result<Vec<TestArea>> {
    let new = |s: &System| TestArea::new(s, room.streams, room.bytes, room.force);
    let all = systems.iter().map(new).collect::<Result<Vec<_>>>()?;
    for area in &all {
        if room.write {
            area.target(0, true, false)?;
        }
        area.fill()?;
        report.targets.push(area.target(0, false, false)?.describe());
    }
    Ok(all)
}

/// A number of its own for every file of this process.
fn serial() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_odd_length_is_filled() {
        let dir = tempfile::tempdir().unwrap();
        let system = System { name: "x".to_owned(), path: dir.path().to_owned() };
        let area = TestArea::new(&system, 1, 6001, false).unwrap();
        area.fill().unwrap();
        assert_eq!(std::fs::metadata(&area.places[0].0).unwrap().len(), 6001);
    }
    #[test]
    fn names_and_paths() {
        let s = |t: &str| t.parse::<System>().map(|s| (s.name, s.path.display().to_string()));
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(s("raw=/dev/sda"), pair("raw", "/dev/sda"));
        assert_eq!(s("/a/b=c"), pair("/a/b=c", "/a/b=c"));
        assert_eq!(s("x"), pair("x", "x"));
        assert!(s("").is_err() && s("=x").is_err() && s("x=").is_err());
    }
}

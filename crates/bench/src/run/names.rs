//! Directories of paths, and durable directory entries.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

/// The directory that something stands in.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The name of a path outlasts a power cut.
pub(crate) fn sync_name(path: &Path) -> Result<()> {
    let dir = parent(path);
    let synced = File::open(dir).and_then(|d| d.sync_all());
    synced.with_context(|| dir.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_stands_here() {
        for (path, dir) in [("f", "."), ("./f", "."), ("a/f", "a"), ("/f", "/"), ("/", ".")] {
            assert_eq!(parent(Path::new(path)), Path::new(dir), "{path}");
        }
        let dir = tempfile::tempdir().unwrap();
        sync_name(&dir.path().join("any")).unwrap();
        let said = format!("{:#}", sync_name(&dir.path().join("no/any")).unwrap_err());
        assert!(said.contains("/no: "), "{said}");
    }
}

//! Which mounts this host has: one note each in the user's runtime directory (`/run/braid` for root), removed
//! when the mount ends.

use std::io;
use std::path::{Path, PathBuf};

use braid_lock::runtime::private_dir;
use serde::{Deserialize, Serialize};

use crate::process::notes::{self, Found};

/// The kind of these notes.
const KIND: &str = "mount";

/// A mount of this host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mount {
    /// Process that serves it.
    pub pid: u32,
    /// Pool.
    pub pool: String,
    /// Directory.
    #[expect(clippy::struct_field_names, reason = "the term that mount(8) uses")]
    pub mount_point: PathBuf,
    /// What was named when it was mounted: devices, or the pool.
    pub sources: Vec<String>,
}

/// A note that removes itself.
#[derive(Debug)]
pub struct Note {
    _written: Option<notes::Note>,
}

impl Note {
    /// Writes the note. Where no note can be written the mount works all the same.
    pub fn write(mount_point: &Path, pool: &str, sources: &[String]) -> Self {
        // Those of dead ones go.
        drop(mounts());
        let mount = Mount {
            pid: std::process::id(),
            pool: pool.to_owned(),
            mount_point: mount_point.to_owned(),
            sources: sources
                .iter()
                .map(|s| match std::fs::canonicalize(s) {
                    Ok(path) => path.display().to_string(),
                    Err(_) => s.clone(),
                })
                .collect(),
        };
        let written = private_dir().and_then(|dir| Self::write_in(&dir, &mount));
        let warn = |e: &io::Error| tracing::warn!("no note of this mount: {e}");
        Self { _written: written.inspect_err(warn).ok() }
    }
    fn write_in(dir: &Path, mount: &Mount) -> io::Result<notes::Note> {
        notes::Note::write(dir, KIND, mount.pid, mount)
    }
}

/// Mounts whose process lives. Notes, and sockets, of dead ones are removed.
pub fn mounts() -> Vec<Mount> {
    braid_lock::hints::sweep();
    private_dir().map(|dir| mounts_in(&dir)).unwrap_or_default()
}

fn mounts_in(dir: &Path) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    let (mut dead, mut begins) = (Vec::new(), false);
    for Found { lives, value } in notes::found::<Mount>(dir, KIND) {
        match value {
            Some(mount) if lives => mounts.push(mount),
            Some(mount) => dead.push(mount.pid),
            // It is about to say whose it is: that one's socket must stay.
            None => begins |= lives,
        }
    }
    dead.retain(|pid| !begins && mounts.iter().all(|m| m.pid != *pid));
    for pid in dead {
        std::fs::remove_file(control_socket_in(dir, pid)).ok();
    }
    mounts.sort_by(|a, b| a.mount_point.cmp(&b.mount_point));
    mounts
}

/// Where the process that serves a mount takes orders.
pub fn control_socket(pid: u32) -> std::io::Result<PathBuf> {
    Ok(control_socket_in(&private_dir()?, pid))
}

fn control_socket_in(dir: &Path, pid: u32) -> PathBuf {
    dir.join(format!("control-{pid}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_of_a_namespace(mount_point: &str) -> Mount {
        // Everywhere some process has this number.
        let (pid, pool, sources) = (1, "pool".to_owned(), Vec::new());
        Mount { pid, pool, mount_point: mount_point.into(), sources }
    }
    fn found(dir: &Path) -> Vec<PathBuf> {
        mounts_in(dir).into_iter().map(|m| m.mount_point).collect()
    }
    fn left(dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn the_note_of_a_killed_mount_goes_though_its_number_is_that_of_another_process() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let dead = serde_json::to_vec(&first_of_a_namespace("/dead")).unwrap();
        std::fs::write(dir.join("mount-1.json"), &dead).unwrap();
        std::fs::write(dir.join("control-1.sock"), "").unwrap();
        assert_eq!(found(dir), [PathBuf::new(); 0]);
        assert_eq!(left(dir), 0);
    }

    #[test]
    fn mounts_of_two_namespaces_have_a_note_each() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let dead = serde_json::to_vec(&first_of_a_namespace("/dead")).unwrap();
        std::fs::write(dir.join("mount-1.json"), dead).unwrap();
        std::fs::write(dir.join("control-1.sock"), "").unwrap();
        let [one, two] = ["/one", "/two"]
            .map(|at| Note { _written: Note::write_in(dir, &first_of_a_namespace(at)).ok() });
        assert_eq!(found(dir), [PathBuf::from("/one"), "/two".into()]);
        drop(one);
        std::fs::write(
            dir.join("mount-1.json"),
            serde_json::to_vec(&first_of_a_namespace("/dead")).unwrap(),
        )
        .unwrap();
        assert_eq!(found(dir), [PathBuf::from("/two")]);
        assert!(dir.join("control-1.sock").exists(), "one that lives has this number");
        drop(two);
        assert_eq!(left(dir), 1);
    }
}

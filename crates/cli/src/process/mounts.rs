//! Which mounts this host has: one small file each in the user's runtime
//! directory (`/run/braid` for root), removed when the mount ends.
//!
//! The process that serves a mount holds a lock on its file. A process's number would not tell whether it
//! lives: in a PID namespace it is another one than outside, and in each of them the first has number 1.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use braid_lock::runtime::private_dir;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// Mounts of one process number: in so many PID namespaces.
const ALIKE_MAX: u32 = 256;

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
    /// And the file, locked.
    written: Option<(PathBuf, File)>,
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
        Self { written: written.inspect_err(warn).ok() }
    }
    fn write_in(dir: &Path, mount: &Mount) -> io::Result<(PathBuf, File)> {
        let pid = mount.pid;
        for n in 0..ALIKE_MAX {
            let more = if n == 0 { String::new() } else { format!("-{n}") };
            let path = dir.join(format!("mount-{pid}{more}.json"));
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            // Whoever has found it to be a dead one's may have removed it just now.
            if !names(&path, &file) {
                continue;
            }
            file.set_len(0)?;
            serde_json::to_writer(&file, mount)?;
            return Ok((path, file));
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}
impl Drop for Note {
    fn drop(&mut self) {
        if let Some((path, _locked)) = &self.written {
            std::fs::remove_file(path).ok();
        }
    }
}

/// Whether a file is still what its path names.
fn names(path: &Path, file: &File) -> bool {
    let id = |meta: io::Result<std::fs::Metadata>| meta.ok().map(|m| (m.dev(), m.ino()));
    id(std::fs::metadata(path)) == id(file.metadata())
}

/// Mounts whose process lives. Notes, and sockets, of dead ones are removed.
pub fn mounts() -> Vec<Mount> {
    braid_lock::hints::sweep();
    private_dir().map(|dir| mounts_in(&dir)).unwrap_or_default()
}

fn mounts_in(dir: &Path) -> Vec<Mount> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut mounts: Vec<Mount> = Vec::new();
    let (mut dead, mut begins) = (Vec::new(), false);
    for entry in entries.flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with("mount-") {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        // Held until the note is gone, so that nobody begins to use it; shared, so that two who look at
        // once do not take each other for a mount.
        let lives = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
        let mount = serde_json::from_reader::<_, Mount>(&file);
        if !lives && names(&path, &file) {
            std::fs::remove_file(&path).ok();
        }
        match mount {
            Ok(mount) if lives => mounts.push(mount),
            Ok(mount) => dead.push(mount.pid),
            // It is about to say whose it is: that one's socket must stay.
            Err(_) => begins |= lives,
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
            .map(|at| Note { written: Note::write_in(dir, &first_of_a_namespace(at)).ok() });
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

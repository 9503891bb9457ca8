//! Which mounts this host has: one small file each in the user's runtime
//! directory (`/run/braid` for root), removed when the mount ends.

use std::path::{Path, PathBuf};

use braid_lock::runtime::private_dir;
use serde::{Deserialize, Serialize};

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
    path: Option<PathBuf>,
}

impl Note {
    /// Writes the note. Where no note can be written the mount works all the same.
    pub fn write(mount_point: &Path, pool: &str, sources: &[String]) -> Self {
        braid_lock::hints::sweep();
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
        let written = private_dir().and_then(|dir| {
            let path = dir.join(format!("mount-{}.json", mount.pid));
            std::fs::write(&path, serde_json::to_vec(&mount)?)?;
            Ok(path)
        });
        let warn = |e: &std::io::Error| tracing::warn!("no note of this mount: {e}");
        Self { path: written.inspect_err(warn).ok() }
    }
}
impl Drop for Note {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            std::fs::remove_file(path).ok();
        }
    }
}

/// Mounts whose process lives. Notes, and sockets, of dead ones are removed.
pub fn mounts() -> Vec<Mount> {
    braid_lock::hints::sweep();
    let Ok(entries) = private_dir().and_then(std::fs::read_dir) else { return Vec::new() };
    let mut mounts = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with("mount-") {
            continue;
        }
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let Ok(mount) = serde_json::from_slice::<Mount>(&bytes) else { continue };
        if lives(mount.pid) {
            mounts.push(mount);
        } else {
            std::fs::remove_file(&path).ok();
            control_socket(mount.pid).and_then(std::fs::remove_file).ok();
        }
    }
    mounts.sort_by(|a, b| a.mount_point.cmp(&b.mount_point));
    mounts
}

/// Where the process that serves a mount takes orders.
pub fn control_socket(pid: u32) -> std::io::Result<PathBuf> {
    Ok(private_dir()?.join(format!("control-{pid}.sock")))
}

/// A process that was killed but not yet waited for has no program any more.
fn lives(pid: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{pid}/exe"));
    !matches!(program, Err(e) if e.kind() == std::io::ErrorKind::NotFound)
}

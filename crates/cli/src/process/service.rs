//! What this process reports to systemd, if systemd has started the mount or the exports (`Type=notify`).
//! Without systemd it reports nothing.

use std::path::Path;

use sd_notify::NotifyState;

/// The mount serves: what waits for it may begin.
pub fn ready(pool: &str, dir: &Path) {
    let status = format!("pool {pool} serves {}", dir.display());
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Clients may mount what is exported.
pub fn exports(pool: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("pool {pool} is exported by NFS"))]);
}

/// The kernel has let go of the mount: the node writes what is left, and leaves the pool.
pub fn leaving() {
    tell(&[NotifyState::Stopping, NotifyState::Status("leaving the pool")]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd is not told how far this is");
    }
}

//! How a mount from a server is: its process says so, in one line of JSON, to whoever calls its socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::SystemTime;

use braid_bulk::remote::RemoteFs;
use serde::{Deserialize, Serialize};

use super::client::{LOOK_TIME, connect};
use crate::process::mounts::{self, Mount, Note};

/// What it says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RemoteView {
    /// Whether the server answered when it was last asked.
    pub connected: bool,
    /// Servers that may be used.
    #[serde(default)]
    pub servers: usize,
    /// The one that is.
    #[serde(default)]
    pub server: String,
    /// Since when, Unix seconds.
    #[serde(default)]
    pub since: u64,
    /// How often another one was used instead of one that was dead.
    #[serde(default)]
    pub moves: u64,
    /// Files that programs have open.
    pub open_files: usize,
    /// Bytes that the server has, and that are not durable there yet.
    pub not_durable: usize,
    /// Inodes of which something is kept under leases.
    #[serde(default)]
    pub leases: usize,
    /// Requests that were sent for programs.
    #[serde(default)]
    pub requests: u64,
}

/// The socket of this process; it goes when this is dropped.
#[derive(Debug)]
pub struct Socket(Option<PathBuf>);

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            std::fs::remove_file(path).ok();
        }
    }
}

/// Begins to tell how `fs` is. Without a socket the mount works all the same.
pub fn serve(fs: &RemoteFs, note: &Note) -> Socket {
    let begun = note.control_socket().and_then(|path| {
        std::fs::remove_file(&path).ok();
        let listener = UnixListener::bind(&path)?;
        let fs = fs.clone();
        let work = move || listener.incoming().flatten().for_each(|stream| tell(&fs, stream));
        std::thread::Builder::new().name("control".into()).spawn(work)?;
        Ok(path)
    });
    Socket(begun.inspect_err(|error| tracing::warn!(%error, "`braid status` hears nothing")).ok())
}

/// Whoever does not listen is not waited for.
fn tell(fs: &RemoteFs, mut stream: std::os::unix::net::UnixStream) {
    let status = fs.status();
    let since = status.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let view = RemoteView {
        servers: status.servers,
        server: status.server,
        since: since.as_secs(),
        moves: status.moves,
        connected: status.is_connected,
        open_files: status.open_files,
        not_durable: status.pending,
        leases: status.leases,
        requests: status.requests,
    };
    stream.set_write_timeout(Some(LOOK_TIME)).ok();
    if let Ok(line) = serde_json::to_string(&view) {
        writeln!(stream, "{line}").ok();
    }
}

/// How a mount is. `None`: its process does not answer.
pub fn look(mount: &Mount) -> Option<RemoteView> {
    let stream = connect(&mounts::control_socket(mount).ok()?).ok()?;
    stream.set_read_timeout(Some(LOOK_TIME)).ok()?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

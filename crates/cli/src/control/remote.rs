//! How a mount from a server is: its process says so, in one line of JSON, to whoever calls its socket; and what its
//! programs wait for, in another line, to whoever then asks for that.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use braid_bulk::remote::RemoteFs;
use braid_fuse::RequestCounters;
use serde::{Deserialize, Serialize};

use super::client::{LOOK_TIME, connect};
use super::why::{self, WhyView};
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

/// The question for what programs wait for.
const WHY: &str = "why";
/// Longest line that is read from a caller.
const LINE_MAX: u64 = 16;

/// Begins to tell how `fs` is, and the requests that it answers. Without a socket the mount works all the same.
pub fn serve(fs: &RemoteFs, requests: &Arc<RequestCounters>, note: &Note) -> Socket {
    let begun = note.control_socket().and_then(|path| {
        std::fs::remove_file(&path).ok();
        let listener = UnixListener::bind(&path)?;
        let (fs, requests) = (fs.clone(), requests.clone());
        let work = move || {
            for stream in listener.incoming().flatten() {
                let (fs, requests) = (fs.clone(), requests.clone());
                let tell = move || tell(&fs, &requests, &stream);
                // A caller that says nothing keeps nobody else waiting.
                if let Err(error) = std::thread::Builder::new().name("control".into()).spawn(tell) {
                    tracing::warn!(%error, "a caller of the control socket is not served");
                }
            }
        };
        std::thread::Builder::new().name("control".into()).spawn(work)?;
        Ok(path)
    });
    Socket(begun.inspect_err(|error| tracing::warn!(%error, "`braid status` hears nothing")).ok())
}

/// Whoever does not listen is not waited for.
fn tell(fs: &RemoteFs, requests: &RequestCounters, mut stream: &UnixStream) {
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
    stream.set_read_timeout(Some(LOOK_TIME)).ok();
    if let Ok(line) = serde_json::to_string(&view) {
        writeln!(stream, "{line}").ok();
    }
    let mut asked = String::new();
    BufReader::new(std::io::Read::take(stream, LINE_MAX)).read_line(&mut asked).ok();
    if asked.trim_end() == WHY
        && let Ok(line) = serde_json::to_string(&why::answer_remote(fs, requests))
    {
        writeln!(stream, "{line}").ok();
    }
}

/// How a mount is. `None`: its process does not answer.
pub fn look(mount: &Mount) -> Option<RemoteView> {
    let mut stream = called(mount)?;
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// What programs wait for that use a mount. `None`: its process does not answer that.
pub fn look_why(mount: &Mount) -> Option<WhyView> {
    let mut stream = called(mount)?;
    writeln!(stream.get_ref(), "{WHY}").ok()?;
    let mut lines = [String::new(), String::new()];
    for line in &mut lines {
        stream.read_line(line).ok()?;
    }
    serde_json::from_str(&lines[1]).ok()
}

fn called(mount: &Mount) -> Option<BufReader<UnixStream>> {
    let stream = connect(&mounts::control_socket(mount).ok()?).ok()?;
    stream.set_read_timeout(Some(LOOK_TIME)).ok()?;
    stream.set_write_timeout(Some(LOOK_TIME)).ok()?;
    Some(BufReader::new(stream))
}

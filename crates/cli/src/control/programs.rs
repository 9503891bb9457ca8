//! What programs ask of a node: the answer to [`Order::Programs`](crate::control::Order::Programs).

use braid_fuse::RequestCounters;
use serde::{Deserialize, Serialize};

/// A program's requests since somebody began to look.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramView {
    /// Its process; 0: the kernel itself.
    pub pid: u32,
    /// Its name, as far as the process lives.
    pub name: String,
    /// How many there were.
    pub requests: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// How long they took together, in nanoseconds.
    pub nanos: u64,
}

/// The answer.
pub fn answer(requests: &RequestCounters) -> Vec<ProgramView> {
    let view = |(pid, counts): (u32, braid_fuse::ProgramCounts)| ProgramView {
        pid,
        name: name_of(pid),
        requests: counts.requests,
        read: counts.read,
        written: counts.written,
        nanos: counts.nanos,
    };
    requests.programs().into_iter().map(view).collect()
}

fn name_of(pid: u32) -> String {
    if pid == 0 {
        return "(kernel)".into();
    }
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).trim().replace(char::is_control, "?");
    if name.is_empty() { "(ended)".into() } else { name }
}

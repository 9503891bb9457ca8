//! What programs ask of a node: the answer to [`Order::Programs`](crate::control::Order::Programs).

use braid_format::text;
use braid_fuse::RequestCounters;
use braid_pool::device::tasks::KINDS;
use serde::{Deserialize, Deserializer, Serialize};

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
    /// How long of it they waited for what, in nanoseconds: by [`Awaited::NAMES`](braid_pool::device::tasks::Awaited).
    #[serde(default, deserialize_with = "by_kind")]
    pub waited: [u64; KINDS],
}

/// Values by [`Awaited::NAMES`](braid_pool::device::tasks::Awaited): another version may know fewer kinds, or more.
pub fn by_kind<'de, T, D>(from: D) -> Result<[T; KINDS], D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    let mut said = Vec::<T>::deserialize(from)?.into_iter();
    Ok(std::array::from_fn(|_| said.next().unwrap_or_default()))
}

impl ProgramView {
    /// What came since `before`.
    pub fn since(&self, before: &Self) -> Self {
        // It may have been forgotten and counted anew.
        let since = |now: u64, was: u64| now.checked_sub(was).unwrap_or(now);
        let mut waited = self.waited;
        for (now, before) in waited.iter_mut().zip(before.waited) {
            *now = since(*now, before);
        }
        Self {
            pid: self.pid,
            name: self.name.clone(),
            requests: since(self.requests, before.requests),
            read: since(self.read, before.read),
            written: since(self.written, before.written),
            nanos: since(self.nanos, before.nanos),
            waited,
        }
    }
    /// As if another thread's were its own.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.read += other.read;
        self.written += other.written;
        self.nanos += other.nanos;
        for (all, one) in self.waited.iter_mut().zip(other.waited) {
            *all += one;
        }
    }
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
        waited: counts.waited,
    };
    requests.programs().into_iter().map(view).collect()
}

/// The name of a program's thread, as far as it lives.
pub fn name_of(pid: u32) -> String {
    if pid == 0 {
        return "(kernel)".into();
    }
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).trim().replace(|c| !text::shows(c), "?");
    if name.is_empty() { "(ended)".into() } else { name }
}

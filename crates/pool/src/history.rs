//! The pool's history: events that wait to be written, and the rings on the members. What is on the members:
//! [`braid_format::history`]; the thread that writes: [`crate::membership`].
//!
//! Nothing waits for an event: whoever tells it puts it into a queue with a bound. A member that does not answer holds up
//! only the thread. An event that no member takes is lost, and the log says so: the history is for people, and nothing
//! depends on it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use braid_device::{AlignedBuf, CawOutcome, Device, DeviceError};
use braid_format::history::{Event, EventKind, HistoryPage};
use braid_format::label::{Label, Member, MemberState};
use braid_format::{Bytes, MemberIndex, NodeId};
use parking_lot::{Condvar, Mutex};

use crate::cluster::write_gate::WriteGate;
use crate::identity::fresh;
use crate::labels::state_word;

/// Events that wait to be written, at most: older ones are dropped.
const WAITING_MAX: usize = 256;
/// Times that an event is put into a ring anew, because another node has written there.
const TRIES: u32 = 64;

/// What waits to be written.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub waiting: VecDeque<Event>,
    /// One is being written.
    pub busy: bool,
    pub stop: bool,
    /// Closed, it lets no event pass.
    pub write_gate: Weak<WriteGate>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub host: String,
    /// The node's slot; `u16::MAX`: none.
    pub slot: AtomicU16,
    pub queue: Mutex<Queue>,
    pub changed: Condvar,
}

/// What tells events. Dropped with the pool, it ends the thread.
#[derive(Debug)]
pub(crate) struct Recorder(pub Arc<Shared>);

impl Drop for Recorder {
    fn drop(&mut self) {
        self.0.queue.lock().stop = true;
        self.0.changed.notify_all();
    }
}

impl Recorder {
    pub fn record(&self, kind: EventKind, user: Option<u32>, text: String) {
        let shared = &self.0;
        let slot = Some(NodeId(shared.slot.load(Ordering::Acquire))).filter(|s| s.0 != u16::MAX);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let (id, host) = (fresh().as_u64_pair().0, shared.host.clone());
        let mut queue = shared.queue.lock();
        if queue.waiting.len() == WAITING_MAX {
            queue.waiting.pop_front();
            tracing::warn!("the members take no events: the pool's history lacks one");
        }
        queue.waiting.push_back(Event { time, id, kind, slot, user, host, text });
        shared.changed.notify_all();
    }
}

/// Members that hold something and are not in sync.
pub(crate) fn members_out(label: &Label) -> Vec<u16> {
    let out = |m: &Member| matches!(m.state, MemberState::Failed | MemberState::Rebuilding);
    let members = (0_u16..).zip(&label.members);
    let holds = |i: u16| label.bytes_on(MemberIndex(i)) != Bytes(0);
    members.filter(|(i, m)| out(m) && holds(*i)).map(|(i, _)| i).collect()
}

/// How a member is called in texts.
pub(crate) fn who(index: MemberIndex, member: &Member) -> String {
    format!("member {index} ({})", member.path)
}

/// That a member went offline.
pub(crate) fn gone_offline(who: &str) -> String {
    format!("{who} is offline")
}

/// How the members differ, one text each.
pub(crate) fn changes(before: &Label, now: &Label) -> Vec<String> {
    let mut texts = Vec::new();
    let old = |m: &Member| before.members.iter().find(|b| b.uuid == m.uuid);
    for (index, m) in (0..).map(MemberIndex).zip(&now.members) {
        let who = who(index, m);
        let Some(was) = old(m) else {
            if m.offline {
                texts.push(format!("{who} is back: what it has missed is filled"));
                continue;
            }
            texts.push(format!("{who} joined: {}", state_word(m.state)));
            continue;
        };
        if was.state != m.state {
            texts.push(match m.state {
                MemberState::Failed if m.offline => gone_offline(&who),
                MemberState::Failed => format!("{who} has failed"),
                MemberState::Active if was.state == MemberState::Rebuilding => {
                    format!("{who} is filled and in use")
                }
                _ => format!("{who} is {}, was {}", state_word(m.state), state_word(was.state)),
            });
        }
        if was.offline && !m.offline && was.state == m.state {
            texts.push(format!(
                "all of {who} is filled when it is back: what it misses is not noted any more"
            ));
        }
        if was.suspected != m.suspected {
            let now = if m.suspected { "is" } else { "is no longer" };
            texts.push(format!("{who} {now} suspected to return garbage"));
        }
    }
    let gone = before.members.iter().filter(|b| !now.members.iter().any(|m| m.uuid == b.uuid));
    // One that comes back gets another identity.
    let gone = gone.filter(|b| !now.members.iter().any(|m| m.path == b.path));
    texts.extend(gone.map(|b| format!("{} is not a member any more", b.path)));
    texts
}

/// A ring as it is on a member.
pub(crate) struct Ring {
    bytes: AlignedBuf,
    pub pages: Vec<Option<HistoryPage>>,
}

pub(crate) fn read_ring(
    device: &dyn Device,
    pool: [u8; 16],
    len: Bytes,
) -> Result<Ring, DeviceError> {
    let mut bytes = AlignedBuf::zeroed(HistoryPage::LEN.to_usize());
    device.read(HistoryPage::AT, &mut bytes)?;
    let pages = bytes.chunks_exact(len.to_usize());
    let pages = pages.map(|page| HistoryPage::decode(page, pool)).collect();
    Ok(Ring { bytes, pages })
}

/// Puts an event into the rings of these members. A member that is new to that first gets what another one has.
pub(crate) fn append(devices: &[&dyn Device], pool: [u8; 16], len: Bytes, event: &Event) {
    let mut written = 0;
    let not_written = |device: &dyn Device, error: DeviceError| {
        tracing::debug!(path = device.info().name, %error, "an event is not written");
    };
    for device in devices {
        let others = devices.iter().filter(|d| d.info().name != device.info().name);
        if let Err(error) = seed(*device, others.copied(), pool, len) {
            not_written(*device, error);
        }
    }
    for device in devices {
        match put(*device, pool, len, event) {
            Ok(true) => written += 1,
            Ok(false) => tracing::debug!("others write to the pool's history all the time"),
            Err(error) => not_written(*device, error),
        }
    }
    if written == 0 {
        tracing::warn!(event = event.text, "no member takes an event: the pool's history lacks it");
    }
}

/// Puts an event into the ring of a member; `false`: others were always first.
fn put(
    device: &dyn Device,
    pool: [u8; 16],
    len: Bytes,
    event: &Event,
) -> Result<bool, DeviceError> {
    for _ in 0..TRIES {
        let ring = read_ring(device, pool, len)?;
        let known = ring.pages.iter().enumerate().filter_map(|(i, p)| Some((i, p.as_ref()?)));
        let last = known.max_by_key(|(_, page)| page.sequence);
        let fits = last.and_then(|(i, page)| Some((i, page.with(event, len.to_usize())?)));
        let next = || {
            let (i, sequence) = last.map_or((0, 1), |(i, p)| (i + 1, p.sequence.saturating_add(1)));
            let page = HistoryPage::new(sequence).with(event, len.to_usize())?;
            Some((i % ring.pages.len().max(1), page))
        };
        let Some((at, page)) = fits.or_else(next) else { return Ok(false) };
        if exchange(device, &ring, at, &page.encode(pool, len.to_usize()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Gives a member without any event those of another one, so that the history outlives its members.
fn seed<'a>(
    device: &dyn Device,
    mut others: impl Iterator<Item = &'a dyn Device>,
    pool: [u8; 16],
    len: Bytes,
) -> Result<(), DeviceError> {
    let ring = read_ring(device, pool, len)?;
    if ring.pages.iter().any(Option::is_some) {
        return Ok(());
    }
    let known = others.find_map(|other| {
        let ring = read_ring(other, pool, len).ok()?;
        ring.pages.iter().any(Option::is_some).then_some(ring)
    });
    let pages = known.into_iter().flat_map(|ring| ring.pages).enumerate();
    for (at, page) in pages.filter_map(|(i, page)| Some((i, page?))) {
        exchange(device, &ring, at, &page.encode(pool, len.to_usize()))?;
    }
    Ok(())
}

/// Writes a page if what was read is there still.
fn exchange(device: &dyn Device, ring: &Ring, at: usize, new: &[u8]) -> Result<bool, DeviceError> {
    let from = at * new.len();
    let Some(there) = ring.bytes.get(from..from + new.len()) else { return Ok(false) };
    let place = HistoryPage::AT + Bytes::from(from);
    match device.compare_and_write(place, there, new) {
        Ok(CawOutcome::Written) => Ok(true),
        // Told twice, it counts once.
        Ok(CawOutcome::Mismatch(_)) | Err(DeviceError::Unknown { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;

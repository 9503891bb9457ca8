//! Hints between hosts: sealed (`seal.rs`), over TCP connections that are made when there is something to
//! say and kept. A connection carries hints one way, from who made it.
//!
//! * Whoever sends does so itself, if the connection stands and takes it at once. Otherwise one
//!   thread, which also hears, does what is left; nobody waits for it.
//! * A link that does not come about, or breaks, is tried again after a pause that grows, when there is
//!   something to say. Meanwhile nothing is lost but time.
//! * What comes from strangers costs a bounded amount of memory, and of this thread's time: so many
//!   connections are taken in a while, so many may be unproven, each for so long.

mod incoming;
mod outgoing;
mod socket_options;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_format::node::SlotRecord;
use braid_format::{LockNo, NodeId};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use self::incoming::Incoming;
use self::outgoing::{Peer, Sent};
use self::socket_options::prepare;
use super::message::{HINT, Received, encode};
use super::seal::Secret;
use super::way::{MessageWay, Receivers};
use crate::Life;
use crate::dlock::Hint;

/// Unproven connections at once; of more the oldest goes.
const UNPROVEN_MAX: usize = 16;
/// Connections taken in a [`ACCEPT_PERIOD`].
const ACCEPTS_MAX: u32 = 32;
const ACCEPT_PERIOD: Duration = Duration::from_millis(100);

/// Listens at an address; without a port, at the first of [`TcpHints::PORTS`] that is free.
fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let ports = if at.port() == 0 { Some(TcpHints::PORTS) } else { None };
    for port in ports.into_iter().flatten() {
        match TcpListener::bind((at.ip(), port)) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            listener => return listener,
        }
    }
    TcpListener::bind(at)
}

/// A node's end of the way by TCP.
#[derive(Debug)]
pub struct TcpHints {
    fs: uuid::Uuid,
    me: Life,
    secret: Secret,
    at: SocketAddr,
    listener: TcpListener,
    peers: Mutex<HashMap<NodeId, Peer>>,
    /// Who has proven itself, and has its connection still.
    proven: Mutex<HashMap<NodeId, Life>>,
    /// Held by the thread that waits for the connections.
    connections: Mutex<Connections>,
    receivers: Receivers,
    /// Wakes the thread that waits.
    wake: OwnedFd,
    closing: AtomicBool,
}

impl TcpHints {
    pub(super) const PREFIX: &str = "tcp:";
    /// Ports of nodes that were told none: a firewall between hosts lets these through.
    pub const PORTS: RangeInclusive<u16> = 24741..=24772;

    /// Listens at `at` for hints to `me` of file system `fs`, whose slot says `identity`.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(fs: uuid::Uuid, me: Life, identity: [u8; 16], at: SocketAddr) -> io::Result<Self> {
        let listener = listen(at)?;
        listener.set_nonblocking(true)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            fs,
            me,
            secret: Secret::of(fs, me, identity),
            at: listener.local_addr()?,
            listener,
            peers: Mutex::default(),
            proven: Mutex::default(),
            connections: Mutex::new(Connections::default()),
            receivers: Receivers::default(),
            wake,
            closing: AtomicBool::new(false),
        })
    }
    /// How the node of this life is reached.
    pub fn way(&self, to: Life) -> MessageWay {
        let peers = self.peers.lock();
        peers.get(&to.slot).filter(|p| p.life() == to).map_or(MessageWay::TcpUnused, Peer::way)
    }
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.at
    }
    /// Sends to the node of a slot, which hears at `at`, if that is possible at once; otherwise it may
    /// follow. Whether it is on its way. Never blocks.
    pub fn send(&self, to: &SlotRecord, at: &str, lock: LockNo, hint: &Hint) -> bool {
        let mut message = [0; HINT];
        message
            .copy_from_slice(zerocopy::IntoBytes::as_bytes(&encode(self.me, to.life, lock, hint)));
        let sent = {
            let mut peers = self.peers.lock();
            let known = peers.get_mut(&to.life.slot).filter(|p| p.life() == to.life);
            let peer = if let Some(peer) = known {
                peer
            } else {
                let Ok(at) = at.parse() else { return false };
                let secret = Secret::of(self.fs, to.life, to.node_uuid);
                peers.insert(to.life.slot, Peer::new(to.life, at, secret));
                let Some(peer) = peers.get_mut(&to.life.slot) else { return false };
                peer
            };
            peer.send(message, Instant::now())
        };
        if sent != Sent::Gone {
            self.wake();
        }
        sent != Sent::Later
    }
    /// Whether the node `from` has a connection to this one.
    pub fn hears(&self, from: Life) -> bool {
        self.proven.lock().get(&from.slot) == Some(&from)
    }
    fn wake(&self) {
        // Full: it is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
    /// Makes [`Self::run`] end.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
    }

    /// Hears, and does what could not be done at once, until it is closed: the life of each of
    /// the `Receivers`, of which one waits for the connections. `on_hints` gets what comes together, and whether it may wait: then
    /// another thread hears meanwhile.
    pub fn run(&self, on_hints: &dyn Fn(&[Received], bool)) {
        while let Some((hints, connections)) = self.next_hints(on_hints) {
            self.receivers.busy_with(|may_wait| {
                let _kept = (!may_wait).then_some(connections);
                on_hints(&hints, may_wait);
            });
        }
        self.proven.lock().clear();
        self.peers.lock().clear();
    }

    /// Waits for hints that call for more than to wake a thread: those are done here. `None`: it is closed. As long
    /// as the connections are held no other thread hears.
    fn next_hints(
        &self,
        on_hints: &dyn Fn(&[Received], bool),
    ) -> Option<(Vec<Received>, MutexGuard<'_, Connections>)> {
        let mut connections = self.connections.lock();
        while !self.closing.load(Ordering::Acquire) {
            let came = RefCell::new(Vec::new());
            if let Err(e) = self.round(&mut connections, &|hint| came.borrow_mut().push(hint)) {
                tracing::warn!("no hints by TCP any more, locks are polled: {e}");
                self.closing.store(true, Ordering::Release);
            }
            let given = |received: &Received| matches!(received.hint, Hint::Give { .. });
            let (given, others): (Vec<_>, Vec<_>) = came.into_inner().into_iter().partition(given);
            on_hints(&given, false);
            if !others.is_empty() {
                return Some((others, connections));
            }
        }
        None
    }

    /// Waits for something to do, and does it.
    fn round(&self, connections: &mut Connections, on_hint: &dyn Fn(Received)) -> io::Result<()> {
        let Connections { incoming, doors } = connections;
        let now = Instant::now();
        let (links, mut until) = self.links(now);
        until = incoming.iter().filter_map(Incoming::deadline).chain(until).min();
        let open = doors.are_open(now);
        if !open {
            until = until.into_iter().chain([doors.since + ACCEPT_PERIOD]).min();
        }
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(incoming.iter().map(|i| PollFd::from_borrowed_fd(i.as_fd(), PollFlags::IN)));
        fds.extend(links.iter().map(|l| PollFd::from_borrowed_fd(l.stream.as_fd(), l.wanted)));
        if open {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let timeout = until.map(|u| u.saturating_duration_since(now));
        let timeout = timeout.and_then(|t| Timespec::try_from(t + Duration::from_millis(1)).ok());
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            polled => polled?,
        };
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        if ready.next() == Some(true) {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        let heard: Vec<bool> = ready.by_ref().take(incoming.len()).collect();
        self.hear(incoming, &heard, on_hint);
        for (link, ready) in links.iter().zip(ready.by_ref()) {
            if ready && let Some(peer) = self.peers.lock().get_mut(&link.slot) {
                peer.ready(self.me, Instant::now());
            }
        }
        if ready.next() == Some(true) {
            self.accept(incoming, doors);
        }
        Ok(())
    }

    /// Begins what is due with the peers, and says what they wait for.
    fn links(&self, now: Instant) -> (Vec<Waits>, Option<Instant>) {
        let mut peers = self.peers.lock();
        let mut until: Option<Instant> = None;
        let mut waits = Vec::new();
        for (slot, peer) in peers.iter_mut() {
            peer.due(now);
            until = until.into_iter().chain(peer.deadline()).min();
            if let Some((stream, wanted)) = peer.waits() {
                waits.push(Waits { slot: *slot, stream, wanted });
            }
        }
        (waits, until)
    }

    fn hear(&self, incoming: &mut Vec<Incoming>, ready: &[bool], on_hint: &dyn Fn(Received)) {
        let now = Instant::now();
        let mut ready = ready.iter();
        let mut changed = false;
        incoming.retain_mut(|one| {
            let ready = ready.next().is_some_and(|r| *r);
            let stays = (!ready || one.hear(self.me, &self.secret, on_hint))
                && one.deadline().is_none_or(|d| d > now);
            changed |= one.is_news() || !stays;
            stays
        });
        if !changed {
            return;
        }
        // Who connects anew has lost its earlier connection.
        let news: Vec<NodeId> = incoming.iter().filter(|i| i.is_news()).filter_map(slot).collect();
        incoming.retain(|i| i.is_news() || slot(i).is_none_or(|s| !news.contains(&s)));
        incoming.iter_mut().for_each(Incoming::age);
        let proven = incoming.iter().filter_map(Incoming::proven);
        *self.proven.lock() = proven.map(|who| (who.slot, who)).collect();
    }

    fn accept(&self, incoming: &mut Vec<Incoming>, doors: &mut Doors) {
        while doors.taken < ACCEPTS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Whatever one connection met; and if it is the process's want of descriptors, a
                // pause is all that helps.
                Err(e) => {
                    doors.taken = ACCEPTS_MAX;
                    tracing::debug!("a connection for hints: {e}");
                    return;
                }
            };
            doors.taken += 1;
            let unproven = || incoming.iter().filter(|i| i.proven().is_none());
            if unproven().count() >= UNPROVEN_MAX
                && let Some(oldest) = incoming.iter().position(|i| i.proven().is_none())
            {
                incoming.remove(oldest);
            }
            if prepare(&stream).is_ok() {
                incoming.push(Incoming::new(stream, Instant::now()));
            }
        }
    }
}

/// Whose connection it is, once that is proven.
fn slot(of: &Incoming) -> Option<NodeId> {
    of.proven().map(|who| who.slot)
}

/// What the thread waits for at a peer.
struct Waits {
    slot: NodeId,
    stream: Arc<TcpStream>,
    wanted: PollFlags,
}

/// From other nodes.
#[derive(Debug, Default)]
struct Connections {
    incoming: Vec<Incoming>,
    doors: Doors,
}

/// How many connections were taken lately.
#[derive(Debug)]
struct Doors {
    since: Instant,
    taken: u32,
}
impl Default for Doors {
    fn default() -> Self {
        Self { since: Instant::now(), taken: 0 }
    }
}
impl Doors {
    fn are_open(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= ACCEPT_PERIOD {
            *self = Self { since: now, taken: 0 };
        }
        self.taken < ACCEPTS_MAX
    }
}

impl Incoming {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream().as_fd()
    }
}

#[cfg(test)]
mod tests;

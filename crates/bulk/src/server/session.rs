//! Sessions: what the server knows of a client, whichever connections it has at the moment.
//!
//! ```text
//!            HELLO                      BYE, or SESSION without a connection
//!   nothing ───────> open ──────────────────────────────> ended ──last connection──> closed
//!                     ^ │ a connection is lost
//!                     └─┘ another takes its slot
//! ```
//!
//! A session has slots. A slot does one request at a time and keeps its last reply, so a request that is sent
//! again, by another connection too, is done once. A session is forgotten only when none of its connections'
//! threads is left, so nothing that it asked for is under way then.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use braid_fs::FileSystem;
use braid_fs::lock::Life;
use parking_lot::Mutex;

use super::counts::{ClientView, Counters};
use super::events::Events;
use super::held_locks::{Held, give_up};
use super::leases::{Holder, Leases};
use super::open_files::{OpenFile, OpenFiles};
use crate::link::Cutter;
use crate::tls::Peer;
use crate::wire::{Header, SessionId, Status};

/// The last request of a slot, and what came of it.
#[derive(Debug, Default)]
pub struct SlotState {
    /// Its header: the same request again has the same.
    pub last: Option<Header>,
    /// Its reply, unless that held data.
    pub kept: Option<(Header, Vec<u8>)>,
}

/// A slot.
#[derive(Debug, Default)]
pub struct Slot {
    /// Held while a request is done.
    pub state: Mutex<SlotState>,
    /// The connection that uses it. Taken after nothing, or after `state`.
    user: Mutex<Option<(u64, Cutter)>>,
}

impl Slot {
    /// Whether `connection` uses it still.
    pub fn is_used_by(&self, connection: u64) -> bool {
        self.user.lock().as_ref().is_some_and(|(number, _)| *number == connection)
    }
}

/// A client.
#[derive(Debug)]
pub struct Session {
    /// Names it.
    pub id: SessionId,
    /// Who it is by its certificate, and who it says it is.
    pub client: String,
    /// Who it is by its certificate.
    pub peer: Option<Peer>,
    /// Where it has come from.
    from: Option<IpAddr>,
    /// The node's life with whose server the client's former session was.
    pub after: Option<Life>,
    /// By which it has leases. `None`: it speaks a version without.
    pub holder: Option<Holder>,
    slots: Vec<Slot>,
    files: Mutex<OpenFiles>,
    /// Locks of its programs.
    pub held: Mutex<Held>,
    /// What its programs wait for.
    pub events: Arc<Events>,
    /// What it has asked for.
    pub counters: Counters,
    /// As sessions are counted.
    number: u64,
    begun: Instant,
    /// It can be joined no more.
    ended: AtomicBool,
    presence: Mutex<Presence>,
}

/// Connections of a session that live, or since when there is none.
#[derive(Debug)]
struct Presence {
    connections: usize,
    idle: Instant,
}

impl Session {
    /// The slot of that number.
    pub fn slot(&self, number: u16) -> Option<&Slot> {
        self.slots.get(usize::from(number))
    }
    /// Whether it can be joined no more.
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
    /// Keeps an open file; its handle.
    ///
    /// # Errors
    /// As [`OpenFiles::insert`].
    pub fn keep(&self, file: OpenFile, most: usize) -> Result<u64, OpenFile> {
        self.files.lock().insert(file, most)
    }
    /// The open file of that handle.
    pub fn file(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.files.lock().get(handle)
    }
    /// Closes a file. `false`: it is not open.
    pub fn close<F: FileSystem>(&self, files: &F, handle: u64) -> bool {
        let removed = self.files.lock().remove(handle);
        let Some((file, is_last)) = removed else { return false };
        if is_last {
            let held = self.held.lock().take(Some(file.ino));
            give_up(files, held);
        }
        file.close(files);
        true
    }
    /// The thread of a connection ends. It has nothing under way any more.
    pub fn leave<F: FileSystem>(&self, (slot, connection): (&Slot, u64), files: &F) {
        slot.user.lock().take_if(|(number, _)| *number == connection);
        let last = {
            let mut presence = self.presence.lock();
            presence.connections -= 1;
            presence.idle = Instant::now();
            presence.connections == 0
        };
        if last && self.is_ended() {
            self.close_all(files);
        }
    }
    /// It can be joined no more, and nobody hears of its locks.
    fn ends(&self) {
        self.ended.store(true, Ordering::Release);
        self.events.wake();
    }
    /// It has ended: closes what it has open.
    pub fn close_all<F: FileSystem>(&self, files: &F) {
        for wait in self.events.end::<F::Wait>() {
            files.end_lock_wait(wait);
        }
        let held = self.held.lock().take(None);
        give_up(files, held);
        let open = self.files.lock().take();
        for file in open {
            file.close(files);
        }
    }
    /// As it is now. One lock at a time: who closes a client's files holds some of them for long.
    fn view(&self, leases: &Leases) -> ClientView {
        let connections = self.presence.lock().connections;
        let open_files = self.files.lock().len();
        let locks = self.held.lock().len();
        ClientView {
            number: self.number,
            name: self.client.clone(),
            address: self.from,
            read_only: self.peer.as_ref().is_some_and(|peer| peer.read_only),
            age: self.begun.elapsed(),
            connections,
            open_files,
            locks,
            lock_waits: self.events.waits(),
            leases: self.holder.map_or(0, |holder| leases.held_by(holder)),
            counts: self.counters.now(),
        }
    }
    fn cut_all(&self) {
        for slot in &self.slots {
            if let Some((_, cutter)) = &*slot.user.lock() {
                cutter.cut();
            }
        }
    }
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    all: Mutex<HashMap<SessionId, Arc<Session>>>,
    /// How many have begun.
    begun: AtomicU64,
    most: usize,
    slots: u16,
}

impl Sessions {
    /// None yet; at most `most`, each with so many slots.
    pub fn new(most: usize, slots: u16) -> Self {
        Self { all: Mutex::default(), begun: AtomicU64::new(0), most, slots }
    }

    /// Begins a session; `holder` makes it one that has leases, by the client's name. Of a client who has as many
    /// sessions as he may, the one that has been without a connection for longest ends: it is closed by the caller
    /// ([`Session::close_all`]).
    ///
    /// # Errors
    /// There are as many as are allowed, or a quarter as many by certificates of that name, or, without certificates,
    /// half as many from that address.
    pub fn begin(
        &self,
        client: &[u8],
        ((peer, from), after): ((Option<Peer>, Option<IpAddr>), Option<Life>),
        holder: impl FnOnce(&str) -> Option<Holder>,
    ) -> Result<(Arc<Session>, Option<Arc<Session>>), Status> {
        let share = (self.most / if peer.is_some() { 4 } else { 2 }).max(1);
        let is_own = |session: &Session| match (&peer, &session.peer) {
            (Some(peer), Some(other)) => peer.name == other.name,
            (None, None) => session.from == from,
            _ => false,
        };
        let mut all = self.all.lock();
        let own = || all.values().filter(|session| is_own(session));
        let former = (own().count() >= share).then(|| {
            let idle = |s: &&Arc<Session>| s.presence.lock().connections == 0;
            own().filter(idle).min_by_key(|s| s.presence.lock().idle).cloned()
        });
        let former = former.map(|former| former.ok_or(Status::LIMIT)).transpose()?;
        if let Some(former) = &former {
            all.remove(&former.id);
            former.ends();
        }
        if all.len() >= self.most {
            return Err(Status::LIMIT);
        }
        let client = String::from_utf8_lossy(client).into_owned();
        let client =
            peer.as_ref().map_or_else(|| client.clone(), |p| format!("{} ({client})", p.name));
        // Who has a certificate cannot take another name.
        let holder = holder(peer.as_ref().map_or(&client, |peer| &peer.name));
        let session = Arc::new(Session {
            id: uuid::Uuid::new_v4().into_bytes(),
            client,
            peer,
            from,
            after,
            holder,
            slots: (0..self.slots).map(|_| Slot::default()).collect(),
            files: Mutex::default(),
            held: Mutex::default(),
            events: Arc::default(),
            counters: Counters::default(),
            number: self.begun.fetch_add(1, Ordering::Relaxed),
            begun: Instant::now(),
            ended: AtomicBool::new(false),
            presence: Mutex::new(Presence { connections: 0, idle: Instant::now() }),
        });
        all.insert(session.id, Arc::clone(&session));
        Ok((session, former))
    }

    /// A session that has begun, for whom it belongs to.
    ///
    /// # Errors
    /// It is not known, or that of another client.
    pub fn find(&self, id: &SessionId, peer: Option<&Peer>) -> Result<Arc<Session>, Status> {
        let session = self.all.lock().get(id).cloned().ok_or(Status::NO_SESSION)?;
        // A certificate's number is its own.
        let is_own = session.peer.as_ref() == peer;
        if is_own { Ok(session) } else { Err(Status::FOREIGN) }
    }

    /// Makes a connection the user of a slot; the one that was is cut.
    ///
    /// # Errors
    /// There is no such slot, or the session has just ended.
    pub fn enter(
        &self,
        session: &Arc<Session>,
        slot: u16,
        (connection, cutter): (u64, Cutter),
    ) -> Result<(), Status> {
        let all = self.all.lock();
        let used = session.slot(slot).ok_or(Status::REQUEST)?;
        if !all.contains_key(&session.id) {
            return Err(Status::NO_SESSION);
        }
        session.presence.lock().connections += 1;
        if let Some((_, former)) = used.user.lock().replace((connection, cutter)) {
            former.cut();
        }
        Ok(())
    }

    /// The session can be joined no more; what it has open is closed when its last connection ends.
    pub fn end(&self, session: &Session) {
        self.all.lock().remove(&session.id);
        session.ends();
    }

    /// Forgets sessions that had no connection for `time`: those.
    pub fn expire<F: FileSystem>(&self, files: &F, time: Duration) -> Vec<Arc<Session>> {
        let is_over = |session: &Session| {
            let presence = session.presence.lock();
            presence.connections == 0 && presence.idle.elapsed() >= time
        };
        // Whoever joins holds the list, too.
        let over: Vec<_> = self.all.lock().extract_if(|_, s| is_over(s)).collect();
        let over: Vec<_> = over.into_iter().map(|(_, session)| session).collect();
        for session in &over {
            tracing::info!(client = session.client, "a client is gone: its files are closed");
            session.ends();
            session.close_all(files);
        }
        over
    }

    /// Ends the sessions of clients for whom `is_over`, and cuts their connections: those.
    pub fn end_if<F: FileSystem>(
        &self,
        files: &F,
        is_over: impl Fn(&Session) -> bool,
    ) -> Vec<Arc<Session>> {
        let over: Vec<_> = self.all.lock().extract_if(|_, s| is_over(s)).map(|(_, s)| s).collect();
        for session in &over {
            session.ends();
            session.cut_all();
            if session.presence.lock().connections == 0 {
                session.close_all(files);
            }
        }
        over
    }

    /// The clients as they are now, in no order.
    pub fn views(&self, leases: &Leases) -> Vec<ClientView> {
        let all: Vec<_> = self.all.lock().values().cloned().collect();
        all.iter().map(|session| session.view(leases)).collect()
    }
}

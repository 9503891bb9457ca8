//! The client's side of a session: connections that are made again, requests that are sent again.
//!
//! Each slot has a connection and does one request at a time. If its connection breaks, another takes its place
//! and the request is sent again under its number: the server does it once. If the server has forgotten the
//! session (it was started anew, or had no connection of this client for long), another session begins. A request
//! that may have been done in the former one, and must not be done twice, is then an error
//! ([`Error::Ambiguous`]).

use std::cell::RefCell;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use braid_fs::lock::interrupt;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::options::ClientOptions;
use crate::error::{Error, LinkError};
use crate::link::{Buffer, Link};
use crate::tls::Channel;
use crate::wire::{
    Begin, Caller, DATA_MAX, Header, Hello, Kind, LeaseNote, Reply, Request, Status, Welcome,
};

/// For a connection to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// For the answer to a greeting.
const GREETING: Duration = Duration::from_secs(10);
/// No server forgets a client sooner.
const SESSION_MS_MIN: u32 = 100;
/// Between tries: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A session, or its successor.
#[derive(Debug)]
pub struct Session {
    options: ClientOptions,
    /// How it connects if the server has TLS, and who that must be.
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    current: Mutex<Current>,
    slots: Vec<Mutex<Slot>>,
    /// The last try to ask the server for something came to nothing.
    is_silent: AtomicBool,
    /// It was said that the server refuses this client.
    is_refused: AtomicBool,
    /// A server that does not answer is waited for without end.
    waits: AtomicBool,
    /// From then on nobody waits for answers any more.
    closes: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Current {
    /// Counts sessions, those that are over too.
    number: u64,
    /// Whether it may be joined.
    is_usable: bool,
    /// Of the last one.
    welcome: Option<Welcome>,
}

#[derive(Debug)]
struct Slot {
    link: Option<Link>,
    /// Of which session.
    session: u64,
    /// Number of its last request.
    sequence: u64,
    /// When it was last used.
    used: Instant,
    buffer: Buffer,
}

/// A request with its data.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// The request.
    pub request: &'a Request,
    /// For whom, if that is to be said.
    pub caller: Option<&'a Caller>,
    /// What is written.
    pub data: &'a [u8],
    /// The session in which alone it makes sense, since it names a handle.
    pub only_in: Option<u64>,
    /// Not tried again if the connection breaks: the slot's next request is to be the very same.
    pub once: bool,
    /// Where what the reply means for leases is put, whatever its status.
    pub note: Option<&'a RefCell<LeaseNote>>,
}

impl<'a> Ask<'a> {
    /// A request without data, in whatever session.
    pub fn of(request: &'a Request) -> Self {
        Self { request, caller: None, data: &[], only_in: None, once: false, note: None }
    }
}

/// Why a connection was not made.
enum Failure {
    /// It may be made later.
    Link(LinkError),
    /// Trying again is of no use.
    Final(Error),
}
impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Link(error.into())
    }
}

impl Session {
    /// Begins a session.
    ///
    /// # Errors
    /// No server answers, or it refuses.
    pub fn begin(options: ClientOptions) -> Result<Self, Error> {
        let slot = || {
            let buffer = Buffer::new(DATA_MAX);
            Mutex::new(Slot { link: None, session: 0, sequence: 0, used: Instant::now(), buffer })
        };
        let slots = (0..=options.connections).map(|_| slot()).collect();
        let tls = match &options.identity {
            None => None,
            Some(identity) => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                identity.check(now.unwrap_or_default())?;
                Some(identity.client()?)
            }
        };
        let (is_silent, is_refused, waits, closes, current) = Default::default();
        let session = Self { options, tls, current, slots, is_silent, is_refused, waits, closes };
        session.call(0, Ask::of(&Request::Ping), |_, _, _| ())?;
        Ok(session)
    }

    /// What the server said of itself when the present session began.
    ///
    /// # Panics
    /// Never: a session begins with it.
    pub fn welcome(&self) -> Welcome {
        self.current.lock().welcome.expect("the session has begun")
    }

    /// Slots for data: 1 and up. Slot 0 is for everything else.
    pub fn data_slots(&self) -> u16 {
        let most = self.welcome().slots.saturating_sub(1);
        self.options.connections.min(most)
    }

    /// Whether the server answered when it was last asked.
    pub fn is_connected(&self) -> bool {
        !self.is_silent.load(Ordering::Relaxed)
    }

    /// From now on a server that does not answer is waited for without end.
    pub fn wait_for_ever(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// From then on nobody waits for answers any more: calls fail soon instead of waiting for a server.
    pub fn close_at(&self, then: Instant) {
        *self.closes.lock() = Some(then);
    }
    /// Whether it is as late as that.
    pub fn is_closed(&self) -> bool {
        self.closes.lock().is_some_and(|then| Instant::now() >= then)
    }

    /// Says in the log when a server that is waited for does not answer, and when it does again.
    fn note(&self, failure: Option<&LinkError>) {
        if self.is_silent.swap(failure.is_some(), Ordering::Relaxed) == failure.is_some() {
            return;
        }
        let server = &self.options.server;
        match failure {
            Some(why) if self.waits.load(Ordering::Relaxed) => {
                tracing::warn!("{server} does not answer, and is waited for: {why}");
            }
            None if self.waits.load(Ordering::Relaxed) => tracing::info!("{server} answers again"),
            _ => {}
        }
    }

    /// Says in the log when a server does not want this client any more.
    fn refused(&self, error: Error) -> Error {
        let is_refused =
            matches!(error, Error::Refused(_) | Error::Version(_) | Error::Untrusted { .. });
        if is_refused && !self.is_refused.swap(true, Ordering::Relaxed) {
            self.is_silent.store(true, Ordering::Relaxed);
            let server = &self.options.server;
            tracing::error!(%error, "{server} refuses this client");
        }
        error
    }

    /// Has a request done once, and calls `take` with its reply, its data, and the number of the session.
    ///
    /// # Errors
    /// [`Error::Session`]: the session that it is for is over, and nothing was done, or may have been that
    /// may be done again. As the server says; [`Error::Ambiguous`]; [`Error::Unreachable`].
    pub fn call<R>(
        &self,
        slot: u16,
        ask: Ask<'_>,
        take: impl FnOnce(Reply, &[u8], u64) -> R,
    ) -> Result<R, Error> {
        let Some(state) = self.slots.get(usize::from(slot)) else {
            return Err(Error::Refused(Status::LIMIT));
        };
        let mut state = state.lock();
        let (begun, mut pause) = (Instant::now(), PAUSE.0);
        // The session in which the request may have arrived.
        let mut sent_in = None;
        loop {
            let failure = match self.attempt(slot, &mut state, ask, &mut sent_in) {
                Ok((header, args)) => {
                    let status = Status(header.status);
                    if status == Status::SEQUENCE {
                        // A former request was given up before anybody knew what became of it.
                        self.forget(state.session);
                        state.link = None;
                        sent_in = None;
                        continue;
                    }
                    self.note(None);
                    let (note, args) = LeaseNote::split(&header, &args).map_err(Error::Answer)?;
                    if let Some(place) = ask.note {
                        place.replace(note);
                    }
                    if let Some(errno) = status.errno() {
                        return Err(Error::Errno(errno));
                    }
                    if status != Status::OK {
                        return Err(Error::Refused(status));
                    }
                    let reply = Reply::decode(&header, args).map_err(Error::Answer)?;
                    let session = state.session;
                    let len = usize::try_from(header.data_len).unwrap_or(0);
                    return Ok(take(reply, state.buffer.take(len), session));
                }
                Err(Failure::Final(error)) => return Err(self.refused(error)),
                Err(Failure::Link(LinkError::Plain)) => {
                    return Err(self.refused(Error::Refused(Status::NO_TLS)));
                }
                Err(Failure::Link(why)) if why.is_final() => {
                    let server = self.options.server.clone();
                    return Err(self.refused(Error::Untrusted { server, why }));
                }
                Err(Failure::Link(failure)) => failure,
            };
            state.link = None;
            if self.is_closed() {
                return Err(Error::Closed);
            }
            self.note(Some(&failure));
            // What was sent may be done by now: then it has to be known how it ended.
            if sent_in.is_none() && interrupt::is_interrupted() {
                return Err(Error::Interrupted);
            }
            let waits = self.waits.load(Ordering::Relaxed) && !ask.once;
            let is_over = begun.elapsed() + pause > self.options.patience;
            if !waits && (is_over || ask.once) {
                if ask.once && sent_in == Some(state.session) {
                    // The next one of this slot is the same once more.
                    state.sequence -= 1;
                }
                let (server, seconds) = (self.options.server.clone(), begun.elapsed().as_secs());
                return Err(Error::Unreachable { server, seconds, last: failure });
            }
            tracing::debug!(slot, %failure, "trying again");
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Lets the server hear of this client, if it asked for nothing for a while.
    pub fn sign_of_life(&self, after: Duration) {
        let idle = self.slots.first().and_then(|slot| slot.try_lock().map(|s| s.used.elapsed()));
        if idle.is_some_and(|idle| idle >= after)
            && let Err(error) = self.call(0, Ask::of(&Request::Ping), |_, _, _| ())
        {
            tracing::debug!(%error, "a sign of life");
        }
    }

    /// Sends a request by the slot's connection, which is made if there is none, and takes the reply.
    fn attempt(
        &self,
        number: u16,
        slot: &mut Slot,
        ask: Ask<'_>,
        sent_in: &mut Option<u64>,
    ) -> Result<(Header, Vec<u8>), Failure> {
        if slot.session != self.current.lock().number {
            slot.link = None;
        }
        if slot.link.is_none() {
            self.connect(number, slot)?;
        }
        if sent_in.is_some_and(|session| session != slot.session) && !ask.request.is_idempotent() {
            return Err(Failure::Final(Error::Ambiguous));
        }
        if ask.only_in.is_some_and(|session| session != slot.session) {
            return Err(Failure::Final(Error::Session));
        }
        if *sent_in != Some(slot.session) {
            slot.sequence += 1;
            *sent_in = Some(slot.session);
        }
        let (mut header, mut args) = ask.request.encode();
        header.sequence = slot.sequence;
        if let Some(caller) = ask.caller {
            header.prefixed = true;
            args.splice(..0, caller.encode());
        }
        let link = slot.link.as_mut().ok_or(LinkError::Closed)?;
        link.send(header, &args, ask.data)?;
        // A request may take long. A server that is gone is noticed by the kernel.
        let received = link.receive(&mut slot.buffer, || !self.is_closed())?;
        slot.used = Instant::now();
        let reply = received.header;
        let (op, sequence) = (header.op, header.sequence);
        if reply.kind != Kind::Reply || (reply.op, reply.sequence) != (op, sequence) {
            return Err(Failure::Link(LinkError::Frame(crate::wire::FrameError::Unknown)));
        }
        Ok((reply, received.args))
    }

    /// Connects a slot to the present session, or to a new one.
    fn connect(&self, number: u16, slot: &mut Slot) -> Result<(), Failure> {
        loop {
            if self.is_closed() {
                return Err(Failure::Final(Error::Closed));
            }
            let mut link = Link::new(self.dial()?)?;
            if let Some((config, server)) = &self.tls {
                link.limit(Some(Instant::now() + GREETING));
                let channel = Channel::client(Arc::clone(config), server.clone());
                link.secure(channel.map_err(LinkError::from)?)?;
                link.limit(None);
            }
            // Whoever begins a session does it alone.
            let mut current = self.current.lock();
            let usable = current.welcome.filter(|_| current.is_usable);
            let begin = usable.map_or(Begin::Session, |w| Begin::Join(w.session));
            let at = current.number;
            let greeted = match begin {
                Begin::Session => {
                    let welcome = self.greet(&mut link, begin, number)?;
                    current.number += 1;
                    (current.welcome, current.is_usable) = (Some(welcome), true);
                    Ok(current.number)
                }
                Begin::Join(_) => {
                    drop(current);
                    self.greet(&mut link, begin, number).map(|_| at)
                }
            };
            let session = match greeted {
                Err(Failure::Final(Error::Refused(Status::NO_SESSION))) => {
                    self.forget(at);
                    continue;
                }
                greeted => greeted?,
            };
            if slot.session != session {
                (slot.session, slot.sequence) = (session, 0);
            }
            slot.link = Some(link);
            return Ok(());
        }
    }

    /// The session of that number is of no use any more.
    fn forget(&self, number: u64) {
        let mut current = self.current.lock();
        if current.number == number {
            current.is_usable = false;
            current.number += 1;
        }
    }

    fn dial(&self) -> Result<TcpStream, LinkError> {
        let mut last = std::io::Error::other("no address is known");
        for address in self.options.server.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    fn greet(&self, link: &mut Link, begin: Begin, slot: u16) -> Result<Welcome, Failure> {
        let (pool, client) = (&self.options.pool, &self.options.name);
        let (pool, client) = (pool.as_bytes().to_vec(), client.as_bytes().to_vec());
        let version = self.options.version;
        let hello = Request::Hello(Hello { version, begin, slot, pool, client });
        let (header, args) = hello.encode();
        link.send(header, &args, &[])?;
        let begun = Instant::now();
        let received = link.receive(&mut Buffer::new(0), || begun.elapsed() < GREETING)?;
        let welcome = match Reply::decode(&received.header, &received.args) {
            Ok(Reply::Welcome(welcome)) => Some(welcome),
            _ => None,
        };
        // The client takes memory and gives signs of life by these.
        let is_sound = |w: &Welcome| {
            usize::try_from(w.data_max).is_ok_and(|most| (1..=DATA_MAX).contains(&most))
                && w.session_ms >= SESSION_MS_MIN
        };
        match (Status(received.header.status), welcome) {
            (Status::OK, Some(welcome)) if is_sound(&welcome) => Ok(welcome),
            (Status::VERSION, Some(welcome)) => {
                Err(Failure::Final(Error::Version(welcome.version)))
            }
            (Status::OK, _) => {
                Err(Failure::Link(LinkError::Frame(crate::wire::FrameError::Unknown)))
            }
            // There may be room later.
            (Status::LIMIT, _) => Err(Failure::Link(LinkError::Full)),
            (status, _) => Err(Failure::Final(Error::Refused(status))),
        }
    }

    /// Tells the server that the client has done, if it can be told at once.
    pub fn end(&self) {
        let Some(slot) = self.slots.first() else { return };
        if !self.is_connected() {
            return;
        }
        let mut slot = slot.lock();
        slot.sequence += 1;
        let (mut header, args) = Request::Bye.encode();
        header.sequence = slot.sequence;
        let Slot { link: Some(link), buffer, .. } = &mut *slot else { return };
        let begun = Instant::now();
        if link.send(header, &args, &[]).is_ok() {
            link.receive(buffer, || begun.elapsed() < GREETING).ok();
        }
        slot.link = None;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

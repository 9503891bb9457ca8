//! The client's side of a session: connections that are made again, requests that are sent again.
//!
//! Each slot has a connection and does one request at a time. If its connection breaks, another takes its place
//! and the request is sent again under its number: the server does it once. If the server has forgotten the
//! session (it was started anew, or had no connection of this client for long), or another server is used
//! ([`super::failover`]), another session begins. A request
//! that may have been done in the former one, and must not be done twice, is then an error
//! ([`Error::Ambiguous`]).

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use braid_device::tasks::{self, Awaited};
use braid_fs::lock::interrupt;
use parking_lot::Mutex;

use super::connection::{Connector, Cutters, Failure, Greeting, Patience, leave};
use super::options::ClientOptions;
use super::place::{Current, Found, Place};
use crate::error::{Error, LinkError};
use crate::link::{Buffer, Cutter, Link};
use crate::wire::{
    Begin, Caller, DATA_MAX, FrameError, Header, Kind, LeaseNote, NEWEST_VERSION, Reply, Request,
    Status, Welcome,
};

/// For the steps of a connection to the server in use.
const PATIENCE: Patience =
    Patience { connect: Duration::from_secs(5), greeting: Duration::from_secs(10) };
/// The same if there are others: nothing ends the first step early if another one is used meanwhile.
const PATIENCE_OF_SEVERAL: Patience = Patience { connect: Duration::from_secs(2), ..PATIENCE };
/// Between tries while a server has to hear that the one before it is dead.
const PAUSE_WHILE_FORMER_LIVES: Duration = Duration::from_millis(100);
/// Between tries: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A server that was not heard of for so long may be dead.
const SILENCE: Duration = Duration::from_secs(1);
/// After a connection that broke, or was not made, a server may be dead for so long.
const DOUBT: Duration = Duration::from_secs(2);
/// One of several that was not heard of for so long does not answer.
const NO_ANSWER: Duration = Duration::from_secs(3);

/// A session, or its successor.
#[derive(Debug)]
pub struct Session {
    options: ClientOptions,
    connector: Connector,
    current: Current,
    /// Held by the thread that begins a session. Taken under a slot's lock; those of `current` and `cutters` are taken
    /// under it.
    beginning: Mutex<()>,
    slots: Vec<Mutex<Slot>>,
    cutters: Cutters,
    /// Servers that spoke an older version when they were asked last.
    old: Vec<AtomicBool>,
    /// Servers that refused the client when they were asked last.
    refusing: Vec<AtomicBool>,
    /// The times below count from here.
    made: Instant,
    /// When the last reply arrived, milliseconds; 0: none yet.
    heard: AtomicU64,
    /// When a connection last broke or was not made, milliseconds; 0: never.
    failed: AtomicU64,
    /// The last try to ask the server for something came to nothing.
    is_silent: AtomicBool,
    /// It was said that the server refuses this client.
    is_refused: AtomicBool,
    /// A server that does not answer is waited for without end.
    waits: AtomicBool,
    /// From then on nobody waits for answers any more.
    closes: Mutex<Option<Instant>>,
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

impl Session {
    /// Begins a session with the first of the servers that answers.
    ///
    /// # Errors
    /// No server answers, or they refuse.
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
        let connector = Connector { pool: options.pool.clone(), name: options.name.clone(), tls };
        let (is_silent, is_refused, waits, closes) = Default::default();
        let (beginning, cutters, heard, failed) = Default::default();
        let [old, refusing] =
            [(); 2].map(|()| options.servers.iter().map(|_| AtomicBool::new(false)).collect());
        let session = Self {
            current: Current::new(options.version),
            options,
            connector,
            beginning,
            slots,
            cutters,
            old,
            refusing,
            made: Instant::now(),
            heard,
            failed,
            is_silent,
            is_refused,
            waits,
            closes,
        };
        if session.has_several() {
            session.find_server()?;
        }
        session.call(0, Ask::of(&Request::Ping), |_, _, _| ())?;
        Ok(session)
    }

    /// Connects to the first of several servers that answers.
    ///
    /// # Errors
    /// None does, or all refuse: what the first one says.
    fn find_server(&self) -> Result<(), Error> {
        let (begun, mut pause) = (Instant::now(), PAUSE.0);
        loop {
            let (mut refused, mut last) = (None, None);
            for (server, name) in self.options.servers.iter().enumerate() {
                self.current.try_server(server);
                let Some(slot) = self.slots.first() else { break };
                let Err(failure) = self.connect(0, &mut slot.lock()) else { return Ok(()) };
                match failure.judged(name) {
                    Ok(why) => {
                        tracing::warn!("{name} is not used now: {why}");
                        last = Some(why);
                    }
                    Err(why) => {
                        tracing::warn!("{name} is not used: {why}");
                        refused = refused.or(Some(why));
                    }
                }
            }
            let Some(last) = last else {
                return Err(refused.unwrap_or(Error::Closed));
            };
            if begun.elapsed() + pause > self.options.patience {
                let (server, seconds) = (self.options.named(), begun.elapsed().as_secs());
                return Err(refused.unwrap_or(Error::Unreachable { server, seconds, last }));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// What the server said of itself when the present session began.
    ///
    /// # Panics
    /// Never: a session begins with it.
    pub fn welcome(&self) -> Welcome {
        self.place().welcome.expect("the session has begun")
    }
    /// Where the client is.
    pub fn place(&self) -> Place {
        self.current.get()
    }
    /// The servers that may be used.
    pub fn servers(&self) -> &[String] {
        &self.options.servers
    }
    /// Whether there is another server to go on with.
    pub fn has_several(&self) -> bool {
        self.options.servers.len() > 1
    }
    /// The name of a server, by its place in the list.
    pub fn server_name(&self, server: usize) -> &str {
        self.options.servers.get(server).map_or("", String::as_str)
    }
    /// The server that is used.
    pub fn server(&self) -> &str {
        self.server_name(self.place().server)
    }
    /// How the client connects.
    pub(super) fn connector(&self) -> &Connector {
        &self.connector
    }

    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
    fn since(&self, then: &AtomicU64) -> Duration {
        Duration::from_millis(self.now().saturating_sub(then.load(Ordering::Relaxed)))
    }
    /// A connection broke, or was not made.
    fn note_failure(&self) {
        self.failed.store(self.now().max(1), Ordering::Relaxed);
    }
    /// Whether the server may be dead: whether another one is to be asked. One that is slow may be taken for that.
    pub(super) fn is_suspect(&self) -> bool {
        self.since(&self.heard) >= SILENCE || self.has_failed()
    }
    /// Says in the log that the server does not answer, if it has been silent for [`NO_ANSWER`].
    pub(super) fn note_silence(&self) {
        if self.since(&self.heard) >= NO_ANSWER {
            self.note(Some(&LinkError::Silent));
        }
    }
    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) > 0 && self.since(&self.failed) < DOUBT
    }
    /// Whether its connections are of no use any more, so that another address of the same server is to be used.
    pub(super) fn is_lost(&self) -> bool {
        self.has_failed() || self.since(&self.heard) >= NO_ANSWER
    }

    /// Another server has begun a session after that of `before`, or it can be joined at another address. Connections
    /// of before end, so whoever waits for an answer by one asks again. `false`: the client is somewhere else by now.
    pub(super) fn fail_over(&self, before: &Place, found: &Found) -> bool {
        let former = self.server().to_owned();
        let Some(place) = self.current.adopt(before, found) else { return false };
        self.cutters.cut_but(place.route);
        let server = self.server();
        if place.number == before.number {
            tracing::warn!("{former} does not answer: {server} is the same server, and is used");
        } else {
            tracing::warn!(
                moves = place.moves,
                "{former} is dead: going on with {server}, another server of the pool"
            );
        }
        true
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

    /// For how long no reply has arrived.
    pub fn silent_for(&self) -> Duration {
        self.since(&self.heard)
    }
    /// Whether the server refused this client when it was last asked.
    pub fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
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
        if failure.is_none() {
            self.is_refused.store(false, Ordering::Relaxed);
        }
        if self.is_silent.swap(failure.is_some(), Ordering::Relaxed) == failure.is_some() {
            return;
        }
        let server = self.server();
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
        if error.is_refusal() && !self.is_refused.swap(true, Ordering::Relaxed) {
            self.is_silent.store(true, Ordering::Relaxed);
            let server = self.server();
            tracing::error!(%error, "{server} refuses this client");
        }
        error
    }

    /// Whether a server refused the client when it was asked last.
    pub(super) fn note_refusal(&self, server: usize, refuses: bool) {
        if let Some(refusing) = self.refusing.get(server) {
            refusing.store(refuses, Ordering::Relaxed);
        }
    }
    /// No server is known to refuse the client.
    pub(super) fn forget_refusals(&self) {
        self.refusing.iter().for_each(|refusing| refusing.store(false, Ordering::Relaxed));
    }

    /// Of several servers, one that refuses the client does not answer: whatever serves there may not be the server of
    /// the session, and what is pending can be brought to another one.
    ///
    /// # Errors
    /// All of them refuse, or it is no refusal.
    fn passed_over(&self, server: usize, error: Error) -> Result<LinkError, Error> {
        let error = self.refused(error);
        if !error.is_refusal() || !self.has_several() {
            return Err(error);
        }
        self.note_failure();
        self.note_refusal(server, true);
        if self.refusing.iter().all(|refuses| refuses.load(Ordering::Relaxed)) {
            return Err(error);
        }
        Ok(LinkError::Refuses)
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
        let _waits = tasks::wait(Awaited::Server);
        let mut state = state.lock();
        let (begun, mut pause) = (Instant::now(), PAUSE.0);
        // The session in which the request may have arrived.
        let mut sent_in = None;
        loop {
            let Place { number, route, server, .. } = self.place();
            if state.session != number {
                state.link = None;
            }
            let failure = match self.attempt(slot, &mut state, ask, &mut sent_in) {
                Ok((header, args)) => {
                    let status = Status(header.status);
                    if status == Status::SEQUENCE {
                        // A former request was given up before anybody knew what became of it.
                        self.current.give_up(state.session);
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
                Err(failure) => match failure.judged(self.server()) {
                    Ok(failure) => {
                        self.note_refusal(server, false);
                        failure
                    }
                    Err(error) => self.passed_over(server, error)?,
                },
            };
            state.link = None;
            if self.is_closed() {
                return Err(Error::Closed);
            }
            self.note_failure();
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
                let (server, seconds) = (self.options.named(), begun.elapsed().as_secs());
                return Err(Error::Unreachable { server, seconds, last: failure });
            }
            tracing::debug!(slot, %failure, "trying again");
            if matches!(failure, LinkError::FormerLives) {
                // That does not take long.
                pause = PAUSE_WHILE_FORMER_LIVES;
            }
            self.current.rest(pause, route);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Lets the server hear of this client, if it asked for nothing for a while.
    pub fn sign_of_life(&self, after: Duration) {
        let idle = |slot: &Mutex<Slot>| slot.try_lock().map(|slot| slot.used.elapsed());
        let slot = match self.slots.first().and_then(idle) {
            Some(idle) => (idle >= after).then_some(0),
            // A request there may take long. Of several servers, that one answers is to be known all the same.
            None if self.has_several() && self.since(&self.heard) >= after => {
                let is_free =
                    |slot: &u16| self.slots.get(usize::from(*slot)).and_then(idle).is_some();
                (1..=self.data_slots()).find(is_free)
            }
            None => None,
        };
        if let Some(slot) = slot
            && let Err(error) = self.call(slot, Ask::of(&Request::Ping), |_, _, _| ())
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
        self.heard.store(self.now(), Ordering::Relaxed);
        let reply = received.header;
        let (op, sequence) = (header.op, header.sequence);
        if reply.kind != Kind::Reply || (reply.op, reply.sequence) != (op, sequence) {
            return Err(Failure::Link(LinkError::Frame(FrameError::Unknown)));
        }
        Ok((reply, received.args))
    }

    /// Connects a slot to the present session, or to a new one.
    fn connect(&self, number: u16, slot: &mut Slot) -> Result<(), Failure> {
        loop {
            if self.is_closed() {
                return Err(Failure::Final(Error::Closed));
            }
            let place = self.place();
            let name = self.server_name(place.server);
            let patience = if self.has_several() { PATIENCE_OF_SEVERAL } else { PATIENCE };
            let (mut link, address) = self.connector.dial(name, patience, |cutter| {
                self.enter_cutter(number, place.route, cutter);
                // Whoever goes to another server cuts those that he finds.
                if self.place().route == place.route { Ok(()) } else { Err(LinkError::Closed) }
            })?;
            let begin = place.begin();
            let session = if let Begin::Join(_) = begin {
                let greeting = Greeting { version: place.version, begin, slot: number };
                match self.connector.greet(&mut link, greeting, PATIENCE) {
                    // It may be another program that serves there now, and knows less.
                    Err(Failure::Final(Error::Refused(Status::NO_SESSION)) | Failure::Old) => {
                        self.current.forget(&place);
                        continue;
                    }
                    greeted => greeted.map(|_| place.number)?,
                }
            } else {
                // Whoever begins a session does it alone.
                let _alone = self.beginning.lock();
                if self.place().route != place.route {
                    continue;
                }
                let Some((version, welcome)) = self.begin_with(&mut link, &place, number)? else {
                    continue;
                };
                let found = Found { server: place.server, address, welcome, version };
                let Some(begun) = self.current.adopt(&place, &found) else {
                    leave(&place, &found, link);
                    continue;
                };
                self.enter_cutter(number, begun.route, link.cutter()?);
                self.cutters.cut_but(begun.route);
                begun.number
            };
            if slot.session != session {
                (slot.session, slot.sequence) = (session, 0);
            }
            slot.link = Some(link);
            return Ok(());
        }
    }

    /// Whoever goes to another server ends this connection.
    fn enter_cutter(&self, slot: u16, route: u64, cutter: Cutter) {
        if self.has_several() {
            self.cutters.enter(slot, route, cutter);
        }
    }

    /// Begins a session with the server in use: the version that it speaks. `None`: another one than it was asked in.
    fn begin_with(
        &self,
        link: &mut Link,
        place: &Place,
        slot: u16,
    ) -> Result<Option<(u32, Welcome)>, Failure> {
        let Some(old) = self.old.get(place.server) else { return Ok(None) };
        // What is under way at a server of before cannot be asked of one that does not know of that.
        let is_after = place.former().is_some();
        let (version, begin) = if old.load(Ordering::Relaxed) && !is_after {
            (self.options.version, Begin::Session)
        } else {
            (NEWEST_VERSION, place.begin())
        };
        let greeted = self.connector.greet(link, Greeting { version, begin, slot }, PATIENCE);
        match greeted {
            Err(Failure::Old) if !is_after => {
                old.store(true, Ordering::Relaxed);
                Ok(None)
            }
            greeted => {
                let welcome = greeted?;
                old.store(welcome.version < NEWEST_VERSION, Ordering::Relaxed);
                Ok(Some((version, welcome)))
            }
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
            link.receive(buffer, || begun.elapsed() < PATIENCE.greeting).ok();
        }
        slot.link = None;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

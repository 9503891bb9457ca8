//! One connection: greets, then does a request after the other.
//!
//! Each connection has a thread and a buffer of its own, and no lock is held while it sends or receives. So a
//! client that takes or sends nothing keeps nobody but itself waiting.

use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use braid_fs::FileSystem;
use braid_fs::lock::Life;

use super::counts::Counted;
use super::operations::Asked;
use super::references::References;
use super::refused_connections::RefusedConnections;
use super::served::Served;
use super::session::{Session, Sessions, Slot};
use crate::error::LinkError;
use crate::link::{Buffer, Link, Received};
use crate::tls::{Channel, Peer};
use crate::wire::{
    Begin, Caller, FrameError, Header, Hello, Kind, MOUNT_VERSION, NEWEST_VERSION, Reply, Request,
    ServerLife, SessionId, Status, VERSION, Welcome, op,
};

/// Who has connected has shown its certificate and said what it wants in that time.
const GREETING: Duration = Duration::from_secs(10);

/// What all connections share.
#[derive(Debug)]
pub struct Shared<F> {
    /// The file system, and how it is served.
    pub served: Served<F>,
    /// The clients.
    pub sessions: Sessions,
    /// The server ends.
    pub ending: AtomicBool,
    /// Those who are turned away.
    pub refused: RefusedConnections,
}

/// What a request comes to, as it is sent.
struct Answer {
    header: Header,
    args: Vec<u8>,
    /// Bytes of the buffer.
    data_len: usize,
    /// The connection ends.
    last: bool,
}

impl Answer {
    fn of(request: &Header, outcome: Result<(Reply, usize), Status>) -> Self {
        let (header, args, data_len) = match outcome {
            Ok((reply, data_len)) => {
                let (header, args) = reply.encode(request);
                (header, args, data_len)
            }
            Err(status) => (Header::reply(request, status.0), Vec::new(), 0),
        };
        Self { header, args, data_len, last: request.op == op::BYE }
    }
}

/// Tells somebody who does not speak as this server does.
fn refuse(link: &mut Link, status: Status) {
    let header = Header::reply(&Header::request(op::HELLO), status.0);
    if link.send(header, &[], &[]).is_ok() {
        link.linger();
    }
}

impl<F: FileSystem> Shared<F> {
    /// Serves a connection until it ends; calls `known` when its client is.
    pub fn serve(
        &self,
        (number, from): (u64, SocketAddr),
        stream: TcpStream,
        known: impl FnOnce(),
    ) {
        let mut client = String::new();
        let served = self.serve_known((number, from), stream, known, &mut client);
        match served {
            Ok(()) => {}
            // Anybody may try as often as he likes.
            Err(error) if client.is_empty() => self.refused.turned_away(from, &error),
            Err(error) => tracing::info!(%from, client, %error, "a connection has ended"),
        }
    }

    /// # Errors
    /// Why it ended, unless the client has closed it.
    fn serve_known(
        &self,
        (number, from): (u64, SocketAddr),
        stream: TcpStream,
        known: impl FnOnce(),
        client: &mut String,
    ) -> Result<(), LinkError> {
        let mut link = Link::new(stream)?;
        let begun = Instant::now();
        link.limit(Some(begun + GREETING));
        let peer = self.verify(&mut link)?;
        if let Some(peer) = &peer {
            client.clone_from(&peer.name);
        }
        let mut buffer = Buffer::new(0);
        let first = link.receive(&mut buffer, || {
            begun.elapsed() < GREETING && !self.ending.load(Ordering::Relaxed)
        });
        if let Err(LinkError::Frame(FrameError::Tls)) = first {
            refuse(&mut link, Status::NO_TLS);
        }
        let first = first?;
        let greeted = self.greet(&link, number, (&first, peer));
        let answer = match &greeted {
            Ok((session, _, version)) => {
                let life = self.life().filter(|_| *version >= NEWEST_VERSION);
                let welcome = Welcome { life, ..self.welcome(session.id) };
                Ok((Reply::Welcome(welcome), 0))
            }
            // Which version that is stands in the reply.
            Err(Status::VERSION) => Ok((Reply::Welcome(self.welcome([0; 16])), 0)),
            Err(status) => Err(*status),
        };
        let mut answer = Answer::of(&first.header, answer);
        if let Err(status) = &greeted {
            answer.header.status = status.0;
            self.refused.turned_away(from, status);
        }
        let sent = link.send(answer.header, &answer.args, &[]);
        let Ok((session, slot, _)) = greeted else { return sent };
        client.clone_from(&session.client);
        known();
        link.limit(None);
        buffer.allow(self.served.options.data_max);
        let slot = session.slot(slot).expect("entered");
        let served =
            sent.and_then(|()| self.requests(&mut link, &mut buffer, (&session, slot, number)));
        session.leave((slot, number), &self.served.files);
        served
    }

    /// Makes TLS of a connection, if the server wants it: who its client is.
    fn verify(&self, link: &mut Link) -> Result<Option<Peer>, LinkError> {
        let Some(tls) = &self.served.options.tls else { return Ok(None) };
        let channel = Channel::server(tls.config())?;
        // What a client that is not known yet sends goes through a library: if it panics, that ends the client's
        // connection and no node.
        let secured = catch_unwind(AssertUnwindSafe(|| link.secure(channel)));
        let secured = secured.unwrap_or(Err(LinkError::Protocol));
        if let Err(error) = secured {
            if let LinkError::Plain = error {
                refuse(link, Status::WANTS_TLS);
            } else {
                link.linger();
            }
            return Err(error);
        }
        let certificate = link.tls().and_then(Channel::peer);
        let peer = certificate.and_then(|certificate| tls.peer(certificate));
        peer.map(Some).ok_or(LinkError::Protocol)
    }

    fn welcome(&self, session: [u8; 16]) -> Welcome {
        let options = &self.served.options;
        Welcome {
            version: NEWEST_VERSION,
            session,
            slots: options.slots,
            data_max: u32::try_from(options.data_max).expect("at most DATA_MAX"),
            session_ms: u32::try_from(options.session_time.as_millis()).unwrap_or(u32::MAX),
            verifier: self.served.verifier,
            root: self.served.files.root(),
            life: None,
        }
    }

    /// Which node this is.
    fn life(&self) -> Option<ServerLife> {
        self.served.files.node_life().map(|(pool, life)| ServerLife { pool, life })
    }

    /// The session and the slot that a connection is for, and the version that its client speaks.
    fn greet(
        &self,
        link: &Link,
        number: u64,
        (first, peer): (&Received, Option<Peer>),
    ) -> Result<(Arc<Session>, u16, u32), Status> {
        let is_request = first.header.kind == Kind::Request;
        let request = Request::decode(&first.header, &first.args).ok().filter(|_| is_request);
        let Some(Request::Hello(hello)) = request else { return Err(Status::REQUEST) };
        let Hello { version, begin, slot, pool, .. } = &hello;
        let (version, slot) = (*version, *slot);
        if !(VERSION..=NEWEST_VERSION).contains(&version) {
            return Err(Status::VERSION);
        }
        if *pool != self.served.options.pool.as_bytes() {
            return Err(Status::POOL);
        }
        if slot >= self.served.options.slots {
            return Err(Status::REQUEST);
        }
        let known = self.served.options.tls.as_ref().zip(peer.as_ref());
        if known.is_some_and(|(tls, peer)| tls.is_revoked(peer)) {
            return Err(Status::REVOKED);
        }
        let session = match begin {
            Begin::Session => self.begin(link, &hello, (peer, None))?,
            Begin::Join(id) => self.find(id, peer.as_ref())?,
            Begin::After(id, life) => match self.follow((id, life), peer.as_ref())? {
                Some(session) => session,
                None => self.begin(link, &hello, (peer, Some(life.life)))?,
            },
        };
        let cutter = link.cutter().map_err(|_| Status::LIMIT)?;
        self.sessions.enter(&session, slot, (number, cutter))?;
        Ok((session, slot, version))
    }

    /// Begins a session, perhaps after one that was with another life of a node.
    fn begin(
        &self,
        link: &Link,
        hello: &Hello,
        (peer, after): (Option<Peer>, Option<Life>),
    ) -> Result<Arc<Session>, Status> {
        if let Some((tls, peer)) = self.served.options.tls.as_ref().zip(peer.as_ref()) {
            tls.seen(peer);
        }
        let holder = |name: &str| {
            let keeps = hello.version >= MOUNT_VERSION;
            keeps.then(|| self.served.references.leases().enter(name))
        };
        let who = (peer, link.peer_ip());
        let (session, former) = self.sessions.begin(&hello.client, (who, after), holder)?;
        if let Some(former) = former {
            self.served.leaves(&former, false);
            former.close_all(&self.served.files);
        }
        tracing::info!(client = session.client, "a client has come");
        Ok(session)
    }

    /// A session that has begun.
    ///
    /// # Errors
    /// It is that of another client, or not known: then nothing of it is under way.
    fn find(&self, id: &SessionId, peer: Option<&Peer>) -> Result<Arc<Session>, Status> {
        let found = self.sessions.find(id, peer);
        // A server that ends forgets sessions before what they asked for is done.
        let ends = self.ending.load(Ordering::Relaxed);
        found.map_err(|why| if ends && why == Status::NO_SESSION { Status::LIMIT } else { why })
    }

    /// A client wants to go on after a session that was with the server `life`: that session, if it stands here.
    /// `None`: nothing of it is under way anywhere, and nothing ever will be.
    ///
    /// # Errors
    /// That server lives, or is not known to be dead: what it was asked for may still be done.
    fn follow(
        &self,
        (former, life): (&SessionId, &ServerLife),
        peer: Option<&Peer>,
    ) -> Result<Option<Arc<Session>>, Status> {
        let Some(own) = self.life() else { return Err(Status::FORMER_LIVES) };
        if *life == own {
            return match self.find(former, peer) {
                Err(Status::NO_SESSION) => Ok(None),
                found => found.map(Some),
            };
        }
        if life.pool != own.pool {
            return Err(Status::POOL);
        }
        if self.served.files.life_has_ended(life.life) {
            Ok(None)
        } else {
            Err(Status::FORMER_LIVES)
        }
    }

    fn requests(
        &self,
        link: &mut Link,
        buffer: &mut Buffer,
        (session, slot, number): (&Arc<Session>, &Slot, u64),
    ) -> Result<(), LinkError> {
        loop {
            let begun = Instant::now();
            let received = link.receive(buffer, || {
                begun.elapsed() < self.served.options.session_time
                    && !session.is_ended()
                    && !self.ending.load(Ordering::Relaxed)
            });
            let received = match received {
                Err(LinkError::Closed | LinkError::Idle) => return Ok(()),
                received => received?,
            };
            let answer = self.answer(session, (slot, number), &received, buffer);
            let Some(answer) = answer else { return Ok(()) };
            // While the node may not act, others may have changed what it knows. The client asks again.
            let suspended = self.served.references.leases().is_suspended();
            if suspended && received.header.op != op::LEASES {
                return Ok(());
            }
            link.send(answer.header, &answer.args, buffer.take(answer.data_len))?;
            if answer.last {
                return Ok(());
            }
        }
    }

    /// Does a request once. `None`: another connection has the slot by now.
    fn answer(
        &self,
        session: &Arc<Session>,
        (slot, number): (&Slot, u64),
        received: &Received,
        buffer: &mut Buffer,
    ) -> Option<Answer> {
        let header = &received.header;
        // A connection that comes in the place of this one waits here until the request is done.
        let mut state = slot.state.lock();
        if !slot.is_used_by(number) {
            return None;
        }
        let again = state.last == Some(*header);
        if again {
            session.counters.repeated();
            self.served.counters.repeated();
        }
        if again && let Some((header, args)) = &state.kept {
            let args = args.clone();
            return Some(Answer { header: *header, args, data_len: 0, last: false });
        }
        let next = state.last.map_or(1, |last| last.sequence + 1);
        if !again && header.sequence != next {
            return Some(Answer::of(header, Err(Status::SEQUENCE)));
        }
        let decoded = Caller::split(header, &received.args)
            .and_then(|(caller, args)| Ok((caller, Request::decode(header, args)?)));
        let (Kind::Request, Ok((caller, request))) = (header.kind, decoded) else {
            return Some(Answer::of(header, Err(Status::REQUEST)));
        };
        let (is_read, ends) = (request.is_read(), matches!(request, Request::Bye));
        let references = &self.served.references;
        let counted = Counted::begin([&session.counters, &self.served.counters], &request);
        References::begin(session.holder, request.changed_inodes().unwrap_or_default());
        let outcome = self.served.run(session, Asked { header, caller, request }, buffer);
        counted.end(header, &outcome);
        let note = references.end();
        if ends {
            self.sessions.end(session);
            self.served.leaves(session, true);
        }
        let mut answer = Answer::of(header, outcome);
        if session.holder.is_some() {
            answer.header.prefixed = true;
            answer.args.splice(..0, note.encode());
        }
        state.last = Some(*header);
        state.kept = (!is_read).then(|| (answer.header, answer.args.clone()));
        Some(answer)
    }
}

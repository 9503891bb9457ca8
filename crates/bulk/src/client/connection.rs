//! Connections to servers, from the first packet to the answer to HELLO.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::place::{Found, Place};
use crate::error::{Error, LinkError};
use crate::link::{Buffer, Cutter, Link};
use crate::tls::Channel;
use crate::wire::{
    Begin, DATA_MAX, FrameError, Hello, NEWEST_VERSION, Reply, Request, Status, Welcome,
};

/// No server forgets a client sooner.
const SESSION_MS_MIN: u32 = 100;

/// Why a connection was not made.
#[derive(Debug)]
pub enum Failure {
    /// It may be made later.
    Link(LinkError),
    /// Trying again is of no use.
    Final(Error),
    /// The server speaks no version as new as that.
    Old,
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

impl Failure {
    /// What it means for a client of `server`: an error if trying again is of no use.
    ///
    /// # Errors
    /// That one.
    pub fn judged(self, server: &str) -> Result<LinkError, Error> {
        match self {
            Self::Final(error) => Err(error),
            Self::Link(LinkError::Plain) => Err(Error::Refused(Status::NO_TLS)),
            Self::Link(why) if why.is_final() => {
                Err(Error::Untrusted { server: server.to_owned(), why })
            }
            Self::Link(why) => Ok(why),
            Self::Old => Ok(LinkError::Older),
        }
    }
}

/// How long each step may take.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For a connection to be made, to each address of a name.
    pub connect: Duration,
    /// For TLS, and then for the answer to HELLO.
    pub greeting: Duration,
}

/// Who a client is, and how it connects if the server has TLS.
#[derive(Debug)]
pub struct Connector {
    /// The pool that it wants.
    pub pool: String,
    /// For people.
    pub name: String,
    /// With TLS, and who the server must be.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// What a client says first.
#[derive(Debug, Clone, Copy)]
pub struct Greeting {
    /// In this version.
    pub version: u32,
    /// With or without a session.
    pub begin: Begin,
    /// By this slot.
    pub slot: u16,
}

impl Connector {
    /// Connects to a server; `connected` gets what ends the connection.
    ///
    /// # Errors
    /// Nobody answers, or not who it should be.
    pub fn dial(
        &self,
        server: &str,
        patience: Patience,
        connected: impl FnOnce(Cutter) -> Result<(), LinkError>,
    ) -> Result<(Link, SocketAddr), Failure> {
        let (stream, address) = dial(server, patience.connect)?;
        connected(Cutter::of(&stream)?)?;
        let mut link = Link::new(stream)?;
        if let Some((config, server)) = &self.tls {
            link.limit(Some(Instant::now() + patience.greeting));
            let channel = Channel::client(Arc::clone(config), server.clone());
            link.secure(channel.map_err(LinkError::from)?)?;
            link.limit(None);
        }
        Ok((link, address))
    }

    /// Says HELLO.
    ///
    /// # Errors
    /// The server does not want the client, or not now.
    pub fn greet(
        &self,
        link: &mut Link,
        what: Greeting,
        patience: Patience,
    ) -> Result<Welcome, Failure> {
        let (pool, client) = (self.pool.as_bytes().to_vec(), self.name.as_bytes().to_vec());
        let Greeting { version, begin, slot } = what;
        let hello = Request::Hello(Hello { version, begin, slot, pool, client });
        let (header, args) = hello.encode();
        let begun = Instant::now();
        // Nobody is held up by one that sends its answer byte by byte.
        link.limit(Some(begun + patience.greeting));
        link.send(header, &args, &[])?;
        let received = link.receive(&mut Buffer::new(0), || begun.elapsed() < patience.greeting)?;
        link.limit(None);
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
            (Status::VERSION, Some(w)) if version == NEWEST_VERSION && w.version < version => {
                Err(Failure::Old)
            }
            (Status::VERSION, Some(welcome)) => {
                Err(Failure::Final(Error::Version(welcome.version)))
            }
            // One that does not know how else a session may begin.
            (Status::REQUEST, _) if matches!(begin, Begin::After(..)) => Err(Failure::Old),
            (Status::OK, _) => Err(Failure::Link(LinkError::Frame(FrameError::Unknown))),
            // There may be room later.
            (Status::LIMIT, _) => Err(Failure::Link(LinkError::Full)),
            (Status::FORMER_LIVES, _) => Err(Failure::Link(LinkError::FormerLives)),
            (status, _) => Err(Failure::Final(Error::Refused(status))),
        }
    }
}

/// Ends what a server has begun for a client that was at `place`, and nobody has used.
pub fn leave(place: &Place, found: &Found, mut link: Link) {
    if place.session() == Some(found.welcome.session) {
        return;
    }
    let (mut header, args) = Request::Bye.encode();
    header.sequence = 1;
    link.send(header, &args, &[]).ok();
}

fn dial(server: &str, timeout: Duration) -> Result<(TcpStream, SocketAddr), LinkError> {
    let mut last = std::io::Error::other("no address is known");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// What ends the connections of slots from other threads. Each has its route.
#[derive(Debug, Default)]
pub struct Cutters(Mutex<HashMap<u16, (u64, Cutter)>>);

impl Cutters {
    /// A slot has another connection, by that route.
    pub fn enter(&self, slot: u16, route: u64, cutter: Cutter) {
        self.0.lock().insert(slot, (route, cutter));
    }
    /// Ends all connections by other routes.
    pub fn cut_but(&self, route: u64) {
        self.0.lock().retain(|_, (of, cutter)| {
            if *of != route {
                cutter.cut();
            }
            *of == route
        });
    }
}

//! The connection to another node, made to send it hints.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::super::message::HINT;
use super::super::seal::{GREETING, Greeting, SEALED, Seal, Secret};
use super::super::way::MessageWay;
use super::socket_options::prepare;
use crate::Life;

/// In which a connection must stand.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Between two attempts, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Hints kept until a connection takes them; of more the oldest are forgotten.
const WAITING_MAX: usize = 64;

/// What became of a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// The kernel has it.
    Gone,
    /// It follows what went before it.
    Queued,
    /// It has to wait for a connection, and perhaps is never sent.
    Later,
}

#[derive(Debug)]
enum ConnectionState {
    /// None, and no attempt before this time.
    Down(Instant),
    Connecting(Arc<TcpStream>, Instant),
    /// What has come of the answer to this opening.
    Greeting {
        stream: Arc<TcpStream>,
        opening: Greeting,
        got: Vec<u8>,
        until: Instant,
    },
    /// `rest`: of a message of which a part was sent.
    Up {
        stream: Arc<TcpStream>,
        seal: Seal,
        rest: Vec<u8>,
    },
}

#[derive(Debug)]
pub(super) struct Peer {
    life: Life,
    at: SocketAddr,
    secret: Secret,
    connection: ConnectionState,
    pause: Duration,
    waiting: VecDeque<[u8; HINT]>,
    /// It was said that it is not reached.
    said: bool,
}

impl Peer {
    pub fn new(life: Life, at: SocketAddr, secret: Secret) -> Self {
        let connection = ConnectionState::Down(Instant::now());
        let (pause, waiting) = (PAUSE_MIN, VecDeque::new());
        Self { life, at, secret, connection, pause, waiting, said: false }
    }
    pub fn life(&self) -> Life {
        self.life
    }
    pub fn way(&self) -> MessageWay {
        match &self.connection {
            ConnectionState::Up { .. } => MessageWay::Tcp,
            _ if self.said => MessageWay::TcpFails,
            _ => MessageWay::TcpUnused,
        }
    }

    /// Sends at once, or notes it.
    pub fn send(&mut self, hint: [u8; HINT], now: Instant) -> Sent {
        if let ConnectionState::Down(until) = self.connection
            && now < until
        {
            return Sent::Later;
        }
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(hint);
        if !matches!(self.connection, ConnectionState::Up { .. }) {
            return Sent::Later;
        }
        self.flush(now);
        match &self.connection {
            ConnectionState::Up { .. } if self.is_flushed() => Sent::Gone,
            ConnectionState::Up { .. } => Sent::Queued,
            _ => Sent::Later,
        }
    }

    fn is_flushed(&self) -> bool {
        self.waiting.is_empty()
            && matches!(&self.connection, ConnectionState::Up { rest, .. } if rest.is_empty())
    }

    /// Sends what the connection takes.
    fn flush(&mut self, now: Instant) {
        while let ConnectionState::Up { stream, seal, rest } = &mut self.connection {
            if rest.is_empty() {
                let Some(hint) = self.waiting.pop_front() else { return };
                rest.extend_from_slice(&seal.close(&hint));
            }
            let mut socket = &**stream;
            match socket.write(rest) {
                Ok(n) => drop(rest.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => self.fall(now, &e),
            }
        }
    }

    /// The connection is gone, or did not come about.
    fn fall(&mut self, now: Instant, why: &io::Error) {
        // A hint is of use now or not at all: who waits says it again.
        self.waiting.clear();
        let stood = matches!(self.connection, ConnectionState::Up { .. });
        self.connection = ConnectionState::Down(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        // One that stood may have ended with the node: the next attempt shows it.
        if !self.said && !stood {
            self.said = true;
            tracing::warn!(
                of_node = %self.life, at = %self.at,
                "cannot reach this node over TCP ({why}): it learns of wanted locks by polling the disks, which is slower"
            );
        }
    }

    /// When something is to be done although nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.connection {
            ConnectionState::Down(until) => (!self.waiting.is_empty()).then_some(*until),
            ConnectionState::Connecting(_, until) | ConnectionState::Greeting { until, .. } => {
                Some(*until)
            }
            ConnectionState::Up { .. } => None,
        }
    }
    /// The connection, and what it is waited for.
    pub fn waits(&self) -> Option<(Arc<TcpStream>, PollFlags)> {
        match &self.connection {
            ConnectionState::Down(_) => None,
            ConnectionState::Connecting(stream, _) => Some((stream.clone(), PollFlags::OUT)),
            ConnectionState::Up { stream, .. } if !self.is_flushed() => {
                Some((stream.clone(), PollFlags::IN | PollFlags::OUT))
            }
            ConnectionState::Greeting { stream, .. } | ConnectionState::Up { stream, .. } => {
                Some((stream.clone(), PollFlags::IN))
            }
        }
    }

    /// Does what is due.
    pub fn due(&mut self, now: Instant) {
        match &self.connection {
            ConnectionState::Down(until) if *until <= now && !self.waiting.is_empty() => {
                match connect(self.at) {
                    Ok(stream) => {
                        self.connection = ConnectionState::Connecting(stream, now + CONNECT_MAX);
                    }
                    Err(e) => self.fall(now, &e),
                }
            }
            ConnectionState::Connecting(_, until) | ConnectionState::Greeting { until, .. }
                if *until <= now =>
            {
                self.fall(now, &ErrorKind::TimedOut.into());
            }
            _ => {}
        }
    }

    /// Its connection has something to say.
    pub fn ready(&mut self, me: Life, now: Instant) {
        if let Err(e) = self.go_on(me, now) {
            self.fall(now, &e);
        }
    }

    fn go_on(&mut self, me: Life, now: Instant) -> io::Result<()> {
        match &mut self.connection {
            ConnectionState::Down(_) => {}
            ConnectionState::Connecting(stream, until) => {
                if let Some(e) = stream.take_error()? {
                    return Err(e);
                }
                let opening = self.secret.opening(me, self.life);
                let mut socket = &**stream;
                // A new connection has room for it.
                socket.write_all(&opening)?;
                let (stream, until) = (stream.clone(), *until);
                self.connection =
                    ConnectionState::Greeting { stream, opening, got: Vec::new(), until };
            }
            ConnectionState::Greeting { stream, opening, got, .. } => {
                read(stream, got, GREETING)?;
                let Some(answer) = got.first_chunk::<GREETING>() else { return Ok(()) };
                let Some(seal) = self.secret.accept(opening, answer) else {
                    return Err(io::Error::other("it does not know the secret of its own slot"));
                };
                let stream = stream.clone();
                self.connection =
                    ConnectionState::Up { stream, seal, rest: Vec::with_capacity(SEALED) };
                self.pause = PAUSE_MIN;
                if std::mem::take(&mut self.said) {
                    tracing::info!(of_node = %self.life, at = %self.at, "this node can be reached over TCP again");
                }
                self.flush(now);
            }
            ConnectionState::Up { stream, .. } => {
                // Nothing is to come: its end, or noise.
                let mut one = Vec::new();
                read(stream, &mut one, 1)?;
                if !one.is_empty() {
                    return Err(ErrorKind::InvalidData.into());
                }
                self.flush(now);
            }
        }
        Ok(())
    }
}

/// Reads what there is, up to `whole` bytes in all. The end is an error.
fn read(mut stream: &TcpStream, got: &mut Vec<u8>, whole: usize) -> io::Result<()> {
    let mut buf = [0; GREETING];
    let Some(room) = buf.get_mut(..whole.saturating_sub(got.len())) else { return Ok(()) };
    match stream.read(room) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(n) => {
            got.extend(buf.iter().take(n));
            Ok(())
        }
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Begins a connection.
fn connect(at: SocketAddr) -> io::Result<Arc<TcpStream>> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    let stream = TcpStream::from(socket);
    prepare(&stream)?;
    match rustix::net::connect(&stream, &at) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(Arc::new(stream)),
        Err(e) => Err(e.into()),
    }
}

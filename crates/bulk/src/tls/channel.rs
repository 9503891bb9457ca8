//! TLS over bytes that somebody else sends and receives.
//!
//! rustls encrypts and decrypts in buffers of this channel: the socket is read and written by hundreds of KiB at a
//! time, and what was decrypted goes to the receiver's memory at once.
//!
//! ```text
//!  receive   socket ──> incoming ──rustls──> the caller's memory, what does not fit there: rest
//!  send      the caller's memory ──rustls──> outgoing ──> socket
//! ```

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ClientConfig, Error, ServerConfig};

/// Bytes that are taken from the socket at a time; more than the largest record.
const INCOMING: usize = 256 << 10;
/// Bytes that are encrypted at a time.
pub const PIECE: usize = 256 << 10;
/// A record has at most so many bytes, and so many more when it is encrypted.
const RECORD: (usize, usize) = (16 << 10, 64);
/// Room for messages of TLS itself.
const OWN: usize = 4 << 10;
/// Records that may be looked at in a row: what was received holds no more.
const STEPS_MAX: usize = INCOMING / 16;

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What came of looking at the bytes that were received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// So many bytes are in the caller's memory.
    Bytes(usize),
    /// More must come from the socket first.
    Nothing,
    /// The other side sends no more.
    End,
}

/// One step of rustls.
enum Step {
    Plain(usize),
    Again,
    Blocked,
    Ready,
    End,
}

/// A connection's TLS. Bytes in `outgoing` are to be sent.
pub struct Channel {
    side: Side,
    /// `start..end` was received and not looked at yet.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// Decrypted, from `rest_at` on, and not taken yet.
    rest: Vec<u8>,
    rest_at: usize,
    /// Encrypted, to be sent.
    outgoing: Vec<u8>,
    outgoing_len: usize,
    ended: bool,
    failed: Option<Error>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Channel {
    /// The client's side.
    ///
    /// # Errors
    /// The configuration is no good.
    pub fn client(config: Arc<ClientConfig>, server: ServerName<'static>) -> Result<Self, Error> {
        Ok(Self::new(Side::Client(UnbufferedClientConnection::new(config, server)?)))
    }

    /// The server's side.
    ///
    /// # Errors
    /// The configuration is no good.
    pub fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        Ok(Self::new(Side::Server(UnbufferedServerConnection::new(config)?)))
    }

    fn new(side: Side) -> Self {
        // A stranger takes little memory: the rest comes with the first message.
        let (incoming, outgoing) = (vec![0; RECORD.0 + OWN], vec![0; OWN]);
        let (rest, start, end) = (Vec::new(), 0, 0);
        let (rest_at, outgoing_len, ended, failed) = (0, 0, false, None);
        Self { side, incoming, start, end, rest, rest_at, outgoing, outgoing_len, ended, failed }
    }

    fn is_handshaking(&self) -> bool {
        match &self.side {
            Side::Client(c) => c.is_handshaking(),
            Side::Server(c) => c.is_handshaking(),
        }
    }

    /// Whether a part of a record has come, and the rest has not.
    pub fn is_inside_record(&self) -> bool {
        self.start < self.end
    }

    /// The other side speaks this protocol in TLS.
    pub fn alpn(&self) -> Option<&[u8]> {
        match &self.side {
            Side::Client(c) => c.alpn_protocol(),
            Side::Server(c) => c.alpn_protocol(),
        }
    }

    /// The other side's certificate, verified.
    pub fn peer(&self) -> Option<&CertificateDer<'static>> {
        let certificates = match &self.side {
            Side::Client(c) => c.peer_certificates(),
            Side::Server(c) => c.peer_certificates(),
        };
        certificates.and_then(<[_]>::first)
    }

    /// What was received, and not understood yet.
    pub fn unread(&self) -> &[u8] {
        self.incoming.get(self.start..self.end).unwrap_or_default()
    }

    /// Where bytes from the socket go; then [`Channel::received`].
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if !self.is_handshaking() && self.incoming.len() < INCOMING {
            self.incoming.resize(INCOMING, 0);
        }
        // A record fits behind what is there.
        if self.start > 0 && self.incoming.len() - self.end < RECORD.0 + OWN {
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.incoming.get_mut(self.end..).unwrap_or_default()
    }

    /// So many bytes came from the socket.
    pub fn received(&mut self, n: usize) {
        self.end = (self.end + n).min(self.incoming.len());
    }

    /// What is to be sent; then [`Channel::sent`].
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(..self.outgoing_len).unwrap_or_default()
    }

    /// All of [`Channel::outgoing`] was sent.
    pub fn sent(&mut self) {
        self.outgoing_len = 0;
    }

    /// Goes on with the handshake as far as what was received allows. `true`: it is done.
    ///
    /// # Errors
    /// The other side is not whom it should be, or speaks no TLS; what tells it so is in [`Channel::outgoing`].
    pub fn handshake(&mut self) -> Result<bool, Error> {
        self.is_sound()?;
        for _ in 0..STEPS_MAX {
            match self.step(&mut []) {
                Ok(Step::Again | Step::Plain(_)) => {}
                Ok(Step::Ready) => return Ok(true),
                Ok(Step::Blocked) => return Ok(false),
                Ok(Step::End) => return Err(Error::HandshakeNotComplete),
                Err(error) => return Err(self.fail(error)),
            }
        }
        Err(Error::HandshakeNotComplete)
    }

    /// Encodes the alert of an error that has happened. rustls must not look at such bytes once more, nor at any
    /// others.
    fn fail(&mut self, error: Error) -> Error {
        for _ in 0..STEPS_MAX {
            let wants_write = match &self.side {
                Side::Client(c) => c.wants_write(),
                Side::Server(c) => c.wants_write(),
            };
            if !wants_write || self.step(&mut []).is_err() {
                break;
            }
        }
        self.failed = Some(error.clone());
        error
    }

    /// What has failed fails again.
    fn is_sound(&self) -> Result<(), Error> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Decrypts what was received into `memory`.
    ///
    /// # Errors
    /// These are not the bytes that were sent.
    pub fn read(&mut self, memory: &mut [u8]) -> Result<Got, Error> {
        let rest = self.rest.get(self.rest_at..).unwrap_or_default();
        if !rest.is_empty() {
            let n = rest.len().min(memory.len());
            if let (Some(to), Some(from)) = (memory.get_mut(..n), rest.get(..n)) {
                to.copy_from_slice(from);
            }
            self.rest_at += n;
            return Ok(Got::Bytes(n));
        }
        self.is_sound()?;
        let mut done = 0;
        let mut idle = 0;
        while done < memory.len() && !self.ended {
            match self.step(memory.get_mut(done..).unwrap_or_default()) {
                Ok(Step::Plain(n)) => (done, idle) = (done + n, 0),
                Ok(Step::Again) if idle < STEPS_MAX => idle += 1,
                Ok(Step::Again) => return Err(Error::General("messages without sense".into())),
                Ok(Step::Blocked | Step::Ready) => break,
                Ok(Step::End) => self.ended = true,
                Err(error) => return Err(self.fail(error)),
            }
        }
        Ok(match done {
            0 if self.ended => Got::End,
            0 => Got::Nothing,
            n => Got::Bytes(n),
        })
    }

    /// Encrypts at most `PIECE` bytes behind what is in [`Channel::outgoing`]; how many it took. Nothing:
    /// that must be sent first.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let all = PIECE + PIECE / RECORD.0 * RECORD.1 + 2 * OWN;
        if self.outgoing.len() < all {
            self.outgoing.resize(all, 0);
        }
        let room = all - self.outgoing_len.min(all);
        let most = room.saturating_sub(OWN) / (RECORD.0 + RECORD.1) * RECORD.0;
        let piece = bytes.get(..bytes.len().min(most)).unwrap_or_default();
        if piece.is_empty() {
            return Ok(0);
        }
        self.is_sound()?;
        for _ in 0..STEPS_MAX {
            let Self { side, incoming, start, end, outgoing, outgoing_len, rest, rest_at, .. } =
                self;
            let unread = incoming.get_mut(*start..*end).unwrap_or_default();
            let to = outgoing.get_mut(*outgoing_len..).unwrap_or_default();
            let (discard, outcome) = match side {
                Side::Client(c) => {
                    encrypt(c.process_tls_records(unread), piece, to, (rest, rest_at))
                }
                Side::Server(c) => {
                    encrypt(c.process_tls_records(unread), piece, to, (rest, rest_at))
                }
            };
            *start = (*start + discard).min(*end);
            match outcome {
                Ok(Encrypted::Own(n)) => *outgoing_len += n,
                Ok(Encrypted::Data(n)) => {
                    *outgoing_len += n;
                    return Ok(piece.len());
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
        Err(Error::General("messages without sense".into()))
    }

    fn step(&mut self, memory: &mut [u8]) -> Result<Step, Error> {
        let Self { side, incoming, start, end, outgoing, outgoing_len, rest, rest_at, .. } = self;
        if outgoing.len() < *outgoing_len + OWN {
            outgoing.resize(*outgoing_len + OWN, 0);
        }
        let unread = incoming.get_mut(*start..*end).unwrap_or_default();
        let mut to = (outgoing, outgoing_len);
        let mut plain = (memory, rest, rest_at);
        let (discard, step) = match side {
            Side::Client(c) => advance(c.process_tls_records(unread), &mut plain, &mut to),
            Side::Server(c) => advance(c.process_tls_records(unread), &mut plain, &mut to),
        };
        *start = (*start + discard).min(*end);
        step
    }
}

type Plain<'a> = (&'a mut [u8], &'a mut Vec<u8>, &'a mut usize);
type Outgoing<'a> = (&'a mut Vec<u8>, &'a mut usize);

/// What rustls wants next is done; bytes of `incoming` that it has done with.
fn advance<D>(
    status: UnbufferedStatus<'_, '_, D>,
    (memory, rest, rest_at): &mut Plain<'_>,
    (outgoing, len): &mut Outgoing<'_>,
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = state.and_then(|state| match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            let mut done = 0;
            // More than one waits only behind a handshake.
            while let Some(record) = traffic.next_record() {
                let record = record?;
                discard += record.discard;
                let to = memory.get_mut(done..).unwrap_or_default();
                let n = to.len().min(record.payload.len());
                let (now, later) = record.payload.split_at(n);
                if let Some(to) = to.get_mut(..n) {
                    to.copy_from_slice(now);
                }
                done += n;
                keep(rest, rest_at, later);
            }
            Ok(Step::Plain(done))
        }
        ConnectionState::EncodeTlsData(mut own) => {
            let to = outgoing.get_mut(**len..).unwrap_or_default();
            let n = match own.encode(to) {
                Ok(n) => n,
                Err(EncodeError::InsufficientSize(size)) => {
                    outgoing.resize(**len + size.required_size, 0);
                    let to = outgoing.get_mut(**len..).unwrap_or_default();
                    own.encode(to).map_err(|e| Error::General(e.to_string()))?
                }
                Err(error) => return Err(Error::General(error.to_string())),
            };
            **len += n;
            Ok(Step::Again)
        }
        // It is in `outgoing`, which goes before anything else.
        ConnectionState::TransmitTlsData(sent) => {
            sent.done();
            Ok(Step::Again)
        }
        ConnectionState::BlockedHandshake => Ok(Step::Blocked),
        ConnectionState::WriteTraffic(_) => Ok(Step::Ready),
        ConnectionState::PeerClosed | ConnectionState::Closed => Ok(Step::End),
        _ => Err(Error::General("early data".into())),
    });
    (discard, step)
}

fn keep(rest: &mut Vec<u8>, rest_at: &mut usize, more: &[u8]) {
    if *rest_at == rest.len() {
        rest.clear();
        *rest_at = 0;
    }
    rest.extend_from_slice(more);
}

/// What went to `outgoing`.
enum Encrypted {
    /// A message of TLS itself, or nothing.
    Own(usize),
    /// The caller's bytes.
    Data(usize),
}

fn encrypt<D>(
    status: UnbufferedStatus<'_, '_, D>,
    bytes: &[u8],
    to: &mut [u8],
    (rest, rest_at): (&mut Vec<u8>, &mut usize),
) -> (usize, Result<Encrypted, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let outcome = state.and_then(|state| match state {
        ConnectionState::WriteTraffic(mut traffic) => match traffic.encrypt(bytes, to) {
            Ok(n) => Ok(Encrypted::Data(n)),
            Err(EncryptError::EncryptExhausted) => Err(Error::EncryptError),
            Err(error) => Err(Error::General(error.to_string())),
        },
        ConnectionState::EncodeTlsData(mut own) => {
            own.encode(to).map(Encrypted::Own).map_err(|e| Error::General(e.to_string()))
        }
        ConnectionState::TransmitTlsData(sent) => {
            sent.done();
            Ok(Encrypted::Own(0))
        }
        // It came before it was asked for.
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                discard += record.discard;
                keep(rest, rest_at, record.payload);
            }
            Ok(Encrypted::Own(0))
        }
        ConnectionState::BlockedHandshake => Err(Error::HandshakeNotComplete),
        // Its other direction may be open still, but nobody waits there for an answer.
        _ => Err(Error::General("the other side has closed the connection".into())),
    });
    (discard, outcome)
}

#[cfg(test)]
mod tests;

//! Messages over a TCP connection, in TLS or without.
//!
//! A message that has begun must go on: without a byte for [`STALL`], or not whole after [`MESSAGE`], the
//! connection is given up. Between messages a side waits as long as its caller says. A host that is gone is
//! noticed by the kernel (`KEEPALIVE`).

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::time::{Duration, Instant};

use braid_device::AlignedBuf;
use rustix::net::sockopt;

use crate::error::LinkError;
use crate::tls::{ALPN, Channel, Got};
use crate::wire::{Header, RawHeader, within};

/// Longest time without a byte inside a message.
pub const STALL: Duration = Duration::from_secs(10);
/// Longest time for a message.
pub const MESSAGE: Duration = Duration::from_mins(2);
/// A host that was refused has so long to read why.
const LINGER: Duration = Duration::from_secs(1);
/// Between two looks at whether a wait is over.
const LOOK: Duration = Duration::from_secs(1);
/// A peer that answers nothing is asked after so long, so often, so many times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 4);
/// What was sent and not acknowledged for so long ends a connection.
const UNACKNOWLEDGED_MS: u32 = 15_000;

/// One connection. A message is sent or received at a time.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    tls: Option<Box<Channel>>,
    /// Nothing may take longer.
    until: Option<Instant>,
}

/// Memory for the data of a message, as large as the largest that came.
#[derive(Debug)]
pub struct Buffer {
    memory: AlignedBuf,
    most: usize,
}

impl Buffer {
    /// For messages of at most `most` bytes of data; takes none yet.
    pub fn new(most: usize) -> Self {
        Self { memory: AlignedBuf::zeroed(0), most }
    }
    /// From now on it may take so much.
    pub fn allow(&mut self, most: usize) {
        self.most = most;
    }
    /// The first `len` bytes.
    ///
    /// # Panics
    /// `len` is more than is allowed.
    pub fn take(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.most, "more than is allowed");
        if self.memory.len() < len {
            let blocks = len.next_multiple_of(AlignedBuf::ALIGN);
            self.memory =
                AlignedBuf::zeroed(blocks.max(2 * self.memory.len()).min(self.size_max()));
        }
        self.memory.get_mut(..len).unwrap_or_default()
    }
    fn size_max(&self) -> usize {
        self.most.next_multiple_of(AlignedBuf::ALIGN)
    }
}

/// A message but for its data, which is in the receiver's buffer.
#[derive(Debug)]
pub struct Received {
    /// The header.
    pub header: Header,
    /// The arguments.
    pub args: Vec<u8>,
}

impl Link {
    /// Over this connection.
    ///
    /// # Errors
    /// Its options cannot be set.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_write_timeout(Some(LOOK))?;
        let (idle, interval, count) = KEEPALIVE;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, idle)?;
        sockopt::set_tcp_keepintvl(&stream, interval)?;
        sockopt::set_tcp_keepcnt(&stream, count)?;
        sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MS)?;
        Ok(Self { stream, tls: None, until: None })
    }

    /// From now on nothing takes longer than until then.
    pub fn limit(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    /// From now on it is encrypted, and the other side known ([`Link::tls`]).
    ///
    /// # Errors
    /// The other side is not whom it should be, speaks without TLS ([`LinkError::Plain`]), or takes too long.
    pub fn secure(&mut self, mut tls: Channel) -> Result<(), LinkError> {
        let time = Time::of_message(self.until);
        loop {
            if tls.unread().len() >= HEAD && Header::is_begun(tls.unread()) {
                return Err(LinkError::Plain);
            }
            let done = tls.handshake();
            // Why it came to nothing, too.
            let sent = flush(&mut self.stream, &mut tls, self.until);
            if done? {
                sent?;
                break;
            }
            sent?;
            match self.stream.read(tls.space()) {
                Ok(0) => return Err(LinkError::Handshake),
                Ok(n) => tls.received(n),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(LinkError::Handshake);
                }
                Err(error) => time.refuse(error.into())?,
            }
            time.check()?;
        }
        if tls.alpn() != Some(ALPN) {
            return Err(LinkError::Protocol);
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Its TLS.
    pub fn tls(&self) -> Option<&Channel> {
        self.tls.as_deref()
    }

    /// Sends no more, and lets the other side read what was sent: it might be lost with bytes that nobody has read.
    pub fn linger(&mut self) {
        let (end, mut sink) = (Instant::now() + LINGER, [0; 4096]);
        self.stream.shutdown(Shutdown::Write).ok();
        while Instant::now() < end {
            match self.stream.read(&mut sink) {
                Ok(n) if n > 0 => {}
                Err(error) if waits(&error) => {}
                _ => return,
            }
        }
    }

    /// The address at the other end, while there is one.
    pub fn peer_ip(&self) -> Option<IpAddr> {
        self.stream.peer_addr().ok().map(|address| address.ip())
    }

    /// What ends this connection from another thread.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn cutter(&self) -> io::Result<Cutter> {
        Cutter::of(&self.stream)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn send(&mut self, mut header: Header, args: &[u8], data: &[u8]) -> Result<(), LinkError> {
        let sealed = header.seal(args, data);
        let head = [&sealed[..], args].concat();
        let Some(tls) = &mut self.tls else {
            return send_plain(&mut self.stream, (&head, data), self.until);
        };
        let mut encrypted = |mut rest: &[u8]| {
            while !rest.is_empty() {
                let n = tls.write(rest)?;
                if n == 0 {
                    flush(&mut self.stream, tls, self.until)?;
                }
                rest = rest.get(n..).unwrap_or_default();
            }
            Ok(())
        };
        let sent = encrypted(&head).and_then(|()| encrypted(data));
        let sent = sent.and_then(|()| flush(&mut self.stream, tls, self.until));
        if let Err(LinkError::Io(_)) = sent {
            // Perhaps the other side has said why.
            if let Err(LinkError::Tls(why)) = self.read(&mut [0]) {
                return Err(why.into());
            }
        }
        sent
    }

    /// Receives a message; its data are the first bytes of `buffer`. Waits for its begin as
    /// long as `may_wait` says that it may, which is asked every second.
    ///
    /// # Errors
    /// The connection is of no use any more: closed ([`LinkError::Closed`] before a message begins), not a
    /// message, not the bytes that were sent, more data than is allowed.
    pub fn receive(
        &mut self,
        buffer: &mut Buffer,
        may_wait: impl FnMut() -> bool,
    ) -> Result<Received, LinkError> {
        let mut bytes = [0; RawHeader::LEN];
        let mut time = self.begin(&mut bytes, may_wait)?;
        let header = Header::decode(&bytes)?;
        within("data", header.data_len, buffer.most)?;
        let mut args = vec![0; usize::try_from(header.args_len).unwrap_or(0)];
        self.fill(&mut args, &mut time)?;
        header.check_args(&args)?;
        let data = buffer.take(usize::try_from(header.data_len).unwrap_or(0));
        self.fill(data, &mut time)?;
        header.check_data(data)?;
        Ok(Received { header, args })
    }

    /// Waits for a header.
    fn begin(
        &mut self,
        bytes: &mut [u8; RawHeader::LEN],
        mut may_wait: impl FnMut() -> bool,
    ) -> Result<Time, LinkError> {
        // Of a record that has begun.
        let mut begun: Option<Time> = None;
        loop {
            match self.read(bytes) {
                Ok(Got::End) => return Err(LinkError::Closed),
                Ok(Got::Bytes(n)) => {
                    let mut time = begun.unwrap_or_else(|| Time::of_message(self.until));
                    self.fill(bytes.get_mut(n..).unwrap_or_default(), &mut time)?;
                    return Ok(time);
                }
                Ok(Got::Nothing) if self.is_inside_record() => {
                    begun.get_or_insert_with(|| Time::of_message(self.until)).progress()?;
                }
                Ok(Got::Nothing) => begun = None,
                Err(LinkError::Io(error)) if waits(&error) => match &begun {
                    Some(begun) => begun.refuse(error.into())?,
                    None if may_wait() => {}
                    None => return Err(LinkError::Idle),
                },
                Err(LinkError::Io(error)) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn is_inside_record(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_inside_record())
    }

    /// Reads what there is. [`Got::Nothing`]: some bytes have come, but no whole record.
    fn read(&mut self, memory: &mut [u8]) -> Result<Got, LinkError> {
        let Some(tls) = &mut self.tls else {
            let n = self.stream.read(memory)?;
            return Ok(if n == 0 { Got::End } else { Got::Bytes(n) });
        };
        let mut got = tls.read(memory);
        if let Ok(Got::Nothing) = got {
            let n = self.stream.read(tls.space())?;
            if n == 0 {
                return Ok(Got::End);
            }
            tls.received(n);
            got = tls.read(memory);
        }
        if !tls.outgoing().is_empty() {
            // New keys, or why these bytes are refused.
            let sent = flush(&mut self.stream, tls, self.until);
            let got = got?;
            sent?;
            return Ok(got);
        }
        Ok(got?)
    }

    fn fill(&mut self, mut rest: &mut [u8], time: &mut Time) -> Result<(), LinkError> {
        while !rest.is_empty() {
            match self.read(rest) {
                Ok(Got::End) => return Err(LinkError::Cut),
                Ok(Got::Bytes(n)) => {
                    time.progress()?;
                    rest = rest.get_mut(n..).unwrap_or_default();
                }
                Ok(Got::Nothing) => time.progress()?,
                Err(error) => time.refuse(error)?,
            }
        }
        Ok(())
    }
}

impl Drop for Link {
    /// Whoever could cut it has it open, too.
    fn drop(&mut self) {
        self.stream.shutdown(Shutdown::Both).ok();
    }
}

fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Bytes that tell a message from anything else.
const HEAD: usize = 4;

fn send_plain(
    stream: &mut TcpStream,
    (head, data): (&[u8], &[u8]),
    until: Option<Instant>,
) -> Result<(), LinkError> {
    let mut parts = [IoSlice::new(head), IoSlice::new(data)];
    let mut rest = &mut parts[..];
    let mut time = Time::of_message(until);
    while rest.iter().any(|part| !part.is_empty()) {
        match stream.write_vectored(rest) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(n) => {
                time.progress()?;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(error) => time.refuse(error.into())?,
        }
    }
    Ok(())
}

/// Sends what is encrypted.
fn flush(
    stream: &mut TcpStream,
    tls: &mut Channel,
    until: Option<Instant>,
) -> Result<(), LinkError> {
    let mut rest = tls.outgoing();
    let mut time = Time::of_message(until);
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(n) => {
                time.progress()?;
                rest = rest.get(n..).unwrap_or_default();
            }
            Err(error) => time.refuse(error.into())?,
        }
    }
    tls.sent();
    Ok(())
}

/// How long a message is under way.
struct Time {
    begun: Instant,
    last: Instant,
    until: Option<Instant>,
}

impl Time {
    fn of_message(until: Option<Instant>) -> Self {
        let now = Instant::now();
        Self { begun: now, last: now, until }
    }
    /// Bytes have come, or have gone.
    fn progress(&mut self) -> Result<(), LinkError> {
        self.last = Instant::now();
        self.check()
    }
    /// Whether there is time as a whole.
    fn check(&self) -> Result<(), LinkError> {
        let now = Instant::now();
        let over = now.duration_since(self.begun) >= MESSAGE;
        if over || self.until.is_some_and(|until| now >= until) {
            Err(LinkError::Slow)
        } else {
            Ok(())
        }
    }
    /// Passes errors that are none as long as there is time.
    fn refuse(&self, error: LinkError) -> Result<(), LinkError> {
        let LinkError::Io(io) = &error else { return Err(error) };
        if io.kind() == ErrorKind::Interrupted {
            return Ok(());
        }
        if !waits(io) {
            return Err(error);
        }
        self.check()?;
        if self.last.elapsed() < STALL { Ok(()) } else { Err(LinkError::Slow) }
    }
}

/// Ends a connection from another thread.
#[derive(Debug)]
pub struct Cutter(TcpStream);

impl Cutter {
    /// Of this connection.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn of(stream: &TcpStream) -> io::Result<Self> {
        stream.try_clone().map(Self)
    }
    /// Whoever sends or receives by it gets an error.
    pub fn cut(&self) {
        self.0.shutdown(Shutdown::Both).ok();
    }
}

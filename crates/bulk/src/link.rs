//! Messages over a TCP connection.
//!
//! A message that has begun must go on: without a byte for [`STALL`], or not whole after [`MESSAGE`], the
//! connection is given up. Between messages a side waits as long as its caller says. A host that is gone is
//! noticed by the kernel ([`KEEPALIVE`]).

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use braid_device::AlignedBuf;
use rustix::net::sockopt;

use crate::error::LinkError;
use crate::wire::{Header, RawHeader, within};

/// Longest time without a byte inside a message.
pub const STALL: Duration = Duration::from_secs(10);
/// Longest time for a message.
pub const MESSAGE: Duration = Duration::from_mins(2);
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
        Ok(Self { stream })
    }

    /// What ends this connection from another thread.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn cutter(&self) -> io::Result<Cutter> {
        self.stream.try_clone().map(Cutter)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn send(&mut self, mut header: Header, args: &[u8], data: &[u8]) -> Result<(), LinkError> {
        let sealed = header.seal(args, data);
        let head = [&sealed[..], args].concat();
        let mut parts = [IoSlice::new(&head), IoSlice::new(data)];
        let mut rest = &mut parts[..];
        let mut time = Time::of_message();
        while rest.iter().any(|part| !part.is_empty()) {
            match self.stream.write_vectored(rest) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => {
                    time.progress()?;
                    IoSlice::advance_slices(&mut rest, n);
                }
                Err(error) => time.refuse(error)?,
            }
        }
        Ok(())
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
        loop {
            match self.stream.read(bytes) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => {
                    let mut time = Time::of_message();
                    self.fill(bytes.get_mut(n..).unwrap_or_default(), &mut time)?;
                    return Ok(time);
                }
                Err(error) if waits(&error) => {
                    if !may_wait() {
                        return Err(LinkError::Idle);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn fill(&mut self, mut rest: &mut [u8], time: &mut Time) -> Result<(), LinkError> {
        while !rest.is_empty() {
            match self.stream.read(rest) {
                Ok(0) => return Err(LinkError::Cut),
                Ok(n) => {
                    time.progress()?;
                    rest = rest.get_mut(n..).unwrap_or_default();
                }
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

/// How long a message is under way.
struct Time {
    begun: Instant,
    last: Instant,
}

impl Time {
    fn of_message() -> Self {
        let now = Instant::now();
        Self { begun: now, last: now }
    }
    /// Bytes have come, or have gone.
    fn progress(&mut self) -> Result<(), LinkError> {
        self.last = Instant::now();
        if self.last.duration_since(self.begun) < MESSAGE { Ok(()) } else { Err(LinkError::Slow) }
    }
    /// Passes errors that are none as long as there is time.
    fn refuse(&self, error: io::Error) -> Result<(), LinkError> {
        if error.kind() == ErrorKind::Interrupted {
            return Ok(());
        }
        if !waits(&error) {
            return Err(error.into());
        }
        if self.last.elapsed() < STALL { Ok(()) } else { Err(LinkError::Slow) }
    }
}

/// Ends a connection from another thread.
#[derive(Debug)]
pub struct Cutter(TcpStream);

impl Cutter {
    /// Whoever sends or receives by it gets an error.
    pub fn cut(&self) {
        self.0.shutdown(Shutdown::Both).ok();
    }
}

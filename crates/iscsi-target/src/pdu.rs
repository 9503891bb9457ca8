//! Protocol data units: the 48-byte header, additional header segments, data, digests (RFC 7143,
//! section 11).
//!
//! Nothing here panics on bytes from the wire: a header is 48 bytes whatever they say, lengths are
//! checked against the limits before memory is taken.

use std::io::{self, BufReader, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use braid_format::crc::crc32c;

use crate::Broken;

/// Bytes of a basic header segment.
pub const HEADER: usize = 48;

/// Longest data segment that is taken: what the target declares as its own limit.
pub const DATA_MAX: usize = 1 << 20;

/// Buffered by a reader: headers, and the data of small commands.
const BUFFERED: usize = 16 << 10;

/// Opcodes of requests and responses.
pub mod op {
    /// NOP-Out.
    pub const NOP_OUT: u8 = 0x00;
    /// SCSI command.
    pub const COMMAND: u8 = 0x01;
    /// Task management request.
    pub const MANAGE: u8 = 0x02;
    /// Login request.
    pub const LOGIN: u8 = 0x03;
    /// Text request.
    pub const TEXT: u8 = 0x04;
    /// Data-Out.
    pub const DATA_OUT: u8 = 0x05;
    /// Logout request.
    pub const LOGOUT: u8 = 0x06;
    /// NOP-In.
    pub const NOP_IN: u8 = 0x20;
    /// SCSI response.
    pub const RESPONSE: u8 = 0x21;
    /// Task management response.
    pub const MANAGED: u8 = 0x22;
    /// Login response.
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// Text response.
    pub const TEXT_RESPONSE: u8 = 0x24;
    /// Data-In.
    pub const DATA_IN: u8 = 0x25;
    /// Logout response.
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    /// Ready to transfer.
    pub const R2T: u8 = 0x31;
    /// Reject.
    pub const REJECT: u8 = 0x3f;
}

/// The final bit of many headers.
pub const FINAL: u8 = 0x80;
/// A tag that names nothing.
pub const NO_TAG: u32 = u32::MAX;

/// A basic header segment.
#[derive(Debug, Clone, Copy)]
pub struct Header(pub [u8; HEADER]);

impl Header {
    /// A response of this opcode with these flags; all else is zero.
    pub fn new(opcode: u8, flags: u8) -> Self {
        let mut bytes = [0; HEADER];
        bytes[0] = opcode;
        bytes[1] = flags;
        Self(bytes)
    }
    /// The opcode without the immediate bit.
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }
    /// Whether it is outside the order of commands.
    pub fn immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }
    /// The byte of flags.
    pub fn flags(&self) -> u8 {
        self.0[1]
    }
    /// Bytes of additional header segments.
    pub fn extra_len(&self) -> usize {
        usize::from(self.0[4]) * 4
    }
    /// Bytes of data, padding not counted.
    pub fn data_len(&self) -> usize {
        let [_, _, _, _, _, a, b, c, ..] = self.0;
        usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)
    }
    /// Sets the length of the data.
    pub fn set_data_len(&mut self, len: usize) {
        let [.., a, b, c] = (len as u64).to_be_bytes();
        self.0[5..8].copy_from_slice(&[a, b, c]);
    }
    /// The 32 bits at `at`.
    pub fn word(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        u32::from_be_bytes(bytes)
    }
    /// Sets the 32 bits at `at`.
    pub fn set_word(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
    /// The logical unit field.
    pub fn lun(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[8..16]);
        bytes
    }
    /// The initiator's task tag.
    pub fn tag(&self) -> u32 {
        self.word(16)
    }
    /// As [`Header::set_word`], for building.
    #[must_use]
    pub fn with(mut self, at: usize, value: u32) -> Self {
        self.set_word(at, value);
        self
    }
}

/// The first bytes of a command descriptor block: all that these commands use.
pub type Cdb = [u8; 16];

/// What the PDU of a SCSI command says.
#[derive(Debug, Clone, Copy)]
pub struct CommandPdu {
    /// The initiator's tag.
    pub tag: u32,
    /// The command.
    pub cdb: Cdb,
    /// Bytes that the initiator means to move.
    pub expected: usize,
    /// It reads.
    pub reads: bool,
    /// It writes.
    pub writes: bool,
    /// It is outside the order of commands.
    pub immediate: bool,
}

impl CommandPdu {
    /// That of a header.
    pub fn of(header: &Header) -> Self {
        let flags = header.flags();
        Self {
            tag: header.tag(),
            cdb: header.0[32..48].try_into().unwrap_or_default(),
            expected: header.word(20) as usize,
            reads: flags & 0x40 != 0,
            writes: flags & 0x20 != 0,
            immediate: header.immediate(),
        }
    }
}

/// Which digests follow headers and data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digests {
    /// After headers.
    pub header: bool,
    /// After data.
    pub data: bool,
}

/// A stream that is read until a certain time at most, if there is one.
#[derive(Debug)]
struct Timed {
    stream: TcpStream,
    until: Option<Instant>,
}

impl Read for Timed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buf)
    }
}

/// Reads PDUs of one connection.
#[derive(Debug)]
pub struct Reader {
    inner: BufReader<Timed>,
    /// In force since the end of the login.
    pub digests: Digests,
}

fn padding(len: usize) -> usize {
    len.wrapping_neg() % 4
}

impl Reader {
    /// Reads from `stream`.
    pub fn new(stream: TcpStream) -> Self {
        let inner = BufReader::with_capacity(BUFFERED, Timed { stream, until: None });
        Self { inner, digests: Digests::default() }
    }
    /// Reading fails from `until` on, however often a little comes before; `None`: never.
    ///
    /// # Errors
    /// The system's.
    pub fn read_until(&mut self, until: Option<Instant>) -> io::Result<()> {
        let timed = self.inner.get_mut();
        timed.until = until;
        timed.stream.set_read_timeout(None)
    }
    /// Whether more has arrived already than was read.
    pub fn more_waits(&self) -> bool {
        !self.inner.buffer().is_empty()
    }
    /// The next header; its additional segments are read and dropped, for only bidirectional
    /// commands and long CDBs use them, and there are none.
    ///
    /// # Errors
    /// [`Broken::Io`] at the end of the stream, [`Broken::Digest`], [`Broken::TooLong`].
    pub fn header(&mut self) -> Result<Header, Broken> {
        let mut bytes = [0; HEADER];
        self.inner.read_exact(&mut bytes)?;
        let header = Header(bytes);
        if header.data_len() > DATA_MAX {
            return Err(Broken::TooLong { len: header.data_len() });
        }
        let mut extra = vec![0; header.extra_len()];
        self.inner.read_exact(&mut extra)?;
        if self.digests.header {
            let mut all = bytes.to_vec();
            all.extend_from_slice(&extra);
            self.digest(crc32c(&all))?;
        }
        Ok(header)
    }
    fn digest(&mut self, expected: u32) -> Result<(), Broken> {
        let mut found = [0; 4];
        self.inner.read_exact(&mut found)?;
        if u32::from_le_bytes(found) == expected { Ok(()) } else { Err(Broken::Digest) }
    }
    /// Reads the data segment, all of it, into `into`.
    ///
    /// # Errors
    /// [`Broken::Io`], [`Broken::Digest`].
    pub fn data_into(&mut self, into: &mut [u8]) -> Result<(), Broken> {
        if into.is_empty() {
            return Ok(());
        }
        self.inner.read_exact(into)?;
        let mut pad = [0; 3];
        let pad = &mut pad[..padding(into.len())];
        self.inner.read_exact(pad)?;
        if self.digests.data {
            let mut padded = into.to_vec();
            padded.extend_from_slice(pad);
            self.digest(crc32c(&padded))?;
        }
        Ok(())
    }
    /// The data segment of `header`.
    ///
    /// # Errors
    /// As [`Reader::data_into`].
    pub fn data(&mut self, header: &Header) -> Result<Vec<u8>, Broken> {
        let mut data = vec![0; header.data_len()];
        self.data_into(&mut data)?;
        Ok(data)
    }
}

/// Writes PDUs of one connection.
#[derive(Debug)]
pub struct Writer {
    stream: TcpStream,
    /// In force since the end of the login.
    pub digests: Digests,
}

/// A header and its data, made ready for one gathered write.
#[derive(Debug)]
pub struct Outgoing<'a> {
    header: [u8; HEADER + 4],
    header_len: usize,
    data: &'a [u8],
    tail: [u8; 8],
    tail_len: usize,
}

impl Writer {
    /// Writes to `stream`.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, digests: Digests::default() }
    }
    /// `header` with `data` and what must stand around them.
    pub fn ready<'a>(&self, mut header: Header, data: &'a [u8]) -> Outgoing<'a> {
        header.set_data_len(data.len());
        let mut out = Outgoing {
            header: [0; HEADER + 4],
            header_len: HEADER,
            data,
            tail: [0; 8],
            tail_len: padding(data.len()),
        };
        out.header[..HEADER].copy_from_slice(&header.0);
        if self.digests.header {
            out.header[HEADER..].copy_from_slice(&crc32c(&header.0).to_le_bytes());
            out.header_len += 4;
        }
        if self.digests.data && !data.is_empty() {
            let mut padded = data.to_vec();
            padded.resize(data.len() + out.tail_len, 0);
            let sum = crc32c(&padded).to_le_bytes();
            out.tail[out.tail_len..out.tail_len + 4].copy_from_slice(&sum);
            out.tail_len += 4;
        }
        out
    }
    /// Sends them one after the other, in as few system calls as the system takes.
    ///
    /// # Errors
    /// The system's.
    pub fn send(&mut self, all: &[Outgoing<'_>]) -> io::Result<()> {
        let mut slices = Vec::with_capacity(all.len() * 3);
        for out in all {
            slices.push(IoSlice::new(&out.header[..out.header_len]));
            slices.push(IoSlice::new(out.data));
            slices.push(IoSlice::new(&out.tail[..out.tail_len]));
        }
        slices.retain(|s| !s.is_empty());
        let mut left = slices.as_mut_slice();
        while !left.is_empty() {
            match self.stream.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut left, n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lengths_and_words_stand_where_the_standard_says() {
        let mut h = Header::new(op::DATA_IN, FINAL).with(16, 0x0102_0304);
        h.set_data_len(0x0005_0607);
        assert_eq!(&h.0[..8], [0x25, 0x80, 0, 0, 0, 5, 6, 7]);
        assert_eq!((h.tag(), h.data_len(), h.opcode()), (0x0102_0304, 0x0005_0607, 0x25));
        assert_eq!([0, 1, 2, 3, 4].map(padding), [0, 3, 2, 1, 0]);
    }

    #[test]
    fn who_sends_a_little_now_and_then_is_not_waited_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut reader = Reader::new(listener.accept().unwrap().0);
        let until = Instant::now() + Duration::from_millis(200);
        reader.read_until(Some(until)).unwrap();
        let drip = std::thread::spawn(move || {
            for _ in 0..HEADER {
                std::thread::sleep(Duration::from_millis(20));
                let _ = slow.write_all(&[0]);
            }
        });
        assert!(matches!(reader.header(), Err(Broken::Io(_))));
        drip.join().unwrap();
        // What is left of it, and no time is set any more.
        reader.read_until(None).unwrap();
        let mut left = Vec::new();
        reader.inner.read_to_end(&mut left).unwrap();
        assert!(left.len() < HEADER);
    }

    #[test]
    fn digests_are_those_of_the_standard() {
        // RFC 7143, appendix B.4: 32 bytes of zeros, of ones.
        assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]).to_le_bytes(), [0x43, 0xab, 0xa8, 0x62]);
    }
}

//! Requests as they come from the device: one buffer per thread, checked slices of it. Nothing
//! here trusts a length or an end mark.

use braid_device::{HugeBuf, HugePages};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, READ_BUFFER_LEAST, SetxattrIn, SetxattrMoreIn, WriteIn};
use crate::error::BadRequest;

/// Payloads of WRITE start at a multiple of this, as O_DIRECT to the devices needs it.
const PAYLOAD_ALIGN: usize = 4096;
/// Bytes before the payload of a WRITE.
const WRITE_HEAD: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// The longest SETXATTR: a name of 255 bytes and its NUL, a value of 64 KiB. The kernel refuses one that
/// does not fit with E2BIG.
const SETXATTR_MAX: usize =
    size_of::<InHeader>() + size_of::<SetxattrIn>() + size_of::<SetxattrMoreIn>() + 256 + 65_536;

/// Where a request starts in memory, so that the payload of a WRITE starts on the next page.
pub const REQUEST_START: usize = PAYLOAD_ALIGN - WRITE_HEAD;

/// Every thread that waits for requests has room for one, but only large writes fill it: those of the
/// first threads go to the devices as one segment. What is read has huge pages of its own.
pub static PAGES: HugePages = HugePages::new(16);

/// Room for one request, laid out so that the payload of a WRITE is page aligned. Memory is
/// touched, and so taken from the machine, only as far as requests have filled it.
#[derive(Debug)]
pub struct RequestBuf {
    memory: HugeBuf,
    len: usize,
}

/// Length of the longest request with a payload of at most `max_write` bytes.
pub fn longest(max_write: usize) -> usize {
    (WRITE_HEAD + max_write).max(READ_BUFFER_LEAST).max(SETXATTR_MAX)
}

impl RequestBuf {
    /// For requests with payloads of at most `max_write` bytes.
    pub fn new(max_write: usize) -> Self {
        let len = longest(max_write);
        Self { memory: HugeBuf::within(&PAGES, REQUEST_START + len), len }
    }
    /// Gives its memory back until it is touched again.
    pub fn discard(&mut self) {
        self.memory.discard();
    }
    /// Where the device puts the next request.
    pub fn space(&mut self) -> &mut [u8] {
        self.memory.get_mut(REQUEST_START..REQUEST_START + self.len).unwrap_or_default()
    }
    /// The first `len` bytes of it.
    pub fn filled(&self, len: usize) -> &[u8] {
        self.memory.get(REQUEST_START..REQUEST_START.saturating_add(len)).unwrap_or_default()
    }
}

/// A request: its header and its arguments.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The header.
    pub header: InHeader,
    /// The arguments.
    pub body: Body<'a>,
}

impl<'a> Request<'a> {
    /// Splits a message. Extensions behind the arguments are cut off.
    ///
    /// # Errors
    /// Its length is not what it says.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadRequest> {
        let have = message.len();
        let (header, rest) = InHeader::read_from_prefix(message)
            .map_err(|_| BadRequest::Length { have, need: size_of::<InHeader>() })?;
        let need = usize::try_from(header.len).map_err(|_| BadRequest::Value)?;
        let extensions = usize::from(header.total_extlen) * 8;
        if need != have || extensions > rest.len() {
            return Err(BadRequest::Length { have, need });
        }
        let (arguments, _) = rest.split_at(rest.len() - extensions);
        Ok(Self { header, body: Body(arguments) })
    }
}

/// Arguments, taken from the front.
#[derive(Debug, Clone, Copy)]
pub struct Body<'a>(pub &'a [u8]);

impl<'a> Body<'a> {
    /// A structure.
    ///
    /// # Errors
    /// It is cut off.
    pub fn take<T: FromBytes>(&mut self) -> Result<T, BadRequest> {
        let (value, rest) = T::read_from_prefix(self.0)
            .map_err(|_| BadRequest::Short { have: self.0.len(), need: size_of::<T>() })?;
        self.0 = rest;
        Ok(value)
    }
    /// The last structure of a message, of which older kernels send only the first `least` bytes.
    ///
    /// # Errors
    /// It is cut off before those.
    pub fn take_grown<T: FromBytes + IntoBytes>(&mut self, least: usize) -> Result<T, BadRequest> {
        if self.0.len() < least {
            return Err(BadRequest::Short { have: self.0.len(), need: least });
        }
        let mut value = T::new_zeroed();
        let len = self.0.len().min(size_of::<T>());
        let (head, rest) = self.0.split_at(len);
        if let Some(target) = value.as_mut_bytes().get_mut(..len) {
            target.copy_from_slice(head);
        }
        self.0 = rest;
        Ok(value)
    }
    /// A name, without its NUL.
    ///
    /// # Errors
    /// There is no NUL.
    pub fn name(&mut self) -> Result<&'a [u8], BadRequest> {
        let end = self.0.iter().position(|b| *b == 0).ok_or(BadRequest::Name)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(name)
    }
    /// Exactly `len` bytes that follow.
    ///
    /// # Errors
    /// There are fewer.
    pub fn bytes(&mut self, len: u32) -> Result<&'a [u8], BadRequest> {
        let need = usize::try_from(len).map_err(|_| BadRequest::Value)?;
        let have = self.0.len();
        let (bytes, rest) =
            self.0.split_at_checked(need).ok_or(BadRequest::Short { have, need })?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{CreateIn, InitIn, op};

    fn message(opcode: u32, body: &[u8], extlen: u16) -> Vec<u8> {
        let len = u32::try_from(size_of::<InHeader>() + body.len()).unwrap();
        let header = InHeader { len, opcode, total_extlen: extlen, ..InHeader::default() };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn payload_is_page_aligned() {
        for max_write in [4096, 65536, 1 << 20] {
            let mut buf = RequestBuf::new(max_write);
            let space = buf.space();
            assert_eq!(space[WRITE_HEAD..].as_ptr() as usize % PAYLOAD_ALIGN, 0);
            assert!(space.len() >= WRITE_HEAD + max_write);
            assert!(space.len() >= READ_BUFFER_LEAST && space.len() >= SETXATTR_MAX);
        }
    }

    #[test]
    fn every_cut_of_a_message_is_refused() {
        let mut body = CreateIn::default().as_bytes().to_vec();
        body.extend_from_slice(b"name\0");
        let whole = message(op::CREATE, &body, 0);
        for len in 0..whole.len() {
            assert!(Request::parse(&whole[..len]).is_err(), "{len}");
        }
        let mut request = Request::parse(&whole).unwrap();
        request.body.take::<CreateIn>().unwrap();
        assert_eq!(request.body.name(), Ok(&b"name"[..]));
        assert_eq!(request.body.name(), Err(BadRequest::Name));
        assert_eq!(request.body.bytes(1), Err(BadRequest::Short { have: 0, need: 1 }));
    }

    #[test]
    fn extensions_are_cut_off() {
        let whole = message(op::MKDIR, b"12345678name\0...ext-----", 1);
        assert_eq!(Request::parse(&whole).unwrap().body.0, b"12345678name\0...");
        let lies = message(op::MKDIR, b"1234567", 1);
        assert!(Request::parse(&lies).is_err());
    }

    #[test]
    fn structures_that_grew_are_filled_up() {
        let init = InitIn { major: 7, minor: 31, max_readahead: 5, flags: 9, ..InitIn::default() };
        let mut old = Body(&init.as_bytes()[..16]);
        let read: InitIn = old.take_grown(16).unwrap();
        assert_eq!((read.flags, read.flags2), (9, 0));
        assert!(Body(&init.as_bytes()[..15]).take_grown::<InitIn>(16).is_err());
    }
}

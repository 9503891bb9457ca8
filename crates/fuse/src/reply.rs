//! Answers: one writev(2) each.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::{Errno, writev};
use zerocopy::{Immutable, IntoBytes};

use crate::abi::OutHeader;

/// The device of a mount, shared by everyone who answers.
pub type Device = Arc<OwnedFd>;

/// Sends header and parts as one message; they must be what the kernel expects, to the byte.
///
/// # Errors
/// `ENOENT`: the request is gone (its program was killed). `ENODEV`: unmounted.
pub fn send(device: &Device, unique: u64, code: i32, parts: [&[u8]; 2]) -> Result<(), Errno> {
    let [first, second] = parts;
    let len = size_of::<OutHeader>() + first.len() + second.len();
    let len = u32::try_from(len).map_err(|_| Errno::TOOBIG)?;
    let header = OutHeader { len, error: code, unique };
    let slices = [IoSlice::new(header.as_bytes()), IoSlice::new(first), IoSlice::new(second)];
    let used = if !second.is_empty() {
        3
    } else if !first.is_empty() {
        2
    } else {
        1
    };
    writev(device, slices.get(..used).unwrap_or(&slices)).map(|_| ())
}

/// Where the answer to one request goes. Exactly one answer must be sent.
#[derive(Debug, Clone, Copy)]
pub struct Reply<'a> {
    /// The device that the request came from.
    pub device: &'a Device,
    /// The request.
    pub unique: u64,
}

impl Reply<'_> {
    /// Success, with two parts of payload one behind the other. Returns whether the kernel took it.
    pub fn parts(self, first: &[u8], second: &[u8]) -> bool {
        match send(self.device, self.unique, 0, [first, second]) {
            Ok(()) => true,
            // The program was killed meanwhile, or the mount is gone: nobody waits.
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => false,
            Err(errno) => {
                tracing::error!(unique = self.unique, %errno, "the kernel refused an answer");
                // Not to leave the program waiting: an error always fits.
                let _ = send(self.device, self.unique, -Errno::IO.raw_os_error(), [&[], &[]]);
                false
            }
        }
    }
    /// Success, with this payload.
    pub fn bytes(self, payload: &[u8]) -> bool {
        self.parts(payload, &[])
    }
    /// Success, with one structure.
    pub fn value<T: IntoBytes + Immutable>(self, value: &T) -> bool {
        self.bytes(value.as_bytes())
    }
    /// Failure.
    pub fn error(self, errno: Errno) {
        match send(self.device, self.unique, -errno.raw_os_error(), [&[], &[]]) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => {}
            Err(refusal) => {
                tracing::error!(unique = self.unique, %errno, %refusal, "an error was refused");
            }
        }
    }
}

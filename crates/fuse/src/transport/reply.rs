//! Answers: one writev(2) each, or what a ring entry gives back to the kernel.

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

/// Takes the answer to one request that came by a ring ([`crate::transport::ring`]).
pub trait RingReply: std::fmt::Debug {
    /// Takes it: a negative errno and nothing, or 0 and parts one behind the other. With `at_once`
    /// the kernel has it on return, if [`RingReply::may_be_early`].
    ///
    /// # Errors
    /// It is too large.
    fn answer(&self, unique: u64, code: i32, parts: [&[u8]; 2], at_once: bool)
    -> Result<(), Errno>;
    /// Whether it can go while its message is still needed.
    fn may_be_early(&self) -> bool;
    /// Lends the memory of the answer to `fill`, which says how many bytes there are; then the kernel
    /// has them, still before this returns. Only if [`RingReply::may_be_early`].
    ///
    /// # Errors
    /// That of `fill`: nothing was answered.
    fn fill(
        &self,
        unique: u64,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno>;
}

/// The way by which a request came, and by which its answer goes.
#[derive(Debug, Clone, Copy)]
pub enum Way<'a> {
    /// The device.
    Device(&'a Device),
    /// A ring.
    Ring(&'a dyn RingReply),
}

/// Where the answer to one request goes. Exactly one answer must be sent.
#[derive(Debug, Clone, Copy)]
pub struct Reply<'a> {
    /// The way that the request came.
    pub way: Way<'a>,
    /// The request.
    pub unique: u64,
}

impl Reply<'_> {
    fn send(self, code: i32, parts: [&[u8]; 2], at_once: bool) -> Result<(), Errno> {
        match self.way {
            Way::Device(device) => send(device, self.unique, code, parts),
            Way::Ring(entry) => entry.answer(self.unique, code, parts, at_once),
        }
    }
    fn success(self, parts: [&[u8]; 2], at_once: bool) -> bool {
        match self.send(0, parts, at_once) {
            Ok(()) => true,
            // The program was killed meanwhile, or the mount is gone: nobody waits.
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => false,
            Err(errno) => {
                tracing::error!(unique = self.unique, %errno, "the kernel refused an answer");
                // Not to leave the program waiting: an error always fits.
                let _ = self.send(-Errno::IO.raw_os_error(), [&[], &[]], at_once);
                false
            }
        }
    }
    /// Success, with two parts of payload one behind the other. Returns whether the kernel took it.
    pub fn parts(self, first: &[u8], second: &[u8]) -> bool {
        self.success([first, second], false)
    }
    /// Success, with this payload.
    pub fn bytes(self, payload: &[u8]) -> bool {
        self.parts(payload, &[])
    }
    /// Success, with this payload, which the kernel has on return, whichever way it goes.
    pub fn bytes_at_once(self, payload: &[u8]) -> bool {
        self.success([payload, &[]], true)
    }
    /// Success, with one structure.
    pub fn value<T: IntoBytes + Immutable>(self, value: &T) -> bool {
        self.bytes(value.as_bytes())
    }
    /// The same at once.
    pub fn value_at_once<T: IntoBytes + Immutable>(self, value: &T) -> bool {
        self.bytes_at_once(value.as_bytes())
    }
    /// The ring entry, if it lends memory for the answer.
    pub fn free_entry(&self) -> Option<&dyn RingReply> {
        match self.way {
            Way::Ring(entry) if entry.may_be_early() => Some(entry),
            _ => None,
        }
    }
    /// Whether it can be answered while its message is still needed.
    pub fn may_be_early(self) -> bool {
        match self.way {
            Way::Device(_) => true,
            Way::Ring(entry) => entry.may_be_early(),
        }
    }
    /// Failure.
    pub fn error(self, errno: Errno) {
        match self.send(-errno.raw_os_error(), [&[], &[]], false) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => {}
            Err(refusal) => {
                tracing::error!(unique = self.unique, %errno, %refusal, "an error was refused");
            }
        }
    }
}

//! One request on its way: what remains of it, and the bounce buffer if its memory does not suit
//! the device.

use std::io;

use super::Call;
use crate::{AlignedBuf, RingTarget};

/// Largest call: the kernel's own limit is just below 2 GiB.
const CALL_MAX: usize = 1 << 30;
/// Largest bounce buffer: a longer transfer goes in pieces.
const BOUNCE_MAX: usize = 1 << 20;

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
}

/// What follows a completed call.
#[derive(Debug)]
pub(crate) enum Next {
    /// Another call: [`Transfer::call`].
    Again,
    /// Nothing.
    Done(io::Result<()>),
}

/// A read, write or flush of any length, by as many calls as it takes. `owner` is the caller's
/// name for it.
#[derive(Debug)]
pub(crate) struct Transfer {
    owner: u32,
    kind: Kind,
    fd: i32,
    at: u64,
    base: *mut u8,
    len: usize,
    /// Bytes that are through.
    done: usize,
    /// A shorter step than this cannot be continued from.
    sector: usize,
    bounce: Option<AlignedBuf>,
}

impl Transfer {
    /// Fills `len` bytes at `base` from `at`.
    pub fn read(owner: u32, target: RingTarget<'_>, at: u64, base: *mut u8, len: usize) -> Self {
        Self::new(owner, Kind::Read, target, at, (base, len))
    }
    /// Writes `len` bytes from `base` to `at`. The memory is only read.
    pub fn write(owner: u32, target: RingTarget<'_>, at: u64, base: *const u8, len: usize) -> Self {
        Self::new(owner, Kind::Write, target, at, (base.cast_mut(), len))
    }
    /// Flushes the device.
    pub fn flush(owner: u32, target: RingTarget<'_>) -> Self {
        Self::new(owner, Kind::Flush, target, 0, (std::ptr::null_mut(), 0))
    }
    fn new(
        owner: u32,
        kind: Kind,
        target: RingTarget<'_>,
        at: u64,
        (base, len): (*mut u8, usize),
    ) -> Self {
        let bounce = (len != 0 && base.addr() % target.memory_align != 0)
            .then(|| AlignedBuf::zeroed(len.min(BOUNCE_MAX)));
        Self { owner, kind, fd: target.fd, at, base, len, done: 0, sector: target.sector, bounce }
    }
    pub fn owner(&self) -> u32 {
        self.owner
    }
    /// Frees the bounce buffer and forgets the caller's memory.
    pub fn release(&mut self) {
        self.bounce = None;
        self.base = std::ptr::null_mut();
        self.len = 0;
    }
    /// Length of the next call.
    fn step(&self) -> usize {
        let most = self.bounce.as_ref().map_or(CALL_MAX, |b| b.len());
        (self.len - self.done).min(most)
    }
    /// The next call.
    pub fn call(&mut self) -> Call {
        let step = self.step();
        // SAFETY: `done` is at most `len`, the size of the caller's memory.
        let rest = unsafe { self.base.add(self.done) };
        let mut base = rest;
        if let Some(bounce) = &mut self.bounce {
            if self.kind == Kind::Write {
                // SAFETY: `step` bytes are left of the caller's memory, which nobody writes while
                // the transfer lives, and they fit the bounce buffer.
                bounce[..step].copy_from_slice(unsafe { std::slice::from_raw_parts(rest, step) });
            }
            base = bounce.as_mut_ptr();
        }
        let len = u32::try_from(step).expect("a call is at most CALL_MAX");
        Call { kind: self.kind, fd: self.fd, at: self.at + self.done as u64, base, len }
    }
    /// Takes in what the kernel said: bytes moved, or a negative error number.
    pub fn completed(&mut self, result: i32) -> Next {
        let Ok(moved) = usize::try_from(result) else {
            return match -result {
                libc::EINTR | libc::EAGAIN => Next::Again,
                errno => Next::Done(Err(io::Error::from_raw_os_error(errno))),
            };
        };
        if self.kind == Kind::Flush {
            return Next::Done(Ok(()));
        }
        let step = self.step();
        assert!(moved <= step, "the kernel moved more than it was asked to");
        // A direct transfer can only go on from a sector boundary.
        let moved = if moved == step { moved } else { moved / self.sector * self.sector };
        if moved == 0 && step != 0 {
            let kind = match self.kind {
                Kind::Write => io::ErrorKind::WriteZero,
                Kind::Read | Kind::Flush => io::ErrorKind::UnexpectedEof,
            };
            return Next::Done(Err(kind.into()));
        }
        if let (Some(bounce), Kind::Read) = (&self.bounce, self.kind) {
            // SAFETY: `moved <= step` bytes are left of the caller's memory, which this transfer
            // has to itself.
            let rest = unsafe { std::slice::from_raw_parts_mut(self.base.add(self.done), moved) };
            rest.copy_from_slice(&bounce[..moved]);
        }
        self.done += moved;
        if self.done == self.len { Next::Done(Ok(())) } else { Next::Again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: RingTarget<'static> =
        RingTarget { fd: 9, sector: 512, memory_align: 512, poisoned: None };

    #[test]
    fn short_and_interrupted_calls_go_on_where_they_stopped() {
        let mut buf = AlignedBuf::zeroed(4096);
        let mut t = Transfer::read(7, TARGET, 8192, buf.as_mut_ptr(), 4096);
        assert_eq!((t.call().at, t.call().len), (8192, 4096));
        assert!(matches!(t.completed(-libc::EINTR), Next::Again));
        assert_eq!((t.call().at, t.call().len), (8192, 4096));
        // 1500 bytes: two sectors count.
        assert!(matches!(t.completed(1500), Next::Again));
        let call = t.call();
        assert_eq!((call.at, call.len), (8192 + 1024, 3072));
        assert_eq!(call.base.addr(), buf.as_ptr().addr() + 1024);
        assert!(matches!(t.completed(3072), Next::Done(Ok(()))));
        assert_eq!(t.owner(), 7);
    }
    #[test]
    fn the_end_of_the_device_is_an_error_and_not_a_loop() {
        let mut buf = AlignedBuf::zeroed(4096);
        let mut t = Transfer::read(0, TARGET, 0, buf.as_mut_ptr(), 4096);
        let Next::Done(Err(e)) = t.completed(0) else { panic!("not done") };
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
        let Next::Done(Err(e)) = t.completed(-libc::EIO) else { panic!("not done") };
        assert_eq!(e.raw_os_error(), Some(libc::EIO));
    }
    #[test]
    fn a_bounced_transfer_goes_in_pieces() {
        let total = BOUNCE_MAX + 512;
        let mut memory = vec![0_u8; total + 513];
        // An odd address, whatever the allocator gave.
        let from = usize::from(memory.as_ptr().addr().is_multiple_of(2));
        let base = memory[from..].as_mut_ptr();
        let mut t = Transfer::read(0, TARGET, 0, base, total);
        for (len, value) in [(BOUNCE_MAX, 1), (512, 2)] {
            let call = t.call();
            assert_eq!(call.len as usize, len);
            // SAFETY: the bounce buffer has at least `len` bytes; the test plays the kernel.
            unsafe { call.base.write_bytes(value, len) };
            let more = matches!(t.completed(i32::try_from(len).unwrap()), Next::Again);
            assert_eq!(more, value == 1);
        }
        assert!(memory[from..from + BOUNCE_MAX].iter().all(|b| *b == 1));
        assert!(memory[from + BOUNCE_MAX..from + total].iter().all(|b| *b == 2));
    }
}

//! A command to a descriptor that the kernel keeps until it has something to say, in memory that is
//! lent to it with the command: `IORING_OP_URING_CMD` with submissions of 128 bytes.
//!
//! ```text
//!           send            wait (completed)
//!  ours ----------> lent -------------------> ours
//! ```
//!
//! Invariant: while a command is out, the memory is the kernel's, and nobody here can see it.

use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::HugeBuf;

/// Entries of the submission queue; there is never more than one command.
const ENTRIES: u32 = 2;
/// Bytes of a command's own.
const COMMAND: usize = 80;
/// Where `len` stands in a submission.
const LEN_AT: usize = 24;
const _: () = assert!(size_of::<squeue::Entry128>() == 128);

/// One command at a time, with two pieces of memory, on a ring of the thread that made it.
pub struct CommandRing {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    target: Arc<OwnedFd>,
    memory: ManuallyDrop<HugeBuf>,
    /// As the kernel is told, which may look at any time while a command is out.
    pieces: Box<[libc::iovec; 2]>,
    lent: bool,
    /// A ring is bound to its thread (`SINGLE_ISSUER`).
    _thread: PhantomData<*const ()>,
}
impl std::fmt::Debug for CommandRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandRing").field("lent", &self.lent).finish_non_exhaustive()
    }
}

impl CommandRing {
    /// For commands to `target`. The first piece of memory is the first `head` bytes of it, the
    /// second all that is behind `body`.
    ///
    /// # Errors
    /// The kernel gives no such ring.
    ///
    /// # Panics
    /// If the pieces overlap or lie outside.
    pub fn new(
        target: Arc<OwnedFd>,
        mut memory: HugeBuf,
        head: usize,
        body: usize,
    ) -> io::Result<Self> {
        assert!(head <= body && body <= memory.len(), "pieces of memory");
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(ENTRIES)?;
        // Saves a look-up of the descriptor per call; there need not be a place for it.
        let _ = ring.submitter().register_ring_fd();
        let len = memory.len() - body;
        let base: *mut u8 = memory.as_mut_ptr();
        let pieces = Box::new([
            libc::iovec { iov_base: base.cast(), iov_len: head },
            libc::iovec { iov_base: base.wrapping_add(body).cast(), iov_len: len },
        ]);
        let memory = ManuallyDrop::new(memory);
        Ok(Self { ring, target, memory, pieces, lent: false, _thread: PhantomData })
    }
    /// Makes a command ready, which goes to the kernel with the next [`CommandRing::hand_over`] or
    /// [`CommandRing::wait`]. The memory goes with it.
    ///
    /// # Panics
    /// If one is out already, or `bytes` are more than a command has room for.
    pub fn send(&mut self, command: u32, bytes: &[u8]) {
        assert!(!self.lent, "one command at a time");
        let mut own = [0; COMMAND];
        own[..bytes.len()].copy_from_slice(bytes);
        let pieces = self.pieces.as_ptr().expose_provenance() as u64;
        let target = types::Fd(self.target.as_raw_fd());
        let mut entry =
            opcode::UringCmd80::new(target, command).cmd(own).addr(Some(pieces)).build();
        // SAFETY: inside the submission's 128 bytes (asserted above), aligned as it is; `len` of
        // `struct io_uring_sqe`, for which the builder has no word.
        unsafe { (&raw mut entry).cast::<u32>().add(LEN_AT / size_of::<u32>()).write(2) };
        // SAFETY: memory and pieces stay where they are until the command is completed, or for ever
        // (`drop`); the descriptor is open as long as `self` is.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("room for the only command");
        self.lent = true;
    }
    /// Hands over what was sent, without waiting.
    ///
    /// # Errors
    /// The ring failed.
    pub fn hand_over(&mut self) -> io::Result<()> {
        self.enter(0, None)
    }
    /// Hands over what was sent and waits until the command is completed, but not for longer than
    /// `at_most`. Returns its result: the memory is back.
    ///
    /// # Errors
    /// The ring failed: the memory is lost.
    ///
    /// # Panics
    /// If no command is out.
    pub fn wait(&mut self, at_most: Option<Duration>) -> io::Result<Option<i32>> {
        assert!(self.lent, "no command is out");
        let end = at_most.map(|time| Instant::now() + time);
        loop {
            if let Some(done) = self.ring.completion().next() {
                self.lent = false;
                return Ok(Some(done.result()));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            self.enter(1, left)?;
        }
    }
    fn enter(&mut self, at_least: usize, at_most: Option<Duration>) -> io::Result<()> {
        loop {
            let entered = match at_most {
                None => self.ring.submit_and_wait(at_least),
                Some(time) => {
                    let time = types::Timespec::from(time);
                    let args = types::SubmitArgs::new().timespec(&time);
                    self.ring.submitter().submit_with_args(at_least, &args)
                }
            };
            match entered {
                Ok(_) => return Ok(()),
                Err(e) => match e.raw_os_error() {
                    Some(libc::ETIME) => return Ok(()),
                    Some(libc::EINTR) => {}
                    // Short of memory.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    _ => return Err(e),
                },
            }
        }
    }
    /// Gives the memory back to the machine: it reads as zeroes, and is there again when touched.
    /// Also while it is lent, for commands whose target writes to it only inside a wait.
    pub fn discard(&mut self) {
        self.memory.discard();
    }
    /// The memory.
    ///
    /// # Panics
    /// If a command is out.
    pub fn memory(&mut self) -> &mut [u8] {
        assert!(!self.lent, "the memory is the kernel's");
        &mut self.memory
    }
}

impl Drop for CommandRing {
    fn drop(&mut self) {
        // The place is per thread and is not given back with the ring.
        let _ = self.ring.submitter().unregister_ring_fd();
        // Memory that the kernel may still write to is nobody else's ever again.
        if !self.lent {
            // SAFETY: dropped here only, once.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_with_a_command_and_comes_back() {
        let null = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let mut ring = match CommandRing::new(null, HugeBuf::new(8192), 288, 4096) {
            Ok(ring) => ring,
            Err(error) => return braid_testkit::skip(&format!("io_uring: {error}")),
        };
        for turn in 1..=3 {
            ring.memory().fill(turn);
            ring.send(1, &[turn; 24]);
            let lent =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ring.memory().len()));
            assert!(lent.is_err(), "the memory is the kernel's");
            ring.hand_over().unwrap();
            // Whether the device of nothing knows commands depends on the kernel.
            assert!(ring.wait(Some(Duration::from_mins(1))).unwrap().is_some_and(|n| n <= 0));
            assert!(ring.memory().iter().all(|b| *b == turn));
        }
        ring.discard();
        assert!(ring.memory().iter().all(|b| *b == 0));
    }
}

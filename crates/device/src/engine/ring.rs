//! A ring of one thread.

use std::io;

use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::call::{Call, DEPTH, Kind, Memory};

/// Entries of the submission queue. A fuller batch is handed over in several system calls.
const ENTRIES: u32 = 128;

/// An `io_uring` of the thread that made it. Whoever pushes to it waits for as many completions
/// before dropping it; at most [`DEPTH`] calls are in flight, so completions always have room.
pub(super) struct Ring {
    ring: IoUring,
    /// A ring is bound to its thread (`SINGLE_ISSUER`).
    _thread: std::marker::PhantomData<*const ()>,
}
impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl Ring {
    pub fn new() -> io::Result<Self> {
        let ring = Self::build()?;
        // Saves a descriptor look-up per call; the kernel has 16 places per thread, and does not
        // need to have any.
        let _ = ring.submitter().register_ring_fd();
        Ok(Self { ring, _thread: std::marker::PhantomData })
    }
    /// The newest set of features that this kernel has.
    fn build() -> io::Result<IoUring> {
        let queue = u32::try_from(DEPTH).unwrap_or(u32::MAX);
        let with = |defer: bool, single: bool| {
            let mut b = IoUring::builder();
            b.setup_cqsize(queue);
            if single {
                b.setup_single_issuer();
            }
            if defer {
                b.setup_defer_taskrun();
            }
            b.build(ENTRIES)
        };
        let refused = |e: &io::Error| e.raw_os_error() == Some(libc::EINVAL);
        match with(true, true) {
            Err(e) if refused(&e) => match with(false, true) {
                Err(e) if refused(&e) => with(false, false),
                other => other,
            },
            other => other,
        }
    }
    /// Whether the kernel gives this process a ring that can do what is needed.
    pub fn probe() -> io::Result<()> {
        let ring = Self::build()?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Readv::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
        ];
        if !needed.into_iter().all(|code| probe.is_supported(code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if !ring.params().is_feature_nodrop() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(())
    }
    fn entry(token: u32, call: &Call) -> squeue::Entry {
        let fd = types::Fd(call.fd);
        let entry = match (call.kind, call.memory) {
            (Kind::Read, Memory::Plain(base, len)) => {
                opcode::Read::new(fd, base, len).offset(call.at).build()
            }
            (Kind::Write, Memory::Plain(base, len)) => {
                opcode::Write::new(fd, base.cast_const(), len).offset(call.at).build()
            }
            (Kind::Read, Memory::Vectors(list, len)) => {
                opcode::Readv::new(fd, list, len).offset(call.at).build()
            }
            (Kind::Write, Memory::Vectors(list, len)) => {
                opcode::Writev::new(fd, list, len).offset(call.at).build()
            }
            (Kind::Flush, _) => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        entry.user_data(u64::from(token))
    }
    /// # Safety
    /// See [`Call`].
    pub unsafe fn push(&mut self, token: u32, call: &Call) {
        let entry = Self::entry(token, call);
        loop {
            // SAFETY: the caller keeps the memory and the descriptor until the completion.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
            self.enter(0);
        }
    }
    /// Hands over what was pushed and waits for `at_least` completions in the queue.
    fn enter(&mut self, at_least: usize) {
        loop {
            match self.ring.submit_and_wait(at_least) {
                Ok(_) => return,
                Err(e) => match e.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Short of memory, or completions must be taken out first.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {
                        if !self.ring.completion().is_empty() {
                            return;
                        }
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    // The kernel may hold addresses of memory that callers will free, and there is
                    // no way left to learn when it is done with them.
                    _ => {
                        tracing::error!("the io_uring of this thread failed: {e}");
                        std::process::abort();
                    }
                },
            }
        }
    }
    pub fn wait(&mut self, at_least: usize, done: &mut Vec<(u32, i32)>) {
        loop {
            let missing = at_least.saturating_sub(done.len());
            let ready = self.ring.completion().len();
            let unsent = self.ring.submission().len();
            if unsent != 0 || ready < missing {
                self.enter(missing);
            }
            for entry in self.ring.completion() {
                let token = u32::try_from(entry.user_data()).expect("tokens are pushed as u32");
                done.push((token, entry.result()));
            }
            let sent = self.ring.submission().is_empty();
            if sent && done.len() >= at_least {
                return;
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The place is per thread and is not given back with the ring.
        let _ = self.ring.submitter().unregister_ring_fd();
    }
}

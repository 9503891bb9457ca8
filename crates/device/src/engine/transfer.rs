//! One request on its way: what remains of it, and the bounce buffer if its memory does not suit
//! the device.

use std::io;
use std::ptr::NonNull;
use std::time::Instant;

use super::call::{Call, Kind, Memory};
use crate::huge::is_huge;
use crate::traffic::IoCounters;
use crate::{AlignedBuf, RingTarget};

/// Largest call: the kernel's own limit is just below 2 GiB.
const CALL_MAX: usize = 1 << 30;
/// Largest call of several requests: beyond that a system call costs little beside the bytes.
const JOINED_MAX: usize = 1 << 20;
/// Requests of one call, at most: the kernel takes 1024.
const SEGMENTS_MAX: usize = 256;
/// Largest bounce buffer: a longer transfer goes in pieces.
const BOUNCE_MAX: usize = 1 << 20;

/// What follows a completed call.
#[derive(Debug)]
pub(crate) enum Next {
    /// Another call: [`Transfer::call`].
    Again,
    /// Nothing.
    Done(io::Result<()>),
}

/// Memory of one request in a transfer, and the caller's name for that request.
#[derive(Debug, Clone, Copy)]
struct Segment {
    owner: u32,
    base: *mut u8,
    len: usize,
}

/// A read, write or flush of any length, by as many calls as it takes; of one request, or of several
/// that stand side by side on the device.
#[derive(Debug)]
pub(crate) struct Transfer {
    kind: Kind,
    fd: i32,
    at: u64,
    first: Segment,
    /// Of the requests that were joined to the first.
    others: Vec<Segment>,
    /// Bytes of all of them.
    len: usize,
    /// Bytes that are through.
    done: usize,
    /// A shorter step than this cannot be continued from.
    sector: usize,
    /// Bytes of a call, at most.
    most: usize,
    is_call: bool,
    /// Where a write goes on that direct I/O refuses.
    buffered: Option<i32>,
    bounce: Option<AlignedBuf>,
    /// What the kernel has of a call of several segments.
    vectors: Vec<libc::iovec>,
    /// Where calls are counted, if anywhere.
    counters: Option<NonNull<IoCounters>>,
    /// When the first call began.
    begun: Option<Instant>,
}

impl Transfer {
    /// Fills `len` bytes at `base` from `at`.
    pub fn read(owner: u32, target: RingTarget<'_>, at: u64, base: *mut u8, len: usize) -> Self {
        Self::new(Kind::Read, target, at, Segment { owner, base, len })
    }
    /// Writes `len` bytes from `base` to `at`. The memory is only read.
    pub fn write(owner: u32, target: RingTarget<'_>, at: u64, base: *const u8, len: usize) -> Self {
        Self::new(Kind::Write, target, at, Segment { owner, base: base.cast_mut(), len })
    }
    /// Flushes the device.
    pub fn flush(owner: u32, target: RingTarget<'_>) -> Self {
        Self::new(Kind::Flush, target, 0, Segment { owner, base: std::ptr::null_mut(), len: 0 })
    }
    fn new(kind: Kind, target: RingTarget<'_>, at: u64, first: Segment) -> Self {
        let len = first.len;
        let whole = len > target.most_scattered && is_huge(first.base, len);
        let most = if whole { target.most } else { target.most_scattered };
        let bounce = (len != 0 && !first.base.addr().is_multiple_of(target.memory_align))
            .then(|| AlignedBuf::zeroed(len.min(BOUNCE_MAX)));
        let buffered = target.buffered.filter(|_| kind == Kind::Write);
        let refused = buffered.filter(|b| !b.takes(at, len)).map(|b| b.fd);
        Self {
            kind,
            fd: refused.unwrap_or(target.fd),
            at,
            first,
            others: Vec::new(),
            len,
            done: 0,
            sector: target.sector,
            most: most.clamp(target.sector, CALL_MAX),
            is_call: target.by_call,
            buffered: buffered.map(|b| b.fd),
            bounce,
            vectors: Vec::new(),
            counters: target.counters.map(NonNull::from),
            begun: None,
        }
    }
    /// Whether it is a plain call of the thread that has it, rather than an engine's.
    pub fn is_call(&self) -> bool {
        self.is_call
    }
    /// Takes off what the first call is to move, if that is not all. (Through a bounce buffer the calls
    /// follow one another.)
    pub fn cut(&mut self) -> Option<Self> {
        if self.len <= self.most || self.bounce.is_some() {
            return None;
        }
        let len = self.most;
        let first = Self {
            first: Segment { len, ..self.first },
            others: Vec::new(),
            vectors: Vec::new(),
            bounce: None,
            len,
            ..*self
        };
        self.at += len as u64;
        // SAFETY: `len` is less than the size of the caller's memory.
        self.first.base = unsafe { self.first.base.add(len) };
        self.len -= len;
        self.first.len = self.len;
        Some(first)
    }
    /// Takes in a transfer that was not issued and follows this one on the device, if this one was not
    /// issued either.
    pub fn join(&mut self, next: &Self) -> bool {
        let same_device = self.fd == next.fd && self.counters == next.counters;
        let side_by_side = same_device && self.at + self.len as u64 == next.at;
        let alike = self.kind == next.kind && self.kind != Kind::Flush;
        let fits = self.len + next.len <= self.most.min(JOINED_MAX)
            && self.others.len() + 1 < SEGMENTS_MAX;
        let unissued = self.done == 0 && next.done == 0;
        let plain = self.bounce.is_none() && next.bounce.is_none() && next.others.is_empty();
        let joined = side_by_side && alike && fits && unissued && plain;
        if joined {
            self.others.push(next.first);
            self.len += next.len;
        }
        joined
    }
    /// Takes another's place, and keeps its own lists' memory for it.
    pub fn become_another(&mut self, other: Self) {
        let (others, vectors) =
            (std::mem::take(&mut self.others), std::mem::take(&mut self.vectors));
        *self = Self { others, vectors, ..other };
    }
    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
    /// Says how it ended to each request that it is of, but not of an error to one of several: how
    /// many were told.
    pub fn report(
        &self,
        result: io::Result<()>,
        done: &mut impl FnMut(u32, io::Result<()>),
    ) -> usize {
        if let (Some(counters), Some(begun)) = (self.counters(), self.begun) {
            if self.kind != Kind::Flush {
                counters.took(self.kind == Kind::Write, begun.elapsed());
            }
            counters.failed_if(&result);
        }
        if self.others.is_empty() {
            done(self.first.owner, result);
            return 1;
        }
        let mut end = 0;
        let mut told = 0;
        for s in self.segments() {
            end += s.len;
            if end <= self.done {
                done(s.owner, Ok(()));
                told += 1;
            }
        }
        told
    }
    /// Of several that failed together, those that are not through: each by itself, so that the error
    /// falls on the one that it is of.
    pub fn unjoin(&self) -> Vec<Self> {
        let mut alone = Vec::new();
        let mut from = 0;
        if !self.others.is_empty() && self.done < self.len {
            for s in self.segments() {
                if from + s.len > self.done {
                    let (others, vectors) = (Vec::new(), Vec::new());
                    let at = self.at + from as u64;
                    let (len, done, begun) = (s.len, 0, None);
                    alone.push(Self {
                        first: s,
                        others,
                        vectors,
                        bounce: None,
                        at,
                        len,
                        done,
                        begun,
                        ..*self
                    });
                }
                from += s.len;
            }
        }
        alone
    }
    /// Frees the bounce buffer and forgets the callers' memory.
    pub fn release(&mut self) {
        self.bounce = None;
        self.first.base = std::ptr::null_mut();
        self.others.clear();
        self.vectors.clear();
        self.counters = None;
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
        if self.begun.is_none() {
            self.begun = Some(Instant::now());
            match (self.counters(), self.kind) {
                (Some(counters), Kind::Flush) => counters.flush(),
                (Some(counters), kind) => counters.transfer(kind == Kind::Write, self.len),
                (None, _) => {}
            }
        }
        let memory = if self.others.is_empty() { self.plain(step) } else { self.vectored() };
        Call { kind: self.kind, fd: self.fd, at: self.at + self.done as u64, memory }
    }
    fn counters(&self) -> Option<&IoCounters> {
        // SAFETY: the caller of `Flight::start` keeps them where they are until it is reported.
        self.counters.map(|c| unsafe { c.as_ref() })
    }
    fn plain(&mut self, step: usize) -> Memory {
        // SAFETY: `done` is at most `len`, the size of the caller's memory.
        let rest = unsafe { self.first.base.add(self.done) };
        let mut base = rest;
        if let Some(bounce) = &mut self.bounce {
            if self.kind == Kind::Write {
                // SAFETY: `step` bytes are left of the caller's memory, which nobody writes while
                // the transfer lives, and they fit the bounce buffer.
                bounce[..step].copy_from_slice(unsafe { std::slice::from_raw_parts(rest, step) });
            }
            base = bounce.as_mut_ptr();
        }
        Memory::Plain(base, u32::try_from(step).expect("a call is at most CALL_MAX"))
    }
    /// All that is left of the segments.
    fn vectored(&mut self) -> Memory {
        let mut vectors = std::mem::take(&mut self.vectors);
        vectors.clear();
        let mut through = self.done;
        for s in self.segments() {
            let skip = through.min(s.len);
            through -= skip;
            if skip < s.len {
                // SAFETY: `skip` is less than the size of this memory.
                let iov_base = unsafe { s.base.add(skip) }.cast();
                vectors.push(libc::iovec { iov_base, iov_len: s.len - skip });
            }
        }
        self.vectors = vectors;
        let count = u32::try_from(self.vectors.len()).expect("at most SEGMENTS_MAX");
        Memory::Vectors(self.vectors.as_ptr(), count)
    }
    /// Takes in what the kernel said: bytes moved, or a negative error number.
    pub fn completed(&mut self, result: i32) -> Next {
        let Ok(moved) = usize::try_from(result) else {
            return match -result {
                libc::EINTR | libc::EAGAIN => Next::Again,
                libc::EINVAL if self.buffered.is_some_and(|fd| fd != self.fd) => {
                    // The unit of direct writes is larger than it was when the file was opened.
                    self.fd = self.buffered.unwrap_or(self.fd);
                    Next::Again
                }
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
            let rest =
                unsafe { std::slice::from_raw_parts_mut(self.first.base.add(self.done), moved) };
            rest.copy_from_slice(&bounce[..moved]);
        }
        self.done += moved;
        if self.done == self.len { Next::Done(Ok(())) } else { Next::Again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferedTarget, DeviceError, HugeBuf, Intact};

    const TARGET: RingTarget<'static> = RingTarget {
        fd: 9,
        buffered: None,
        sector: 512,
        memory_align: 512,
        most: 2 << 20,
        most_scattered: 2 << 20,
        by_call: false,
        poisoned: None,
        intact: &Whole,
        counters: None,
    };

    #[derive(Debug)]
    struct Whole;
    impl Intact for Whole {
        fn intact(&self) -> Result<(), DeviceError> {
            Ok(())
        }
        fn was_intact(&self) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    fn plain(call: &Call) -> *mut u8 {
        let Memory::Plain(base, _) = call.memory else { panic!("in several places") };
        base
    }
    fn whole(call: &Call) -> (u64, u32) {
        let Memory::Plain(_, len) = call.memory else { panic!("in several places") };
        (call.at, len)
    }
    fn vectors(call: &Call) -> Vec<(*mut u8, usize)> {
        let Memory::Vectors(list, count) = call.memory else { panic!("in one place") };
        // SAFETY: the transfer's own list, which lives as long as it.
        let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
        list.iter().map(|v| (v.iov_base.cast(), v.iov_len)).collect()
    }
    fn owners(t: &Transfer, result: io::Result<()>) -> Vec<u32> {
        let mut told = Vec::new();
        assert_eq!(t.report(result, &mut |owner, _| told.push(owner)), told.len());
        told
    }

    #[test]
    fn short_and_interrupted_calls_go_on_where_they_stopped() {
        let mut buf = AlignedBuf::zeroed(4096);
        let mut t = Transfer::read(7, TARGET, 8192, buf.as_mut_ptr(), 4096);
        assert_eq!(whole(&t.call()), (8192, 4096));
        assert!(matches!(t.completed(-libc::EINTR), Next::Again));
        assert_eq!(whole(&t.call()), (8192, 4096));
        // 1500 bytes: two sectors count.
        assert!(matches!(t.completed(1500), Next::Again));
        let call = t.call();
        assert_eq!(whole(&call), (8192 + 1024, 3072));
        assert_eq!(plain(&call).addr(), buf.as_ptr().addr() + 1024);
        assert!(matches!(t.completed(3072), Next::Done(Ok(()))));
        assert_eq!(owners(&t, Ok(())), [7]);
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
            assert_eq!(whole(&call).1 as usize, len);
            // SAFETY: the bounce buffer has at least `len` bytes; the test plays the kernel.
            unsafe { plain(&call).write_bytes(value, len) };
            let more = matches!(t.completed(i32::try_from(len).unwrap()), Next::Again);
            assert_eq!(more, value == 1);
        }
        assert!(memory[from..from + BOUNCE_MAX].iter().all(|b| *b == 1));
        assert!(memory[from + BOUNCE_MAX..from + total].iter().all(|b| *b == 2));
    }
    #[test]
    fn neighbours_are_joined_and_go_on_in_the_middle_of_one() {
        let mut buf = AlignedBuf::zeroed(3 * 4096);
        let base = buf.as_mut_ptr();
        // The memory need not follow, only the places on the device.
        let place = |n: usize| base.wrapping_add([8192, 0, 4096][n]);
        let one = |n: u32, at| Transfer::read(n, TARGET, at, place(n as usize), 4096);
        let mut t = one(0, 0);
        assert!(!t.join(&one(1, 8192)), "a gap");
        assert!(!t.join(&Transfer::write(1, TARGET, 4096, place(1), 4096)), "another kind");
        let other = RingTarget { fd: 8, ..TARGET };
        assert!(!t.join(&Transfer::read(1, other, 4096, place(1), 4096)), "another device");
        let odd = Transfer::read(1, TARGET, 4096, base.wrapping_add(1), 4096);
        assert!(!t.join(&odd), "through a bounce buffer");
        assert!(t.join(&one(1, 4096)) && t.join(&one(2, 8192)));
        assert_eq!(vectors(&t.call()), [(place(0), 4096), (place(1), 4096), (place(2), 4096)]);
        assert!(matches!(t.completed(4096 + 512), Next::Again));
        let call = t.call();
        assert_eq!(call.at, 4096 + 512);
        assert_eq!(vectors(&call), [(place(1).wrapping_add(512), 3584), (place(2), 4096)]);
        assert!(!t.join(&one(1, 12288)), "begun already");
        // What is through is reported, what is not is tried again by itself.
        assert!(matches!(t.completed(3584), Next::Again));
        let Next::Done(result) = t.completed(-libc::EIO) else { panic!("not done") };
        assert_eq!(owners(&t, result), [0, 1]);
        let mut alone = t.unjoin();
        assert_eq!(alone.len(), 1);
        assert_eq!((alone[0].call().at, plain(&alone[0].call())), (8192, place(2)));
        let Next::Done(result) = alone[0].completed(-libc::EIO) else { panic!("not done") };
        assert!(result.is_err() && alone[0].unjoin().is_empty());
        assert_eq!(owners(&alone[0], result), [2]);
    }
    #[test]
    fn what_direct_io_does_not_take_goes_through_the_page_cache() {
        let buffered = BufferedTarget { fd: 4, unit: 4096 };
        let target = RingTarget { buffered: Some(buffered), ..TARGET };
        let mut buf = AlignedBuf::zeroed(8192);
        let base = buf.as_mut_ptr();
        for (at, len, fd) in [(0, 4096, 9), (4096, 8192, 9), (512, 4096, 4), (0, 512, 4)] {
            let mut t = Transfer::write(0, target, at, base, len);
            assert_eq!(t.call().fd, fd, "{len} at {at}");
            assert_eq!(Transfer::read(0, target, at, base, len).call().fd, 9, "a read");
        }
        // The unit has become larger since.
        let mut t = Transfer::write(0, target, 4096, base, 4096);
        assert_eq!(t.call().fd, 9);
        assert!(matches!(t.completed(-libc::EINVAL), Next::Again));
        assert_eq!((t.call().fd, whole(&t.call())), (4, (4096, 4096)));
        let Next::Done(refused) = t.completed(-libc::EINVAL) else { panic!("not done") };
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let mut read = Transfer::read(0, target, 4096, base, 4096);
        assert!(matches!(read.completed(-libc::EINVAL), Next::Done(Err(_))));
    }
    #[test]
    fn calls_are_no_larger_than_the_device_takes() {
        let target = RingTarget { most_scattered: 65536, ..TARGET };
        let mut buf = AlignedBuf::zeroed(160 << 10);
        let base = buf.as_mut_ptr();
        let mut rest = Transfer::write(0, target, 4096, base, 160 << 10);
        let mut first = rest.cut().unwrap();
        let mut second = rest.cut().unwrap();
        assert!(rest.cut().is_none());
        for (t, from, len) in
            [(&mut first, 0, 65536), (&mut second, 65536, 65536), (&mut rest, 131_072, 32768)]
        {
            let call = t.call();
            assert_eq!(whole(&call), (4096 + from as u64, len));
            assert_eq!(plain(&call), base.wrapping_add(from));
        }
        let mut huge = HugeBuf::new(160 << 10);
        let mut whole = Transfer::write(0, target, 4096, huge.as_mut_ptr(), 160 << 10);
        assert!(whole.cut().is_none());
        let half = |at| Transfer::write(1, target, at, base, 32768);
        let mut joined = half(0);
        assert!(joined.join(&half(32768)) && !joined.join(&half(65536)));
    }
}

//! Requests on a pool: split over the members, all in flight at once.
//!
//! A request of one piece (a pool of one member, or a request inside one stripe unit) goes to its
//! device as it is. Others become one device request per piece, all in one submission, so that
//! every member works at once and the kernel may merge what is adjacent on a member. Up to
//! [`INLINE`] pieces need no allocation. Where no memory is involved (discard, zeroes) the pieces of
//! a member are merged here: one request per member and zone.

use std::sync::Arc;

use braid_device::{CawOutcome, Device, DeviceError, Op, Request};
use braid_format::{ByteOffset, Bytes, MemberIndex};
use smallvec::SmallVec;

use crate::error::PoolError;
use crate::map::Piece;
use crate::{Inner, Pool};

/// Device requests of one submission that are kept on the stack.
const INLINE: usize = 16;

/// One request of a batch.
#[derive(Debug)]
pub struct PoolRequest<'a> {
    /// First logical byte; ignored by a flush.
    pub at: ByteOffset,
    /// What to do with which memory.
    pub op: Op<'a>,
    /// `Ok` once [`Pool::run`] has returned and the request has succeeded.
    pub result: Result<(), PoolError>,
}
impl<'a> PoolRequest<'a> {
    /// Reads `buf.len()` bytes from `at`.
    pub fn read(at: ByteOffset, buf: &'a mut [u8]) -> Self {
        Self { at, op: Op::Read(buf), result: Ok(()) }
    }
    /// Writes `buf` to `at`.
    pub fn write(at: ByteOffset, buf: &'a [u8]) -> Self {
        Self { at, op: Op::Write(buf), result: Ok(()) }
    }
    /// Flushes all members.
    pub fn flush() -> Self {
        Self { at: ByteOffset(0), op: Op::Flush, result: Ok(()) }
    }
}

/// Device requests of a batch, and which pool request each belongs to.
#[derive(Default)]
struct Parts<'a> {
    requests: SmallVec<[Request<'a>; INLINE]>,
    owners: SmallVec<[u32; INLINE]>,
}
impl<'a> Parts<'a> {
    fn push(&mut self, owner: u32, device: &'a Arc<dyn Device>, at: ByteOffset, op: Op<'a>) {
        self.requests.push(Request { device: &**device, at, op, result: Ok(()) });
        self.owners.push(owner);
    }
}

impl Inner {
    /// Checks a range: whole sectors, inside the pool.
    pub(crate) fn check(&self, at: ByteOffset, len: Bytes) -> Result<(), PoolError> {
        let mask = self.sector.0 - 1;
        if (at.0 | len.0) & mask != 0 {
            return Err(PoolError::Misaligned { at, len, sector: self.sector });
        }
        let size = self.map.size();
        match at.checked_add(len) {
            Some(end) if end.0 <= size.0 => Ok(()),
            _ => Err(PoolError::PastEnd { at, len, size }),
        }
    }

    /// A member's device. The map names only members that exist.
    pub(crate) fn device(&self, member: MemberIndex) -> &Arc<dyn Device> {
        self.devices
            .get(usize::from(member.0))
            .expect("the map names only members that were opened")
    }

    /// Adds the device requests of one pool request.
    fn split<'a>(
        &'a self,
        owner: u32,
        at: ByteOffset,
        op: &'a mut Op<'_>,
        parts: &mut Parts<'a>,
    ) -> Result<(), PoolError> {
        match op {
            Op::Read(buf) => {
                let mut rest: &mut [u8] = buf;
                self.check(at, Bytes::from(rest.len()))?;
                for p in self.map.pieces(at, Bytes::from(rest.len())) {
                    let (now, later) = rest.split_at_mut(p.len.to_usize());
                    parts.push(owner, self.device(p.member), p.at, Op::Read(now));
                    rest = later;
                }
            }
            Op::Write(buf) => {
                let mut rest: &[u8] = buf;
                self.check(at, Bytes::from(rest.len()))?;
                for p in self.map.pieces(at, Bytes::from(rest.len())) {
                    let (now, later) = rest.split_at(p.len.to_usize());
                    parts.push(owner, self.device(p.member), p.at, Op::Write(now));
                    rest = later;
                }
            }
            Op::Flush => {
                for device in &self.devices {
                    parts.push(owner, device, ByteOffset(0), Op::Flush);
                }
            }
        }
        Ok(())
    }

    /// Splits and runs all requests; what failed, by place in `requests`.
    fn issue(&self, requests: &mut [PoolRequest<'_>]) -> Failures {
        let mut failures = Failures::new();
        let mut parts = Parts::default();
        for (owner, r) in (0_u32..).zip(requests.iter_mut()) {
            r.result = Ok(());
            if let Err(e) = self.split(owner, r.at, &mut r.op, &mut parts) {
                failures.push((owner, e));
            }
        }
        braid_device::run(&mut parts.requests);
        for (request, owner) in parts.requests.into_iter().zip(parts.owners) {
            if let Err(source) = request.result {
                failures.push((owner, source.into()));
            }
        }
        failures
    }
}

/// Place of a request in its batch, and its error.
type Failures = SmallVec<[(u32, PoolError); 1]>;

impl Pool {
    /// Runs all requests at once and waits for all; each one's `result` says how it ended. There
    /// is no order among the requests of a batch: a flush covers only writes that had completed
    /// before the call. A completed write is not durable before a flush.
    pub fn run(&self, requests: &mut [PoolRequest<'_>]) {
        let changes = requests.iter().any(|r| !matches!(r.op, Op::Read(_)));
        let pass = changes.then(|| self.1.pass());
        if let Some(Err(_)) = pass {
            for r in requests {
                r.result = Err(PoolError::Closed);
            }
            return;
        }
        for (owner, error) in self.0.issue(requests) {
            let request = usize::try_from(owner).ok().and_then(|i| requests.get_mut(i));
            if let Some(r) = request.filter(|r| r.result.is_ok()) {
                r.result = Err(error);
            }
        }
    }

    fn run_one(&self, request: PoolRequest<'_>) -> Result<(), PoolError> {
        let mut one = [request];
        self.run(&mut one);
        let [done] = one;
        done.result
    }

    /// The place of a range, if it is one run on one member.
    fn single(&self, at: ByteOffset, len: Bytes) -> Option<Piece> {
        self.0.map.pieces(at, len).next().filter(|p| p.len == len)
    }

    /// Fills `buf` from `at`.
    ///
    /// # Errors
    /// [`PoolError::Misaligned`], [`PoolError::PastEnd`], [`PoolError::Device`] (the contents of
    /// `buf` are then not defined).
    pub fn read(&self, at: ByteOffset, buf: &mut [u8]) -> Result<(), PoolError> {
        self.0.check(at, Bytes::from(buf.len()))?;
        match self.single(at, Bytes::from(buf.len())) {
            Some(p) => {
                let device = self.0.device(p.member);
                Ok(device.read(p.at, buf)?)
            }
            None => self.run_one(PoolRequest::read(at, buf)),
        }
    }

    /// Writes `buf` to `at`; durable after [`Pool::flush`].
    ///
    /// # Errors
    /// As [`Pool::read`]; after a device error any part of the range may hold the new bytes.
    pub fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), PoolError> {
        self.0.check(at, Bytes::from(buf.len()))?;
        match self.single(at, Bytes::from(buf.len())) {
            Some(p) => {
                let _pass = self.1.pass()?;
                let device = self.0.device(p.member);
                Ok(device.write(p.at, buf)?)
            }
            None => self.run_one(PoolRequest::write(at, buf)),
        }
    }

    /// Makes every write that has completed durable, on all members at once.
    ///
    /// # Errors
    /// [`PoolError::Device`]: nothing may be assumed durable any more, and the device's handle
    /// refuses further writes.
    pub fn flush(&self) -> Result<(), PoolError> {
        self.run_one(PoolRequest::flush())
    }

    /// Puts `new` at `at` if `expected` stands there, atomically among all nodes. Both are one
    /// lock sector, and `at` is a multiple of it. Not durable before a flush.
    ///
    /// # Errors
    /// [`PoolError::Misaligned`], [`PoolError::PastEnd`], [`PoolError::Device`] (it is then not
    /// known whether `new` stands there: read it).
    pub fn compare_and_write(
        &self,
        at: ByteOffset,
        expected: &[u8],
        new: &[u8],
    ) -> Result<CawOutcome, PoolError> {
        let sector = self.0.info.lock_sector;
        let len = Bytes::from(new.len());
        let whole = len == sector && expected.len() == new.len();
        if !whole || !at.0.is_multiple_of(sector.0) {
            return Err(PoolError::Misaligned { at, len, sector });
        }
        self.0.check(at, len)?;
        let past = PoolError::PastEnd { at, len, size: self.0.map.size() };
        // Units, zones and slices are multiples of the largest lock sector: never two pieces.
        let p = self.single(at, len).ok_or(past)?;
        let _pass = self.1.pass()?;
        let device = self.0.device(p.member);
        Ok(device.compare_and_write(p.at, expected, new)?)
    }

    /// Tells the devices that a range holds nothing; what it reads as afterwards is not defined.
    ///
    /// # Errors
    /// As [`Pool::write`].
    pub fn discard(&self, at: ByteOffset, len: Bytes) -> Result<(), PoolError> {
        self.each_run(at, len, |device, at, len| device.discard(at, len))
    }

    /// Makes a range read as zeros; durable after a flush.
    ///
    /// # Errors
    /// As [`Pool::write`].
    pub fn write_zeroes(&self, at: ByteOffset, len: Bytes) -> Result<(), PoolError> {
        self.each_run(at, len, |device, at, len| device.write_zeroes(at, len))
    }

    /// Calls `each` for every run of a range that is contiguous on a member: one per member and
    /// zone, however many stripe units it spans.
    fn each_run(
        &self,
        at: ByteOffset,
        len: Bytes,
        each: impl Fn(&dyn Device, ByteOffset, Bytes) -> Result<(), DeviceError>,
    ) -> Result<(), PoolError> {
        let inner = &*self.0;
        inner.check(at, len)?;
        let _pass = self.1.pass()?;
        let call = |p: &Piece| -> Result<(), PoolError> {
            Ok(each(&**inner.device(p.member), p.at, p.len)?)
        };
        let mut open: SmallVec<[Piece; INLINE]> = SmallVec::new();
        for p in inner.map.pieces(at, len) {
            match open.iter_mut().find(|o| o.member == p.member) {
                Some(o) if o.at + o.len == p.at => o.len = Bytes(o.len.0 + p.len.0),
                Some(o) => {
                    call(o)?;
                    *o = p;
                }
                None => open.push(p),
            }
        }
        open.iter().try_for_each(call)
    }
}

#[cfg(test)]
mod tests;

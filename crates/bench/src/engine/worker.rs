//! The thread of a stream.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use braid_format::{ByteOffset, Bytes};
use braid_pool::device::{AlignedBuf, Device, DeviceError, IoQueue, OwnedOp};

use super::{Content, Done, Shared, Stream};

/// Requests from this size on have their buffers in huge pages.
const HUGE_FROM: usize = 512 << 10;

/// A request on its way.
#[derive(Clone, Copy)]
struct Begun {
    at: u64,
    read: bool,
    /// When it was due, or begun.
    when: Instant,
}

struct Worker<'a> {
    stream: &'a Stream,
    shared: &'a Shared<'a>,
    began: Instant,
    next: u64,
    done: Done,
    /// Whether another stream has been seen to be through.
    alone: bool,
}

/// Runs a stream; what went wrong with a request is in what it returns.
pub(super) fn work(stream: &Stream, shared: &Shared<'_>) -> Result<Done> {
    // Made before the start: memory and rings are not what is measured.
    let request = usize::try_from(stream.pattern.request);
    let mut window = request.map_err(anyhow::Error::from).and_then(|len| {
        let mut buffers = Vec::with_capacity(stream.depth);
        for _ in 0..stream.depth.max(1) {
            let huge = len >= HUGE_FROM && !shared.limits.ordinary_pages;
            let mut buffer = if huge { AlignedBuf::huge(len) } else { AlignedBuf::zeroed(len) };
            stream.content.fill(0, &mut buffer);
            buffers.push(buffer);
        }
        let queue = if stream.depth > 1 { Some(IoQueue::new(stream.depth)?) } else { None };
        Ok((buffers, queue))
    });
    // Whatever happened, the others wait for this one.
    shared.start.wait();
    let began = shared.began();
    let mut w = Worker { stream, shared, began, next: 0, done: Done::default(), alone: false };
    w.done.from = began.elapsed();
    if let Ok((buffers, queue)) = &mut window {
        match queue {
            Some(queue) => w.through_queue(buffers, queue),
            None => w.by_calls(buffers),
        }
    }
    if stream.flush
        && w.done.failed.is_none()
        && let Err(e) = stream.target.device.flush()
    {
        w.done.failed = Some(e.to_string());
    }
    w.done.to = began.elapsed();
    let end = u64::try_from(w.done.to.as_nanos()).unwrap_or(u64::MAX);
    let before = shared.first_end.fetch_min(end, Ordering::Relaxed);
    if before > end && !w.alone {
        w.done.bytes_together = w.done.bytes;
    }
    window?;
    Ok(w.done)
}

impl Worker<'_> {
    /// The next request, when it is due. `None`: there is none, or it is too late for one.
    fn next(&mut self) -> Option<Begun> {
        if self.next >= self.stream.pattern.count
            || self.done.failed.is_some()
            || self.shared.stopped()
        {
            return None;
        }
        let (at, read) = self.stream.pattern.at(self.next);
        let mut when = Instant::now();
        if let Some(pace) = self.stream.pace {
            let n = u32::try_from(self.next).unwrap_or(u32::MAX);
            let due = self.began + pace.first + pace.interval * n;
            if let Some(early) = due.checked_duration_since(when) {
                std::thread::sleep(early);
            }
            when = due;
        }
        self.next += 1;
        Some(Begun { at, read, when })
    }
    fn by_calls(&mut self, buffers: &mut [AlignedBuf]) {
        let Some(buffer) = buffers.first_mut() else { return };
        let device = &*self.stream.target.device;
        while let Some(begun) = self.next() {
            let at = ByteOffset(begun.at);
            let result = if begun.read {
                device.read(at, buffer)
            } else {
                self.prepare(begun.at, buffer);
                device.write(at, buffer)
            };
            self.take(begun, buffer, result);
        }
    }
    fn through_queue(&mut self, buffers: &mut Vec<AlignedBuf>, queue: &mut IoQueue) {
        let nothing = Begun { at: 0, read: true, when: self.began };
        let mut begun = vec![nothing; buffers.len()];
        let mut free: Vec<usize> = (0..buffers.len()).collect();
        loop {
            while let Some(slot) = free.pop() {
                let Some(request) = self.next() else {
                    free.push(slot);
                    break;
                };
                let Some(mut buffer) = buffers.pop() else { break };
                let device = self.stream.target.device.clone() as std::sync::Arc<dyn Device>;
                let op = if request.read {
                    OwnedOp::Read(buffer)
                } else {
                    self.prepare(request.at, &mut buffer);
                    OwnedOp::Write(buffer)
                };
                begun[slot] = request;
                queue.push(slot as u64, device, ByteOffset(request.at), op);
            }
            if queue.in_flight() == 0 {
                return;
            }
            let mut done = Some(queue.complete());
            while let Some((token, buffer, result)) = done {
                let slot = usize::try_from(token).unwrap_or_default();
                if let Some(request) = begun.get(slot) {
                    self.take(*request, &buffer, result);
                }
                buffers.push(buffer);
                free.push(slot);
                done = queue.completed();
            }
        }
    }
    fn prepare(&self, at: u64, buffer: &mut AlignedBuf) {
        if self.stream.content.varies() {
            self.stream.content.fill(at, buffer);
        }
    }
    /// Takes in how a request ended.
    fn take(&mut self, begun: Begun, buffer: &[u8], result: Result<(), DeviceError>) {
        let now = Instant::now();
        let took = now.saturating_duration_since(begun.when);
        let after = now.saturating_duration_since(self.began);
        if let Err(e) = result {
            if self.done.failed.is_none() {
                self.done.failed = Some(said(&e, begun, Bytes::from(buffer.len())));
            }
            return;
        }
        let len = buffer.len() as u64;
        let done = &mut self.done;
        done.bytes += len;
        done.ops += 1;
        if begun.read {
            done.bytes_read += len;
            done.ops_read += 1;
            done.reads.add(took);
        } else {
            done.writes.add(took);
        }
        done.series.add(after, len);
        if !self.alone {
            let first_end = self.shared.first_end.load(Ordering::Relaxed);
            if after > Duration::from_nanos(first_end) {
                self.alone = true;
            } else {
                done.bytes_together += len;
            }
        }
        let limits = self.shared.limits;
        if limits.every {
            done.every.push((after, took));
        }
        if limits.deadline.is_some_and(|d| took > d) {
            done.late += 1;
        }
        if let Some(progress) = &limits.progress {
            progress.fetch_add(len, Ordering::Relaxed);
        }
        if begun.read
            && let Some(mismatch) = self.stream.content.check(begun.at, buffer)
        {
            done.mismatches += 1;
            done.mismatch = done.mismatch.or(Some(mismatch));
        }
    }
}

/// The error of a request, with what it means.
fn said(e: &DeviceError, begun: Begun, len: Bytes) -> String {
    let hint = match e {
        DeviceError::Io { source, .. } => match (source.raw_os_error(), source.kind()) {
            (Some(libc::ENOSPC), _) => " (full; what was written before stands)",
            (Some(libc::EDQUOT), _) => " (the quota is used up; what was written before stands)",
            (Some(libc::EFBIG), _) => " (longer than files may be there)",
            (_, std::io::ErrorKind::UnexpectedEof) if begun.read => " (the file ends before)",
            _ => "",
        },
        _ => "",
    };
    format!("{e}, in a request of {len}{hint}")
}

const _: () = {
    // `Content` is copied into every stream.
    assert!(size_of::<Content>() <= 24);
};

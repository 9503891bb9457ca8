//! The thread of one stream.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Result;
use braid_pool::device::AlignedBuf;

use super::barrier::StartBarrier;
use super::data::Content;
use super::direction::Direction;
use super::layer::Window;
use super::outcome::StreamResult;
use super::stream::{Limits, Pace, Stream};

/// Requests from this size on have their buffers in huge pages.
const HUGE_FROM: usize = 512 << 10;
/// How often a stream that waits for its next request asks whether it is to stop.
const ASK: Duration = Duration::from_millis(100);
/// Requests of a stream that are noted as held up, at most.
const HELD_MAX: u64 = 10_000_000;
/// Requests of a stream whose latency is kept one by one, at most.
const EVERY_MAX: usize = 10_000_000;

#[derive(Clone, Copy)]
struct Begun {
    at: u64,
    read: bool,
    /// When it was due, or begun.
    when: Instant,
}

/// What streams see of each other.
pub(super) struct Shared<'a> {
    /// Held twice: when memory and rings are there, which are not the job's to pay for, and for the
    /// start.
    pub(super) barrier: StartBarrier,
    pub(super) began: OnceLock<Instant>,
    /// Streams, and how many of them have begun.
    pub(super) many: usize,
    pub(super) started: AtomicUsize,
    /// Nanoseconds after the start when the first stream was through: what the others did until
    /// then they did side by side.
    pub(super) first_end: AtomicU64,
    pub(super) limits: &'a Limits,
    /// The limits', or those of the run that is shown.
    pub(super) progress: Option<Arc<AtomicU64>>,
    pub(super) stop: Option<Arc<AtomicBool>>,
}
impl Shared<'_> {
    fn began(&self) -> Instant {
        *self.began.get_or_init(Instant::now)
    }
    /// Whether somebody has asked for the end.
    fn asked(&self) -> bool {
        self.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
    }
    /// When no request is begun any more; `None`: never, or so late that it makes no difference.
    fn end(&self) -> Option<Instant> {
        self.began().checked_add(self.limits.time?)
    }
}

struct Worker<'a> {
    stream: &'a Stream,
    shared: &'a Shared<'a>,
    began: Instant,
    /// When no request is begun any more.
    end: Option<Instant>,
    next: u64,
    done: StreamResult,
    /// Whether all streams have been seen to have begun.
    accompanied: bool,
    /// Whether another stream has been seen to be through.
    alone: bool,
}

/// Runs a stream; what went wrong with a request is in what it returns.
pub(super) fn work(stream: &Stream, shared: &Shared<'_>) -> Result<StreamResult> {
    let _guard = shared.barrier.cancel_on_panic();
    if stream.pace.is_some() {
        // The kernel may wake a thread 50 us late, to save wake-ups; here that is not wanted.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    }
    // Made before the start: memory and rings are not what is measured.
    let request = usize::try_from(stream.pattern.request);
    let window = request.map_err(anyhow::Error::from).and_then(|len| {
        let mut buffers = Vec::with_capacity(stream.depth);
        for _ in 0..stream.depth.max(1) {
            let huge = len >= HUGE_FROM && !shared.limits.ordinary_pages;
            let mut buffer = if huge { AlignedBuf::huge(len) } else { AlignedBuf::zeroed(len) };
            stream.content.fill(0, &mut buffer);
            buffers.push(buffer);
        }
        Ok((buffers, stream.target.layer.window(stream.depth)?))
    });
    // Where one stream cannot begin, none does.
    let (mut buffers, mut window) = window.inspect_err(|_| shared.barrier.cancel())?;
    if !shared.barrier.wait() || !shared.barrier.wait() {
        return Ok(StreamResult::default());
    }
    let began = shared.began();
    let (end, done) = (shared.end(), StreamResult::default());
    let mut w =
        Worker { stream, shared, began, end, next: 0, done, accompanied: false, alone: false };
    w.done.from = began.elapsed();
    shared.started.fetch_add(1, Ordering::Relaxed);
    match &mut window {
        Some(window) => w.through(&mut buffers, window),
        None => w.by_calls(&mut buffers),
    }
    if stream.flush
        && w.done.failed.is_none()
        && let Err(e) = stream.target.layer.flush()
    {
        w.done.failed = Some(e);
    }
    w.done.to = began.elapsed();
    let end = u64::try_from(w.done.to.as_nanos()).unwrap_or(u64::MAX);
    shared.first_end.fetch_min(end, Ordering::Relaxed);
    Ok(w.done)
}

impl Worker<'_> {
    /// The next request, when it is due. `None`: there is none, or it is too late for one.
    fn next(&mut self) -> Option<Begun> {
        if self.next >= self.stream.pattern.count || self.done.failed.is_some() {
            return None;
        }
        let when = match self.stream.pace {
            Some(pace) => self.due(pace)?,
            None => self.now()?,
        };
        let (at, read) = self.stream.pattern.at(self.next);
        self.next += 1;
        Some(Begun { at, read, when })
    }
    /// Now, unless no request is to be begun any more: the clock is read once for both.
    fn now(&self) -> Option<Instant> {
        let now = Instant::now();
        let over = self.end.is_some_and(|end| now >= end);
        (!over && !self.shared.asked()).then_some(now)
    }
    /// Waits until the next request is due. None is begun after the time is up, so none is waited
    /// for that would be.
    fn due(&mut self, pace: Pace) -> Option<Instant> {
        let end = self.end;
        let due = self.began.checked_add(pace.due(self.next))?;
        if self.shared.asked() || end.is_some_and(|end| due >= end) {
            return None;
        }
        let mut waited = false;
        while let Some(early) = due.checked_duration_since(Instant::now()) {
            waited = true;
            std::thread::sleep(early.min(ASK));
            if self.shared.asked() {
                return None;
            }
        }
        if waited {
            self.done.slack += due.elapsed();
            self.done.waited += 1;
        } else if self.now().is_none() {
            self.held_up(pace, end?);
            return None;
        }
        Some(due)
    }
    /// Requests that were due before the end, and that those before them have kept from being begun:
    /// how late each is by now counts, though nothing of them went through. Left out they would make
    /// the longest stall the cheapest.
    fn held_up(&mut self, pace: Pace, end: Instant) {
        let now = Instant::now();
        while self.next < self.stream.pattern.count && self.done.held < HELD_MAX {
            let due = self.began.checked_add(pace.due(self.next)).filter(|due| *due < end);
            let Some(due) = due else { return };
            let late = now.saturating_duration_since(due);
            let (_, read) = self.stream.pattern.at(self.next);
            if read { &mut self.done.reads } else { &mut self.done.writes }.add(late);
            self.done.late += u64::from(self.shared.limits.deadline.is_some_and(|d| late > d));
            self.done.held += 1;
            self.next += 1;
        }
    }
    fn by_calls(&mut self, buffers: &mut [AlignedBuf]) {
        let Some(buffer) = buffers.first_mut() else { return };
        let layer = &self.stream.target.layer;
        while let Some(begun) = self.next() {
            let result = if begun.read {
                layer.read(begun.at, buffer)
            } else {
                self.prepare(begun.at, buffer);
                layer.write(begun.at, buffer)
            };
            self.take(begun, buffer, result);
        }
    }
    fn through(&mut self, buffers: &mut Vec<AlignedBuf>, window: &mut Window) {
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
                let mut direction = Direction::Read;
                if !request.read {
                    direction = Direction::Write;
                    self.prepare(request.at, &mut buffer);
                }
                begun[slot] = request;
                if let Err(e) = window.push(slot as u64, request.at, direction, buffer) {
                    self.done.failed.get_or_insert(e);
                }
            }
            if window.in_flight() == 0 {
                return;
            }
            let mut over = Some(window.complete());
            while let Some((token, buffer, result)) = over {
                let slot = usize::try_from(token).unwrap_or_default();
                if let Some(request) = begun.get(slot) {
                    self.take(*request, &buffer, result);
                }
                buffers.push(buffer);
                free.push(slot);
                over = window.completed();
            }
        }
    }
    fn prepare(&self, at: u64, buffer: &mut AlignedBuf) {
        if self.stream.content.varies() {
            self.stream.content.fill(at, buffer);
        }
    }
    /// Takes in how a request ended.
    fn take(&mut self, begun: Begun, buffer: &[u8], result: Result<(), String>) {
        let now = Instant::now();
        let took = now.saturating_duration_since(begun.when);
        let after = now.saturating_duration_since(self.began);
        if let Err(e) = result {
            let len = braid_format::Bytes::from(buffer.len());
            self.done.failed.get_or_insert_with(|| format!("{e}, in a request of {len}"));
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
        self.accompanied =
            self.accompanied || self.shared.started.load(Ordering::Relaxed) == self.shared.many;
        if self.accompanied && !self.alone {
            let first_end = self.shared.first_end.load(Ordering::Relaxed);
            if after > Duration::from_nanos(first_end) {
                self.alone = true;
            } else {
                done.bytes_together += len;
            }
        }
        let limits = self.shared.limits;
        if limits.every && done.every.len() < EVERY_MAX {
            done.every.push((after, took));
        }
        if limits.deadline.is_some_and(|d| took > d) {
            done.late += 1;
        }
        if let Some(progress) = &self.shared.progress {
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

const _: () = {
    // `Content` is copied into every stream.
    assert!(size_of::<Content>() <= 24);
};

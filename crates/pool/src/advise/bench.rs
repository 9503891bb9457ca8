//! Devices measured in real time, by reading only.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use braid_device::{AlignedBuf, Device, DeviceError, IoQueue, OwnedOp};
use braid_format::ByteOffset;

use super::measure::{Bench, Run};
use crate::layout::measure::latency;

/// Devices, and how long one measurement takes.
#[derive(Debug)]
pub struct DeviceBench {
    devices: Vec<Arc<dyn Device>>,
    time: Duration,
    /// Where each device is read next: no run finds in a cache what one before has read.
    next: Vec<u64>,
}

impl DeviceBench {
    /// Measures `devices`, each run for about `time` (each request is waited for, however long it
    /// takes).
    pub fn new(devices: Vec<Arc<dyn Device>>, time: Duration) -> Self {
        let next = vec![0; devices.len()];
        Self { devices, time, next }
    }
}

impl Bench for DeviceBench {
    fn members(&self) -> usize {
        self.devices.len()
    }
    fn rates(&mut self, run: &Run) -> Result<Vec<u64>, DeviceError> {
        let time = self.time;
        let jobs = run.members.iter().filter_map(|i| {
            Some((self.devices.get(*i)?.clone(), self.next.get(*i).copied().unwrap_or(0)))
        });
        let done: Vec<Result<(u64, u64), DeviceError>> = std::thread::scope(|scope| {
            let mut starts = Vec::new();
            let threads: Vec<_> = jobs
                .map(|(device, from)| {
                    let (start, started) = channel();
                    starts.push(start);
                    let name = device.info().name.as_str().into();
                    let read = move || stream(&device, from, run, time, &started);
                    let thread = std::thread::Builder::new().spawn_scoped(scope, read);
                    thread.map_err(|error| DeviceError::Io {
                        device: name,
                        operation: "starting a thread for reads",
                        at: ByteOffset(0),
                        source: Arc::new(error),
                    })
                })
                .collect();
            // All at once, or, where one of them cannot be, none.
            if threads.iter().all(Result::is_ok) {
                for start in &starts {
                    start.send(()).ok();
                }
            }
            drop(starts);
            let ended = threads.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().expect("a reader does not panic"),
                Err(error) => Err(error),
            });
            ended.collect()
        });
        let mut rates = Vec::new();
        for (member, done) in run.members.iter().zip(done) {
            let (rate, next) = done?;
            if let Some(place) = self.next.get_mut(*member) {
                *place = next;
            }
            rates.push(rate);
        }
        Ok(rates)
    }
    fn latency(&mut self, member: usize) -> Result<Option<Duration>, DeviceError> {
        let Some(device) = self.devices.get(member) else { return Ok(None) };
        latency(&**device, self.time)
    }
}

/// Reads from `from` on, wrapping at the end, for `time`; bytes per second, and where it ended.
fn stream(
    device: &Arc<dyn Device>,
    from: u64,
    run: &Run,
    time: Duration,
    started: &Receiver<()>,
) -> Result<(u64, u64), DeviceError> {
    let slots = device.info().size.0 / run.request;
    let mut at = from.div_ceil(run.request);
    let len = usize::try_from(run.request).unwrap_or(1 << 20);
    let mut free: Vec<AlignedBuf> = (0..run.depth).map(|_| AlignedBuf::zeroed(len)).collect();
    let queue = IoQueue::new(run.depth);
    // What is set up before is not measured. Nobody starts if one of the threads could not be made.
    if started.recv().is_err() {
        return Ok((0, from));
    }
    let mut queue = queue?;
    if slots == 0 {
        return Ok((0, from));
    }
    let began = Instant::now();
    let mut bytes = 0_u128;
    loop {
        let running = began.elapsed() < time;
        while let Some(buf) = free.pop_if(|_| running) {
            let offset = ByteOffset(at % slots * run.request);
            queue.submit(at, device.clone(), offset, OwnedOp::Read(buf))?;
            at += 1;
        }
        if queue.in_flight() == 0 {
            break;
        }
        let (_, buf, result) = queue.complete();
        result?;
        bytes += u128::from(run.request);
        free.push(buf);
    }
    let rate = bytes * 1_000_000_000 / began.elapsed().as_nanos().max(1);
    Ok((u64::try_from(rate).unwrap_or(u64::MAX), at % slots * run.request))
}

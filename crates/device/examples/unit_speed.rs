//! What a device takes: requests of 1 MiB in several streams, compare-and-write of 4 KiB, reads of
//! 4 KiB one after the other. `cargo run --release -p braid-device --example unit_speed DEVICE`; the
//! device is overwritten. With several devices: what it brings that stripe units side by side go to
//! each together, against such with gaps between them, in turn.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::{
    AlignedBuf, CawOutcome, CountedDevice, Device, DeviceError, IoQueue, OpenOptions, OwnedOp, Part,
};
use braid_format::{ByteOffset, Bytes};

const BLOCK: u64 = 1 << 20;
const TIME: Duration = Duration::from_secs(2);

/// MB/s of `streams` threads, each with one request at a time.
fn streams(device: &dyn Device, streams: u64, write: bool) -> u128 {
    let blocks = device.info().size.get() / BLOCK / streams;
    let began = Instant::now();
    let total: u64 = std::thread::scope(|s| {
        let work = |stream: u64| {
            move || {
                let mut buf = AlignedBuf::zeroed(Bytes(BLOCK).to_usize());
                buf.fill(7);
                let mut n = 0;
                while began.elapsed() < TIME {
                    let at = ByteOffset((stream * blocks + n % blocks) * BLOCK);
                    let done =
                        if write { device.write(at, &buf) } else { device.read(at, &mut buf) };
                    if let Err(e) = done {
                        eprintln!("{e}");
                        break;
                    }
                    n += 1;
                }
                n
            }
        };
        let threads: Vec<_> = (0..streams).map(|n| s.spawn(work(n))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or(0)).sum()
    });
    u128::from(total * BLOCK) / began.elapsed().as_micros().max(1)
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    println!("{what}: p50 {:?}, p90 {:?}, p99 {:?}", at(50), at(90), at(99));
}

/// MB/s of requests of `size` bytes in stripe units of 256 KiB on all devices, `depth` at a time, for
/// `bytes` in all; each next stripe unit of a device stands `step` stripe units behind the one before.
fn striped(
    devices: &[Arc<dyn Device>],
    (size, depth, bytes): (u64, u64, u64),
    step: u64,
    write: bool,
) -> Result<u128, DeviceError> {
    const UNIT: u64 = 256 << 10;
    let count = devices.len() as u64;
    let span = size / count * step;
    let room = devices.iter().map(|d| d.info().size.get()).min().unwrap_or(0) / span;
    let mut queue = IoQueue::new(Bytes(depth).to_usize())?;
    let mut free = Vec::new();
    free.resize_with(Bytes(depth).to_usize(), || AlignedBuf::zeroed(Bytes(size).to_usize()));
    let began = Instant::now();
    for n in 0..bytes / size {
        let buf = if let Some(buf) = free.pop() {
            buf
        } else {
            let (_, buf, result) = queue.complete();
            result?;
            buf
        };
        let part = |u: u64| Part {
            device: devices[Bytes(u % count).to_usize()].clone(),
            at: ByteOffset(n % room * span + u / count * step * UNIT),
            len: Bytes(UNIT),
        };
        let parts: Vec<_> = (0..size / UNIT).map(part).collect();
        let op = if write { OwnedOp::Write(buf) } else { OwnedOp::Read(buf) };
        queue.submit_parts(n, op, &parts)?;
    }
    while queue.in_flight() > 0 {
        queue.complete().2?;
    }
    Ok(u128::from(bytes) / began.elapsed().as_micros().max(1))
}

/// Shows large requests on several devices, with stripe units side by side and apart.
fn together(devices: &[Arc<dyn Device>]) -> Result<(), DeviceError> {
    const ROUNDS: usize = 41;
    for (size, depth) in [(1 << 20, 1), (4 << 20, 1), (4 << 20, 4)] {
        for write in [true, false] {
            let of = |step| striped(devices, (size, depth, 256 << 20), step, write);
            let before = devices[0]
                .abilities()
                .counters
                .map(braid_device::IoCounters::now)
                .unwrap_or_default();
            let joined = of(1)?;
            let after = devices[0]
                .abilities()
                .counters
                .map(braid_device::IoCounters::now)
                .unwrap_or_default();
            let issued = after.since(&before);
            let (mut ratios, mut rates) = (Vec::new(), vec![joined]);
            for round in 0..ROUNDS {
                // Each comes first as often.
                let (a, b) = if round % 2 == 0 {
                    let a = of(1)?;
                    (a, of(2)?)
                } else {
                    let b = of(2)?;
                    (of(1)?, b)
                };
                rates.push(a);
                ratios.push(a * 1000 / b.max(1));
            }
            ratios.sort_unstable();
            rates.sort_unstable();
            let at = |part: usize| ratios[part * (ROUNDS - 1) / 4];
            println!(
                "{} of {} MiB, {depth} at a time: {} MB/s; to apart {} ({}..{}, quartiles {}..{}) of 1000; {}",
                if write { "write" } else { "read" },
                size >> 20,
                rates[rates.len() / 2],
                at(2),
                at(0),
                at(4),
                at(1),
                at(3),
                if write { issued.writes } else { issued.reads },
            );
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let names: Vec<_> = std::env::args_os().skip(1).collect();
    if names.len() > 1 {
        let open = |n: &std::ffi::OsString| {
            braid_device::open(n.as_ref(), OpenOptions::default()).map(CountedDevice::over)
        };
        let devices = names.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        return Ok(together(&devices)?);
    }
    let name = names.into_iter().next().ok_or("name a device, which is overwritten")?;
    let device = braid_device::open(name.as_ref(), OpenOptions::default())?;
    for (n, write) in [(1, true), (1, false), (4, true), (4, false)] {
        let rate = streams(&*device, n, write);
        let what = if write { "write" } else { "read" };
        println!("{what}, 1 MiB, {n} streams: {rate} MB/s");
    }
    let (mut old, mut new) = (vec![0; 4096], vec![1; 4096]);
    let at = ByteOffset(4096);
    device.write(at, &old)?;
    let mut times = Vec::new();
    for _ in 0..5000 {
        let began = Instant::now();
        let outcome = device.compare_and_write(at, &old, &new)?;
        times.push(began.elapsed());
        if outcome != CawOutcome::Written {
            return Err("somebody else uses the device".into());
        }
        std::mem::swap(&mut old, &mut new);
    }
    show("compare-and-write, 4 KiB", times);
    let mut times = Vec::new();
    for _ in 0..5000 {
        let began = Instant::now();
        device.read(at, &mut old)?;
        times.push(began.elapsed());
    }
    show("read, 4 KiB", times);
    Ok(())
}

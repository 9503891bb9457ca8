//! What a device takes: requests of 1 MiB in several streams, compare-and-write of 4 KiB, reads of
//! 4 KiB one after the other. `cargo run --release -p braid-device --example unit_speed DEVICE`; the
//! device is overwritten.

use std::error::Error;
use std::time::{Duration, Instant};

use braid_device::{AlignedBuf, CawOutcome, Device, OpenOptions};
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

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args_os().nth(1).ok_or("name a device, which is overwritten")?;
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

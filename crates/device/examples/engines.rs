//! Measures what a request costs by `pread`/`pwrite` and by the ring, alone and in batches.
//!
//! `cargo run --release -p braid-device --example engines -- DIR...` (with `BRAID_NO_URING=1`: the
//! threads instead of the ring). Microseconds per request, the median of several rounds.

#![expect(clippy::cast_precision_loss, reason = "microseconds")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::{
    AlignedBuf, Device, FileDevice, IoQueue, Op, OpenOptions, OwnedOp, Request, default_engine, run,
};
use braid_format::ByteOffset;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

const SIZE: u64 = 256 << 20;
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(60);

/// Microseconds of processor time that this process (and the kernel's threads for it) used.
fn cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("usage");
    let micros = |t: TimeVal| t.tv_sec() as f64 * 1e6 + t.tv_usec() as f64;
    micros(usage.user_time()) + micros(usage.system_time())
}

/// Median microseconds of one call of `step`: by the clock, and of processor time.
fn time(mut step: impl FnMut(u64)) -> (f64, f64) {
    let mut rounds = [0.0; ROUNDS];
    let mut n = 0;
    let before = cpu();
    for r in &mut rounds {
        let (start, from) = (Instant::now(), n);
        while start.elapsed() < ROUND {
            step(n);
            n += 1;
        }
        *r = start.elapsed().as_secs_f64() * 1e6 / (n - from) as f64;
    }
    rounds.sort_by(f64::total_cmp);
    (rounds[ROUNDS / 2], (cpu() - before) / n as f64)
}

/// A place that the hardware cannot foresee.
fn place(n: u64, len: usize) -> ByteOffset {
    let slots = SIZE / len as u64;
    ByteOffset(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % slots * len as u64)
}

fn alone(d: &Arc<FileDevice>, len: usize, write: bool) {
    let mut buf = AlignedBuf::zeroed(len);
    let plain = time(|n| {
        let at = place(n, len);
        if write { d.write(at, &buf) } else { d.read(at, &mut buf) }.expect("device");
    });
    let mut queue = IoQueue::new(1).expect("queue");
    let device: Arc<dyn Device> = d.clone();
    let mut buf = Some(buf);
    let ring = time(|n| {
        let own = buf.take().expect("buffer");
        let op = if write { OwnedOp::Write(own) } else { OwnedOp::Read(own) };
        queue.submit(0, device.clone(), place(n, len), op).expect("submit");
        let (_, own, result) = queue.complete();
        result.expect("device");
        buf = Some(own);
    });
    let what = if write { "write" } else { "read" };
    show(&format!("{what:5} {len:>8} alone    "), plain, ring, 1.0);
}

fn batch(devices: &[Arc<FileDevice>], len: usize, count: usize, write: bool) {
    let mut bufs: Vec<AlignedBuf> = (0..count).map(|_| AlignedBuf::zeroed(len)).collect();
    let mut requests = |n: u64, each: &mut dyn FnMut(&mut [Request<'_>])| {
        let ops = bufs.iter_mut().enumerate();
        let mut all: Vec<Request<'_>> = ops
            .map(|(i, b)| Request {
                device: &*devices[i % devices.len()],
                at: place(n + i as u64, len),
                op: if write { Op::Write(b) } else { Op::Read(b) },
                result: Ok(()),
            })
            .collect();
        each(&mut all);
        assert!(all.iter().all(|r| r.result.is_ok()));
    };
    let one_by_one = time(|n| {
        requests(n * count as u64, &mut |all| all.chunks_mut(1).for_each(run));
    });
    let together = time(|n| requests(n * count as u64, &mut |all| run(all)));
    let what = if write { "write" } else { "read" };
    let on = devices.len();
    show(&format!("{what:5} {len:>8} x{count:<2} on {on}"), one_by_one, together, count as f64);
}

fn show(what: &str, call: (f64, f64), engine: (f64, f64), count: f64) {
    let [(a, b), (c, d)] = [call, engine].map(|(wall, cpu)| (wall / count, cpu / count));
    println!("  {what} call {a:8.2} (cpu {b:8.2})   engine {c:8.2} (cpu {d:8.2})");
}

fn main() {
    println!("engine: {}", default_engine());
    for dir in std::env::args().skip(1) {
        let open = |n: usize| {
            let path = Path::new(&dir).join(format!("braid-engines-{n}"));
            std::fs::write(&path, vec![0; usize::try_from(SIZE).expect("size")]).expect("file");
            let d = FileDevice::open(&path, OpenOptions::default()).expect("device");
            std::fs::remove_file(&path).expect("file");
            d.flush().expect("flush");
            d
        };
        let devices: Vec<Arc<FileDevice>> = (0..4).map(open).collect();
        println!("{dir}: sector {}", devices[0].info().sector);
        for write in [false, true] {
            for len in [512, 4096, 1 << 20] {
                if len as u64 >= devices[0].info().sector.get() {
                    alone(&devices[0], len, write);
                }
            }
            for (len, count) in
                [(4096, 2), (4096, 4), (4096, 32), (65536, 4), (1 << 18, 4), (1 << 20, 4)]
            {
                batch(&devices[..1], len, count, write);
                batch(&devices, len, count, write);
            }
        }
    }
}

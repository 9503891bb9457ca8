//! What redundancy costs: `cargo bench -p braid-pool` (DIR=/dev/shm is where the members lie).
//!
//! Every ratio is of two things measured in turns in one run; median of the repeats, and spread.

#![allow(clippy::cast_precision_loss, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a program for people who measure")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::{ByteOffset, Bytes, MemberIndex};
use braid_pool::device::{AlignedBuf, Device, FileDevice, OpenOptions};
use braid_pool::layout::{Redundancy, parse};
use braid_pool::redundancy::parity;
use braid_pool::{CreateOptions, Pool, PoolOp, PoolQueue};

const MEMBER: u64 = 512 << 20;
const DEPTH: usize = 4;
const REPEATS: usize = 7;

struct Files(PathBuf);
impl Files {
    fn new() -> Self {
        let base = std::env::var_os("DIR").map_or_else(|| "/dev/shm".into(), PathBuf::from);
        let dir = base.join(format!("braid-redundancy-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
    fn device(&self, name: &str) -> Arc<dyn Device> {
        let path = self.0.join(name);
        std::fs::File::create(&path).unwrap().set_len(MEMBER).unwrap();
        FileDevice::open(&path, OpenOptions::default()).unwrap()
    }
    fn pool(&self, name: &str, n: usize, layout: Option<&str>) -> Pool {
        let devices = (0..n).map(|i| self.device(&format!("{name}{i}"))).collect();
        let mut options = CreateOptions::new(name).stripe_unit(Bytes(256 << 10)).unwrap();
        options.redundancy = Redundancy::None;
        options.layout = layout.map(|text| parse::layout(text, &BTreeMap::new()).unwrap());
        let pool = Pool::create(devices, &options).unwrap();
        pool.attach(0).unwrap();
        pool
    }
}
impl Drop for Files {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Bytes per second of requests of `request` bytes over `total` bytes from `from`.
fn stream(pool: &Pool, from: u64, total: u64, request: usize, write: bool) -> f64 {
    let mut queue = PoolQueue::new(pool.clone(), DEPTH).unwrap();
    let mut free: Vec<AlignedBuf> = (0..DEPTH).map(|_| AlignedBuf::zeroed(request)).collect();
    free.iter_mut().for_each(|b| b.fill(0x5A));
    let begun = Instant::now();
    let (mut at, mut done) = (from, 0);
    while done < total {
        if at < from + total
            && let Some(buf) = free.pop()
        {
            let op = if write { PoolOp::Write(buf) } else { PoolOp::Read(buf) };
            queue.submit(at, ByteOffset(at), op).unwrap();
            at += request as u64;
            continue;
        }
        let (_, buf, result) = queue.complete();
        result.unwrap();
        done += buf.len() as u64;
        free.push(buf);
    }
    total as f64 / begun.elapsed().as_secs_f64()
}

fn median(mut all: Vec<f64>) -> (f64, f64, f64) {
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[0], all[all.len() - 1])
}

fn row(what: &str, mut pair: impl FnMut() -> (f64, f64)) {
    pair();
    let pairs: Vec<(f64, f64)> = (0..REPEATS).map(|_| pair()).collect();
    let (ratio, low, high) = median(pairs.iter().map(|(a, b)| a / b).collect());
    let (speed, ..) = median(pairs.iter().map(|p| p.0).collect());
    println!("{what:<58} {ratio:>6.2} ({low:.2}..{high:.2})  {:>7.0} MB/s", speed / 1e6);
}

fn arithmetic() {
    let data: Vec<Vec<u8>> = (0..4_u8).map(|i| vec![i + 1; 256 << 10]).collect();
    let columns: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let (mut p, mut q) = (vec![0; 256 << 10], vec![0; 256 << 10]);
    let mut speed = |two: bool| {
        let all: Vec<f64> = (0..REPEATS)
            .map(|_| {
                let begun = Instant::now();
                let mut rounds = 0_u32;
                while begun.elapsed() < Duration::from_millis(200) {
                    parity::encode(&columns, &mut p, two.then_some(&mut q[..]));
                    rounds += 1;
                }
                f64::from(rounds) * f64::from(1 << 20) / begun.elapsed().as_secs_f64()
            })
            .collect();
        median(all)
    };
    for (name, two) in [("P", false), ("P and Q", true)] {
        let (m, low, high) = speed(two);
        println!(
            "{name} of 4 columns: {:.1} GB/s of data ({:.1}..{:.1})",
            m / 1e9,
            low / 1e9,
            high / 1e9
        );
    }
}

fn main() {
    arithmetic();
    let files = Files::new();
    let total = 256_u64 << 20;
    let stripe = files.pool("s", 4, None);
    let parity = files.pool("p", 5, Some("metadata = mirror+1(all[8M]); data = parity+1(all)"));
    let data = parity.label().segments.last().map_or(0, |s| s.start.0);
    println!("\n{:<58} {:>6}", "1 MiB requests, depth 4", "ratio");
    row("parity 4+1 / stripe of 4, write of whole rows", || {
        (stream(&parity, data, total, 1 << 20, true), stream(&stripe, 0, total, 1 << 20, true))
    });
    row("parity 4+1 / stripe of 4, read", || {
        (stream(&parity, data, total, 1 << 20, false), stream(&stripe, 0, total, 1 << 20, false))
    });
    row("parity 4+1 / stripe of 4, write of 64 KiB", || {
        (
            stream(&parity, data, total / 16, 64 << 10, true),
            stream(&stripe, 0, total / 16, 64 << 10, true),
        )
    });
    let one = files.pool("o", 1, None);
    let mirror = files.pool("m", 2, Some("mirror(all)"));
    row("mirror of 2 / one member, write", || {
        (stream(&mirror, 0, total, 1 << 20, true), stream(&one, 0, total, 1 << 20, true))
    });
    row("mirror of 2 / one member, read", || {
        (stream(&mirror, 0, total, 1 << 20, false), stream(&one, 0, total, 1 << 20, false))
    });
    for (name, pool, member) in [("mirror of 2", &mirror, 1), ("parity 4+1", &parity, 2)] {
        let mut n = 0;
        row(&format!("rebuild of {name} / write of one member"), || {
            n += 1;
            let prefix = &name[..1].to_uppercase();
            let new = files.device(&format!("{prefix}{}", n % 2));
            // Pages of their own beforehand, as the member it is compared with has.
            let ones = AlignedBuf::zeroed(1 << 20);
            (0..MEMBER >> 20).for_each(|i| new.write(ByteOffset(i << 20), &ones).unwrap());
            pool.replace(MemberIndex(member), new, true).unwrap();
            let begun = Instant::now();
            let mut total_bytes = 0;
            assert!(pool.rebuild(MemberIndex(member), &|_| true).unwrap());
            for m in &pool.label().members {
                total_bytes = m.data_len.0;
            }
            let rebuilt = total_bytes as f64 / begun.elapsed().as_secs_f64();
            (rebuilt, stream(&one, 0, total, 1 << 20, true))
        });
    }
}

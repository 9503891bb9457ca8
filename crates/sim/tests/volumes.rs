//! Volumes under faults, from seeds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_sim::{VolumeReport, run_volume};

/// Seeds in one test run; `BRAID_SIM_VOLUMES=FIRST..LAST` chooses others.
fn seeds() -> std::ops::Range<u64> {
    let chosen = std::env::var("BRAID_SIM_VOLUMES").ok();
    let range = chosen.as_deref().and_then(|s| s.split_once(".."));
    let parse = |(a, b): (&str, &str)| Some(a.parse().ok()?..b.parse().ok()?);
    range.and_then(parse).unwrap_or(0..120)
}

#[test]
fn volumes_from_seeds_lose_nothing() {
    let range = seeds();
    let next = AtomicU64::new(range.start);
    let total = Mutex::new(VolumeReport::default());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= range.end {
                        return;
                    }
                    match run_volume(seed) {
                        Ok(report) => *total.lock().unwrap() += &report,
                        Err(failure) => panic!("{failure}"),
                    }
                }
            });
        }
    });
    println!("{} seeds: {:?}", range.end - range.start, total.lock().unwrap());
}

#[test]
fn the_same_volume_seed_is_the_same_run() {
    for seed in [0, 1, 2, 4, 11] {
        assert_eq!(run_volume(seed).unwrap(), run_volume(seed).unwrap(), "seed {seed}");
    }
}

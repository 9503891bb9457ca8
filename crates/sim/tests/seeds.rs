//! A thousand clusters, and proof that the checkers can fail.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_sim::{Cluster, Report, Sabotage, run};

/// Seeds in one test run; `BRAID_SIM_SEEDS=FIRST..LAST` chooses others.
fn seeds() -> std::ops::Range<u64> {
    let chosen = std::env::var("BRAID_SIM_SEEDS").ok();
    let range = chosen.as_deref().and_then(|s| s.split_once(".."));
    let parse = |(a, b): (&str, &str)| Some(a.parse().ok()?..b.parse().ok()?);
    range.and_then(parse).unwrap_or(0..1000)
}

#[test]
fn a_thousand_seeds() {
    let range = seeds();
    let next = AtomicU64::new(range.start);
    let total = Mutex::new(Report::default());
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= range.end {
                        return;
                    }
                    match run(seed, &Cluster::from_seed(seed), false) {
                        Ok(report) => *total.lock().unwrap() += &report,
                        Err(failure) => panic!("{failure}"),
                    }
                }
            });
        }
    });
    let total = total.into_inner().unwrap();
    println!("{} seeds: {total:?}", range.end - range.start);
    if range.end - range.start >= 1000 {
        assert!(total.crashes > 1000 && total.recoveries > 1000, "too little happens: {total:?}");
        assert!(total.uses > 20_000 && total.faults > 1000, "too little happens: {total:?}");
        let unsure = total.transactions - total.acknowledged;
        assert!(total.transactions > 20_000 && unsure > 500, "too little happens: {total:?}");
        assert!(total.power_cuts > 1000 && total.replayed > 1000, "too little happens: {total:?}");
        let fates = total.lost.min(total.torn).min(total.late);
        assert!(fates > 100, "too little happens: {total:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let mut hashes = Vec::new();
    for seed in [3, 17, 99, 304] {
        let cluster = Cluster::from_seed(seed);
        let report = run(seed, &cluster, true).unwrap();
        // The report holds a hash of every event and of every request that landed.
        assert_eq!(report, run(seed, &cluster, false).unwrap());
        hashes.push(report.hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 4, "other seeds are other runs");
}

#[test]
fn bugs_put_in_on_purpose_are_found() {
    use Sabotage as S;
    for sabotage in [
        S::KeepDirty,
        S::ReleaseEarly,
        S::FenceEarly,
        S::BreakLiving,
        S::LyingFlush,
        S::ForgetGrants,
        S::SkipReplay,
    ] {
        let found = (0..1000).find_map(|seed| {
            let cluster = Cluster { sabotage: Some(sabotage), ..Cluster::from_seed(seed) };
            run(seed, &cluster, false).err()
        });
        let failure = found.unwrap_or_else(|| panic!("{sabotage:?} was not found"));
        println!("{sabotage:?}: {failure}");
    }
}

//! Volumes under faults, from seeds.

mod common;

use braid_sim::{run_contended, run_volume};

/// Seeds in one test run.
const USUAL: u64 = 120;

/// `BRAID_SIM_VOLUMES=FIRST..LAST` chooses others.
#[test]
fn volumes_from_seeds_lose_nothing() {
    let range = common::seeds("BRAID_SIM_VOLUMES", USUAL);
    let total = common::run_all(range.clone(), run_volume);
    println!("{} seeds: {total:?}", range.end - range.start);
    if range == (0..USUAL) {
        // About half of what there is.
        for (what, count, least) in [
            ("exchanges", total.exchanges, 220),
            ("power cuts", total.power_cuts, 90),
            ("deaths", total.deaths, 20),
            ("recoveries", total.recoveries, 15),
            ("degraded", total.degraded, 1),
            ("rebuilt", total.rebuilt, 35),
            ("moved", total.moved, 16),
            ("given back", total.discards, 110),
            ("rotten at a power cut", total.rot_survived[0], 7),
        ] {
            assert!(count >= least, "too few {what}: {total:?}");
        }
    }
}

/// Seeds of [`run_contended`] in one test run.
const CONTENDED: u64 = 150;

/// Locks are changed while members are filled and moved: no copy is left behind.
#[test]
fn contended_locks_are_the_same_on_all_copies() {
    let range = common::seeds("BRAID_SIM_VOLUMES", CONTENDED);
    let total = common::run_all(range.clone(), run_contended);
    println!("{} seeds: {total:?}", range.end - range.start);
    if range == (0..CONTENDED) {
        let few = total.exchanges < 6000 || total.rebuilt < 150 || total.moved < 90;
        assert!(!few, "too few: {total:?}");
    }
}

/// Each for another reason: docs/decisions/0007.
#[test]
fn seeds_that_have_failed_lose_nothing() {
    for seed in [
        714, 954, 1081, 1567, 2214, 2835, 3075, 3685, 3926, 4005, 4151, 4261, 4995, 6981, 7055,
        8485, 9078, 9125, 9472,
    ] {
        if let Err(failure) = run_volume(seed) {
            panic!("{failure}");
        }
    }
}

#[test]
fn the_same_volume_seed_is_the_same_run() {
    for seed in [0, 1, 2, 4, 11] {
        assert_eq!(run_volume(seed).unwrap(), run_volume(seed).unwrap(), "seed {seed}");
    }
}

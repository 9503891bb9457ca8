//! Volumes under faults, from seeds.

mod common;

use braid_sim::{run_concurrent, run_contended, run_offline, run_volume};

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

/// Seeds of [`run_concurrent`] in one test run.
const CONCURRENT: u64 = 60;

/// Several nodes write the same blocks of mirrors.
#[test]
fn blocks_written_at_once_are_the_same_on_all_copies() {
    let range = common::seeds("BRAID_SIM_VOLUMES", CONCURRENT);
    let total = common::run_all(range.clone(), |seed| run_concurrent(seed, false));
    println!("{} seeds: {total:?}", range.end - range.start);
    if range == (0..CONCURRENT) {
        let few = total.met < 160 || total.deaths < 35 || total.power_cuts < 28;
        assert!(!few, "too few: {total:?}");
    }
}

/// Seeds of [`run_offline`] in one test run.
const OFFLINE: u64 = 120;

/// Members go offline for a while, whatever happens meanwhile, and catch up.
#[test]
fn members_that_were_offline_lack_nothing() {
    let range = common::seeds("BRAID_SIM_VOLUMES", OFFLINE);
    let total = common::run_all(range.clone(), |seed| run_offline(seed, false));
    println!("{} seeds: {total:?}", range.end - range.start);
    if range == (0..OFFLINE) {
        let few = total.offline < 100 || total.caught_up < 40 || total.power_cuts < 40;
        assert!(!few, "too few: {total:?}");
    }
}

/// It was ours once: such writes went to the copies in whatever order, and nobody looked.
#[test]
fn copies_that_are_split_are_found() {
    let found = (0..100).find_map(|seed| run_concurrent(seed, true).err());
    let failure = found.expect("it was not found").to_string();
    println!("{failure}");
    assert!(failure.contains("differ, and nobody writes"), "{failure}");
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

//! The founding documents' S4.3 and S4.4, in virtual time: nodes that share nothing do not slow each
//! other.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use braid_format::Bytes;
use braid_sim::{Pace, Scale, Scaled, scale};

const NODES: [u16; 7] = [1, 2, 4, 8, 16, 32, 64];

fn runs(pace: Pace, each: Bytes, apart: bool) -> Vec<Scaled> {
    let run = |nodes| scale(Scale { nodes, apart, each, pace }).unwrap();
    NODES.into_iter().map(run).collect()
}

/// Throughput of a node among so many, to that of one alone.
fn shares(runs: &[Scaled]) -> Vec<f64> {
    runs.iter().map(|run| run.mean() / runs[0].mean()).collect()
}

fn show(what: &str, runs: &[Scaled]) {
    println!("{what}");
    for ((nodes, run), share) in NODES.iter().zip(runs).zip(shares(runs)) {
        let least = run.rates.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            "{nodes:3} nodes: {:7.1} MB/s each, {share:.4} of one; the slowest {:.4}; common device {:.1} % busy with what is common; {} requests of locks, {} of beats and looks",
            run.mean() / 1e6,
            least / runs[0].mean(),
            run.common * 100.0,
            run.locks,
            run.watching,
        );
    }
}

fn holds(pace: Pace, each: Bytes, most: u16) {
    let [shared, apart] = [false, true].map(|apart| runs(pace, each, apart));
    show("S4.3: what is common stands on the first node's device", &shared);
    show("S4.4: what is common stands on a device of its own", &apart);
    let count = NODES.iter().filter(|n| **n <= most).count();
    for (share, alone) in shares(&shared).iter().zip(shares(&apart)).take(count) {
        assert!(*share >= 0.95 && alone >= 0.95, "{share} {alone}");
        assert!((share - alone).abs() <= 0.02, "S4.3 {share}, S4.4 {alone}");
    }
}

#[test]
fn on_flash_64_nodes_are_as_fast_each_as_one() {
    let pace = Pace { request: Duration::from_micros(20), rate: Bytes(500_000_000) };
    holds(pace, Bytes(4 << 30), 64);
}

/// As in the founding documents: 256 MB each, 4 hosts, disks of their time.
#[test]
fn on_the_disks_of_then_4_nodes_are_as_fast_each_as_one() {
    let pace = Pace { request: Duration::from_micros(500), rate: Bytes(9_000_000) };
    holds(pace, Bytes(256 << 20), 4);
}

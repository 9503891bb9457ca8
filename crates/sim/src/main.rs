//! `sim SEED [--trace]` replays one run; `sim FIRST LAST` runs many and stops at the first failure.
//! `sim --volumes FIRST [LAST]` runs volumes, and goes on after a failure.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use braid_sim::{Cluster, Report, VolumeReport, run, run_volume};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let trace = args.iter().any(|a| a == "--trace");
    let seeds: Result<Vec<u64>, _> =
        args.iter().filter(|a| !a.starts_with("--")).map(|a| a.parse()).collect();
    let (first, last) = match seeds.as_deref() {
        Ok([seed]) => (*seed, *seed),
        Ok([first, last]) => (*first, *last),
        _ => {
            eprintln!("usage: sim SEED [--trace] | sim FIRST LAST | sim --volumes FIRST [LAST]");
            return ExitCode::from(2);
        }
    };
    if args.iter().any(|a| a == "--volumes") {
        return volumes(first, last);
    }
    let mut total = Report::default();
    for seed in first..=last {
        let cluster = Cluster::from_seed(seed);
        if first == last {
            println!("{cluster:#?}");
        }
        match run(seed, &cluster, trace) {
            Ok(report) => total += &report,
            Err(failure) => {
                for line in &failure.trace {
                    println!("{line}");
                }
                eprintln!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{total:?}");
    ExitCode::SUCCESS
}

fn volumes(first: u64, last: u64) -> ExitCode {
    let mut total = VolumeReport::default();
    let mut failed = Vec::new();
    for seed in first..=last {
        match run_volume(seed) {
            Ok(report) => total += &report,
            Err(failure) => {
                eprintln!("{failure}\n");
                failed.push(seed);
            }
        }
    }
    println!("{} seeds, of which failed {failed:?}: {total:?}", last - first + 1);
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! `sim SEED [--trace]` replays one run; `sim FIRST LAST` runs many and stops at the first failure.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use braid_sim::{Cluster, Report, run};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let trace = args.iter().any(|a| a == "--trace");
    let seeds: Result<Vec<u64>, _> =
        args.iter().filter(|a| *a != "--trace").map(|a| a.parse()).collect();
    let (first, last) = match seeds.as_deref() {
        Ok([seed]) => (*seed, *seed),
        Ok([first, last]) => (*first, *last),
        _ => {
            eprintln!("usage: sim SEED [--trace] | sim FIRST LAST");
            return ExitCode::from(2);
        }
    };
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

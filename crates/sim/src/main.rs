//! `sim SEED [--trace]` replays one run; `sim FIRST LAST` runs many, and goes on after a failure.
//! `sim --hosts ...` is the same with nodes on hosts of their own.
//! `sim --volumes FIRST [LAST]` runs volumes.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use braid_sim::{Cluster, Report, VolumeReport, run, run_volume};

const USAGE: &str = "usage: sim [--hosts] SEED [--trace] | sim [--hosts] FIRST LAST | sim --volumes FIRST [LAST], FIRST <= LAST";

/// What was asked for.
struct Asked {
    first: u64,
    last: u64,
    trace: bool,
    volumes: bool,
    hosts: bool,
}

impl Asked {
    /// What words say; `None`: nothing that makes sense.
    fn of(words: impl Iterator<Item = String>) -> Option<Self> {
        let (mut seeds, mut trace, mut are_volumes) = (Vec::new(), false, false);
        let mut hosts = false;
        for word in words {
            match word.as_str() {
                "--trace" => trace = true,
                "--volumes" => are_volumes = true,
                "--hosts" => hosts = true,
                seed => seeds.push(seed.parse().ok()?),
            }
        }
        let (first, last) = match *seeds {
            [seed] => (seed, seed),
            [first, last] if first <= last => (first, last),
            _ => return None,
        };
        let asked = Self { first, last, trace, volumes: are_volumes, hosts };
        (!(hosts && are_volumes)).then_some(asked)
    }
}

fn main() -> ExitCode {
    let Some(Asked { first, last, trace, volumes: are_volumes, hosts }) =
        Asked::of(std::env::args().skip(1))
    else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if are_volumes {
        return volumes(first, last);
    }
    let mut total = Report::default();
    let mut failed = Vec::new();
    for seed in first..=last {
        let cluster = if hosts { Cluster::of_hosts(seed) } else { Cluster::from_seed(seed) };
        if first == last {
            println!("{cluster:#?}");
        }
        match run(seed, &cluster, trace) {
            Ok(report) => total += &report,
            Err(failure) => {
                for line in &failure.trace {
                    println!("{line}");
                }
                eprintln!("{failure}\n");
                failed.push(seed);
            }
        }
    }
    summed_up(first, last, &failed, &total)
}

fn summed_up(first: u64, last: u64, failed: &[u64], total: &dyn std::fmt::Debug) -> ExitCode {
    println!("seeds {first} to {last}, of which failed {failed:?}: {total:?}");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
    summed_up(first, last, &failed, &total)
}

#[cfg(test)]
mod tests {
    use super::Asked;

    fn asked(words: &str) -> Option<(u64, u64, bool, bool)> {
        let asked = Asked::of(words.split_whitespace().map(str::to_owned))?;
        Some((asked.first, asked.last, asked.trace, asked.volumes))
    }

    #[test]
    fn words_that_are_not_understood_are_refused() {
        assert_eq!(asked("7 --trace"), Some((7, 7, true, false)));
        assert_eq!(asked("--volumes 0 18446744073709551615"), Some((0, u64::MAX, false, true)));
        assert!(Asked::of(["--hosts".to_owned(), "3".to_owned()].into_iter()).unwrap().hosts);
        for words in
            ["--hosts --volumes 3", "", "1 2 3", "9 3", "7 --volume", "--tarce 7", "x", "-1"]
        {
            assert_eq!(asked(words), None, "{words}");
        }
    }
}

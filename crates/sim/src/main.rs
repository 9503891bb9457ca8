//! `sim SEED [--trace]` replays one run; `sim FIRST LAST` runs many, and goes on after a failure.
//! `sim --hosts ...` is the same with nodes on hosts of their own, `sim --files ...` with files, `sim --mirrors ...`
//! with files on mirrors, `sim --parity ...` on parity, `sim --etcd ...` with files and with locks in etcd.
//! `sim --volumes FIRST [LAST] [--trace]` runs volumes, `sim --offline ...` those whose members go offline.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use braid_sim::{
    Cluster, Report, VolumeFailure, VolumeReport, run, run_offline, run_volume, trace_volume,
};

const USAGE: &str = "usage: sim [--hosts | --files | --etcd | --mirrors | --parity] SEED [--trace] | sim [--hosts | --files | --etcd | --mirrors | --parity] FIRST LAST | sim [--volumes | --offline] FIRST [LAST] [--trace], FIRST <= LAST";

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Usual,
    Hosts,
    Files,
    Etcd,
    Mirrors,
    Parity,
    Volumes,
    Offline,
}

/// What was asked for.
struct Asked {
    first: u64,
    last: u64,
    trace: bool,
    kind: Kind,
}

impl Asked {
    /// What words say; `None`: nothing that makes sense.
    fn of(words: impl Iterator<Item = String>) -> Option<Self> {
        let (mut seeds, mut trace, mut kinds) = (Vec::new(), false, Vec::new());
        for word in words {
            match word.as_str() {
                "--trace" => trace = true,
                "--volumes" => kinds.push(Kind::Volumes),
                "--offline" => kinds.push(Kind::Offline),
                "--hosts" => kinds.push(Kind::Hosts),
                "--files" => kinds.push(Kind::Files),
                "--etcd" => kinds.push(Kind::Etcd),
                "--mirrors" => kinds.push(Kind::Mirrors),
                "--parity" => kinds.push(Kind::Parity),
                seed => seeds.push(seed.parse().ok()?),
            }
        }
        let kind = match *kinds {
            [] => Kind::Usual,
            [kind] => kind,
            _ => return None,
        };
        let (first, last) = match *seeds {
            [seed] => (seed, seed),
            [first, last] if first <= last => (first, last),
            _ => return None,
        };
        Some(Self { first, last, trace, kind })
    }
}

fn main() -> ExitCode {
    let Some(Asked { first, last, trace, kind }) = Asked::of(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let cluster_of = match kind {
        Kind::Usual => Cluster::from_seed,
        Kind::Hosts => Cluster::of_hosts,
        Kind::Files => Cluster::of_files,
        Kind::Etcd => Cluster::of_etcd,
        Kind::Mirrors => Cluster::of_mirrors,
        Kind::Parity => Cluster::of_parity,
        Kind::Volumes => {
            let run = if trace { trace_volume } else { run_volume };
            return volumes(first, last, run);
        }
        Kind::Offline => return volumes(first, last, |seed| run_offline(seed, trace)),
    };
    let mut total = Report::default();
    let mut failed = Vec::new();
    for seed in first..=last {
        let cluster = cluster_of(seed);
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

fn volumes(
    first: u64,
    last: u64,
    run: impl Fn(u64) -> Result<VolumeReport, Box<VolumeFailure>>,
) -> ExitCode {
    let mut total = VolumeReport::default();
    let mut failed = Vec::new();
    for seed in first..=last {
        match run(seed) {
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
    use super::{Asked, Kind};

    fn asked(words: &str) -> Option<(u64, u64, bool, Kind)> {
        let asked = Asked::of(words.split_whitespace().map(str::to_owned))?;
        Some((asked.first, asked.last, asked.trace, asked.kind))
    }

    #[test]
    fn words_that_are_not_understood_are_refused() {
        assert_eq!(asked("7 --trace"), Some((7, 7, true, Kind::Usual)));
        let volumes = asked("--volumes 0 18446744073709551615");
        assert_eq!(volumes, Some((0, u64::MAX, false, Kind::Volumes)));
        assert_eq!(asked("--offline 3"), Some((3, 3, false, Kind::Offline)));
        assert_eq!(asked("--hosts 3"), Some((3, 3, false, Kind::Hosts)));
        assert_eq!(asked("--etcd 3"), Some((3, 3, false, Kind::Etcd)));
        assert_eq!(asked("--mirrors 3"), Some((3, 3, false, Kind::Mirrors)));
        assert_eq!(asked("--parity 3"), Some((3, 3, false, Kind::Parity)));
        assert_eq!(asked("3 9 --files"), Some((3, 9, false, Kind::Files)));
        for words in [
            "--hosts --volumes 3",
            "--hosts --files 3",
            "",
            "1 2 3",
            "9 3",
            "7 --volume",
            "--tarce 7",
            "x",
            "-1",
        ] {
            assert_eq!(asked(words), None, "{words}");
        }
    }
}

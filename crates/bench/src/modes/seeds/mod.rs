//! The founding documents' experiments, one command: on disk models what needs the disks of their
//! time, on this machine's devices the rest; a verdict for each, beside what was measured then.

mod clusters;
mod compared;
mod devices;
mod models;
mod rigged;

use std::path::PathBuf;

use anyhow::Result;

use super::{How, System, configuration};
use crate::cli::size;
use crate::report::stats::Samples;
use crate::report::{Goal, Report, Verdict};

/// The founding documents' experiments, with a verdict for each (docs/BENCHMARKING.md lists them)
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories on mounted file systems to compare, the first with the others. Without any: XFS and
    /// two nodes' mounts of a pool, each on a loop device that is made for it
    #[arg(value_name = "[NAME=]DIR")]
    systems: Vec<System>,
    /// Where backing files are made: a RAM file system
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Bytes of each phase
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Only the disk models: no root, no devices, the same figures on every machine
    #[arg(long)]
    models: bool,
    /// Only experiments whose number begins so: S0.4, S4
    #[arg(long, value_delimiter = ',', value_name = "S...")]
    only: Vec<String>,
    #[command(flatten)]
    how: How,
}

/// An experiment adds verdicts, rows and notes.
type Experiment = fn(&Args, &mut Report) -> Result<()>;

/// Those on devices, each with the numbers that it answers.
const ON_DEVICES: [(&str, Experiment); 12] = [
    ("S0.2", clusters::s0_2),
    ("S0.3 S0.8 S3.4 S3.10 S4.2", devices::layers),
    ("S0.4", rigged::s0_4),
    ("S0.9", clusters::s0_9),
    ("S1.1 S1.2", rigged::s1_1),
    ("S1.7", rigged::s1_7),
    (compared::NUMBERS, compared::directories),
    ("S3.3", rigged::s3_3),
    ("S4.3 S4.4", clusters::s4_3),
    ("S4.5", rigged::s4_5),
    ("S4.6", clusters::s4_6),
    ("S4.7", clusters::s4_7),
];

impl Args {
    /// Whether an experiment with one of these numbers is wanted.
    fn wants(&self, numbers: &str) -> bool {
        let named = |number: &str| self.only.iter().any(|o| number.starts_with(o.as_str()));
        self.only.is_empty() || numbers.split(' ').any(named)
    }
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    anyhow::ensure!(args.how.accept.is_empty(), "--accept: every experiment has its own goal");
    let _shown = args.how.show()?;
    let mut report = Report::new("seeds");
    report.configuration = configuration(args);
    report.fact("job", "the experiments of 1992 to 2000; goals are of today");
    models::all(&mut report)?;
    if !args.only.is_empty() {
        report.verdicts.retain(|v| args.wants(&v.what));
        report.rows.retain(|r| args.wants(&r.phase));
    }
    let result = if args.models { Ok(()) } else { on_devices(args, &mut report) };
    let short: Vec<_> = report
        .verdicts
        .iter()
        .filter(|v| !v.met && v.measured.is_some())
        .map(|v| v.what.clone())
        .collect();
    args.how.finish(report, result)?;
    anyhow::ensure!(short.is_empty(), "{} fell short: {}", short.len(), short.join("; "));
    Ok(())
}

/// What cannot be measured here has a verdict that says why; the others are measured all the same.
fn on_devices(args: &Args, report: &mut Report) -> Result<()> {
    for (what, why) in devices::CANNOT {
        if args.wants(what) {
            report.verdicts.push(unmeasured(what, why));
        }
    }
    for (numbers, experiment) in ON_DEVICES {
        if !args.wants(numbers) {
            continue;
        }
        // Directories that were given need no rights.
        let given = numbers == compared::NUMBERS && !args.systems.is_empty();
        if !rustix::process::geteuid().is_root() && !given {
            report.verdicts.push(unmeasured(numbers, "loop devices and mounts need root"));
            continue;
        }
        if let Err(e) = experiment(args, report) {
            if e.is::<crate::live::Interrupted>() {
                return Err(e);
            }
            report.verdicts.push(unmeasured(numbers, &format!("{e:#}")));
        }
    }
    Ok(())
}

/// A verdict on what could not be measured.
fn unmeasured(what: &str, why: &str) -> Verdict {
    Verdict::unmeasured(what, Goal::AtLeast(1.0), why)
}

/// A verdict on one figure.
pub(super) fn verdict(what: &str, original: &str, goal: Goal, measured: f64) -> Verdict {
    Verdict::of(what, goal, &Samples(vec![measured])).original(original)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_modelled_experiment_meets_its_goal() {
        let mut report = Report::new("seeds");
        models::all(&mut report).unwrap();
        assert!(report.verdicts.len() >= 20, "{}", report.verdicts.len());
        for v in &report.verdicts {
            assert!(v.met, "{}: {:?}, goal {}", v.what, v.measured, v.goal);
        }
    }
}

//! The founding documents' experiments, one command: on disk models what needs the disks of their
//! time, on this machine's devices the rest; a verdict for each, beside what was measured then.

mod devices;
mod models;

use std::path::PathBuf;

use anyhow::Result;

use super::{How, System, configuration};
use crate::cli::size;
use crate::report::{Report, Verdict};

/// The founding documents' experiments, with a verdict for each (docs/BENCHMARKING.md lists them)
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories on mounted file systems to compare besides, the first with the others
    #[arg(value_name = "[NAME=]DIR")]
    systems: Vec<System>,
    /// Where backing files are made for the ladder: a RAM file system
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Bytes of each phase
    #[arg(long, default_value = "256M", value_parser = size)]
    size: u64,
    /// Only the disk models: no root, no devices, the same figures on every machine
    #[arg(long)]
    models: bool,
    #[command(flatten)]
    how: How,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut report = Report::new("seeds");
    report.configuration = configuration(args);
    report.fact("job", "the experiments of 1992 to 2000; goals are of today");
    models::all(&mut report)?;
    let result = if args.models { Ok(()) } else { devices::all(args, &mut report) };
    for (what, why) in devices::NOT_YET {
        report.note(format!("{what}: not measured here; {why}"));
    }
    let short: Vec<_> = report.verdicts.iter().filter(|v| !v.met).map(|v| v.what.clone()).collect();
    args.how.finish(report, result)?;
    anyhow::ensure!(short.is_empty(), "{} fell short: {}", short.len(), short.join("; "));
    Ok(())
}

/// A verdict on one figure.
pub(super) fn verdict(what: &str, original: &str, goal: f64, measured: f64) -> Verdict {
    Verdict {
        what: what.to_owned(),
        original: original.to_owned(),
        goal,
        at_most: false,
        measured: Some(measured),
        interval: None,
        met: measured >= goal,
        note: String::new(),
    }
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

//! The experiments of the founding documents (1992 to 2000) in one command. Those that need the disks of their
//! time run on disk models, the others on this machine's devices. Each gets a verdict beside the result
//! that was published then.

mod bulk;
mod compared;
mod devices;
mod experiment;
mod file_systems;
mod loop_devices;
mod models;
mod plan;
mod surfaces;

use std::time::Instant;

use anyhow::Result;
use itertools::Itertools as _;

use super::{RunOptions, configuration};
use crate::progress::RunOfRuns;
use crate::report::{Goal, Report, Verdict, lines, numbers};
use experiment::is_of;
use plan::{ALL, Plan};

pub(crate) use experiment::Args;

impl Args {
    /// Refuses what cannot be meant.
    fn check(&self) -> Result<()> {
        anyhow::ensure!(self.how.accept.is_empty(), "--accept: every experiment has its own goal");
        self.how.budget()?;
        let sane = self.within.is_none_or(|w| w.is_finite() && w > 0.0);
        anyhow::ensure!(sane, "--within: a number of seconds above 0");
        let cannot = devices::CANNOT.iter().flat_map(|(what, _)| numbers(what));
        let planned = ALL.iter().flat_map(|p| p.numbers).copied();
        let known: Vec<&str> = planned.chain(models::NUMBERS).chain(cannot).collect();
        for only in &self.only {
            let there = known.iter().any(|n| is_of(n, only));
            anyhow::ensure!(there, "--only {only}: no experiment has that number");
        }
        Ok(())
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    args.check()?;
    let mut plan = Plan::new(args);
    if !args.models && !plan.experiments.is_empty() {
        eprintln!("braid bench seeds: {}", plan.said(&args.how));
    }
    let _shown = args.how.show()?;
    let mut report = Report::new("seeds");
    report.brief = !args.verbose;
    report.configuration = configuration(args);
    report.fact("job", "the experiments of 1992 to 2000; goals are of today");
    models::all(&mut report)?;
    report.rows.retain(|r| args.wants(&r.phase));
    let result =
        if args.models { Ok(Vec::new()) } else { on_devices(args, &mut plan, &mut report) };
    // An experiment may answer more numbers than were asked for.
    report.verdicts.retain(|v| args.wants(&v.what));
    RunOptions::note_others(&mut report);
    let short = fell_short(&report).join(", ");
    let (failed, result) = result.map_or_else(|e| (Vec::new(), Err(e)), |f| (f, Ok(())));
    args.how.finish(report, result)?;
    anyhow::ensure!(failed.is_empty(), "could not be measured: {}", failed.join("; "));
    anyhow::ensure!(short.is_empty(), "short of their goals: {short}");
    Ok(())
}

/// Numbers of the experiments with cells that are short of their goals.
fn fell_short(report: &Report) -> Vec<&str> {
    let short = lines(&report.verdicts).into_iter().filter(|line| line.short() > 0);
    short.flat_map(|line| numbers(line.what)).unique().collect()
}

/// What cannot be measured here has a verdict that says why; the others are measured all the same.
/// Those that failed.
fn on_devices(args: &Args, plan: &mut Plan, report: &mut Report) -> Result<Vec<String>> {
    let (mut failed, mut took) = (Vec::new(), Vec::new());
    for (what, why) in devices::CANNOT {
        if args.wants(what) {
            report.verdicts.push(Verdict::unmeasured(what, Goal::Told, why));
        }
    }
    let root = rustix::process::geteuid().is_root();
    let experiments = plan.experiments.clone();
    for (n, planned) in experiments.iter().enumerate() {
        let (number, count) = (n + 1, experiments.len());
        let ends = plan.ends(n, &args.how);
        crate::progress::whole(RunOfRuns { number, count, name: planned.name(), ends });
        // Directories that were given need no rights.
        let given = compared::in_directories(planned.numbers) && !args.systems.is_empty();
        let began = Instant::now();
        let why = match plan.how(n, &args.how) {
            _ if !root && !given => "loop devices and mounts need root".to_owned(),
            None => "no time is left for it".to_owned(),
            Some(how) => match (planned.run)(&Args { how, ..args.clone() }, report) {
                Ok(()) => {
                    took.push(format!("{} {:.1} s", planned.name(), began.elapsed().as_secs_f64()));
                    continue;
                }
                Err(e) if e.is::<crate::progress::Interrupted>() => return Err(e),
                Err(e) => {
                    failed.push(format!("{}: {e:#}", planned.name()));
                    format!("{e:#}")
                }
            },
        };
        unmeasured(args, planned.numbers, &why, report);
    }
    if !took.is_empty() {
        report.fact("took", took.join(", "));
    }
    Ok(failed)
}

/// A verdict on each number that has none.
fn unmeasured(args: &Args, all: &[&str], why: &str, report: &mut Report) {
    for number in all.iter().filter(|n| args.wants(n)) {
        let has = |v: &Verdict| v.measured.is_some() && numbers(&v.what).any(|n| n == *number);
        if !report.verdicts.iter().any(has) {
            report.verdicts.push(Verdict::unmeasured(*number, Goal::Told, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::experiment::verdict;
    use super::*;

    #[test]
    fn every_modelled_experiment_meets_its_goal() {
        let mut report = Report::new("seeds");
        models::all(&mut report).unwrap();
        assert!(report.verdicts.len() >= 20, "{}", report.verdicts.len());
        for v in &report.verdicts {
            assert!(v.met, "{}: {:?}, goal {}", v.title(), v.measured, v.goal);
            let all: Vec<_> = numbers(&v.what).collect();
            assert!(
                !all.is_empty() && all.iter().all(|n| models::NUMBERS.contains(n)),
                "{}",
                v.what
            );
        }
        assert!(fell_short(&report).is_empty());
        for number in models::NUMBERS {
            assert!(
                report.verdicts.iter().any(|v| numbers(&v.what).any(|n| n == number)),
                "{number}"
            );
        }
    }
    #[test]
    fn what_failed_is_not_measured_once_for_each_number_that_has_nothing() {
        let args: Args = crate::modes::typed(&["--only", "S3"]);
        let mut report = Report::new("seeds");
        report.verdicts.push(verdict("S3.6 first write", "", Goal::AtLeast(1.0), 0.5));
        unmeasured(&args, &["S2.1", "S3.6", "S3.7"], "full", &mut report);
        let said: Vec<_> = report.verdicts.iter().map(|v| (v.what.as_str(), v.word())).collect();
        assert_eq!(said, [("S3.6 first write", "SHORT"), ("S3.7", "not measured")]);
        assert_eq!(fell_short(&report), ["S3.6"]);
    }
}

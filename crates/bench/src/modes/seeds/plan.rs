//! The list of experiments on devices, how long each takes, and how `--within` is shared among them.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::experiment::Args;
use super::{bulk, compared, devices, file_systems, loop_devices, surfaces};
use crate::modes::RunOptions;
use crate::report::Report;

/// An experiment adds verdicts, rows and notes.
pub(super) type Experiment = fn(&Args, &mut Report) -> anyhow::Result<()>;

/// An experiment on devices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    /// The numbers that it answers.
    pub numbers: &'static [&'static str],
    pub run: Experiment,
    /// Seconds that making its devices and file systems takes, and a round: of a release build on two
    /// processors, `--size 256M`.
    setup: f64,
    round: f64,
}

/// Seconds for which the plan is believed whatever the experiments took so far.
const PLANNED: f64 = 60.0;

const fn planned(
    numbers: &'static [&'static str],
    run: Experiment,
    (setup, round): (f64, f64),
) -> Planned {
    Planned { numbers, run, setup, round }
}

pub(super) const ALL: [Planned; 15] = [
    planned(&["S0.2"], file_systems::s0_2, (2.0, 6.0)),
    planned(&["S0.3", "S0.8", "S3.4", "S3.10"], devices::layers, (2.0, 3.0)),
    planned(&["S0.4"], loop_devices::s0_4, (4.0, 9.0)),
    planned(&["S0.9"], file_systems::s0_9, (2.0, 0.0)),
    planned(&["S1.1", "S1.2"], loop_devices::s1_1, (1.0, 3.0)),
    planned(&["S1.6"], bulk::s1_6, (45.0, 0.0)),
    planned(&["S1.7"], loop_devices::s1_7, (1.0, 0.5)),
    planned(&compared::SWEEP, compared::factors, (5.0, 27.0)),
    planned(&["S3.3"], loop_devices::s3_3, (1.0, 7.0)),
    planned(&compared::WRITES, compared::writes, (4.0, 4.0)),
    planned(&["S4.1", "S4.2"], surfaces::s4_1, (2.0, 35.0)),
    planned(&["S4.3", "S4.4"], file_systems::s4_3, (9.0, 7.0)),
    planned(&["S4.5"], loop_devices::s4_5, (5.0, 5.5)),
    planned(&["S4.6"], file_systems::s4_6, (2.0, 0.5)),
    planned(&["S4.7"], file_systems::s4_7, (4.0, 0.5)),
];

impl Planned {
    /// Seconds that it takes, about.
    fn expected(&self, how: &RunOptions) -> f64 {
        let most = super::devices::short(how).repeats.max(1);
        let least = how.least.clamp(1, most);
        let mut rounds = least;
        while rounds < most && self.round * crate::statistics::float(rounds as u64) < how.budget {
            rounds += 1;
        }
        let rounds = rounds.saturating_add(how.warm_up);
        self.setup + self.round * crate::statistics::float(rounds as u64)
    }
    /// `S0.3 to S3.10`
    pub fn name(&self) -> String {
        match self.numbers {
            [first, .., last] => format!("{first} to {last}"),
            [one] => (*one).to_owned(),
            [] => String::new(),
        }
    }
}

/// Experiments that are run one after the other.
pub(super) struct Plan {
    pub experiments: Vec<Planned>,
    began: Instant,
    /// Seconds for all of them.
    within: Option<f64>,
    /// Seconds that those so far should have taken, as they were run.
    due: f64,
}

impl Plan {
    /// Those that are wanted.
    pub fn new(args: &Args) -> Self {
        let wanted = |p: &&Planned| p.numbers.iter().any(|n| args.wants(n));
        let experiments = ALL.iter().filter(wanted).copied().collect();
        Self { experiments, began: Instant::now(), within: args.within, due: 0.0 }
    }
    /// What it takes, before it begins.
    pub fn said(&self, how: &RunOptions) -> String {
        let times: Vec<f64> = self.experiments.iter().map(|p| p.expected(how)).collect();
        let all: f64 = times.iter().sum();
        let count = times.len();
        let time = |t: f64| crate::progress::duration(seconds(t));
        let mut said = format!("{count} experiments on devices, about {}", time(all));
        if let Some(within) = self.within.filter(|w| *w < all) {
            let _ = write!(said, ", made shorter to take about {}", time(within));
        }
        let mut longest: Vec<_> = times.iter().zip(&self.experiments).collect();
        longest.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let longest = longest.iter().take(3).map(|(t, p)| format!("{} {}", p.name(), time(**t)));
        let longest: Vec<_> = longest.collect();
        if count > 1 {
            let _ = write!(said, " ({} ...)", longest.join(", "));
        }
        said
    }
    /// Seconds that those from number `n` on take, as far as those before tell, which took `taken`.
    fn rest(&self, n: usize, how: &RunOptions, taken: f64) -> f64 {
        let all: f64 = self.experiments.iter().skip(n).map(|p| p.expected(how)).sum();
        // Another machine may be much faster or slower; a build without optimisation is.
        // A few short experiments tell little of that.
        let pace = (taken + PLANNED) / (self.due + PLANNED);
        all * pace.clamp(0.1, 10.0)
    }
    /// When all will be over, about.
    pub fn ends(&self, n: usize, how: &RunOptions) -> Instant {
        let taken = self.began.elapsed().as_secs_f64();
        let left = self.within.map_or(f64::INFINITY, |w| (w - taken).max(0.0));
        let rest = seconds(self.rest(n, how, taken).min(left));
        let now = Instant::now();
        now.checked_add(rest).unwrap_or(now)
    }
    /// How experiment `n` is run so that those after it have their share of the time; `None`: there is
    /// none left.
    pub fn how(&mut self, n: usize, how: &RunOptions) -> Option<RunOptions> {
        self.how_after(self.began.elapsed().as_secs_f64(), n, how)
    }
    fn how_after(&mut self, taken: f64, n: usize, how: &RunOptions) -> Option<RunOptions> {
        let mut own = how.clone();
        let left = self.within.map_or(f64::INFINITY, |w| w - taken);
        if left <= 0.0 {
            return None;
        }
        let this = *self.experiments.get(n)?;
        let (rest, expected) = (self.rest(n, how, taken), this.expected(how));
        if left < rest {
            let all: f64 = self.experiments.iter().skip(n).map(|p| p.expected(how)).sum();
            let share = left * expected / all.max(1e-9);
            // The round that is under way when a budget ends is finished.
            own.budget = own.budget.min((share - this.setup - this.round / 2.0).max(0.0));
            own.least = 1;
        }
        self.due += this.expected(&own);
        Some(own)
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Args {
        crate::modes::typed(words)
    }

    #[test]
    fn what_it_takes_is_said_before() {
        let all = args(&["--repeats", "6", "--budget", "90"]);
        let plan = Plan::new(&all);
        let said = plan.said(&all.how);
        assert!(said.starts_with("15 experiments on devices, about "), "{said}");
        assert!(said.contains("S2.1 to S2.20"), "{said}");
        let within = args(&["--within", "60"]);
        assert!(Plan::new(&within).said(&within.how).contains("made shorter to take about 60 s"));
        let one = args(&["--only", "S4.1", "--repeats", "1", "--least", "1"]);
        assert_eq!(Plan::new(&one).said(&one.how), "1 experiments on devices, about 37 s");
    }
    /// Seconds that all take on a machine that is so much slower.
    fn took(words: &[&str], slower: f64) -> f64 {
        let args = args(words);
        let mut plan = Plan::new(&args);
        let mut taken = 0.0;
        for (n, experiment) in ALL.iter().enumerate() {
            let Some(how) = plan.how_after(taken, n, &args.how) else { continue };
            let most = super::super::devices::short(&how).repeats;
            let (mut rounds, mut elapsed) = (0, 0.0);
            while rounds < most && (rounds < how.least || elapsed < how.budget) {
                rounds += 1;
                elapsed += experiment.round * slower;
            }
            taken += experiment.setup * slower + elapsed;
        }
        taken
    }

    #[test]
    fn a_time_for_all_is_shared_out() {
        // The round that is under way is finished, and each experiment has one if it is begun.
        for within in [120.0, 300.0, 600.0, 1100.0] {
            let time = took(&["--within", &within.to_string()], 1.0);
            assert!(time > 0.5 * within && time < 1.05 * within + 20.0, "{time} of {within}");
        }
        // Slower than planned, by what is known only when some have run.
        let time = took(&["--within", "1100"], 2.0);
        assert!(time < 1.1 * 1100.0, "{time}");
        // Enough for all of it.
        let (enough, all) = (took(&["--within", "100000"], 1.0), took(&[], 1.0));
        assert!((enough - all).abs() < 1e-6, "{enough} {all}");
        let late = args(&["--within", "10"]);
        assert!(Plan::new(&late).how_after(10.0, 3, &late.how).is_none());
        assert!(Plan::new(&late).ends(0, &late.how) > Instant::now());
    }
    #[test]
    fn no_experiment_is_planned_twice() {
        let mut seen: Vec<&str> = ALL.iter().flat_map(|p| p.numbers.iter().copied()).collect();
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }
}

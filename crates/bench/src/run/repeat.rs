//! Rounds: they go on until the result is known well enough or the budget is used up.
//!
//! Each round measures every system once, in turn. Every second round goes in reverse order, so that drift
//! affects all systems alike.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::statistics::Interval;

/// How much may be spent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Rounds at least and at most.
    pub least: usize,
    pub most: usize,
    /// No round is begun after this.
    pub time: Duration,
    /// Enough when the interval of every ratio is no wider than this part of it.
    pub width: f64,
    /// How long to look for foreign load before each round.
    pub look: Duration,
}

/// Why no more was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ended {
    /// All intervals are narrow.
    Narrow,
    /// As many rounds as were asked for.
    Rounds,
    /// The time is used up.
    Time,
    /// Something failed: what was measured before stands.
    Failed,
    /// Whoever runs it has ended it: what was measured before stands.
    Interrupted,
}
impl Ended {
    pub fn said(self) -> &'static str {
        match self {
            Self::Narrow => "every interval is narrow enough",
            Self::Rounds => "as many rounds as were asked for",
            Self::Time => "the time budget is used up",
            Self::Failed => "something failed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What a run of rounds was like.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Rounds {
    pub done: usize,
    pub ended: Option<Ended>,
    pub seconds: f64,
    /// Processors' worth of foreign work before each round; none, where nobody looked.
    pub foreign: Vec<f64>,
}

impl Rounds {
    /// In words; `None`: not ended.
    pub fn said(&self) -> Option<String> {
        let (rounds, ended) = (if self.done == 1 { "round" } else { "rounds" }, self.ended?.said());
        let said = format!("{} {rounds} in {:.0} s: {ended}", self.done, self.seconds);
        let foreign = self.foreign.iter().copied().reduce(f64::max);
        let others = foreign.map(|f| format!("; others used up to {f:.1} processors"));
        Some(said + &others.unwrap_or_default())
    }
    /// Takes in those of another run.
    pub fn join(&mut self, other: Self) {
        self.done += other.done;
        self.seconds += other.seconds;
        self.foreign.extend(other.foreign);
        // What did not go well is said; of several good reasons none.
        let (a, b) = (self.ended, other.ended);
        let bad = [Ended::Interrupted, Ended::Failed].into_iter().map(Some);
        self.ended = bad.into_iter().find(|e| *e == a || *e == b).unwrap_or(a.filter(|_| a == b));
    }
}

/// Measures `systems` in rounds: `measure(round, system)`; after each round `intervals` says how
/// sure all ratios are (`None`: not at all yet).
///
/// # Errors
/// What `measure` says: the rounds before are kept by whoever collects them.
pub(crate) fn rounds(
    budget: &Budget,
    systems: usize,
    noted: &mut Rounds,
    mut measure: impl FnMut(usize, usize) -> Result<()>,
    mut intervals: impl FnMut() -> Vec<Option<Interval>>,
) -> Result<()> {
    let began = Instant::now();
    let mut ended = Ended::Rounds;
    for round in 0..budget.most.max(1) {
        if !budget.look.is_zero() {
            noted.foreign.push(super::load::foreign(budget.look));
        }
        for place in 0..systems {
            let system = if round % 2 == 0 { place } else { systems - 1 - place };
            let check_interrupted =
                crate::progress::check_interrupted().map_err(anyhow::Error::from);
            if let Err(e) = check_interrupted.and_then(|()| measure(round, system)) {
                let interrupted = e.is::<crate::progress::Interrupted>();
                let ended = if interrupted { Ended::Interrupted } else { Ended::Failed };
                noted.ended = Some(ended);
                noted.seconds = began.elapsed().as_secs_f64();
                return Err(e);
            }
        }
        noted.done = round + 1;
        if noted.done < budget.least {
            continue;
        }
        let all = intervals();
        let narrow = |i: &Option<Interval>| i.is_some_and(|i| i.width() <= budget.width);
        if !all.is_empty() && all.iter().all(narrow) {
            ended = Ended::Narrow;
            break;
        }
        if began.elapsed() >= budget.time && noted.done < budget.most {
            ended = Ended::Time;
            break;
        }
    }
    noted.ended = Some(ended);
    noted.seconds = began.elapsed().as_secs_f64();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(least: usize, most: usize, time: Duration) -> Budget {
        Budget { least, most, time, width: 0.03, look: Duration::ZERO }
    }
    fn none() -> Rounds {
        Rounds { done: 0, ended: None, seconds: 0.0, foreign: Vec::new() }
    }

    #[test]
    fn systems_take_turns_and_change_ends() {
        let mut seen = Vec::new();
        let mut noted = none();
        let note = |r, s| {
            seen.push((r, s));
            Ok(())
        };
        rounds(&budget(1, 2, Duration::MAX), 3, &mut noted, note, || vec![None]).unwrap();
        assert_eq!(seen, [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]);
        assert_eq!((noted.done, noted.ended), (2, Some(Ended::Rounds)));
    }
    #[test]
    fn it_ends_when_all_is_known_or_the_time_is_over() {
        let narrow = Interval { median: 1.0, low: 0.99, high: 1.01 };
        let wide = Interval { median: 1.0, low: 0.9, high: 1.1 };
        let run = |time, intervals: Vec<Option<Interval>>| {
            let mut noted = none();
            let nothing = |_, _| Ok(());
            rounds(&budget(2, 9, time), 1, &mut noted, nothing, || intervals.clone()).unwrap();
            (noted.done, noted.ended.unwrap())
        };
        assert_eq!(run(Duration::MAX, vec![Some(narrow)]), (2, Ended::Narrow));
        assert_eq!(run(Duration::MAX, vec![Some(narrow), Some(wide)]), (9, Ended::Rounds));
        assert_eq!(run(Duration::MAX, vec![Some(narrow), None]), (9, Ended::Rounds));
        assert_eq!(run(Duration::ZERO, vec![Some(wide)]), (2, Ended::Time));
    }
    #[test]
    fn of_several_runs_it_is_said_what_did_not_go_well() {
        let of = |ended| Rounds { done: 2, ended, seconds: 1.0, foreign: vec![0.5] };
        let (rounds, time) = (Some(Ended::Rounds), Some(Ended::Time));
        let (failed, interrupted) = (Some(Ended::Failed), Some(Ended::Interrupted));
        for (a, b, ended) in [
            (rounds, rounds, rounds),
            (rounds, time, None),
            (rounds, failed, failed),
            (failed, rounds, failed),
            (failed, interrupted, interrupted),
            (None, time, None),
        ] {
            let mut all = of(a);
            all.join(of(b));
            assert_eq!((all.done, all.ended, all.foreign.len()), (4, ended, 2));
        }
    }
    #[test]
    fn others_are_spoken_of_only_if_somebody_looked() {
        let rounds =
            Rounds { done: 1, ended: Some(Ended::Time), seconds: 2.0, foreign: Vec::new() };
        assert_eq!(rounds.said().unwrap(), "1 round in 2 s: the time budget is used up");
        let rounds = Rounds { done: 2, foreign: vec![0.25, 1.5], ..rounds };
        let said = rounds.said().unwrap();
        assert!(said.starts_with("2 rounds ") && said.ends_with("up to 1.5 processors"), "{said}");
        assert_eq!(Rounds { ended: None, ..rounds }.said(), None);
    }
    #[test]
    fn a_failure_keeps_what_was_before() {
        let mut noted = none();
        let fails = |r, _| if r == 2 { anyhow::bail!("full") } else { Ok(()) };
        let e = rounds(&budget(1, 9, Duration::MAX), 1, &mut noted, fails, Vec::new);
        assert_eq!(e.unwrap_err().to_string(), "full");
        assert_eq!((noted.done, noted.ended), (2, Some(Ended::Failed)));
    }
}

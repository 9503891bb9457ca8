//! Goals, and verdicts on them (`--accept`).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::grid::{Grid, Mark};
use super::{Report, Row};
use crate::statistics::{Interval, Samples, three_digits};

/// What rows must reach: all of them, or those whose name or phase has a word in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Acceptance {
    /// Of the row; empty: every row.
    pub word: String,
    /// The least median ratio.
    pub least: f64,
}
impl FromStr for Acceptance {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (word, ratio) = text.rsplit_once('=').unwrap_or(("", text));
        let least: f64 = ratio.parse().map_err(|_| format!("'{ratio}' is not a ratio"))?;
        if !least.is_finite() || least <= 0.0 {
            return Err(format!("{least} is not a ratio above 0"));
        }
        Ok(Self { word: word.to_owned(), least })
    }
}

impl std::fmt::Display for Acceptance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.word.is_empty() { Ok(()) } else { write!(f, "{}=", self.word) }?;
        write!(f, "{}", short(self.least))
    }
}

/// What a figure must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// From the one to the other.
    Between(f64, f64),
    /// There is none: the figure is told.
    Told,
}

/// What is said of a figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The row, or the experiment.
    pub what: String,
    /// Which of an experiment's cells.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cell: String,
    /// What its original measured, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub original: String,
    /// At least (or at most).
    pub goal: f64,
    /// The goal is an upper bound.
    #[serde(default)]
    pub at_most: bool,
    /// The lower bound of a goal that has two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<f64>,
    /// There is no goal.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub told: bool,
    /// The median; `None`: it could not be measured.
    pub measured: Option<f64>,
    /// How sure it is.
    pub interval: Option<Interval>,
    pub met: bool,
    /// What else there is to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Verdict {
    /// Of what was measured, again and again or once; of nothing: it could not be.
    pub fn of(what: impl Into<String>, goal: Goal, samples: &Samples) -> Self {
        let measured = samples.known_median();
        // Nothing reaches a goal by not being measured.
        let m = measured.unwrap_or(f64::NAN);
        let (from, at_most, bound, met) = match goal {
            Goal::AtLeast(least) => (None, false, least, m >= least),
            Goal::AtMost(most) => (None, true, most, m <= most),
            Goal::Between(low, high) => (Some(low), true, high, (low..=high).contains(&m)),
            Goal::Told => (None, false, 0.0, m.is_finite()),
        };
        Self {
            what: what.into(),
            goal: bound,
            at_most,
            from,
            told: goal == Goal::Told,
            measured,
            interval: Interval::of(samples),
            met,
            ..Self::default()
        }
    }
    /// Of what could not be measured, and why.
    pub fn unmeasured(what: impl Into<String>, goal: Goal, why: impl Into<String>) -> Self {
        Self { note: why.into(), ..Self::of(what, goal, &Samples::default()) }
    }
    /// Beside what its original measured.
    pub fn original(self, original: &str) -> Self {
        Self { original: original.to_owned(), ..self }
    }
    /// One of several of the same experiment.
    pub fn cell(self, cell: impl Into<String>) -> Self {
        Self { cell: cell.into(), ..self }
    }
    /// The row, with the cell.
    pub fn title(&self) -> String {
        if self.cell.is_empty() {
            self.what.clone()
        } else {
            format!("{}: {}", self.what, self.cell)
        }
    }
    /// How well the goal is met: 1 or more, and the more the better; less, if it is not.
    pub fn margin(&self) -> Option<f64> {
        let measured = self.measured?;
        Some(match (self.told, self.from, self.at_most) {
            (true, ..) => measured,
            (_, Some(from), _) => reached(measured, from).min(kept(measured, self.goal)),
            (_, None, true) => kept(measured, self.goal),
            (_, None, false) => reached(measured, self.goal),
        })
    }
    /// The goal in words, to three digits behind the point, without what is zero there.
    pub fn goal_said(&self) -> String {
        if self.told {
            return String::new();
        }
        match (self.from, self.at_most) {
            (Some(from), _) => format!("{}..{}", short(from), short(self.goal)),
            (None, true) => format!("<= {}", short(self.goal)),
            (None, false) => format!(">= {}", short(self.goal)),
        }
    }
    /// The verdict in a word.
    pub fn word(&self) -> &'static str {
        match (self.met, self.measured) {
            (true, _) if self.told => "told",
            (true, _) => "met",
            (false, Some(_)) => "SHORT",
            (false, None) => "not measured",
        }
    }
    /// What fell short, in a line.
    fn said(&self) -> String {
        let goal = short(self.goal);
        let found = match self.measured {
            Some(m) => format!("{m:.3} (goal {goal})"),
            None if self.note.is_empty() => format!("not measured (goal {goal})"),
            None => self.note.clone(),
        };
        format!("{}: {found}", self.title())
    }
}

/// How well `measured` reaches a lower bound: their ratio; where that says nothing, since the bound
/// is not above zero, 1 and the distance.
fn reached(measured: f64, least: f64) -> f64 {
    if least > 0.0 { measured / least } else { 1.0 + measured - least }
}
/// The same of an upper bound.
fn kept(measured: f64, most: f64) -> f64 {
    if most > 0.0 && measured > 0.0 { most / measured } else { 1.0 + most - measured }
}

/// Three digits behind the point at most.
pub(super) fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    // What is less than that is not nothing.
    if text == "0" { format!("{value}") } else { text.to_owned() }
}

/// Judges every row that can be compared by its ratio: the last one that names it counts.
pub(crate) fn judge(report: &Report, accepted: &[Acceptance]) -> Vec<Verdict> {
    judge_by(report, accepted, |row, base| (row.title(), row.ratio_to(base)))
}

/// The same by another figure: `figure(row, base)` is what it is called and its samples. One that
/// names no row is one that is not met.
pub(crate) fn judge_by(
    report: &Report,
    accepted: &[Acceptance],
    figure: impl Fn(&Row, &Row) -> (String, Samples),
) -> Vec<Verdict> {
    let names = |acceptance: &Acceptance, row: &Row| {
        acceptance.word.is_empty()
            || row.name.contains(&acceptance.word)
            || row.phase.contains(&acceptance.word)
    };
    let others = || report.rows.iter().filter(|r| r.name != report.base);
    let mut verdicts = Vec::new();
    for row in others() {
        let Some(acceptance) = accepted.iter().rev().find(|g| names(g, row)) else { continue };
        let goal = Goal::AtLeast(acceptance.least);
        verdicts.push(match report.base_of(row) {
            Some(base) => {
                let (what, samples) = figure(row, base);
                Verdict::of(what, goal, &samples)
            }
            None => Verdict::unmeasured(row.title(), goal, "there is nothing to compare it with"),
        });
    }
    for acceptance in accepted.iter().filter(|g| !others().any(|row| names(g, row))) {
        let why = "there is nothing to compare that it names";
        verdicts.push(Verdict::unmeasured(
            format!("--accept {acceptance}"),
            Goal::AtLeast(acceptance.least),
            why,
        ));
    }
    verdicts
}

/// All verdicts. Without originals, what fell short comes first.
pub(super) fn grid(verdicts: &[Verdict]) -> Grid {
    let mut grid = Grid::new(["", "original", "goal", "median", "95 % interval", "verdict"]);
    let mut sorted: Vec<_> = verdicts.iter().collect();
    if verdicts.iter().all(|v| v.original.is_empty()) {
        sorted.sort_by_key(|v| v.met);
    }
    for v in sorted {
        let note = if v.note.is_empty() { String::new() } else { format!(" ({})", v.note) };
        let cells = [
            v.title(),
            v.original.clone(),
            v.goal_said(),
            v.measured.map(three_digits).unwrap_or_default(),
            v.interval.map(|i| i.to_string()).unwrap_or_default(),
            format!("{}{note}", v.word()),
        ];
        grid.add(cells, if v.met { Mark::Met } else { Mark::Short });
    }
    grid.without_empty(1)
}

/// Fails if something fell short, or if there was nothing to judge.
pub(crate) fn pass(verdicts: &[Verdict]) -> anyhow::Result<()> {
    anyhow::ensure!(!verdicts.is_empty(), "--accept: there is nothing to compare");
    let short: Vec<_> = verdicts.iter().filter(|v| !v.met).map(Verdict::said).collect();
    anyhow::ensure!(short.is_empty(), "{} fell short: {}", short.len(), short.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Figure, Report};

    fn report(rates: &[(&str, &str, f64)]) -> Report {
        let mut report = Report::default().against("raw", "MB/s");
        for (name, phase, rate) in rates {
            report.add(name, phase, Figure { mb_per_s: *rate, cpu_per_gib: 0.0 });
        }
        report
    }

    #[test]
    fn the_last_gate_that_names_a_row_counts() {
        let r = report(&[("raw", "read", 100.0), ("fs", "read", 90.0), ("pool", "read", 99.0)]);
        let accepted: Vec<Acceptance> = ["0.95", "fs=0.85"].map(|g| g.parse().unwrap()).into();
        let verdicts = judge(&r, &accepted);
        assert_eq!(
            verdicts.iter().map(|v| (v.met, v.goal)).collect::<Vec<_>>(),
            [(true, 0.85), (true, 0.95)]
        );
        pass(&verdicts).unwrap();
        let verdicts = judge(&r, &accepted[..1]);
        let said = pass(&verdicts).unwrap_err().to_string();
        assert_eq!(said, "1 fell short: fs read: 0.900 (goal 0.95)");
        assert!(grid(&verdicts).text(false).to_string().contains("SHORT"));
    }
    #[test]
    fn nothing_to_compare_is_no_pass() {
        let r = report(&[("raw", "read", 100.0)]);
        let said = pass(&judge(&r, &["0.95".parse().unwrap()])).unwrap_err().to_string();
        assert!(said.contains("--accept 0.95: there is nothing to compare"), "{said}");
        assert!(pass(&[]).is_err());
    }
    #[test]
    fn a_gate_that_names_no_row_is_not_met() {
        let r = report(&[("raw", "read", 100.0), ("fs", "read", 99.0)]);
        let accepted: Vec<Acceptance> = ["0.95", "sf=0.5"].map(|g| g.parse().unwrap()).into();
        let verdicts = judge(&r, &accepted);
        assert_eq!(verdicts.iter().map(|v| v.met).collect::<Vec<_>>(), [true, false]);
        let said = pass(&verdicts).unwrap_err().to_string();
        assert_eq!(
            said,
            "1 fell short: --accept sf=0.5: there is nothing to compare that it names"
        );
        // Nor is one that names only the base; one that a later one overrules has done its part.
        let accepted: Vec<Acceptance> = ["fs=2", "read=0.9"].map(|g| g.parse().unwrap()).into();
        pass(&judge(&r, &accepted)).unwrap();
        assert!(pass(&judge(&r, &["raw=0.5".parse().unwrap()])).is_err());
    }
    #[test]
    fn a_row_without_its_base_or_without_samples_is_not_measured() {
        let mut r = report(&[("raw", "read", 100.0), ("fs", "write", 99.0)]);
        let verdicts = judge(&r, &["0.5".parse().unwrap()]);
        assert_eq!((verdicts.len(), verdicts[0].measured), (1, None));
        assert!(pass(&verdicts).unwrap_err().to_string().contains("nothing to compare it with"));
        r.row("fs", "read", &std::collections::BTreeMap::default());
        assert!(judge(&r, &["fs=0.5".parse().unwrap()]).iter().all(|v| v.measured.is_none()));
    }
    #[test]
    fn one_judge_for_every_sense_of_a_goal() {
        let of = |goal, value| Verdict::of("x", goal, &Samples(vec![value])).met;
        assert_eq!(Verdict::of("x", Goal::Told, &Samples(vec![0.1])).word(), "told");
        assert!(of(Goal::AtLeast(1.0), 1.0) && !of(Goal::AtLeast(1.0), 0.9));
        assert!(of(Goal::AtMost(1.0), 1.0) && !of(Goal::AtMost(1.0), 1.1));
        let between = Goal::Between(0.9, 1.1);
        assert_eq!([0.8, 0.9, 1.1, 1.2].map(|v| of(between, v)), [false, true, true, false]);
        for goal in [Goal::AtLeast(0.0), Goal::AtMost(1.0), between, Goal::Told] {
            let nothing = Verdict::of("x", goal, &Samples::default());
            assert_eq!(
                (nothing.met, nothing.measured, nothing.word()),
                (false, None, "not measured")
            );
            assert!(!of(goal, f64::NAN));
        }
        assert!(Verdict::of("x", between, &Samples(vec![1.0; 6])).interval.is_some());
    }
    #[test]
    fn goals_are_short() {
        let said = |goal: Goal| Verdict::of("x", goal, &Samples(vec![1.0])).goal_said();
        assert_eq!(
            [0.95, 2.0, 0.653_333, 10.0].map(|g| said(Goal::AtLeast(g))),
            [">= 0.95", ">= 2", ">= 0.653", ">= 10"]
        );
        assert_eq!(said(Goal::AtMost(0.3)), "<= 0.3");
        assert_eq!(said(Goal::Between(0.47, 0.53)), "0.47..0.53");
    }
    #[test]
    fn what_is_no_ratio() {
        for bad in ["", "x", "0", "-1", "inf", "NaN", "fs=", "fs=x"] {
            assert!(bad.parse::<Acceptance>().is_err(), "{bad}");
        }
    }
    #[test]
    fn where_less_is_better_the_ratio_is_turned() {
        let mut r = report(&[("raw", "read", 100.0), ("fs", "read", 200.0)]);
        for row in &mut r.rows {
            row.less = true;
        }
        let v = judge(&r, &["0.95".parse().unwrap()]);
        assert_eq!((v[0].measured, v[0].met), (Some(0.5), false));
    }
}

//! Acceptance: what every ratio must reach.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Report;
use crate::run::interval::Interval;

/// What rows must reach: all of them, or those whose name or phase has a word in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gate {
    /// Of the row; empty: every row.
    pub word: String,
    /// The least median ratio.
    pub least: f64,
}
impl FromStr for Gate {
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

/// What a gate says of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The row.
    pub what: String,
    /// What its original measured, if it has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub original: String,
    /// At least (or at most).
    pub goal: f64,
    /// The goal is an upper bound.
    #[serde(default)]
    pub at_most: bool,
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
    /// The goal to three digits behind the point, without what is zero there.
    pub fn goal_said(&self) -> String {
        let text = format!("{:.3}", self.goal);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// Judges every row that can be compared: the last gate that names it counts.
pub(crate) fn judge(report: &Report, gates: &[Gate]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for row in report.rows.iter().filter(|r| r.name != report.base) {
        let names = |g: &&Gate| {
            g.word.is_empty() || row.name.contains(&g.word) || row.phase.contains(&g.word)
        };
        let Some(gate) = gates.iter().rev().find(names) else { continue };
        let Some(base) = report.base_of(row) else { continue };
        let ratio = row.ratio_to(base);
        let measured = (!ratio.0.is_empty()).then(|| ratio.median());
        verdicts.push(Verdict {
            what: row.title(),
            original: String::new(),
            goal: gate.least,
            at_most: false,
            measured,
            interval: Interval::of(&ratio),
            met: measured.is_some_and(|m| m >= gate.least),
            note: String::new(),
        });
    }
    verdicts
}

/// All verdicts; what fell short comes first.
pub(crate) fn table(verdicts: &[Verdict]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    let originals = verdicts.iter().any(|v| !v.original.is_empty());
    let mut header = vec!["", "goal", "median", "95 % interval", "verdict"];
    if originals {
        header.insert(1, "original");
    }
    table.set_header(header);
    let mut sorted: Vec<_> = verdicts.iter().collect();
    if !originals {
        sorted.sort_by_key(|v| v.met);
    }
    for v in sorted {
        let sign = if v.at_most { "<=" } else { ">=" };
        let interval = v.interval.map(|i| format!("{:.3}..{:.3}", i.low, i.high));
        let verdict = match (v.met, v.measured) {
            (true, _) => "met",
            (false, Some(_)) => "SHORT",
            (false, None) => "not measured",
        };
        let note = if v.note.is_empty() { String::new() } else { format!(" ({})", v.note) };
        let mut cells = vec![
            v.what.clone(),
            format!("{sign} {}", v.goal_said()),
            v.measured.map_or(String::new(), |m| format!("{m:.3}")),
            interval.unwrap_or_default(),
            format!("{verdict}{note}"),
        ];
        if originals {
            cells.insert(1, v.original.clone());
        }
        table.add_row(cells);
    }
    table
}

/// Fails if something fell short, or if there was nothing to judge.
pub(crate) fn pass(verdicts: &[Verdict]) -> anyhow::Result<()> {
    anyhow::ensure!(!verdicts.is_empty(), "--accept: there is nothing to compare");
    let short: Vec<_> = verdicts
        .iter()
        .filter(|v| !v.met)
        .map(|v| match v.measured {
            Some(m) => format!("{}: {m:.3} (goal {})", v.what, v.goal),
            None => format!("{}: not measured (goal {})", v.what, v.goal),
        })
        .collect();
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
        let gates: Vec<Gate> = ["0.95", "fs=0.85"].map(|g| g.parse().unwrap()).into();
        let verdicts = judge(&r, &gates);
        assert_eq!(
            verdicts.iter().map(|v| (v.met, v.goal)).collect::<Vec<_>>(),
            [(true, 0.85), (true, 0.95)]
        );
        pass(&verdicts).unwrap();
        let verdicts = judge(&r, &gates[..1]);
        let said = pass(&verdicts).unwrap_err().to_string();
        assert_eq!(said, "1 fell short: fs read: 0.900 (goal 0.95)");
        assert!(table(&verdicts).to_string().contains("SHORT"));
    }
    #[test]
    fn nothing_to_compare_is_no_pass() {
        let r = report(&[("raw", "read", 100.0)]);
        assert!(pass(&judge(&r, &["0.95".parse().unwrap()])).is_err());
    }
    #[test]
    fn goals_are_short() {
        let said = |goal: f64| Verdict { goal, ..judge_one() }.goal_said();
        assert_eq!([0.95, 2.0, 0.653_333, 10.0].map(said), ["0.95", "2", "0.653", "10"]);
    }
    fn judge_one() -> Verdict {
        let r = report(&[("raw", "read", 100.0), ("fs", "read", 90.0)]);
        judge(&r, &["0.95".parse().unwrap()]).remove(0)
    }
    #[test]
    fn what_is_no_ratio() {
        for bad in ["", "x", "0", "-1", "inf", "NaN", "fs=", "fs=x"] {
            assert!(bad.parse::<Gate>().is_err(), "{bad}");
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

//! Verdicts of an experiment with many cells, in one line: the median, the worst cell, and how many cells
//! fell short.

use std::fmt::Write as _;

use itertools::Itertools as _;

use super::acceptance::{Verdict, short};
use super::grid::{Grid, Mark};
use crate::statistics::{Samples, three_digits};

/// An experiment with its cells.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub what: &'a str,
    pub cells: Vec<&'a Verdict>,
}

/// One for each experiment, by their numbers; without numbers in order of first appearance.
pub(crate) fn lines(verdicts: &[Verdict]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line> = Vec::new();
    for v in verdicts {
        match lines.iter_mut().find(|l| l.what == v.what) {
            Some(line) => line.cells.push(v),
            None => lines.push(Line { what: &v.what, cells: vec![v] }),
        }
    }
    lines.sort_by_key(|line| numbers(line.what).map(order).min());
    lines
}

/// The numbers of experiments with which a text begins: `S0.3, S3.10 file system over raw`.
pub(crate) fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split([' ', ',', ':']).filter(|w| !w.is_empty());
    words.take_while(|w| {
        w.strip_prefix('S').is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// Where a number stands among others: S4.2 before S4.2a, that before S4.10.
fn order(number: &str) -> (u32, u32, String) {
    let (document, rest) = number.trim_start_matches('S').split_once('.').unwrap_or_default();
    let digits = rest.trim_end_matches(|c: char| !c.is_ascii_digit());
    let letter = rest.strip_prefix(digits).unwrap_or_default();
    let n = |text: &str| text.parse().unwrap_or(0);
    (n(document), n(digits), letter.to_owned())
}

impl Line<'_> {
    /// Cells that were measured and are short of their goals.
    pub fn short(&self) -> usize {
        self.cells.iter().filter(|v| !v.met && v.measured.is_some()).count()
    }
    fn unmeasured(&self) -> usize {
        self.cells.iter().filter(|v| v.measured.is_none()).count()
    }
    /// The cell that is nearest to its goal, or farthest below it.
    pub fn worst(&self) -> Option<&Verdict> {
        let all = self.cells.iter().filter_map(|v| Some((v.margin()?, *v)));
        all.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, v)| v)
    }
    /// Of the cells' medians.
    pub fn median(&self) -> Option<f64> {
        let all: Vec<f64> = self.cells.iter().filter_map(|v| v.measured).collect();
        Samples(all).known_median()
    }
    /// The published results, each once.
    pub fn original(&self) -> String {
        distinct(self.cells.iter().map(|v| v.original.clone()))
    }
    /// All goals: of more than two of one sense the least and the most.
    pub fn goal(&self) -> String {
        let all = distinct(self.cells.iter().map(|v| v.goal_said()));
        let two_sided = self.cells.iter().any(|v| v.told || v.from.is_some());
        let senses = self.cells.iter().filter(|v| v.at_most).count();
        if two_sided || all.matches(';').count() < 2 || ![0, self.cells.len()].contains(&senses) {
            return all;
        }
        let goals = || self.cells.iter().map(|v| v.goal);
        let (low, high) =
            (goals().fold(f64::INFINITY, f64::min), goals().fold(f64::NEG_INFINITY, f64::max));
        let sign = if senses == 0 { ">=" } else { "<=" };
        format!("{sign} {} to {}", short(low), short(high))
    }
    /// All cells are as they should be.
    pub fn met(&self) -> bool {
        self.cells.iter().all(|v| v.met)
    }
    /// In a word, and how many.
    pub fn word(&self) -> String {
        let (all, short, none) = (self.cells.len(), self.short(), self.unmeasured());
        let mut said = match self.cells.first() {
            Some(one) if all == 1 || none == all => one.word().to_owned(),
            Some(_) if short > 0 => format!("SHORT, {short} of {all}"),
            Some(one) if one.told => "told".to_owned(),
            _ => "met".to_owned(),
        };
        if (1..all).contains(&none) {
            let _ = write!(said, ", {none} of {all} not measured");
        }
        said
    }
    /// What else there is to say of all cells.
    pub fn note(&self) -> String {
        distinct(self.cells.iter().map(|v| v.note.clone()))
    }
}

/// Those that differ, in order.
fn distinct(all: impl Iterator<Item = String>) -> String {
    all.filter(|text| !text.is_empty()).unique().join("; ")
}

/// The columns; the interval is that of the worst cell.
const HEAD: [&str; 8] =
    ["", "original", "goal", "cells", "median", "95 % interval (worst)", "worst", "verdict"];

/// A line for each experiment.
pub(super) fn grid(verdicts: &[Verdict]) -> Grid {
    let mut grid = Grid::new(HEAD);
    for line in lines(verdicts) {
        let mark = match (line.met(), line.short()) {
            (true, _) => Mark::Met,
            (false, 0) => Mark::Plain,
            (false, _) => Mark::Short,
        };
        grid.add(cells(&line), mark);
    }
    grid
}

fn cells(line: &Line) -> [String; 8] {
    let several = line.cells.len() > 1;
    let worst = line.worst();
    let interval = worst.and_then(|v| v.interval);
    // Its own goal, if that is not everybody's.
    let goal = line.goal();
    let at = worst.filter(|_| several).map_or(String::new(), |v| {
        let own = v.goal_said();
        let of = if own == goal { String::new() } else { format!(" ({own})") };
        format!("{}{of}, {}", short(v.measured.unwrap_or_default()), v.cell)
    });
    let note = line.note();
    let note = if note.is_empty() { note } else { format!(" ({note})") };
    [
        line.what.to_owned(),
        line.original(),
        goal,
        if several { line.cells.len().to_string() } else { String::new() },
        line.median().map(three_digits).unwrap_or_default(),
        interval.map(|i| i.to_string()).unwrap_or_default(),
        at,
        line.word() + &note,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Goal;

    fn of(cell: &str, goal: Goal, measured: f64) -> Verdict {
        Verdict::of("S9", goal, &Samples(vec![measured])).cell(cell).original("lost")
    }

    #[test]
    fn one_line_says_median_worst_and_how_many_fell_short() {
        let mut verdicts = vec![
            of("4 KiB", Goal::AtLeast(0.6), 0.57),
            of("64 KiB", Goal::AtLeast(0.85), 0.84),
            of("1 MiB", Goal::AtLeast(0.95), 1.2),
        ];
        verdicts.push(Verdict::of("S8", Goal::AtMost(2.0), &Samples(vec![1.0])));
        let all = lines(&verdicts);
        assert_eq!(
            all.iter().map(|l| (l.what, l.short())).collect::<Vec<_>>(),
            [("S9", 2), ("S8", 0)]
        );
        // 0.57 of 0.6 is farther off than 0.84 of 0.85.
        let said = cells(&all[0]);
        let expected = ["S9", "lost", ">= 0.6 to 0.95", "3", "0.840", "", "0.57 (>= 0.6), 4 KiB"];
        assert_eq!(said[..7], expected);
        assert_eq!(said[7], "SHORT, 2 of 3");
        assert_eq!(cells(&all[1]), ["S8", "", "<= 2", "", "1.000", "", "", "met"]);
        assert_eq!(grid(&verdicts).rows.len(), 2);
    }
    #[test]
    fn lines_are_in_the_order_of_their_numbers() {
        let names =
            ["S2.10 b", "S4.2a", "S2.2", "S4.10", "S4.2 x", "S2.14, S2.18 l", "S2.14 z", "S0.1"];
        let all: Vec<_> = names.iter().map(|n| Verdict::unmeasured(*n, Goal::Told, "")).collect();
        let sorted: Vec<_> = lines(&all).iter().map(|l| l.what.to_owned()).collect();
        let expected =
            ["S0.1", "S2.2", "S2.10 b", "S2.14, S2.18 l", "S2.14 z", "S4.2 x", "S4.2a", "S4.10"];
        assert_eq!(sorted, expected);
        let of = |text| numbers(text).collect::<Vec<_>>();
        assert_eq!(of("S0.3, S3.10 file system over raw"), ["S0.3", "S3.10"]);
        assert_eq!(of("S2.1: not measured"), ["S2.1"]);
        assert!(of("ladder: write").is_empty() && of("Some S2.1").is_empty());
    }
    #[test]
    fn the_worst_is_judged_by_each_sense_of_a_goal() {
        let worst = |goals: [(Goal, f64); 2]| {
            let [a, b] = goals.map(|(goal, m)| of(&format!("{m}"), goal, m));
            let all = [a, b];
            let line = lines(&all).remove(0);
            line.worst().unwrap().measured.unwrap()
        };
        let (most, between) = (Goal::AtMost(5.0), Goal::Between(0.9, 1.1));
        for (goals, measured) in [
            ([(most, 4.0), (most, 6.0)], 6.0),
            ([(between, 1.0), (between, 1.2)], 1.2),
            ([(between, 0.5), (between, 1.2)], 0.5),
            // Ratios to such goals would say the opposite.
            ([(Goal::AtLeast(-0.1), 0.2), (Goal::AtLeast(-0.1), -0.3)], -0.3),
            ([(Goal::AtLeast(0.0), 0.2), (Goal::AtLeast(0.0), -0.3)], -0.3),
            ([(Goal::AtMost(0.0), -0.2), (Goal::AtMost(0.0), 0.3)], 0.3),
            ([(Goal::AtMost(0.5), -0.2), (Goal::AtMost(0.5), 0.3)], 0.3),
            ([(Goal::Between(-0.1, 0.1), 0.0), (Goal::Between(-0.1, 0.1), -0.3)], -0.3),
            ([(Goal::Told, 0.5), (Goal::Told, 1.2)], 0.5),
        ] {
            assert!((worst(goals) - measured).abs() < 1e-9, "{goals:?}");
        }
    }
    #[test]
    fn what_was_not_measured_is_neither_met_nor_short() {
        let none = || Verdict::unmeasured("S9", Goal::AtLeast(1.0), "no disk");
        assert_eq!(cells(&lines(&[none()])[0])[7], "not measured (no disk)");
        assert_eq!(cells(&lines(&[none(), none()])[0])[7], "not measured (no disk)");
        let some = [of("a", Goal::AtLeast(1.0), 1.0), none()];
        let line = &lines(&some)[0];
        assert_eq!(
            (line.short(), cells(line)[7].as_str()),
            (0, "met, 1 of 2 not measured (no disk)")
        );
        let told = [of("a", Goal::Told, 1.0), of("b", Goal::Told, 2.0)];
        assert_eq!(cells(&lines(&told)[0])[2..], ["", "2", "1.500", "", "1, a", "told"]);
    }
}

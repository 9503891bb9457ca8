//! The colours of systems: one has the same in every plot of a page, and known ones on every page.

use super::Report;

/// Told apart on white and on black, most of them also by people who see colours differently (Okabe and Ito).
const PALETTE: [&str; 12] = [
    "#8a8a8a", "#0072b2", "#009e73", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9", "#7f4fc9",
    "#a6761d", "#b22222", "#6b8e23", "#20a5a5",
];
/// Systems that many results have.
const KNOWN: [&str; 7] = ["raw", "pool", "native", "mount", "xfs", "ext4", "btrfs"];

/// Which system has which colour.
#[derive(Debug, Clone, Default)]
pub(super) struct Colours {
    others: Vec<String>,
}

impl Colours {
    /// For all systems of some results.
    pub fn of(reports: &[(String, Report)]) -> Self {
        let mut colours = Self::default();
        for row in reports.iter().flat_map(|(_, report)| &report.rows) {
            colours.take_in(&row.name);
        }
        colours
    }
    fn take_in(&mut self, system: &str) {
        if !KNOWN.contains(&system) && !self.others.iter().any(|other| other == system) {
            self.others.push(system.to_owned());
        }
    }
    /// Of a system. One that no result has measured is grey: it is told apart by its line.
    pub fn get(&self, system: &str) -> &'static str {
        let known = KNOWN.iter().position(|name| *name == system);
        let other = || self.others.iter().position(|name| name == system);
        let place = known.or_else(|| Some(KNOWN.len() + other()?));
        place.and_then(|n| PALETTE.get(n % PALETTE.len())).copied().unwrap_or("#8a8a8a")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_has_one_colour_whatever_else_is_on_the_page() {
        let report = |names: &[&str]| {
            let mut report = Report::new("ladder");
            for name in names {
                report.sample(name, "read", &super::super::Parameters::new(), 1.0);
            }
            vec![(String::new(), report)]
        };
        let all = ["raw", "pool", "native", "mount", "xfs", "ext4", "btrfs", "a", "b", "c"];
        let colours = Colours::of(&report(&all));
        let mut seen: Vec<_> = all.map(|name| colours.get(name)).into();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), all.len());
        let fewer = Colours::of(&report(&["mount", "raw"]));
        assert_eq!(fewer.get("mount"), colours.get("mount"));
    }
}

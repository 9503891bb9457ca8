//! What every experiment is given, which experiments are wanted, and a verdict on one figure.

use std::path::PathBuf;

use crate::arguments::size;
use crate::modes::{RunOptions, System};
use crate::report::{Goal, Verdict, numbers};
use crate::statistics::Samples;

/// The experiments of the founding documents, each with a verdict (listed in docs/BENCHMARKING.md)
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories on mounted file systems; the others are compared with the first. Without any: XFS
    /// and two nodes' mounts of a pool, each on a loop device of its own
    #[arg(value_name = "[NAME=]DIR")]
    pub(super) systems: Vec<System>,
    /// Directory for backing files: a RAM file system
    #[arg(long, default_value = "/dev/shm")]
    pub(super) dir: PathBuf,
    /// Bytes of each phase
    #[arg(long, default_value = "256M", value_parser = size)]
    pub(super) size: u64,
    /// Only the disk models. They need no root and no devices; figures are the same everywhere
    #[arg(long)]
    pub(super) models: bool,
    /// Only these experiments: S0.4, or S4 for all of that document
    #[arg(long, value_delimiter = ',', value_name = "S...")]
    pub(super) only: Vec<String>,
    /// About how many seconds all experiments may take: they get fewer rounds (`--budget` is for each)
    #[arg(long, value_name = "SECONDS")]
    pub(super) within: Option<f64>,
    /// Print every cell and every row, not one line for each experiment
    #[arg(long)]
    #[serde(skip)]
    pub(super) verbose: bool,
    #[command(flatten)]
    pub(super) how: RunOptions,
}

impl Args {
    /// Whether an experiment with this number, or a text that begins with it, is wanted.
    pub(super) fn wants(&self, text: &str) -> bool {
        let named = |number: &str| self.only.iter().any(|o| is_of(number, o));
        self.only.is_empty() || numbers(text).any(named)
    }
}

/// Whether a number is meant by a number or the beginning of one: S4.2 by S4 and S4.2, not S2.10 by S2.1.
pub(super) fn is_of(number: &str, only: &str) -> bool {
    let rest = number.strip_prefix(only);
    rest.is_some_and(|r| !r.starts_with(|c: char| c.is_ascii_digit()))
}

pub(super) fn verdict(what: &str, original: &str, goal: Goal, measured: f64) -> Verdict {
    Verdict::of(what, goal, &Samples(vec![measured])).original(original)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_meant_by_itself_and_by_its_document() {
        for (number, only, meant) in [
            ("S2.1", "S2.1", true),
            ("S2.10", "S2.1", false),
            ("S2.10", "S2", true),
            ("S4.2a", "S4.2", true),
            ("S4.2", "S4.2a", false),
            ("S4.2", "S4", true),
            ("S4.2", "S3", false),
        ] {
            assert_eq!(is_of(number, only), meant, "{number} {only}");
        }
    }
}

//! Tests that fail now and then. On a busy machine a test may fail for want of time, so a test that failed
//! among others is run again alone. If it passes each time it is *unsteady*: the run passes, and its closing
//! lines name the test, because an unsteady test is a defect, of the test or of what it tests.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::limited::{self, Ended};
use crate::suites::Suite;

/// If more tests than this failed, none is tried again: something is broken.
pub const AT_MOST: usize = 3;
/// How often a test has to pass alone.
const TIMES: usize = 3;
/// No single test takes this long.
const LIMIT: Duration = Duration::from_mins(5);

/// The tests of `failed` that pass alone, each time of [`TIMES`]. What the others print is shown.
///
/// # Errors
/// The program cannot be started.
pub fn passing_alone(suite: &Suite, failed: &[String]) -> Result<Vec<String>> {
    let mut passing = Vec::new();
    for test in failed {
        println!("again, alone: {} {test}", suite.name);
        if passes(suite, test)? {
            passing.push(test.clone());
        }
    }
    Ok(passing)
}

fn passes(suite: &Suite, test: &str) -> Result<bool> {
    for _ in 0..TIMES {
        let mut command = suite.command();
        let Ended { output, .. } = limited::run(command.args(["--exact", test]), LIMIT)
            .with_context(|| suite.name.clone())?;
        let text = String::from_utf8_lossy(&output.stdout);
        // A name that matches no test would pass, too.
        if !output.status.success() || !text.contains("test result: ok. 1 passed") {
            println!("{text}{}({})", String::from_utf8_lossy(&output.stderr), output.status);
            return Ok(false);
        }
    }
    Ok(true)
}

/// The tests that libtest names under its last `failures:`.
pub fn failures(text: &str) -> Vec<String> {
    let Some((_, list)) = text.rsplit_once("\nfailures:\n") else { return Vec::new() };
    list.lines().map_while(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_found_by_name() {
        let text = "running 3 tests\ntest a ... FAILED\n\nfailures:\n\n---- a stdout ----\n    no\n\n\n\
                    failures:\n    a\n    tests::b\n\ntest result: FAILED. 1 passed; 2 failed;\n";
        assert_eq!(failures(text), ["a", "tests::b"]);
        assert!(failures("test result: ok. 3 passed;").is_empty());
    }
}

//! Runs every test program of the workspace, several at a time: most mounted tests wait more than they
//! compute, so running the programs one after another leaves the processors idle.
//!
//! A program's output is shown only if it fails. Each program runs in its package's folder, as `cargo test`
//! does it. Tests that cannot run on this machine record that (`braid_testkit::skip`): they are counted as
//! skipped, and the closing lines say why; with `BRAID_REQUIRE_ALL=1` they fail. A test that failed is run
//! again alone ([`crate::unsteady`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::limited::{self, Ended};
use crate::unsteady;

/// Packages whose programs take longest: begun first, so that none of them runs alone at the end.
const FIRST: &[&str] = &["fs", "lock", "sim", "cli", "pool", "device"];

/// The longest program takes eight minutes on two busy processors. One that takes this long hangs.
const LIMIT: Duration = Duration::from_mins(25);

/// One test program.
pub struct Suite {
    /// `package target`, for people.
    pub name: String,
    program: PathBuf,
    folder: PathBuf,
}

impl Suite {
    /// The program as `cargo test` starts it, with nothing to read.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.stdin(Stdio::null());
        command
    }
}

/// What one program's run came to.
#[derive(Default)]
struct Outcome {
    passed: usize,
    failed: usize,
    /// The names of the tests that failed.
    failures: Vec<String>,
    /// Run only by hand, on any machine.
    ignored: usize,
    /// Tests that cannot run on this machine, each with the reason.
    skipped: BTreeSet<(String, String)>,
    succeeded: bool,
}

/// Builds all test programs and runs them, `at_once` at a time; then the examples in doc comments.
/// Each returned line names a program that failed.
///
/// # Errors
/// The programs cannot be built or started.
pub fn run(at_once: usize) -> Result<Vec<String>> {
    let suites = Mutex::new(build()?);
    let outcomes = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..at_once.max(1)).map(|_| scope.spawn(|| work(&suites, &outcomes))).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(_) => bail!("a thread that runs test programs panicked"),
        })
    })?;
    let mut outcomes: Vec<(Suite, Outcome)> = outcomes.into_inner().unwrap_or_default();
    let unsteady = try_again(&mut outcomes)?;
    let mut failures: Vec<String> = outcomes
        .iter()
        .filter(|(_, outcome)| !outcome.succeeded)
        .map(|(suite, _)| format!("{}: failed", suite.name))
        .collect();
    let examples =
        Command::new("cargo").args(["test", "-q", "--locked", "--workspace", "--doc"]).output()?;
    if !examples.status.success() {
        println!("{}", String::from_utf8_lossy(&examples.stdout));
        eprintln!("{}", String::from_utf8_lossy(&examples.stderr));
        failures.push("examples in doc comments: failed".to_owned());
    }
    let sum = |count: fn(&Outcome) -> usize| outcomes.iter().map(|(_, o)| count(o)).sum::<usize>();
    let failed = sum(|o| o.failed).max(failures.len());
    let skipped = sum(|o| o.skipped.len());
    let mut reasons = BTreeMap::<&str, usize>::new();
    for (_, reason) in outcomes.iter().flat_map(|(_, outcome)| &outcome.skipped) {
        *reasons.entry(reason).or_default() += 1;
    }
    for (reason, count) in reasons {
        println!("skipped: {count}: {reason}");
    }
    for test in unsteady {
        println!("unsteady, to be mended: {test}: failed among others, passed alone");
    }
    println!("run only by hand: {}", sum(|o| o.ignored));
    println!("{} passed, {failed} failed, {skipped} skipped", sum(|o| o.passed));
    Ok(failures)
}

/// Runs the tests that failed again, alone, and counts those that now pass as passed: their names.
fn try_again(outcomes: &mut [(Suite, Outcome)]) -> Result<Vec<String>> {
    let failed = outcomes.iter().map(|(_, outcome)| outcome.failed).sum::<usize>();
    let mut unsteady = Vec::new();
    if failed > unsteady::AT_MOST {
        return Ok(unsteady);
    }
    for (suite, outcome) in outcomes.iter_mut().filter(|(_, outcome)| !outcome.succeeded) {
        // A program that ended in another way than by failed tests is not tried again.
        if outcome.failures.is_empty() || outcome.failures.len() != outcome.failed {
            continue;
        }
        let passing = unsteady::passing_alone(suite, &outcome.failures)?;
        outcome.failed -= passing.len();
        outcome.passed += passing.len();
        outcome.succeeded = outcome.failed == 0;
        unsteady.extend(passing.iter().map(|test| format!("{} {test}", suite.name)));
    }
    Ok(unsteady)
}

/// Builds the test programs; those of the packages that take longest come first.
fn build() -> Result<VecDeque<Suite>> {
    let output = Command::new("cargo")
        .args([
            "test",
            "--locked",
            "--workspace",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo test --no-run")?;
    if !output.status.success() {
        bail!("the tests do not compile");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut suites: Vec<(usize, Suite)> = Vec::new();
    for line in text.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        suites.extend(suite(&message));
    }
    suites.sort_by_key(|(rank, _)| *rank);
    Ok(suites.into_iter().map(|(_, suite)| suite).collect())
}

/// The test program that a message of cargo tells of, with its package's place in [`FIRST`].
fn suite(message: &Value) -> Option<(usize, Suite)> {
    if !message["profile"]["test"].as_bool()? {
        return None;
    }
    let program = PathBuf::from(message["executable"].as_str()?);
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?.to_owned();
    let rank = FIRST.iter().position(|first| *first == package).unwrap_or(FIRST.len());
    let name = format!("{package} {}", message["target"]["name"].as_str()?);
    Some((rank, Suite { name, program, folder }))
}

/// Takes and runs programs until none is left.
fn work(suites: &Mutex<VecDeque<Suite>>, outcomes: &Mutex<Vec<(Suite, Outcome)>>) -> Result<()> {
    loop {
        let next = suites.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.pop_front();
        let Some(suite) = next else { return Ok(()) };
        let begun = Instant::now();
        let record = suite.program.with_extension("skipped");
        std::fs::write(&record, "").with_context(|| record.display().to_string())?;
        let mut command = suite.command();
        command.env(braid_testkit::SKIPPED, &record);
        let Ended { output, hung } = limited::run(&mut command, LIMIT)
            .with_context(|| suite.program.display().to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let skipped = recorded(&record)?;
        let counted = counts(&text);
        let passed = counted.passed.saturating_sub(skipped.len());
        let succeeded = output.status.success();
        let failures = unsteady::failures(&text);
        let outcome = Outcome { passed, failures, skipped, succeeded, ..counted };
        let mut outcomes = outcomes.lock().map_err(|_| anyhow::anyhow!("poisoned"))?;
        report(&suite.name, &outcome, begun.elapsed());
        if !outcome.succeeded {
            println!("{text}{}({})", String::from_utf8_lossy(&output.stderr), output.status);
        }
        if hung {
            println!("killed: it had not ended after {LIMIT:?}");
        }
        outcomes.push((suite, outcome));
    }
}

/// One line for a program that has ended.
fn report(name: &str, outcome: &Outcome, took: Duration) {
    let word = if outcome.succeeded { "ok" } else { "FAILED" };
    let Outcome { passed, failed, ignored, skipped, .. } = outcome;
    println!(
        "{word:6} {:6.1} s  {name}: {passed} passed, {failed} failed, {} skipped, {ignored} ignored",
        took.as_secs_f32(),
        skipped.len()
    );
}

/// The tests that recorded that they cannot run here, each with the first reason that it gave.
fn recorded(record: &Path) -> Result<BTreeSet<(String, String)>> {
    let text = std::fs::read_to_string(record).with_context(|| record.display().to_string())?;
    std::fs::remove_file(record).with_context(|| record.display().to_string())?;
    let mut reasons = BTreeMap::new();
    for (test, reason) in text.lines().filter_map(|line| line.split_once('\t')) {
        reasons.entry(test.to_owned()).or_insert_with(|| reason.to_owned());
    }
    Ok(reasons.into_iter().collect())
}

/// The counts in libtest's closing line: `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn counts(text: &str) -> Outcome {
    let closing =
        text.lines().rev().find(|line| line.starts_with("test result:")).unwrap_or_default();
    let words: Vec<&str> = closing.split([' ', ';']).collect();
    let count = |word: &str| {
        let pair = words.windows(2).find(|pair| pair.get(1) == Some(&word));
        pair.and_then(|pair| pair.first()?.parse().ok()).unwrap_or(0)
    };
    let (passed, failed, ignored) = (count("passed"), count("failed"), count("ignored"));
    Outcome { passed, failed, ignored, ..Outcome::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_is_counted() {
        let text = "running 6 tests\ntest a ... ok\n\ntest result: FAILED. 4 passed; 1 failed; \
                    1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        let Outcome { passed, failed, ignored, .. } = counts(text);
        assert_eq!((passed, failed, ignored), (4, 1, 1));
        assert_eq!(counts("killed before its end").passed, 0);
    }

    #[test]
    fn a_test_that_skips_twice_is_one_skipped_test() {
        let record = std::env::temp_dir().join(format!("braid-xtask-{}", std::process::id()));
        std::fs::write(&record, "one\tno root\none\tno loop\ntwo\tno root\n").unwrap();
        let skipped = recorded(&record).unwrap();
        assert_eq!(skipped.len(), 2);
        assert!(skipped.contains(&("one".to_owned(), "no root".to_owned())));
        assert!(!record.exists());
    }
}

//! Tests that cannot run on this machine. libtest knows only tests that passed, failed, or are ignored
//! whatever the machine, so a test that returns early counts as passed. [`skip`] records it instead, and the
//! runner of all tests (`cargo xtask test`) counts what was recorded.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Environment variable: if it is `1`, a test that cannot run fails.
pub const REQUIRE_ALL: &str = "BRAID_REQUIRE_ALL";
/// Environment variable: the file to which a line is appended for each skipped test, its name and the
/// reason with a tab between them. The runner sets it.
pub const SKIPPED: &str = "BRAID_TESTS_SKIPPED";

/// Records that the test which calls this cannot run here, and why. The test then returns. Call it on the
/// test's own thread: the thread has the test's name.
///
/// # Panics
/// If [`REQUIRE_ALL`] is `1`, or the test cannot be recorded.
pub fn skip(reason: &str) {
    let required = std::env::var(REQUIRE_ALL).is_ok_and(|value| value == "1");
    assert!(!required, "{REQUIRE_ALL}=1, but this test cannot run here: {reason}");
    record(reason);
}

/// As [`skip`], also if [`REQUIRE_ALL`] is `1`: what the test needs had to be fetched, and could not be. That says
/// nothing of this machine.
///
/// # Panics
/// If the test cannot be recorded.
pub fn skip_without_network(reason: &str) {
    record(reason);
}

fn record(reason: &str) {
    eprintln!("SKIPPED: {reason}");
    let Some(path) = std::env::var_os(SKIPPED) else { return };
    let thread = std::thread::current();
    let line = format!("{}\t{}\n", thread.name().unwrap_or("?"), reason.replace(['\n', '\t'], " "));
    let file = OpenOptions::new().create(true).append(true).open(path);
    // One write: other tests append to the same file.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the skipped test can be recorded");
}

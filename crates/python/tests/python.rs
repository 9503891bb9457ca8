//! Runs the Python programs beside this file with the package as it is built: the library that cargo has built for these
//! tests, and the Python files around it, in a temporary folder. Nothing is installed.
//!
//! `BRAID_PYTHON` names another interpreter than the first `python3` that will do.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Exit code of a program that cannot run on this machine (`common.py`).
const CANNOT_RUN: i32 = 77;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `target/debug/deps`, where this program is.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Whether an interpreter runs a line without an error.
fn runs(python: &str, line: &str) -> bool {
    let output = Command::new(python).args(["-c", line]).output();
    output.is_ok_and(|output| output.status.success())
}

/// An interpreter that can load the package; one that has `module`, if there is such.
fn python(module: &str) -> Option<String> {
    let named = std::env::var("BRAID_PYTHON").ok();
    let all =
        named.map_or_else(|| vec!["python3".into(), "/usr/bin/python3".into()], |one| vec![one]);
    let new_enough = "import sys; sys.exit(sys.version_info < (3, 11))";
    let all: Vec<String> = all.into_iter().filter(|python| runs(python, new_enough)).collect();
    let has = all.iter().find(|python| runs(python, &format!("import {module}")));
    has.or(all.first()).cloned()
}

/// The package as `pip install` would put it.
fn package() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("braid");
    std::fs::create_dir(&package).unwrap();
    for entry in std::fs::read_dir(here().join("python/braid")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), package.join(entry.file_name())).unwrap();
        }
    }
    let library = built().join("libbraid_python.so");
    std::os::unix::fs::symlink(library, package.join("_braid.abi3.so")).unwrap();
    dir
}

fn run(python: &str, words: &[&str]) -> Output {
    let package = package();
    let mut command = Command::new(python);
    command.args(words).current_dir(here().join("tests"));
    command.env("PYTHONPATH", package.path()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("BRAID_PROGRAM", built().parent().unwrap().join("braid"));
    command.env_remove("BRAID_DEVICES");
    command.output().unwrap()
}

/// Runs a program of tests that needs `module`.
fn passes(program: &str, module: &str) {
    let Some(python) = python(module) else {
        return braid_testkit::skip("no Python 3.11 or newer here");
    };
    if !runs(&python, &format!("import {module}")) {
        return braid_testkit::skip(&format!("{python} has no {module}"));
    }
    let output = run(&python, &["-X", "dev", "-W", "error", program]);
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(CANNOT_RUN) {
        let reason = said.lines().find_map(|line| line.strip_prefix("CANNOT RUN: "));
        return braid_testkit::skip(reason.unwrap_or("it says no reason"));
    }
    assert!(output.status.success(), "{program}: {}\n{said}\n{errors}", output.status);
    // Of unittest: a program that has found no test has shown nothing.
    let ran =
        errors.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok());
    assert!(ran.is_some_and(|count: usize| count > 0), "{program} ran no test:\n{errors}");
}

#[test]
fn a_pool_is_looked_at() {
    passes("test_pool.py", "unittest");
}

#[test]
fn a_native_node_works() {
    passes("test_native.py", "unittest");
}

#[test]
fn forks_are_safe() {
    passes("test_fork.py", "unittest");
}

#[test]
fn the_stubs_say_what_is_there() {
    passes("test_stubs.py", "unittest");
}

#[test]
fn mounts_are_found() {
    passes("test_mounts.py", "unittest");
}

#[test]
fn fsspec_works_through_a_mount_and_natively() {
    passes("test_fsspec.py", "fsspec");
}

/// Where `scripts/setup.sh` puts fsspec with its suite, and pytest: Debian's fsspec comes without.
fn suite() -> PathBuf {
    here().join("../../target/python")
}

/// fsspec's own suite, against pools on files.
#[test]
fn fsspecs_own_suite_passes() {
    let own = suite().join("bin/python").display().to_string();
    let python = std::env::var("BRAID_PYTHON").unwrap_or(own);
    if let Ok(why) = std::fs::read_to_string(suite().join("missing")) {
        return braid_testkit::skip_without_network(why.trim());
    }
    if !runs(
        &python,
        "import sys, pytest, fsspec.tests.abstract; assert sys.version_info >= (3, 11)",
    ) {
        let why =
            format!("{python}: no Python 3.11 with pytest and fsspec's suite (scripts/setup.sh)");
        return braid_testkit::skip(&why);
    }
    let output = run(&python, &["-m", "pytest", "-q", "-p", "no:cacheprovider", "conformance.py"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if let Some(reason) = said.lines().find_map(|line| line.strip_prefix("CANNOT RUN: ")) {
        return braid_testkit::skip(reason);
    }
    assert!(output.status.success(), "{}\n{said}\n{errors}", output.status);
    // A suite that was not found has shown nothing.
    let last = said.lines().last().unwrap_or_default();
    let passed = last.split(' ').next().and_then(|count| count.parse::<u32>().ok());
    assert!(last.contains(" passed") && passed > Some(50), "{said}");
}

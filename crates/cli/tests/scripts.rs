//! Scripts beside the program: by which goals they judge.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::{Command, Output};

fn scripts() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts")
}

/// `None`: there is no python3 here.
fn python(words: &[&str]) -> Option<Output> {
    let mut command = Command::new("python3");
    command.args(words).current_dir(scripts()).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.env("DEPTH", "16").output();
    if output.is_err() {
        braid_testkit::skip("no python3 here");
    }
    output.ok()
}
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A ladder of which the pool reaches this part of raw.
fn ladder(dir: &Path, name: &str, part: f64) {
    let row = |name: &str, phase: &str, rate: f64| serde_json::json!({"name": name, "phase": phase, "rate": [rate], "cpu": [0.1]});
    let mut rows = Vec::new();
    for phase in ["write", "read"] {
        rows.extend([row("raw", phase, 100.0), row("pool", phase, 100.0 * part)]);
        rows.extend([row("native", phase, 100.0), row("mount", phase, 100.0)]);
    }
    let report = serde_json::json!({ "rows": rows });
    std::fs::write(dir.join(name).with_extension("json"), report.to_string()).unwrap();
}

#[test]
fn the_pool_is_judged_by_whether_requests_reach_the_stripe_width() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().to_str().unwrap();
    // 1 MiB is the width of four members and half that of eight.
    for suite in ["ladder4", "ladder8"] {
        ladder(dir.path(), suite, 0.96);
    }
    let Some(output) = python(&["bench_verdict.py", d, "ladder4", "ladder8"]) else { return };
    let said = said(&output);
    let verdicts = |what: &str| {
        let of = said.lines().filter(|l| l.starts_with(what));
        of.map(|l| l.ends_with("met")).collect::<Vec<_>>()
    };
    assert_eq!(verdicts("pool / raw, 4 members"), [false, false], "{said}");
    assert_eq!(verdicts("pool / raw, 8 members"), [true, true], "{said}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn beside_fio_rate_and_both_processor_times_are_judged_at_any_depth() {
    // Figures of both: requests and bytes per second, own processor time, the machine's.
    let script = "import bench_fio as b\n\
                  fio = (100.0, 100.0, 1.0, 1.0)\n\
                  for kit in [fio, (94.0, 97.0, 1.0, 1.0), (100.0, 100.0, 1.06, 1.0), (100.0, 100.0, 1.0, 1.06)]:\n\
                  \x20   print(b.small([(kit, fio)]), b.large([(kit, fio)]))";
    let Some(output) = python(&["-c", script]) else { return };
    let said = said(&output);
    let ends: Vec<_> =
        said.lines().filter(|l| l.starts_with("True") || l.starts_with("False")).collect();
    assert_eq!(ends, ["True True", "False False", "False False", "False False"], "{said}");
    assert!(said.contains("4 KiB, 16 at a time"), "{said}");
    assert_eq!(said.matches("SHORT").count(), 6, "{said}");
    assert_eq!(said.matches("own process").count(), 8, "{said}");
}

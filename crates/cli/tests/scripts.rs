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

/// Runs `upgrade-test.sh` with these two programs.
fn upgrade(old: &str, new: &str) -> Output {
    let mut command = Command::new("timeout");
    command.args(["300", "bash", "upgrade-test.sh", old, new]).current_dir(scripts());
    command.output().unwrap()
}

#[test]
fn a_version_can_take_the_place_of_itself() {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        return braid_testkit::skip("mounting needs /dev/fuse and root");
    }
    let braid = env!("CARGO_BIN_EXE_braid");
    let output = upgrade(braid, braid);
    let (said, errors) = (said(&output), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !said.contains("FAIL"), "{said}{errors}");
    for step in [
        "both are mounted",
        "a flock of OLD keeps NEW out",
        "NEW recovers OLD",
        "OLD recovers NEW",
        "OLD has left, NEW goes on",
        "check by NEW is clean",
        "RESULT: these versions work together",
    ] {
        assert!(said.contains(step), "{step}: {said}");
    }
}

/// What calls itself a version of another format, and takes the pool all the same, or says nothing of use.
#[test]
fn versions_of_two_formats_must_refuse_each_others_pools_and_name_both() {
    let braid = env!("CARGO_BIN_EXE_braid");
    let dir = tempfile::tempdir().unwrap();
    let fake = |name: &str, other: &str| {
        let path = dir.path().join(name);
        let script = format!(
            "#!/bin/bash\ncase $1 in\n  version) echo braid 9; echo file system format 99;;\n  \
             create) exec {braid} \"$@\";;\n  *) {other};;\nesac\n"
        );
        std::fs::write(&path, script).unwrap();
        let mut mode = std::fs::metadata(&path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        std::fs::set_permissions(&path, mode).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let clear = "echo 'braid: format version 3, and this braid reads version 99' >&2; exit 1";
    let output = upgrade(braid, &fake("clear", clear));
    let told = said(&output);
    assert!(told.contains("refused clearly"), "{told}");
    for other in ["exit 0", "echo 'braid: no' >&2; exit 1"] {
        let output = upgrade(braid, &fake("bad", other));
        let told = said(&output);
        assert!(!output.status.success(), "{other}: {told}");
        assert!(told.contains("FAIL  mount by NEW"), "{other}: {told}");
    }
}

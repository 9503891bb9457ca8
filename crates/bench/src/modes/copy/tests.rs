//! Copies of small files: which journals are accepted, which changes are noticed.

#![allow(clippy::large_stack_arrays, clippy::cast_possible_truncation, reason = "tests")]

use super::*;
use crate::modes::{Measure as _, Run};

fn args(dir: &Path, more: &[&str]) -> Run<Args> {
    let (source, destination) = (dir.join("src"), dir.join("dst"));
    let paths = [source.to_str().unwrap(), destination.to_str().unwrap()];
    let usual = ["--request", "4096", "--piece", "2", "--buffered"];
    crate::modes::typed(&[usual.as_slice(), &paths, more].concat())
}
/// Two requests are a piece: this has five pieces, the last one short.
fn source(dir: &Path, seed: u8) -> Vec<u8> {
    let bytes: Vec<u8> = (0..36_865_u32).map(|n| (n >> 3) as u8 ^ seed).collect();
    std::fs::write(dir.join("src"), &bytes).unwrap();
    bytes
}
fn go(args: &Run<Args>) -> (Report, Result<()>) {
    args.result()
}
fn said(result: Result<()>) -> String {
    format!("{:#}", result.unwrap_err())
}

#[test]
fn a_journal_is_believed_only_about_the_destination_it_was_begun_on() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let bytes = source(d, 0);
    let stop = args(d, &["--stop-after", "3", "--no-verify"]);
    let whole = args(d, &["--no-verify"]);
    assert!(said(go(&stop).1).contains("interrupted after 3"));
    // Somebody else's file has the name now.
    std::fs::write(d.join("other"), [7; 40_000]).unwrap();
    std::fs::rename(d.join("other"), d.join("dst")).unwrap();
    assert!(said(go(&whole).1).contains("--force-destroy"));
    assert_eq!(std::fs::read(d.join("dst")).unwrap(), [7; 40_000]);
    // Asked for, it is written over, whole.
    let (report, result) = go(&args(d, &["--no-verify", "--force-destroy"]));
    result.unwrap();
    assert!(report.notes.iter().all(|n| !n.contains("already")), "{:?}", report.notes);
    assert!(std::fs::read(d.join("dst")).unwrap() == bytes);
    // A destination that is gone, or has lost its end, is begun again.
    for harm in [std::fs::remove_file::<PathBuf>, |path| {
        File::options().write(true).open(path)?.set_len(5000)
    }] {
        std::fs::remove_file(d.join("dst")).unwrap();
        go(&stop).1.unwrap_err();
        harm(d.join("dst")).unwrap();
        go(&whole).1.unwrap();
        assert!(std::fs::read(d.join("dst")).unwrap() == bytes);
    }
    assert!(!d.join("dst.braid-copy").exists() && !d.join("dst.braid-copy.new").exists());
}

#[test]
fn a_copy_is_carried_on_by_the_same_source_only() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let bytes = source(d, 0);
    let stop = args(d, &["--stop-after", "3"]);
    go(&stop).1.unwrap_err();
    let (report, result) = go(&args(d, &[]));
    result.unwrap();
    assert!(report.notes.iter().any(|n| n.starts_with("3 pieces of 2")), "{:?}", report.notes);
    assert!(std::fs::read(d.join("dst")).unwrap() == bytes);
    // Another file, also begun there: not this copy's to write over.
    std::fs::remove_file(d.join("dst")).unwrap();
    go(&stop).1.unwrap_err();
    std::fs::rename(d.join("src"), d.join("elsewhere")).unwrap();
    let mut other = args(d, &[]);
    other.mode.source = d.join("elsewhere");
    assert!(said(go(&other).1).contains("--force-destroy"));
    // Under the old name another inode: begun again, with what it holds.
    let new = source(d, 99);
    let (report, result) = go(&args(d, &[]));
    result.unwrap();
    assert!(report.notes.iter().all(|n| !n.contains("already")), "{:?}", report.notes);
    assert!(std::fs::read(d.join("dst")).unwrap() == new);
}

#[test]
fn a_source_that_changes_meanwhile_is_noticed_and_its_copy_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    source(d, 0);
    let plain = args(d, &[]);
    let mut report = plain.mode.begin();
    let result = copy(&plain.mode, false, &mut report, &mut |piece| {
        if piece == 1 {
            let file = OpenOptions::new().write(true).open(d.join("src")).unwrap();
            file.write_all_at(b"changed", 0).unwrap();
            // Whatever the clock's tick is.
            let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
            file.set_modified(later).unwrap();
        }
    });
    assert!(said(result).contains("changed while it was copied"));
    assert!(report.rows.iter().any(|r| r.phase == "copy"), "what was moved is told");
    let (report, result) = go(&plain);
    result.unwrap();
    assert!(report.notes.iter().all(|n| !n.contains("already")), "{:?}", report.notes);
    assert!(std::fs::read(d.join("dst")).unwrap() == std::fs::read(d.join("src")).unwrap());
}

#[test]
fn numbers_of_a_journal_are_not_calculated_with_unseen() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let bytes = source(d, 0);
    let stop = args(d, &["--stop-after", "1"]);
    go(&stop).1.unwrap_err();
    let path = d.join("dst.braid-copy");
    let journal = std::fs::read_to_string(&path).unwrap();
    // More pieces than there are.
    std::fs::write(&path, journal.clone() + &"0123456789abcdef\n".repeat(9)).unwrap();
    assert!(said(go(&args(d, &[])).1).contains("the source only 5"));
    // Something else with that name is not written over.
    for other in ["", "a list\nof things\n", "{}\n"] {
        std::fs::write(&path, other).unwrap();
        assert!(said(go(&args(d, &[])).1).contains("not the journal of a copy"), "{other}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
    }
    // A line that was not written whole does not count; wrong hashes are found.
    std::fs::write(&path, format!("{journal}0123456789ab")).unwrap();
    let (report, result) = go(&args(d, &[]));
    result.unwrap();
    assert!(report.notes.iter().any(|n| n.starts_with("1 pieces")), "{:?}", report.notes);
    assert!(std::fs::read(d.join("dst")).unwrap() == bytes);
    for (option, why) in [("--piece", "--piece"), ("--request", "request"), ("--depth", "--depth")]
    {
        for value in ["0", "18446744073709551615"] {
            std::fs::remove_file(d.join("dst")).ok();
            let said = said(go(&args(d, &[option, value])).1);
            assert!(said.contains(why), "{option} {value}: {said}");
        }
    }
}

#[test]
fn nothing_is_copied_in_no_time_without_a_figure() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("src"), []).unwrap();
    let (report, result) = go(&args(dir.path(), &[]));
    result.unwrap();
    assert!(report.rows.is_empty(), "{:?}", report.rows);
    assert_eq!(std::fs::metadata(dir.path().join("dst")).unwrap().len(), 0);
}

#[test]
fn a_copy_that_is_not_as_it_was_copied_is_mended_by_running_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let bytes = source(d, 0);
    let plain = args(d, &[]);
    let mut report = plain.mode.begin();
    // The last piece is through: two of those before go bad.
    let result = copy(&plain.mode, false, &mut report, &mut |piece| {
        if piece == 4 {
            let file = OpenOptions::new().write(true).open(d.join("dst")).unwrap();
            file.write_all_at(b"rotten", 2 * 8192 + 77).unwrap();
            file.write_all_at(b"rotten", 3 * 8192).unwrap();
        }
    });
    let said = said(result);
    assert!(
        said.contains("bytes 16384 to 24576 differ") && said.contains("run it again"),
        "{said}"
    );
    // The journal ends before the first of them.
    assert_eq!(std::fs::read_to_string(d.join("dst.braid-copy")).unwrap().lines().count(), 1 + 2);
    let (report, result) = go(&plain);
    result.unwrap();
    assert!(report.notes.iter().any(|n| n.starts_with("2 pieces of 2")), "{:?}", report.notes);
    assert!(std::fs::read(d.join("dst")).unwrap() == bytes);
    assert!(!d.join("dst.braid-copy").exists());
}

//! The measuring kit from its command line: what it refuses, what it keeps, what it writes. Nothing
//! here judges time.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::too_many_lines,
    reason = "tests"
)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use common::can_mount;
use common::device::{Loop, Mounted, can_be_root, is_root};

fn braid(dir: &Path, line: &str) -> Output {
    let words = line.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_braid")).args(words).current_dir(dir).output().unwrap()
}
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
#[track_caller]
fn good(dir: &Path, line: &str) -> String {
    let output = braid(dir, line);
    assert!(output.status.success(), "{line}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}
#[track_caller]
fn refused(dir: &Path, line: &str, why: &str) {
    let output = braid(dir, line);
    assert!(!output.status.success(), "{line} succeeded");
    let said = said(&output);
    assert!(said.contains(why) && !said.contains("panicked"), "{line}: {said}");
}
/// Quick rounds.
const SHORT: &str = "--repeats 1 --look 0";

#[test]
fn called_by_their_names_lmdd_and_xdd_take_their_own_words() {
    let dir = tempfile::tempdir().unwrap();
    for (name, words, line) in [
        ("lmdd", vec!["of=F", "bs=4k", "move=2m"], "2.10 MB in "),
        ("/usr/bin/lmdd", vec!["if=F", "bs=4k", "move=2m"], " MB/sec"),
        ("xdd", vec!["-op", "read", "-target", "F", "-mbytes", "1"], "COMBINED"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_braid"))
            .arg0(name)
            .args(&words)
            .current_dir(dir.path())
            .output()
            .unwrap();
        let all = said(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && all.contains(line), "{name}: {all}");
    }
    assert!(said(&braid(dir.path(), "lmdd of=F bs=4k move=2m label=x:")).starts_with("x:2.10 MB"));
    assert!(good(dir.path(), "xdd -op write -targets 2 A B -numreqs 3").contains("PASS0001"));
    // They are asked for their words like everything else.
    for (line, word) in [("lmdd --help", "  direct=N  direct I/O"), ("xdd --help", "-queuedepth N")]
    {
        assert!(good(dir.path(), line).contains(word), "{line}");
    }
}

#[test]
fn every_mode_over_paths_measures_writes_a_result_and_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    for sub in ["a", "b"] {
        std::fs::create_dir(d.join(sub)).unwrap();
    }
    let modes = [
        "surface one=a two=b --requests 4K,64K --transfers 64K,256K --at-least 64K --cache warm",
        "sweep one=a two=b --requests 16K --streams 1,2 --size 256K --cache warm,cold --reads 0,70,100",
        "stripe a b --size 1M --request 64K --buffered",
        "first-write one=a two=b --requests 64K --size 1M --cache cold",
        "curve one=a --loads 50 --size 1M --time 0.05 --depth 4 --buffered",
        "stream one=a --frame 64K --fps 100 --frames 4 --time 0.1 --streams 1,2 --buffered",
        "meta one=a two=b --files 20 --threads 2",
        "meta a b --nodes --files 20 --shared",
        "scale a b --size 1M --request 64K --buffered",
        "share a a --turns 10 --block 4K --size 64K --files 20 --seconds 0.1",
    ];
    for (n, mode) in modes.iter().enumerate() {
        let line = format!("bench {mode} {SHORT} --out {n}.json");
        assert!(!good(d, &line).is_empty());
        let text = std::fs::read_to_string(d.join(format!("{n}.json"))).unwrap();
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(!result["rows"].as_array().unwrap().is_empty(), "{mode}");
        for row in result["rows"].as_array().unwrap() {
            assert!(row["rate"][0].as_f64().unwrap() > 0.0, "{mode}: {row}");
        }
        for key in ["environment", "configuration", "rounds"] {
            assert!(result[key].is_object(), "{mode}: {key}");
        }
        assert_eq!(result["rounds"]["done"], 1, "{mode}");
        for sub in ["a", "b"] {
            assert_eq!(std::fs::read_dir(d.join(sub)).unwrap().count(), 0, "{mode} left something");
        }
    }
    let all: Vec<_> = (0..modes.len()).map(|n| format!("{n}.json")).collect();
    let line =
        format!("bench report {} --html p.html --json all.json --csv all.csv", all.join(" "));
    assert!(good(d, &line).contains("p.html"));
    let page = std::fs::read_to_string(d.join("p.html")).unwrap();
    assert!(page.matches("<h2 id=").count() == modes.len() && page.contains("<svg"));
    assert!(std::fs::read_to_string(d.join("all.csv")).unwrap().lines().count() > 30);
    refused(d, "bench report p.html", "not a result");
    for input in ["0.json", "./0.json", "a/../0.json"] {
        refused(d, &format!("bench report 0.json --html {input}"), "would be written over");
    }
    std::os::unix::fs::symlink("0.json", d.join("link")).unwrap();
    refused(d, "bench report 0.json --csv link", "would be written over");
    refused(d, "bench report 0.json --html p.html --json ./p.html", "named twice");
    assert!(std::fs::read_to_string(d.join("0.json")).unwrap().starts_with('{'));
}

#[test]
fn seeds_measure_what_was_asked_for_in_the_directories_that_are_given_a_line_for_each() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    for sub in ["a", "b"] {
        std::fs::create_dir(d.join(sub)).unwrap();
    }
    let run = |options: &str| {
        let line = format!("bench seeds one=a two=b --size 1M --out r.json {SHORT} {options}");
        let output = braid(d, &line);
        let text = std::fs::read_to_string(d.join("r.json")).unwrap();
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        (String::from_utf8(output.stdout.clone()).unwrap(), said(&output), result)
    };
    let all = |of: &serde_json::Value| of.as_array().unwrap().clone();
    // First writes alone, then the sweep alone, each with what it takes before it begins.
    let (_, said, result) = run("--only S3.6,S3.7");
    assert!(said.contains("seeds: 1 experiments on devices, about "), "{said}");
    let phases = |result: &serde_json::Value| {
        all(&result["rows"])
            .iter()
            .map(|r| r["phase"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(phases(&result).iter().all(|p| p.starts_with("first-write: ")), "{result}");
    let numbers = all(&result["verdicts"]);
    assert!(numbers.iter().all(|v| v["what"].as_str().unwrap().starts_with("S3.")), "{numbers:?}");
    assert!(
        numbers.iter().all(|v| !v["what"].as_str().unwrap().starts_with("S3.8")),
        "{numbers:?}"
    );
    let (table, _, result) = run("--only S2.1,S2.16");
    assert!(phases(&result).iter().all(|p| p.starts_with("sweep: ")), "{result}");
    let cells = all(&result["verdicts"]);
    // Both systems at four request sizes, the base too; the other one against the base.
    for (what, count) in [("S2.1 two streams", 8), ("S2.16 file system over one", 4)] {
        let of = cells.iter().filter(|v| v["what"].as_str().unwrap().starts_with(what));
        assert_eq!(of.clone().count(), count, "{cells:?}");
        assert!(of.clone().all(|v| v["measured"].as_f64().unwrap() > 0.0), "{cells:?}");
        assert_eq!(table.matches(what).count(), 1, "{table}");
    }
    assert_eq!(cells.len(), 12);
    assert!(table.contains("12 cells"), "{table}");
    assert_eq!(table.matches("took: S2.1 to S2.20 ").count(), 1, "{table}");
    let (table, ..) = run("--only S2.1 --verbose");
    assert!(table.matches("S2.1 two streams").count() == 8, "{table}");
    // Ratios are those of the systems, and the page has every cell.
    good(d, "bench report r.json --html p.html --csv r.csv");
    let page = std::fs::read_to_string(d.join("p.html")).unwrap();
    assert!(page.contains("read direct: ratio to one"));
    assert!(page.contains(r#"class="experiments""#));
    assert!(page.matches("S2.1 two streams").count() == 1 + 8);
    for sub in ["a", "b"] {
        assert_eq!(std::fs::read_dir(d.join(sub)).unwrap().count(), 0);
    }
}

#[test]
fn surfaces_of_every_layer_are_measured_on_a_device_made_for_them() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let work = tempfile::tempdir_in("/dev/shm").unwrap();
    let line = format!(
        "bench seeds --only S4.1,S4.2 --size 256K --dir {} --out r.json {SHORT}",
        work.path().display()
    );
    let output = braid(d, &line);
    let text = std::fs::read_to_string(d.join("r.json")).unwrap();
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    let verdicts = result["verdicts"].as_array().unwrap();
    let unmeasured = verdicts.iter().find(|v| v["measured"].is_null());
    if let Some(why) =
        unmeasured.and_then(|v| v["note"].as_str()).filter(|n| n.contains("mkfs.xfs"))
    {
        braid_testkit::skip(&format!("no mkfs.xfs here (package xfsprogs): {why}"));
        return;
    }
    assert!(unmeasured.is_none(), "{verdicts:?}");
    let cells = verdicts.iter().find(|v| v["what"].as_str().unwrap().starts_with("S4.1")).unwrap();
    assert_eq!(cells["measured"], 1.0);
    let rows = result["rows"].as_array().unwrap();
    // Requests of 64, 128 and 256 KiB: six cells, directly on five layers, buffered on three.
    assert_eq!(rows.len(), 6 * 2 * (5 + 3));
    assert!(rows.iter().all(|r| r["rate"][0].as_f64().unwrap() > 0.0 && r["base"] == "raw"));
    let means = result["summaries"].as_array().unwrap();
    assert_eq!(means.iter().filter(|s| s["phase"] == "S4.1: all").count(), 4, "{means:?}");
    assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "{}", said(&output));
    good(d, "bench report r.json --html p.html");
    let page = std::fs::read_to_string(d.join("p.html")).unwrap();
    assert!(page.contains("S4.1: read direct, pool: ratio to raw"));
}

#[test]
fn impossible_sizes_and_what_is_not_there_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::create_dir(d.join("a")).unwrap();
    std::fs::write(d.join("full"), vec![1; 8192]).unwrap();
    for (line, why) in [
        ("surface a --requests 0", "a size of 0"),
        ("surface a --requests 8M --transfers 4M", "none is as large as a request"),
        ("sweep a --requests 2G --size 4G --reads 100 --cache warm", "request"),
        ("sweep a --streams 0", "--streams"),
        ("sweep a --reads 101", "0 to 100 percent"),
        ("sweep a --requests x", "is not a size"),
        ("sweep a --requests 4K --size 8000P", "is not a size"),
        ("sweep a --requests 4K --size 8000T --reads 0", "bytes are free"),
        ("sweep nowhere/at/all --size 1M --requests 4K --reads 0", "No such file"),
        ("sweep full --size 8K --requests 4K --reads 0 --cache warm", "--force-destroy"),
        (
            "sweep /dev/null --size 8K --requests 4K --reads 100 --cache warm",
            "neither a block device",
        ),
        ("stripe a --depth 0", "--depth"),
        ("curve a --loads -5", "unexpected argument"),
        ("curve a --loads 0 --size 1M", "above 0"),
        ("curve a --time NaN --size 1M", "--time"),
        ("stream a --fps 0", "--fps"),
        ("meta a --threads 0", "--threads"),
        ("meta a --files 1 --threads 2", "--files"),
        ("meta full", "Not a directory"),
        ("share a", "at least two"),
        ("share a a --turns 0", "--turns"),
        ("share a a --size 64K", "--size: at least one block for each node"),
        ("stream a --frame 0", "--frame"),
        ("sweep x=a x=a --size 1M", "two systems are called 'x'"),
        ("surface a a", "two systems are called 'a'"),
        ("first-write a a", "two systems are called 'a'"),
        ("curve a a", "two systems are called 'a'"),
        ("stream a a", "two systems are called 'a'"),
        ("meta a a", "two systems are called 'a'"),
        ("copy full full", "the source itself"),
        ("copy nowhere x", "nowhere"),
        ("verify check --journal full", "not a journal"),
        ("verify write v --journal j --request 1000", "a multiple of 512"),
        ("sweep a --accept x", "is not a ratio"),
        ("ladder --members 0", "--members"),
        ("ladder --request 3M", "--request: a power of two"),
        ("ladder --request 64M --size 128M", "less than one request"),
        ("ladder --layers raw,disk", "possible values: raw, pool, native, mount, bulk"),
        ("ladder --layers=", "a value is required"),
        ("ladder --layers pool,raw,pool", "--layers: 'pool' is named twice"),
        ("ladder --beside zfs", "possible values: xfs, ext4, btrfs, none"),
        ("ladder --beside none,xfs", "--beside: 'none' stands alone"),
        ("ladder --dir nowhere", "nowhere: No such file"),
        ("buffered --beside xfs,xfs", "--beside: 'xfs' is named twice"),
        ("ladder --size 16777215T", "--size"),
        ("ladder --size 8000T --dir .", "bytes are free"),
        ("memory --files 18446744073709551615 --dir .", "--files"),
        ("meta a --files 18446744073709551615", "--files"),
        ("meta a --threads 1024 --files 1000", "--files"),
        ("meta a a a a a --nodes --threads 1024 --files 9999", "--threads"),
        ("sweep a --size 4K --requests 8K", "less than a request"),
        ("sweep a --size 0 --requests 4K", "less than a request"),
        ("sweep a --size 4K --requests 4K --time 0 --cache warm", "nothing was moved"),
        ("sweep a --repeats 18446744073709551615", "--repeats"),
        ("sweep a --size 64K --requests 4K --look 18446744073709551615", "--look"),
        ("sweep full --size 8000000T --requests 4K", "beyond the largest file"),
        ("stripe a --size 4K", "less than a request"),
        ("curve a --iops 1e300 --size 1M", "--iops"),
        ("curve a --loads 1e300 --size 1M", "--loads"),
        (
            "stream a --streams 128 --ahead 64 --frame 4K --frames 1 --buffered",
            "threads are too many",
        ),
        ("copy full b --piece 0", "--piece"),
        ("copy full b --piece 18446744073709551615", "--piece"),
        ("copy full b --request 1G --depth 1024", "bytes of memory"),
        ("verify write v --journal j --batch 18446744073709551615", "--batch"),
        ("verify write v --journal j --batches 0", "--batches"),
        ("verify write v --journal j --size 16777215T --request 512", "--size"),
        ("verify write v --journal j --request 1G --size 1G --depth 4096", "bytes of memory"),
        ("seeds --models --accept 0.5", "its own goal"),
        ("seeds --models --only S9", "no experiment has that number"),
        ("seeds --models --only S2.21", "no experiment has that number"),
        ("seeds --models --within 0", "--within"),
        ("seeds --models --width 0", "--width"),
    ] {
        refused(d, &format!("bench {line}"), why);
    }
    assert_eq!(std::fs::read(d.join("full")).unwrap(), vec![1; 8192]);
    assert!(!d.join("v").exists() || std::fs::metadata(d.join("v")).unwrap().len() == 0);
}

#[test]
fn a_gate_says_what_fell_short_and_the_status_is_not_zero() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    for sub in ["a", "b"] {
        std::fs::create_dir(d.join(sub)).unwrap();
    }
    let sweep =
        format!("bench sweep a b --size 256K --requests 4K --streams 1 --cache warm {SHORT}");
    good(d, &format!("{sweep} --accept 0.000001"));
    let line = format!("{sweep} --accept 0.000001 --accept write=1000000 --out r.json");
    let output = braid(d, &line);
    assert!(!output.status.success());
    assert!(said(&output).contains("1 fell short: b write warm"), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("SHORT"));
    let text = std::fs::read_to_string(d.join("r.json")).unwrap();
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["verdicts"].as_array().unwrap().len(), 2);
    let line = format!("{sweep} --accept 0.000001 --accept typo=0.000001");
    refused(
        d,
        &line,
        "1 fell short: --accept typo=0.000001: there is nothing to compare that it names",
    );
    let alone = format!("bench sweep a --size 256K --requests 4K --streams 1 --cache warm {SHORT}");
    refused(d, &format!("{alone} --accept 0.5"), "nothing to compare");
}

#[test]
fn a_result_that_cannot_be_saved_is_printed_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::create_dir(d.join("a")).unwrap();
    let sweep = format!("bench sweep a --size 256K --requests 4K --streams 1 --cache warm {SHORT}");
    for out in ["/dev/full", "no/such/directory/r.json"] {
        let output = braid(d, &format!("{sweep} --out {out}"));
        assert!(!output.status.success() && said(&output).contains(out), "{}", said(&output));
        let table = String::from_utf8_lossy(&output.stdout);
        assert!(table.contains("write warm") && table.contains("1 round in"), "{table}");
    }
}

#[test]
fn what_is_said_of_the_cache_is_what_was_done() {
    let work = tempfile::tempdir_in("/dev/shm").unwrap();
    let d = work.path();
    std::fs::create_dir(d.join("a")).unwrap();
    let label = |line: &str, phase: &str| {
        good(d, &format!("bench {line} {SHORT} --out r.json"));
        let text = std::fs::read_to_string(d.join("r.json")).unwrap();
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = result["rows"].as_array().unwrap();
        let row = rows.iter().find(|r| r["phase"] == phase);
        let row = row.unwrap_or_else(|| panic!("{line}: no {phase} in {text}"));
        row["cache"].as_str().unwrap_or("nothing is said").to_owned()
    };
    let sweep = "sweep a --size 256K --requests 4K --streams 2 --reads 100 --cache";
    assert_eq!(
        label(&format!("{sweep} warm"), "read warm"),
        "warm (read before): memory (the bytes fit in it)"
    );
    // Here is nothing that could be cold.
    assert!(label(&format!("{sweep} cold"), "read cold").contains("no cold state"));
    let first = "first-write a --size 256K --requests 4K --cache cold";
    assert_eq!(label(first, "first write cold"), "new file");
    assert!(label(first, "read cold").contains("no cold state"));
    for (line, phase) in [
        ("stripe a --size 1M --request 64K --buffered", "read"),
        ("scale a --size 1M --request 64K --buffered", "write"),
        ("curve a --loads 50 --size 1M --time 0.05 --depth 4 --buffered", "read"),
        ("stream a --frame 64K --fps 100 --frames 4 --time 0.1 --buffered", "read"),
    ] {
        assert_eq!(label(line, phase), "buffered, the cache as it was left", "{line}");
    }
}

#[test]
fn a_copy_is_resumed_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let bytes: Vec<u8> =
        (0..3_000_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(d.join("src"), &bytes).unwrap();
    let line = "bench copy src dst --request 64K --piece 4 --buffered";
    refused(d, &format!("{line} --stop-after 3"), "interrupted after 3 pieces");
    assert!(d.join("dst.braid-copy").exists());
    assert!(good(d, line).contains("3 pieces of 4 requests were there already"));
    assert!(std::fs::read(d.join("dst")).unwrap() == bytes && !d.join("dst.braid-copy").exists());
    // What is there and was not begun by a copy stays.
    refused(d, line, "--force-destroy");
    // A source that changed meanwhile is begun again.
    std::fs::remove_file(d.join("dst")).unwrap();
    refused(d, &format!("{line} --stop-after 3"), "interrupted");
    std::fs::write(d.join("src"), &bytes[..2_000_000]).unwrap();
    assert!(!good(d, line).contains("were there already"));
    assert!(std::fs::read(d.join("dst")).unwrap() == bytes[..2_000_000]);
    // Direct, where the directory has it: the odd end goes through the page cache.
    good(d, "bench copy src direct --request 64K --piece 4");
    assert!(std::fs::read(d.join("direct")).unwrap() == bytes[..2_000_000]);
    std::fs::write(d.join("empty"), []).unwrap();
    good(d, "bench copy empty empty2 --buffered");
    assert_eq!(std::fs::metadata(d.join("empty2")).unwrap().len(), 0);
}

#[test]
fn what_a_killed_writer_was_told_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let mut child = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args("bench verify write F --journal J --size 4M --request 4K --batch 8 --time 600 --buffered".split(' '))
        .current_dir(d)
        .spawn()
        .unwrap();
    // Some batches, however long they take.
    let noted = || std::fs::read_to_string(d.join("J")).map_or(0, |t| t.lines().count());
    for _ in 0..6000 {
        if noted() > 5 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(noted() > 5);
    assert!(
        good(d, "bench verify check --journal J").contains(" 0 lost, 0 foreign, 0 of the future")
    );
    std::fs::write(d.join("F"), vec![0; 4 << 20]).unwrap();
    refused(d, "bench verify check --journal J", "none of this run's");
}

#[test]
fn a_disk_that_fills_up_keeps_the_result_so_far() {
    if !can_be_root("mounting needs root") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::create_dir(d.join("small")).unwrap();
    let small = ["-t", "tmpfs", "-o", "size=3m", "none"];
    let Some(_mounted) = Mounted::new(&small, &d.join("small")) else { return };
    // The first system fits, the second does not: nothing told so before, since it is a file.
    let line = "bench sweep small --size 2M --requests 64K --streams 1,2 --reads 0 --cache warm";
    refused(d, &format!("{line} {SHORT}"), "bytes are free");
    // What is larger than all of it is not begun.
    refused(d, "lmdd of=small/f bs=64k move=8m", "do not fit");
    refused(d, "xdd -op write -target small/f -reqsize 64 -mbytes 8", "do not fit");
    assert!(!d.join("small/f").exists());
    std::fs::write(d.join("small/other"), vec![1; 1 << 20]).unwrap();
    refused(d, "lmdd of=small/f bs=64k move=3m", "No space left");
    assert!(
        said(&braid(d, "lmdd of=small/f bs=64k move=3m")).contains("2.10 MB"),
        "what fitted counts"
    );
    std::fs::remove_file(d.join("small/f")).unwrap();
    let output = braid(d, "xdd -op write -target small/f -reqsize 64 -mbytes 3 -csvout csv");
    assert!(!output.status.success());
    assert!(said(&output).contains("full"), "{}", said(&output));
    assert!(std::fs::read_to_string(d.join("csv")).unwrap().contains("combined,1,1,2"));
    std::fs::remove_file(d.join("small/f")).unwrap();
    let write =
        "bench verify write small/f --journal J --size 8M --request 64K --buffered --sequential";
    refused(d, write, "was not acknowledged");
    good(d, "bench verify check --journal J");
}

#[test]
fn a_directory_that_fills_up_in_the_middle_leaves_the_rows_before_it() {
    if !can_be_root("mounting needs root") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    for sub in ["large", "small"] {
        std::fs::create_dir(d.join(sub)).unwrap();
    }
    let small = ["-t", "tmpfs", "-o", "nr_inodes=50", "none"];
    let Some(_mounted) = Mounted::new(&small, &d.join("small")) else { return };
    let line = format!("bench meta large small --files 100 {SHORT} --out r.json");
    refused(d, &line, "No space left");
    let text = std::fs::read_to_string(d.join("r.json")).unwrap();
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = result["rows"].as_array().unwrap();
    assert!(rows.iter().any(|r| r["name"] == "large" && r["phase"] == "unlink"), "{result}");
    assert!(result["failed"].as_str().unwrap().contains("No space left"));
    assert_eq!(result["rounds"]["ended"], "failed");
    // The page of it says so.
    good(d, "bench report r.json --html p.html");
    assert!(std::fs::read_to_string(d.join("p.html")).unwrap().contains("Ended early"));
}

#[test]
fn without_the_right_to_write_or_read_nothing_is_measured() {
    if !can_be_root("becoming somebody else needs root") {
        return;
    }
    // Where somebody else may look, and may run the program.
    let dir = tempfile::Builder::new().prefix("rights").tempdir_in("/tmp").unwrap();
    let d = dir.path();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(d, 0o755);
    let program = d.join("braid");
    std::fs::copy(env!("CARGO_BIN_EXE_braid"), &program).unwrap();
    mode(&program, 0o755);
    std::fs::write(d.join("unreadable"), vec![1; 8192]).unwrap();
    mode(&d.join("unreadable"), 0o600);
    std::fs::create_dir(d.join("open")).unwrap();
    mode(&d.join("open"), 0o777);
    let run = |line: &str| {
        let words = format!("bench {line}");
        let mut somebody = Command::new(&program);
        somebody.args(words.split(' ')).current_dir(d).uid(65_534).gid(65_534);
        somebody.output().unwrap()
    };
    std::fs::write(d.join("unwritable"), vec![1; 8192]).unwrap();
    for (line, why) in [
        (
            "sweep unreadable --size 8K --requests 4K --reads 100 --cache warm",
            "no permission to read it",
        ),
        (
            "sweep unwritable --size 8K --requests 4K --reads 0 --cache warm",
            "no permission to write it",
        ),
        ("sweep . --size 8K --requests 4K --cache warm", "Permission denied"),
        ("ladder --size 64M --dir .", "Permission denied"),
        ("ladder --size 64M --dir open --layers pool --loop", "--loop: loop devices need root"),
        ("ladder --size 64M --dir open --layers pool --beside ext4", "--beside ext4: "),
        ("buffered --size 64M --dir open", "loop devices need root"),
    ] {
        let output = run(line);
        assert!(!output.status.success() && said(&output).contains(why), "{line}: {output:?}");
    }
    // What is beside of itself is left out, and said.
    let output =
        run("ladder --size 16M --members 2 --streams 2 --dir open --layers pool --repeats 1");
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("note: xfs is not measured: "), "{table}");
    assert_eq!(std::fs::read_dir(d.join("open")).unwrap().count(), 0);
    assert_eq!(std::fs::read(d.join("unwritable")).unwrap(), vec![1; 8192]);
}

#[test]
fn a_mounted_device_is_written_only_by_force() {
    if !can_be_root("loop devices and mounting need root") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    std::fs::File::create(d.join("disk")).unwrap().set_len(320 << 20).unwrap();
    std::fs::create_dir(d.join("mnt")).unwrap();
    let Some(device) = Loop::new(&d.join("disk")) else {
        braid_testkit::skip("no loop devices here");
        return;
    };
    let name = &device.0;
    let made = Command::new("mkfs.xfs").args(["-q", name]).status();
    if !made.is_ok_and(|s| s.success()) {
        braid_testkit::skip("no mkfs.xfs here (package xfsprogs)");
        return;
    }
    let Some(_mounted) = Mounted::new(&[name], &d.join("mnt")) else { return };
    let before = std::fs::read(d.join("disk")).unwrap().get(..4096).unwrap().to_vec();
    let sweep = format!("bench sweep {name} --size 1M --requests 64K --reads 0 --cache direct");
    refused(d, &format!("{sweep} {SHORT}"), "--force-destroy");
    refused(d, &format!("lmdd of={name} bs=4k count=1"), "mounted");
    assert!(std::fs::read(d.join("disk")).unwrap().get(..4096).unwrap() == before);
    // Unaligned, direct: refused by the device's sector, whatever is forced.
    let odd = format!("bench sweep {name} --size 1M --requests 1000 --reads 100 --cache direct");
    refused(d, &odd, "direct I/O goes in multiples of 512");
    good(d, &format!("{sweep} {SHORT} --force-destroy"));
    assert!(std::fs::read(d.join("disk")).unwrap().get(..4096).unwrap() != before);
}

#[test]
fn modes_with_a_testbed_of_their_own_have_rounds_and_percentiles() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let work = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = format!("--dir {} {SHORT}", work.path().display());
    for mode in [
        format!("ladder --members 2 --streams 2 --size 16M {at}"),
        format!("buffered --size 8M {at}"),
        format!("memory --size 8M --files 20 {at}"),
    ] {
        good(d, &format!("bench {mode} --out r.json"));
        let text = std::fs::read_to_string(d.join("r.json")).unwrap();
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(result["rounds"]["done"], 1, "{mode}");
        for row in result["rows"].as_array().unwrap() {
            assert!(row["rate"][0].as_f64().unwrap() > 0.0, "{mode}: {row}");
            if !mode.starts_with("memory") {
                assert!(row["latency"][0]["p99"].as_f64().unwrap() > 0.0, "{mode}: {row}");
            }
        }
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "{mode} left something");
    }
}

#[test]
fn the_bulk_service_is_compared_with_the_mount_and_the_wire() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let work = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = format!("--dir {} {SHORT} --out r.json", work.path().display());
    for options in ["--wire 200M", "--tls"] {
        let line = format!("bench bulk --members 1 --streams 2 --size 16M {options} {at}");
        good(d, &line);
        let text = std::fs::read_to_string(d.join("r.json")).unwrap();
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = result["rows"].as_array().unwrap();
        for phase in ["buffered write+fsync", "durable write", "read"] {
            let rate = |name: &str| {
                let row = rows.iter().find(|r| r["name"] == name && r["phase"] == phase).unwrap();
                row["rate"][0].as_f64().unwrap()
            };
            let off = rate("limit") - rate("wire").min(rate("mount"));
            assert!(off.abs() < 1e-6, "{result}");
            assert!(rate("bulk") > 0.0, "{result}");
        }
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "{options} left something");
    }
    refused(d, &format!("bench bulk --size 1M --streams 4 {at}"), "--size: ");
    refused(d, &format!("bench bulk --request 3M {at}"), "--request: a power of two");
}

#[test]
fn a_ladder_of_some_layers_is_compared_with_the_first_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let work = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = format!("--dir {} {SHORT} --out r.json", work.path().display());
    let run = |options: &str| {
        let table =
            good(d, &format!("bench ladder --members 2 --streams 2 --size 16M {options} {at}"));
        let text = std::fs::read_to_string(d.join("r.json")).unwrap();
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = result["rows"].as_array().unwrap();
        assert!(rows.iter().all(|r| r["rate"][0].as_f64().unwrap() > 0.0), "{result}");
        let mut names: Vec<_> =
            rows.iter().map(|r| r["name"].as_str().unwrap().to_owned()).collect();
        names.dedup();
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "{options} left something");
        (table, result["base"].as_str().unwrap().to_owned(), names)
    };
    let (table, base, names) = run("--layers native,pool --beside none");
    assert_eq!((base.as_str(), names), ("native", vec!["native".to_owned(), "pool".to_owned()]));
    assert!(table.contains("to native; raw is not measured"), "{table}");
    assert!(table.contains("ratio to native"), "{table}");
    // Wherever raw stands, all are compared with it.
    let (table, base, names) = run("--layers pool,raw --beside none");
    assert_eq!((base.as_str(), names), ("raw", vec!["pool".to_owned(), "raw".to_owned()]));
    assert!(table.contains("ratio to raw") && !table.contains("is not measured"), "{table}");
    let has = |s: &str| {
        let made = Command::new(format!("/usr/sbin/mkfs.{s}")).arg("-V").output();
        made.is_ok_and(|o| o.status.success())
    };
    if !is_root() || !["xfs", "ext4", "btrfs"].into_iter().all(has) {
        braid_testkit::skip("needs root, and the packages xfsprogs, e2fsprogs and btrfs-progs");
        return;
    }
    let (table, base, names) = run("--layers pool --beside btrfs,ext4,xfs");
    let all = ["pool", "btrfs (1 loop)", "btrfs (2 loops, raid0)", "ext4 (1 loop)", "xfs (1 loop)"];
    assert_eq!((base.as_str(), names), ("pool", all.map(str::to_owned).into()), "{table}");
    assert!(table.contains("btrfs keeps checksums"), "{table}");
    // What has loop devices already is striped over those.
    let (.., names) = run("--layers pool --beside btrfs --loop");
    assert_eq!(names.len(), 3);
    if !Path::new("/dev/fuse").exists() {
        return braid_testkit::skip("there is no /dev/fuse");
    }
    let (.., names) = run("--layers mount,bulk --beside none");
    assert_eq!(names, ["mount", "bulk"]);
    for (systems, base) in [("ext4,xfs", "ext4"), ("none", "mount")] {
        good(d, &format!("bench buffered --size 8M --beside {systems} {at}"));
        let text = std::fs::read_to_string(d.join("r.json")).unwrap();
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(result["base"], base);
    }
}

#[test]
fn devices_in_use_and_in_pools_are_written_only_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    for name in ["member", "plain"] {
        std::fs::File::create(d.join(name)).unwrap().set_len(256 << 20).unwrap();
    }
    good(d, "create kitpool member");
    // A member that is a file, whichever way it is named.
    for line in [
        "bench sweep member --size 1M --requests 4K --reads 0 --cache warm",
        "lmdd of=member bs=4k count=1",
        "xdd -op write -target member -numreqs 1",
        "bench verify write member --journal J",
        "bench stripe member --size 1M --buffered",
    ] {
        refused(d, line, "a member of pool 'kitpool'");
    }
    assert!(good(d, "dump-label member").contains("kitpool"));
    // Reading is no harm.
    good(d, "lmdd if=member bs=4k count=16");
    if !can_be_root("loop devices need root") {
        return;
    }
    let Some(member) = Loop::new(&d.join("member")) else {
        braid_testkit::skip("no loop devices here");
        return;
    };
    let name = &member.0;
    refused(d, &format!("lmdd of={name} bs=4k count=1"), "a member of pool 'kitpool'");
    refused(d, "lmdd of=member bs=4k count=1", "backs /dev/loop");
    let Some(plain) = Loop::new(&d.join("plain")) else { return };
    let name = &plain.0;
    // Empty and free: no force is needed; beyond its end, or between its sectors, none helps.
    good(d, &format!("xdd -op write -target {name} -reqsize 4 -numreqs 8 -verify contents"));
    good(
        d,
        &format!("xdd -op read -target {name} -reqsize 4 -numreqs 8 -verify contents -dio -qd 4"),
    );
    refused(d, &format!("xdd -op read -target {name} -mbytes 300"), "are asked for");
    refused(
        d,
        &format!("xdd -op read -dio -target {name} -blocksize 1000 -reqsize 1 -numreqs 1"),
        "direct I/O goes in multiples of 512",
    );
    let claimed = Command::new("mkswap").arg(name).output();
    if claimed.is_ok_and(|o| o.status.success()) {
        refused(d, &format!("lmdd of={name} bs=4k count=1"), "holds a swap area");
        good(d, &format!("lmdd of={name} bs=4k count=1 force-destroy=1"));
    }
}

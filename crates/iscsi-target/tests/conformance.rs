//! The conformance suite of libiscsi (Debian's `libiscsi-bin`, which `make test` installs) against a
//! target in this process. A test that the suite skips counts as failed here: the suite itself
//! counts it as passed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;

use braid_device::{Device, FileDevice, MemoryDevice, OpenOptions};
use braid_format::Bytes;
use braid_iscsi_target::{Chap, LunOptions, Target, TargetOptions};

const NAME: &str = "iqn.2026-11.org.braid:conformance";
const SIZE: Bytes = Bytes(64 << 20);

struct Served {
    target: Target,
    _dir: tempfile::TempDir,
}

fn serve(make: impl FnOnce(&std::path::Path) -> Arc<dyn Device>) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let reservations = Some(dir.path().join("reservations"));
    let luns = vec![LunOptions { device: make(dir.path()), identity: None, reservations }];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = TargetOptions { name: NAME.into(), luns, chap: Chap::default() };
    Served { target: Target::start(listener, options).unwrap(), _dir: dir }
}

/// Runs one family and fails unless all its tests ran and passed.
fn passes(served: &Served, family: &str, tests: usize) {
    let url = format!("iscsi://{}/{NAME}/0", served.target.address());
    let out = Command::new("timeout")
        .args(["300", "iscsi-test-cu", "-d", "-V", "-t"])
        .args([&format!("ALL.{family}"), &url])
        .output()
        .expect("timeout");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let code = out.status.code();
    assert_ne!(code, Some(127), "iscsi-test-cu is missing: install Debian's libiscsi-bin");
    assert_eq!(code, Some(0), "{family}: {said}");
    assert!(!said.contains("SKIPPED"), "{family}: a test was skipped: {said}");
    // "tests TOTAL RAN PASSED FAILED INACTIVE"
    let summary = said.lines().map(str::split_whitespace).find_map(|mut words| {
        (words.next() == Some("tests")).then(|| words.map_while(|w| w.parse().ok()).collect())
    });
    let counts: Vec<usize> = summary.unwrap_or_else(|| panic!("{family}: no summary: {said}"));
    assert_eq!(counts, [tests, tests, tests, 0, 0], "{family}: {said}");
    let left = || served.target.commands();
    // A command is in the table for a moment after its answer.
    let patience = (0..1000).take_while(|_| left() != 0);
    patience.for_each(|_| std::thread::sleep(std::time::Duration::from_millis(10)));
    assert_eq!(left(), 0, "{family}: commands are left");
}

/// What clusters rest on, and the rest of what the target says it can.
const FAMILIES: [(&str, usize); 35] = [
    ("CompareAndWrite", 5),
    ("PrinReadKeys", 2),
    ("PrinServiceactionRange", 1),
    ("PrinReportCapabilities", 1),
    ("ProutRegister", 1),
    ("ProutReserve", 13),
    ("ProutClear", 1),
    ("ProutPreempt", 1),
    ("Read6", 2),
    ("Read10", 6),
    ("Read12", 5),
    ("Read16", 5),
    ("Write10", 6),
    ("Write12", 5),
    ("Write16", 5),
    ("Unmap", 3),
    ("OrWrite", 6),
    ("Inquiry", 7),
    ("TestUnitReady", 1),
    ("Mandatory", 1),
    ("Prefetch10", 4),
    ("Prefetch16", 4),
    ("ReadCapacity10", 1),
    ("ReadCapacity16", 4),
    ("ReportSupportedOpcodes", 4),
    ("Verify10", 8),
    ("Verify12", 8),
    ("Verify16", 8),
    ("WriteVerify10", 6),
    ("WriteVerify12", 6),
    ("WriteVerify16", 6),
    ("ModeSense6", 5),
    ("iSCSIcmdsn", 2),
    ("iSCSIResiduals", 10),
    ("iSCSITMF", 2),
];

/// Of WRITE SAME: `UnmapUntilEnd` wants zeros where it has sent a pattern of ones.
const SAME: [&str; 9] = [
    "Simple",
    "BeyondEol",
    "ZeroBlocks",
    "WriteProtect",
    "Unmap",
    "UnmapUnaligned",
    "UnmapVPD",
    "Check",
    "InvalidDataOutSize",
];

#[test]
fn memory_with_large_physical_sectors() {
    let served = serve(|_| MemoryDevice::emulating("memory", SIZE, Bytes(512), Bytes(4096)));
    for (family, tests) in FAMILIES {
        passes(&served, family, tests);
    }
    for test in SAME {
        passes(&served, &format!("WriteSame10.{test}"), 1);
        passes(&served, &format!("WriteSame16.{test}"), 1);
    }
}

/// One test of this family wants a wrong answer where a physical sector has several logical ones.
#[test]
fn memory() {
    let served = serve(|_| MemoryDevice::new("memory", SIZE, Bytes(512)));
    passes(&served, "GetLBAStatus", 3);
    passes(&served, "CompareAndWrite.Simple", 1);
}

/// A file has a write cache, and reads that go to workers.
#[test]
fn a_file() {
    let served = serve(|dir| {
        let path = dir.join("disk");
        std::fs::File::create(&path).unwrap().set_len(SIZE.get()).unwrap();
        FileDevice::open(&path, OpenOptions::default()).unwrap()
    });
    for family in ["Read10", "Write10", "Write16", "Unmap", "OrWrite", "WriteVerify16"] {
        let (_, tests) = FAMILIES.into_iter().find(|(f, _)| *f == family).unwrap();
        passes(&served, family, tests);
    }
}

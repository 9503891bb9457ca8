//! What a distribution needs: the Debian package, and what mount(8), fsck(8) and systemd expect of the program.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use common::{Disks, braid, can_mount, ok};

/// Programs that the package's test needs, besides those of every Debian system.
const TOOLS: [&str; 4] = ["cargo-deb", "lintian", "mmdebstrap", "systemd-analyze"];

fn is_there(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').any(|dir| Path::new(dir).join(tool).exists())
}

/// Runs a script with the package and a clean system, which whichever test comes first makes.
fn with_the_package(script: &str) {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let folder = MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clean-system");
        run("clean_system.sh", &[Path::new(env!("CARGO_BIN_EXE_braid")), &folder]);
        folder
    });
    run(script, &[folder]);
}

fn run(script: &str, args: &[&Path]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(script);
    let out = Command::new(script).args(args).output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}{}", said(&out.stdout), said(&out.stderr));
}

#[test]
fn the_package_is_installed_used_and_removed_in_a_clean_system() {
    if !can_mount() {
        return;
    }
    if let Some(tool) = TOOLS.iter().find(|tool| !is_there(tool)) {
        return braid_testkit::skip(&format!("{tool} is not installed"));
    }
    with_the_package("package_test.sh");
}

/// What an RPM of this program has, and that it can be installed and removed, in a folder.
#[test]
fn the_rpm_package_has_what_the_debian_one_has() {
    if let Some(tool) = ["rpm", "rpmbuild"].iter().find(|tool| !is_there(tool)) {
        return braid_testkit::skip(&format!("{tool} is not installed"));
    }
    if !common::device::can_be_root("rpm installs as root") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    run("rpm_test.sh", &[Path::new(env!("CARGO_BIN_EXE_braid")), folder.path()]);
}

/// Only commands of the manual pages: disks fail and are replaced, a node is killed, the pool is full, a disk rots;
/// the pool's history has it all.
#[test]
fn an_operators_day_goes_well_with_the_package_alone() {
    if !can_mount() {
        return;
    }
    if let Some(tool) = TOOLS.iter().find(|tool| !is_there(tool)) {
        return braid_testkit::skip(&format!("{tool} is not installed"));
    }
    with_the_package("operator.sh");
}

#[test]
fn systemd_is_told_when_a_mount_serves_and_when_it_leaves() {
    if !can_mount() {
        return;
    }
    let disks = Disks::new(1, 128);
    ok(&disks.with(&["create", "told"], &[]));
    let (dir, socket) = (disks.path("mnt"), disks.path("notify"));
    std::fs::create_dir(&dir).unwrap();
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let told = || {
        let mut message = [0; 1024];
        let len = manager.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..len]).into_owned()
    };
    let mut mount = Command::new(env!("CARGO_BIN_EXE_braid"));
    mount.args(disks.with(&["mount", "--foreground"], &[&dir])).env("NOTIFY_SOCKET", &socket);
    // The journal, as systemd names it.
    let journal = std::fs::File::create(disks.path("journal")).unwrap();
    let about = journal.metadata().unwrap();
    mount.env("JOURNAL_STREAM", format!("{}:{}", about.dev(), about.ino()));
    let mut mount = mount.stderr(journal).spawn().unwrap();
    let ready = told();
    assert!(ready.contains("READY=1\n") && ready.contains("STATUS=pool told serves"), "{ready}");
    common::unmount_idle(Path::new(&dir));
    let leaving = told();
    assert!(leaving.contains("STOPPING=1"), "{leaving}");
    assert!(mount.wait().unwrap().success());
    let journal = std::fs::read_to_string(disks.path("journal")).unwrap();
    for line in journal.lines() {
        assert!(line.starts_with('<') && line.get(2..3) == Some(">"), "{line}");
    }
    for said in ["mounted pool=\"told\"", "unmounted pool=\"told\""] {
        let line = journal.lines().find(|line| line.contains(said));
        assert!(
            line.is_some_and(|line| line.starts_with("<6>told: node 0:  INFO")),
            "{said}: {journal}"
        );
    }
}

#[test]
fn the_exit_status_of_a_check_is_that_of_fsck() {
    let disks = Disks::new(1, 128);
    let status = |args: &[&str]| braid(args).status.code();
    assert_eq!(status(&disks.with(&["check"], &[])), Some(8), "no pool is there");
    ok(&disks.with(&["create", "checked"], &[]));
    assert_eq!(status(&disks.with(&["check"], &[])), Some(0));
    assert_eq!(status(&["check", "/nowhere"]), Some(8));
    assert_eq!(status(&["check"]), Some(16));
    assert_eq!(status(&["check", "--help"]), Some(0));
    // Of other commands it is as before.
    assert_eq!(status(&["status", "--nonsense"]), Some(2));
    assert_eq!(status(&["scrub", "/nowhere"]), Some(1));
}

#[test]
fn every_command_has_a_manual_page_and_shells_are_offered_it() {
    let made = tempfile::tempdir().unwrap();
    ok(&["generate", made.path().to_str().unwrap()]);
    let help = ok(&["--help"]);
    let commands = help.lines().filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && !name.starts_with('-')).then_some(name)
    });
    let mut count = 0;
    for name in commands {
        let page = made.path().join(format!("man/braid-{name}.8"));
        let page = std::fs::read_to_string(&page).unwrap_or_else(|_| panic!("no page for {name}"));
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH \"SEE ALSO\""), "{page}");
        count += 1;
    }
    assert!(count > 25, "{help}");
    let mount = std::fs::read_to_string(made.path().join("man/braid-mount.8")).unwrap();
    for option in ["memory=", "fence_command=", "degraded"] {
        assert!(mount.contains(option), "{option} is not in the page of mount");
    }
    for (shell, script) in [("bash", "braid.bash"), ("zsh", "_braid"), ("fish", "braid.fish")] {
        let script = std::fs::read_to_string(made.path().join("completions").join(script)).unwrap();
        assert!(script.contains("BRAID_COMPLETE"), "{script}");
        let mut asked = Command::new(env!("CARGO_BIN_EXE_braid"));
        asked.args(["--", "braid", "unm"]).env("BRAID_COMPLETE", shell);
        let out = asked.env("_CLAP_COMPLETE_INDEX", "1").output().unwrap();
        let offered = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(offered.contains("unmount"), "{shell}: {out:?}");
    }
}

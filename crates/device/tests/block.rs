//! Block devices, by loop devices: only where there are rights to make them; elsewhere the tests
//! say so and pass.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use braid_device::{
    CawOutcome, Device, DeviceError, FileDevice, Hold, Holding, InUse, Op, OpenOptions, Request,
    in_use, run,
};
use braid_format::{ByteOffset, Bytes};

const SIZE: u64 = 16 << 20;

struct Loop {
    dir: tempfile::TempDir,
    node: PathBuf,
}
impl Loop {
    fn file(&self) -> PathBuf {
        self.dir.path().join("backing")
    }
    /// A loop device over a file of `size`, or `None` (said) where none can be made.
    fn new(size: u64, sector: u64) -> Option<Self> {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = dir.path().join("backing");
        std::fs::File::create(&file).unwrap().set_len(size).unwrap();
        let out = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector.to_string()])
            .arg(&file)
            .output();
        match out {
            Ok(out) if out.status.success() => {
                let node = String::from_utf8(out.stdout).unwrap().trim().into();
                Some(Self { dir, node })
            }
            other => {
                braid_testkit::skip(&format!("no loop device: {other:?}"));
                None
            }
        }
    }
    fn run(&self, program: &str, args: &[&str]) -> bool {
        let out = Command::new(program).args(args).current_dir(self.dir.path()).output();
        out.is_ok_and(|o| o.status.success())
    }
}
impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.node).status();
    }
}
fn open(path: &Path) -> Arc<FileDevice> {
    FileDevice::open(path, OpenOptions::default()).unwrap()
}

#[test]
fn size_and_sectors_are_the_devices_own() {
    for sector in [512, 4096] {
        let Some(l) = Loop::new(SIZE, sector) else { return };
        let d = open(&l.node);
        let info = d.info();
        assert!(info.is_block && info.size == Bytes(SIZE) && info.sector == Bytes(sector));
        assert!(info.physical_sector >= info.sector);
        let less = d.read(ByteOffset(0), &mut [0; 256]);
        assert!(matches!(less, Err(DeviceError::Unaligned { .. })));
        let mut odd = vec![3; 65536 + 1];
        d.write(ByteOffset(65536), &odd[1..]).unwrap();
        let mut back = [vec![0; 65537], vec![0; 65537]];
        let [a, b] = &mut back;
        let mut reads = [
            Request {
                device: &*d,
                at: ByteOffset(65536),
                op: Op::Read(&mut a[1..]),
                result: Ok(()),
            },
            Request {
                device: &*d,
                at: ByteOffset(0),
                op: Op::Read(&mut b[..65536]),
                result: Ok(()),
            },
        ];
        run(&mut reads);
        assert!(reads.iter().all(|r| r.result.is_ok()));
        odd[0] = 0;
        assert!(back[0] == odd && back[1].iter().all(|x| *x == 0));
        d.flush().unwrap();
    }
}
#[test]
fn zeroing_and_discarding() {
    let Some(l) = Loop::new(SIZE, 512) else { return };
    let d = open(&l.node);
    d.write(ByteOffset(0), &vec![9; 1 << 20]).unwrap();
    d.write_zeroes(ByteOffset(512), Bytes(100 * 512)).unwrap();
    d.discard(ByteOffset(512 << 10), Bytes(64 << 10)).unwrap();
    let mut back = vec![1; 1 << 20];
    d.read(ByteOffset(0), &mut back).unwrap();
    assert!(back[..512].iter().all(|b| *b == 9));
    assert!(back[512..101 * 512].iter().all(|b| *b == 0));
    assert!(back[101 * 512..512 << 10].iter().all(|b| *b == 9));
    assert!(back[576 << 10..].iter().all(|b| *b == 9));
}
#[test]
fn what_is_deallocated_reads_as_zeros_and_goes_from_the_file_below() {
    let Some(l) = Loop::new(SIZE, 512) else { return };
    let d = open(&l.node);
    assert!(d.info().caps.deallocate);
    d.write(ByteOffset(0), &vec![9; 2 << 20]).unwrap();
    d.flush().unwrap();
    let blocks = |path: &std::path::Path| {
        std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap())
    };
    let before = blocks(&l.file());
    assert!(d.deallocate(ByteOffset(512), Bytes(1 << 20)).unwrap());
    let mut back = vec![1; 2 << 20];
    d.read(ByteOffset(0), &mut back).unwrap();
    assert!(back[..512].iter().chain(&back[512 + (1 << 20)..]).all(|b| *b == 9));
    assert!(back[512..512 + (1 << 20)].iter().all(|b| *b == 0));
    d.flush().unwrap();
    assert!(blocks(&l.file()) + 1900 < before, "{before} to {}", blocks(&l.file()));
}
#[test]
fn openers_by_different_names_exclude_each_other() {
    let Some(l) = Loop::new(SIZE, 512) else { return };
    let link = l.dir.path().join("link");
    symlink(&l.node, &link).unwrap();
    let meta = std::fs::metadata(&l.node).unwrap();
    let dev = std::os::unix::fs::MetadataExt::rdev(&meta);
    let (major, minor) = (rustix::fs::major(dev).to_string(), rustix::fs::minor(dev).to_string());
    let mut names = vec![l.node.clone(), link];
    // A second node of the same device has an inode of its own.
    if l.run("mknod", &["node", "b", &major, &minor]) {
        names.push(l.dir.path().join("node"));
    }
    let handles: Vec<_> = names.iter().map(|n| open(n)).collect();
    let held = handles[0].abilities().locks.lock_byte(3).unwrap().unwrap();
    for h in &handles {
        assert!(h.abilities().locks.byte_locked(3).unwrap(), "{}", h.info().name);
        assert!(h.abilities().locks.lock_byte(3).unwrap().is_none());
    }
    drop(held);
    // And compare-and-write counts exactly over all of them.
    std::thread::scope(|s| {
        for h in &handles {
            s.spawn(move || {
                let mut now = vec![0; 512];
                for _ in 0..100 {
                    loop {
                        let value = u64::from_le_bytes(*now.first_chunk().unwrap());
                        let next = (value + 1).to_le_bytes().repeat(64);
                        match h.compare_and_write(ByteOffset(1024), &now, &next).unwrap() {
                            CawOutcome::Written => break,
                            CawOutcome::Mismatch(stands) => now = stands,
                        }
                    }
                }
            });
        }
    });
    let mut now = vec![0; 512];
    handles[0].read(ByteOffset(1024), &mut now).unwrap();
    let value = u64::from_le_bytes(*now.first_chunk().unwrap());
    assert_eq!(value, 100 * handles.len() as u64);
}
/// Names the node that a process in a container opens; its locks are expected to be refused.
const PRIVATE_NODE: &str = "BRAID_TEST_PRIVATE_NODE";
/// Whether that process may not mount anything.
const UNPRIVILEGED: &str = "BRAID_TEST_UNPRIVILEGED";

/// What a process in a container does; nothing by itself.
#[test]
fn as_a_container() {
    let Some(node) = std::env::var_os(PRIVATE_NODE) else { return };
    let d = open(Path::new(&node));
    d.read(ByteOffset(0), &mut [0; 512]).unwrap();
    d.write(ByteOffset(4096), &[1; 512]).unwrap();
    if std::env::var_os(UNPRIVILEGED).is_some() {
        let refused = |e| matches!(e, DeviceError::PrivateNode { .. });
        assert!(
            d.abilities().locks.byte_locked(3).is_err_and(refused)
                && d.abilities().locks.lock_byte(3).is_err_and(refused)
        );
        let swapped = d.compare_and_write(ByteOffset(0), &[0; 512], &[1; 512]);
        assert!(swapped.is_err_and(refused) && d.info().lock_place.is_none());
    } else {
        assert!(
            d.abilities().locks.byte_locked(3).unwrap()
                && d.abilities().locks.lock_byte(3).unwrap().is_none()
        );
    }
    println!("as expected");
}

/// `docker run --device` makes a node by mknod in a `/dev` of the container's own.
#[test]
fn locks_of_a_container_meet_all_others_or_are_refused() {
    let Some(l) = Loop::new(SIZE, 512) else { return };
    let dev = std::os::unix::fs::MetadataExt::rdev(&std::fs::metadata(&l.node).unwrap());
    let known = open(&l.node);
    let _held = known.abilities().locks.lock_byte(3).unwrap().unwrap();
    let container = format!(
        "mount -t tmpfs none /dev && mknod /dev/disk b {} {} && exec \"$@\"",
        rustix::fs::major(dev),
        rustix::fs::minor(dev)
    );
    let this = std::env::current_exe().unwrap();
    let run = |before: &[&str], unprivileged: bool| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &container, "container"]).args(before).arg(&this);
        command.args(["--exact", "as_a_container", "--nocapture"]).env(PRIVATE_NODE, "/dev/disk");
        if unprivileged {
            command.env(UNPRIVILEGED, "1");
        }
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && said.contains("as expected"), "{unprivileged}: {out:?}");
    };
    run(&[], false);
    run(&["setpriv", "--bounding-set", "-sys_admin"], true);
    assert_eq!(known.info().lock_place, open(&l.node).info().lock_place);
}

#[test]
fn who_uses_it_is_named() {
    let Some(l) = Loop::new(SIZE, 512) else { return };
    assert_eq!(in_use(&l.file()).unwrap(), Some(InUse::Loop(l.node.clone())));
    assert_eq!(in_use(&l.node).unwrap(), None);
    let exclusive = OpenOptions { exclusive: true, ..OpenOptions::default() };
    let file = FileDevice::open(&l.file(), exclusive);
    assert!(matches!(file, Err(DeviceError::InUse { by: InUse::Loop(_), .. })));
    let ours = FileDevice::open(&l.node, exclusive).unwrap();
    let second = FileDevice::open(&l.node, exclusive);
    assert!(matches!(second, Err(DeviceError::InUse { by: InUse::Claimed, .. })));
    // What this process holds itself is no obstacle to it.
    assert_eq!(in_use(&l.node).unwrap(), None);
    drop(ours);
    if l.run("mkfs.ext4", &["-q", l.node.to_str().unwrap()]) {
        let d = open(&l.node);
        let foreign = braid_device::probe(&*d).unwrap();
        assert_eq!(foreign.name, "an ext2, ext3 or ext4 file system");
        drop(d);
        std::fs::create_dir(l.dir.path().join("mnt")).unwrap();
        if l.run("mount", &[l.node.to_str().unwrap(), "mnt"]) {
            let used = in_use(&l.node).unwrap();
            let refused = FileDevice::open(&l.node, exclusive);
            assert!(l.run("umount", &["mnt"]));
            assert_eq!(used, Some(InUse::Mounted(l.dir.path().join("mnt"))));
            assert!(matches!(refused, Err(DeviceError::InUse { .. })));
        }
    }
}

#[test]
fn one_holds_it_for_all_nodes_against_other_programs() {
    let Some(l) = Loop::new(SIZE, 512) else { return };
    let node = l.node.to_str().unwrap();
    let Holding::Held(hold) = Hold::take(&l.node).unwrap() else { panic!("somebody has it") };
    assert!(matches!(Hold::take(&l.node).unwrap(), Holding::ByNode));
    // Nodes use it as before, and are no obstacle to each other's commands.
    open(&l.node).write(ByteOffset(0), &[7; 4096]).unwrap();
    assert_eq!(in_use(&l.node).unwrap(), None);
    // Other programs do not.
    let exclusive = OpenOptions { exclusive: true, ..OpenOptions::default() };
    let refused = FileDevice::open(&l.node, exclusive);
    assert!(matches!(refused, Err(DeviceError::InUse { by: InUse::Node, .. })), "{refused:?}");
    for (program, args) in [("mkfs.ext4", "-qF"), ("wipefs", "-a"), ("blkdiscard", "-v")] {
        assert!(!l.run(program, &[args, node]), "{program} wrote a device that is held");
    }
    drop(hold);
    // Whoever asks for it, and is no node, is said to be no node.
    let other = FileDevice::open(&l.node, exclusive).unwrap();
    assert!(matches!(Hold::take(&l.node).unwrap(), Holding::Claimed));
    drop(other);
    let mut first = [0; 4096];
    open(&l.node).read(ByteOffset(0), &mut first).unwrap();
    assert_eq!(first, [7; 4096]);
    assert!(matches!(Hold::take(&l.node).unwrap(), Holding::Held(_)));
}

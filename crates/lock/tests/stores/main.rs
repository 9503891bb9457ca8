//! One suite, run against every store of lock records there is.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../common/etcd.rs"]
mod etcd;
mod suite;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use braid_device::{Device, MemoryDevice, OpenOptions};
use braid_format::lock_record::LockRecord;
use braid_format::{BlockNo, BlockSize, Bytes, LockNo};
use braid_iscsi_target::{Chap, LunOptions, Target, TargetOptions};
use braid_lock::etcd::EtcdError;
use braid_lock::{
    CawOutcome, DeviceStore, Etcd, EtcdStore, LockError, LockStore, MemoryStore, StoreError,
};
use braid_pool::{CreateOptions, Pool};

use suite::{FIRST, LOCKS, Subject, conforms, directory};

const SIZE: u64 = 16 << 20;

fn open(names: &[PathBuf]) -> Vec<Arc<dyn Device>> {
    names.iter().map(|n| braid_device::open(n, OpenOptions::default()).unwrap()).collect()
}

/// The pool that stands on `names`, and where its records are.
fn records(names: &[PathBuf]) -> (Pool, DeviceStore) {
    let pool = Pool::assemble(open(names)).unwrap();
    let sector = pool.devices().iter().map(|d| d.info().sector).max().unwrap();
    let store = DeviceStore::new(pool.clone(), BlockSize::DEFAULT, sector);
    (pool, store)
}

/// Makes a pool of these devices, with records of unused locks.
fn fill(names: &[PathBuf]) {
    let pool = Pool::create(open(names), &CreateOptions::new("stores")).unwrap();
    let sector = pool.devices().iter().map(|d| d.info().sector).max().unwrap();
    for lock in (FIRST..FIRST + LOCKS).map(LockNo) {
        let mut bytes = vec![0; sector.to_usize()];
        LockRecord::unlocked(lock, 0).encode(&mut bytes);
        pool.write(BlockSize::DEFAULT.offset_of(BlockNo::from(lock)), &bytes).unwrap();
    }
}

fn on_devices(names: &[PathBuf]) {
    fill(names);
    let (pool, store) = records(names);
    let size = pool.info().size.get();
    let damage = |lock| {
        let at = BlockSize::DEFAULT.offset_of(BlockNo::from(lock));
        let mut bytes = vec![0; store.sector_len()];
        pool.read(at, &mut bytes).unwrap();
        bytes[17] ^= 4;
        pool.write(at, &bytes).unwrap();
    };
    let child = names.iter().map(|n| n.to_str().unwrap()).collect::<Vec<_>>().join("\n");
    conforms(&Subject {
        open: Box::new(|| Arc::new(records(names).1)),
        child: Some(child),
        outside: vec![LockNo(size / 4096), LockNo(u64::MAX / 4096), LockNo(u64::MAX)],
        damage: Box::new(damage),
    });
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let names: Vec<PathBuf> = (0..2).map(|n| dir.join(format!("member{n}"))).collect();
    for name in &names {
        std::fs::File::create(name).unwrap().set_len(SIZE).unwrap();
    }
    names
}

/// A child process's part; nothing in any other.
#[test]
fn child() {
    suite::child(|how| {
        let (etcd, names) = match how.split_once('|') {
            Some((etcd, names)) => (Some(etcd), names),
            None => (None, how),
        };
        let names: Vec<PathBuf> = names.lines().map(PathBuf::from).collect();
        match etcd {
            Some(address) => Arc::new(in_etcd(address, &names)),
            None => Arc::new(records(&names).1),
        }
    });
}

#[test]
fn memory_conforms() {
    let store = MemoryStore::new();
    let damage = |lock| store.scribble(lock);
    conforms(&Subject {
        open: Box::new(|| Arc::new(store.clone())),
        child: None,
        outside: Vec::new(),
        damage: Box::new(damage),
    });
}

#[test]
fn device_files_conform() {
    let dir = directory();
    on_devices(&files(dir.path()));
}

/// Loop devices over files.
struct Loops(Vec<PathBuf>);
impl Drop for Loops {
    fn drop(&mut self) {
        for node in &self.0 {
            let _ = Command::new("losetup").arg("--detach").arg(node).status();
        }
    }
}

#[test]
fn block_devices_conform() {
    for sector in ["512", "4096"] {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut loops = Loops(Vec::new());
        for file in files(dir.path()) {
            let out = Command::new("losetup")
                .args(["--find", "--show", "--sector-size", sector])
                .arg(file)
                .output();
            match out {
                Ok(out) if out.status.success() => {
                    loops.0.push(String::from_utf8(out.stdout).unwrap().trim().into());
                }
                other => return braid_testkit::skip(&format!("no loop device: {other:?}")),
            }
        }
        on_devices(&loops.0);
    }
}

#[test]
fn units_of_a_target_conform() {
    for sector in [512, 4096] {
        let name = "iqn.2026-11.org.braid:stores";
        let unit = |n| {
            let device = MemoryDevice::new(n, Bytes(SIZE), Bytes(sector));
            LunOptions { device, identity: None, reservations: None }
        };
        let luns = ["unit 0", "unit 1"].map(unit).into();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = TargetOptions { name: name.into(), luns, chap: Chap::default() };
        let target = Target::start(listener, options).unwrap();
        let at = target.address();
        on_devices(&[0, 1].map(|n| format!("iscsi://{at}/{name}/{n}").into()));
    }
}

fn keys(address: &str) -> Arc<Etcd> {
    Etcd::new(address.parse().unwrap(), uuid::Uuid::from_u128(7))
}

fn in_etcd(address: &str, names: &[PathBuf]) -> EtcdStore<DeviceStore> {
    EtcdStore::new(keys(address), records(names).1, None)
}

#[test]
fn etcd_conforms() {
    let Some(server) = etcd::Server::start() else { return };
    let (dir, address) = (directory(), server.address("conforms"));
    let names = files(dir.path());
    fill(&names);
    keys(&address).begin("stores", false).unwrap();
    let damage = |lock| {
        let damaged = in_etcd(&address, &names);
        let good = damaged.read(lock).unwrap();
        let mut bad = good.clone();
        bad[17] ^= 4;
        assert_eq!(damaged.compare_and_write(lock, &good, &bad).unwrap(), CawOutcome::Written);
    };
    let all: Vec<&str> = names.iter().map(|n| n.to_str().unwrap()).collect();
    conforms(&Subject {
        open: Box::new(|| Arc::new(in_etcd(&address, &names))),
        child: Some(format!("{address}|{}", all.join("\n"))),
        outside: vec![LockNo(2 * SIZE / 4096), LockNo(u64::MAX)],
        damage: Box::new(damage),
    });
}

/// The server is killed again and again while threads count: each waits, nothing is lost, nothing
/// counted twice.
#[test]
fn etcd_restarts_and_counts_go_on() {
    let Some(mut server) = etcd::Server::start() else { return };
    let address = server.address("a/b");
    keys(&address).begin("stores", false).unwrap();
    let births = MemoryStore::new();
    let open = || EtcdStore::new(keys(&address), births.clone(), None);
    let lock = LockNo(FIRST);
    let done = std::sync::atomic::AtomicBool::new(false);
    let counted: u64 = std::thread::scope(|s| {
        let threads = [0, 1].map(|_| {
            let (store, done) = (open(), &done);
            s.spawn(move || {
                let mut n = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    suite::raise(&store, lock);
                    n += 1;
                }
                n
            })
        });
        for _ in 0..2 {
            std::thread::sleep(std::time::Duration::from_millis(300));
            server.kill();
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert!(server.run());
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(counted > 0);
    let record = LockRecord::decode(&open().read(lock).unwrap(), lock).unwrap();
    // A change whose answer was lost, and that another followed, is made once more.
    assert!(record.version >= counted, "{} of {counted}", record.version);
    println!("{counted} changes, {} written", record.version);
}

#[test]
fn etcd_that_is_away_or_was_emptied_says_so() {
    let Some(mut server) = etcd::Server::start() else { return };
    let address = server.address("p");
    let store = EtcdStore::new(keys(&address), MemoryStore::new(), None);
    let lock = LockNo(FIRST);
    // Never begun: nothing is made up.
    let etcd_error = |error: StoreError| match error {
        StoreError::Etcd(e) => (*e).clone(),
        e => panic!("{e}"),
    };
    let error = etcd_error(store.read(lock).unwrap_err());
    assert!(matches!(&error, EtcdError::NotThis { .. }), "{error}");
    keys(&address).begin("first", false).unwrap();
    let old = store.read(lock).unwrap();
    let mut new = vec![0; store.sector_len()];
    LockRecord::unlocked(lock, 5).encode(&mut new);
    assert_eq!(store.compare_and_write(lock, &old, &new).unwrap(), CawOutcome::Written);

    // A used prefix is not taken, one beside it is; another file system's identity is no good.
    let other = Etcd::new(address.parse().unwrap(), uuid::Uuid::from_u128(8));
    let error = other.begin("second", false).unwrap_err();
    assert!(matches!(&error, EtcdError::Used { .. }), "{error}");
    assert!(error.to_string().contains("/p") && error.to_string().contains("--force"), "{error}");
    let beside = EtcdStore::new(other.clone(), MemoryStore::new(), None);
    let error = etcd_error(beside.compare_and_write(lock, &new, &old).unwrap_err());
    assert!(matches!(&error, EtcdError::NotThis { .. }), "{error}");
    keys(&server.address("pp")).begin("beside", false).unwrap();
    assert_eq!(store.read(lock).unwrap(), new, "nothing of it is gone");

    // Away: the error names who was asked.
    server.kill();
    let error = etcd_error(store.read(lock).unwrap_err());
    let text = LockError::Store { lock, source: error.clone().into() }.to_string();
    assert!(matches!(&error, EtcdError::Unreachable { .. }), "{error}");
    assert!(text.contains("http://127.0.0.1:") && text.contains("start etcd"), "{text}");
    assert!(server.run());
    assert_eq!(store.read(lock).unwrap(), new, "back as it was");

    // Emptied: what it says now is nothing to rely on.
    server.empty();
    let error = etcd_error(store.read(lock).unwrap_err());
    assert!(matches!(&error, EtcdError::WentBack { .. } | EtcdError::NotThis { .. }), "{error}");
    let anew = EtcdStore::new(keys(&address), MemoryStore::new(), None);
    let error = etcd_error(anew.read(lock).unwrap_err());
    assert!(matches!(&error, EtcdError::NotThis { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("check --repair") && text.contains(&address["etcd://".len()..]),
        "{text}"
    );

    // With force another may begin where nobody lives.
    keys(&address).begin("first", false).unwrap();
    let other = Etcd::new(address.parse().unwrap(), uuid::Uuid::from_u128(8));
    other.begin("second", true).unwrap();
    let beside = EtcdStore::new(other, MemoryStore::new(), None);
    assert_eq!(beside.read(lock).unwrap(), old, "as it was born");
}

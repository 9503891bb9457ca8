//! What every store of lock records must do, whatever it is made of.

#![allow(clippy::cast_possible_truncation, reason = "tests")]

use std::collections::HashSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use braid_format::LockNo;
use braid_format::lock_record::LockRecord;
use braid_lock::{CawOutcome, LockStore, Sector, StoreError, Unsure};

/// A store under test. Locks `first..first + LOCKS` are there and were never used.
pub struct Subject<'a> {
    /// Opens it anew, as another node would.
    pub open: Box<dyn Fn() -> Arc<dyn LockStore> + Sync + 'a>,
    /// What tells a child process how to open it; `None`: it lives in one process.
    pub child: Option<String>,
    /// A lock that the store has no room for.
    pub outside: Vec<LockNo>,
    /// Flips a bit of a record, past the store.
    pub damage: Box<dyn Fn(LockNo) + 'a>,
}

pub const FIRST: u64 = 512;
pub const LOCKS: u64 = 64;
const CHILD: &str = "BRAID_STORE_TEST_CHILD";
const RAISES: u64 = 60;

fn lock(n: u64) -> LockNo {
    assert!(n < LOCKS);
    LockNo(FIRST + n)
}

fn sector(store: &dyn LockStore, record: &LockRecord) -> Sector {
    let mut bytes = vec![0; store.sector_len()];
    record.encode(&mut bytes);
    bytes
}

fn nonce() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

/// All of it.
pub fn conforms(subject: &Subject<'_>) {
    never_used_locks_are_free(subject);
    writes_what_was_compared_and_nothing_else(subject);
    is_reopened_as_it_was(subject);
    neighbours_are_left_alone(subject);
    threads_count_exactly(subject);
    unknown_outcomes_are_settled_by_reading(subject);
    a_damaged_record_is_seen_and_can_be_replaced(subject);
    numbers_without_a_place_are_refused(subject);
    processes_count_exactly(subject);
}

fn never_used_locks_are_free(subject: &Subject<'_>) {
    let store = (subject.open)();
    for n in 0..LOCKS {
        let bytes = store.read(lock(n)).unwrap();
        assert_eq!(bytes.len(), store.sector_len());
        let record = LockRecord::decode(&bytes, lock(n)).unwrap();
        assert_eq!(record, LockRecord::unlocked(lock(n), 0));
        assert_eq!(bytes, sector(&*store, &record), "one encoding");
    }
}

fn writes_what_was_compared_and_nothing_else(subject: &Subject<'_>) {
    let (a, b) = ((subject.open)(), (subject.open)());
    let lock = lock(0);
    let old = a.read(lock).unwrap();
    let [first, second] = [1, 2].map(|n| sector(&*a, &LockRecord::unlocked(lock, n)));
    // Not what stands: nothing is written, and what stands comes back.
    let refused = a.compare_and_write(lock, &first, &second).unwrap();
    assert_eq!(refused, CawOutcome::Mismatch(old.clone()));
    assert_eq!(b.read(lock).unwrap(), old);
    assert_eq!(a.compare_and_write(lock, &old, &first).unwrap(), CawOutcome::Written);
    assert_eq!(b.read(lock).unwrap(), first, "seen by everybody's next read");
    // The same again: it stands already, but what was compared does not.
    let again = a.compare_and_write(lock, &old, &first).unwrap();
    assert_eq!(again, CawOutcome::Mismatch(first.clone()));
    // Every byte counts in the comparison.
    for at in [0, 24, first.len() - 1] {
        let mut nearly = first.clone();
        nearly[at] ^= 1;
        let refused = b.compare_and_write(lock, &nearly, &second).unwrap();
        assert_eq!(refused, CawOutcome::Mismatch(first.clone()), "byte {at}");
    }
    assert_eq!(b.compare_and_write(lock, &first, &second).unwrap(), CawOutcome::Written);
    assert_eq!(a.read(lock).unwrap(), second);
}

fn is_reopened_as_it_was(subject: &Subject<'_>) {
    let lock = lock(1);
    let store = (subject.open)();
    let old = store.read(lock).unwrap();
    let new = sector(&*store, &LockRecord::unlocked(lock, 77));
    assert_eq!(store.compare_and_write(lock, &old, &new).unwrap(), CawOutcome::Written);
    drop(store);
    let store = (subject.open)();
    assert_eq!(store.read(lock).unwrap(), new);
    assert_eq!(
        store.compare_and_write(lock, &old, &old).unwrap(),
        CawOutcome::Mismatch(new),
        "nothing comes back"
    );
}

fn neighbours_are_left_alone(subject: &Subject<'_>) {
    let store = (subject.open)();
    let around = [lock(2), lock(4)].map(|l| (l, store.read(l).unwrap()));
    let (lock, old) = (lock(3), store.read(lock(3)).unwrap());
    let new = sector(&*store, &LockRecord::unlocked(lock, nonce()));
    assert_eq!(store.compare_and_write(lock, &old, &new).unwrap(), CawOutcome::Written);
    for (lock, before) in around {
        assert_eq!(store.read(lock).unwrap(), before);
    }
}

/// Raises the version of a lock by one, as every change of a record is made: against what was seen
/// last, with a fresh nonce, an unknown outcome settled by reading. The nonce that did it.
pub fn raise(store: &dyn LockStore, lock: LockNo) -> u64 {
    let mut seen = store.read(lock).unwrap();
    let mut tried: Option<u64> = None;
    for _ in 0..100_000 {
        let mut record = LockRecord::decode(&seen, lock).unwrap();
        if tried.is_some_and(|tried| tried == record.nonce) {
            return record.nonce;
        }
        record.version += 1;
        // While the old record stands an earlier write may still land: one of them does.
        record.nonce = nonce();
        match store.compare_and_write(lock, &seen, &sector(store, &record)) {
            Ok(CawOutcome::Written) => return record.nonce,
            Ok(CawOutcome::Mismatch(stands)) => {
                assert_ne!(stands, seen, "refused although it is what stands");
                (seen, tried) = (stands, None);
            }
            Err(_) => {
                tried = Some(record.nonce);
                seen = store.read(lock).unwrap();
            }
        }
    }
    panic!("no turn in a hundred thousand tries");
}

fn version(store: &dyn LockStore, lock: LockNo) -> u64 {
    LockRecord::decode(&store.read(lock).unwrap(), lock).unwrap().version
}

fn threads_count_exactly(subject: &Subject<'_>) {
    let locks = [lock(5), lock(6)];
    let shared = (subject.open)();
    // Some by one opened store, some by their own.
    let stores = [shared.clone(), shared.clone(), (subject.open)(), (subject.open)()];
    let nonces: Vec<u64> = std::thread::scope(|s| {
        let threads = stores.map(|store| {
            s.spawn(move || {
                (0..RAISES).map(|n| raise(&*store, locks[n as usize % 2])).collect::<Vec<_>>()
            })
        });
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(nonces.iter().collect::<HashSet<_>>().len(), nonces.len());
    for lock in locks {
        assert_eq!(version(&*shared, lock), 4 * RAISES / 2, "each change exactly once");
    }
}

fn unknown_outcomes_are_settled_by_reading(subject: &Subject<'_>) {
    let lock = lock(7);
    let stores = [(subject.open)(), (subject.open)()];
    std::thread::scope(|s| {
        for store in &stores {
            let unsure = Unsure::new(store.clone());
            unsure.fail_every(3);
            s.spawn(move || {
                for _ in 0..RAISES {
                    raise(&unsure, lock);
                }
            });
        }
    });
    let version = version(&*stores[0], lock);
    // One whose landed change was changed again before it read cannot know, and raises once more.
    assert!((2 * RAISES..=4 * RAISES).contains(&version), "{version}");
    let alone = Unsure::new(stores[0].clone());
    alone.fail_every(3);
    for _ in 0..RAISES {
        raise(&alone, lock);
    }
    assert_eq!(self::version(&*stores[1], lock), version + RAISES, "alone it counts exactly");
}

fn a_damaged_record_is_seen_and_can_be_replaced(subject: &Subject<'_>) {
    let lock = lock(8);
    let store = (subject.open)();
    let old = store.read(lock).unwrap();
    let new = sector(&*store, &LockRecord::unlocked(lock, nonce()));
    assert_eq!(store.compare_and_write(lock, &old, &new).unwrap(), CawOutcome::Written);
    (subject.damage)(lock);
    let damaged = store.read(lock).unwrap();
    assert!(LockRecord::decode(&damaged, lock).is_err());
    let refused = store.compare_and_write(lock, &new, &old).unwrap();
    assert_eq!(refused, CawOutcome::Mismatch(damaged.clone()), "never taken for what was there");
    assert_eq!(store.compare_and_write(lock, &damaged, &new).unwrap(), CawOutcome::Written);
    assert_eq!(store.read(lock).unwrap(), new);
}

fn numbers_without_a_place_are_refused(subject: &Subject<'_>) {
    let store = (subject.open)();
    let bytes = vec![0; store.sector_len()];
    for lock in &subject.outside {
        let read = store.read(*lock);
        assert!(matches!(read, Err(StoreError::Outside { .. })), "{lock}: {read:?}");
        let written = store.compare_and_write(*lock, &bytes, &bytes);
        assert!(matches!(written, Err(StoreError::Outside { .. })), "{lock}: {written:?}");
    }
}

fn processes_count_exactly(subject: &Subject<'_>) {
    let Some(how) = &subject.child else { return };
    let mut children: Vec<Child> = (0..3)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["child", "--exact", "--nocapture"])
                .env(CHILD, how)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    let store = (subject.open)();
    for lock in [lock(9), lock(10)] {
        assert_eq!(version(&*store, lock), 3 * RAISES / 2, "each change exactly once");
    }
}

/// What a child process does; nothing in any other.
pub fn child(open: impl Fn(&str) -> Arc<dyn LockStore>) {
    let Ok(how) = std::env::var(CHILD) else { return };
    let store = open(&how);
    for n in 0..RAISES {
        raise(&*store, lock(9 + n % 2));
    }
}

/// Where files that stand for devices are made.
pub fn directory() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let root = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("braid-stores").tempdir_in(root).unwrap()
}

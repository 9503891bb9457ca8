//! Program locks on two mounted nodes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use braid_format::InodeNo;
use braid_lock::{Hint, Mode};

mod full_pool;

use super::poll::CIRCLE_AFTER;
use super::requests::{bucket_of, change};
use super::*;
use crate::attr::Cred;
use crate::error::{Error, Result};
use crate::namei::create;
use crate::namei::fixture::{Node, mount, pool};
use crate::plock_table::threads::PollNeed;
use crate::plock_table::waits::WaitId;
use crate::plock_table::{Plock, PlockKind};

fn fixture() -> (Node, Node, InodeNo) {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    let ino = create(&a, root, b"f", 0o644, &Cred::default(), true).unwrap().ino();
    (a, b, ino)
}
fn want(owner: u64, start: u64, end: u64, kind: PlockKind) -> Plock {
    Plock { start, end, kind, owner, pid: 42, uid: 7 }
}
use PlockKind::{Exclusive, Shared, Unlock};

/// Locks held and waited for in a file's bucket, by all nodes, as `node` sees them.
fn seen_by(node: &Node, ino: InodeNo) -> (usize, usize) {
    let bucket = bucket_of(node, ino).unwrap();
    let _guard = bucket.open(node, Mode::Shared).unwrap();
    bucket.state().forget_dead(node.as_ref());
    bucket.state().all()
}
/// Blocks of a file's bucket.
fn blocks(node: &Node, ino: InodeNo) -> usize {
    let bucket = bucket_of(node, ino).unwrap();
    let _guard = bucket.open(node, Mode::Shared).unwrap();
    bucket.state().blocks()
}
/// Waits until `what` is so.
fn until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_mins(1), "it never comes to that");
        std::thread::sleep(Duration::from_millis(2));
    }
}
type Told = mpsc::Receiver<(u64, Result<()>)>;
fn listener() -> (mpsc::Sender<(u64, Result<()>)>, Told) {
    mpsc::channel()
}
/// Asks for a lock. The end of a wait is reported with the owner's number.
fn later(
    node: &Node,
    ino: InodeNo,
    asked: &Plock,
    whole: bool,
    tell: &mpsc::Sender<(u64, Result<()>)>,
) -> Result<Option<WaitId>> {
    let (tell, owner) = (tell.clone(), asked.owner);
    ask(node, ino, asked, whole, Some(Box::new(move |how| tell.send((owner, how)).unwrap())))
}

#[test]
fn locks_count_across_nodes() {
    let (a, b, ino) = fixture();
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    let blocked = setlk(&b, ino, &want(1, 9, 20, Shared), None);
    assert!(matches!(blocked, Err(Error::WouldBlock)), "the same owner number elsewhere");
    setlk(&b, ino, &want(1, 10, 20, Exclusive), None).unwrap();
    let found = getlk(&b, ino, &want(1, 5, 30, Shared)).unwrap().unwrap();
    assert_eq!((found.start, found.end, found.kind, found.pid), (0, 9, Exclusive, 0));
    let found = getlk(&a, ino, &want(2, 0, 0, Shared)).unwrap().unwrap();
    assert_eq!((found.pid, found.owner), (42, 1));
    assert_eq!(getlk(&a, ino, &want(2, 21, u64::MAX, Exclusive)).unwrap(), None);
    // A close gives up everything of its owner, and of nobody else.
    drop_owner(&a, ino, 2).unwrap();
    assert!(getlk(&b, ino, &want(1, 0, 9, Exclusive)).unwrap().is_some());
    drop_owner(&a, ino, 1).unwrap();
    assert_eq!(getlk(&b, ino, &want(1, 0, 9, Exclusive)).unwrap(), None);
    assert!(matches!(setlk(&a, ino, &want(1, 9, 3, Exclusive), None), Err(Error::Invalid(_))));
    a.unmount();
    b.unmount();
}

#[test]
fn a_waiter_gets_the_lock_when_another_node_gives_it_up() {
    let (a, b, ino) = fixture();
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    std::thread::scope(|s| {
        let (sent, got) = mpsc::channel();
        let b = &b;
        s.spawn(move || {
            sent.send(setlk(b, ino, &want(1, 0, 9, Exclusive), Some(&Canceller::new()))).unwrap();
        });
        assert!(got.recv_timeout(Duration::from_millis(100)).is_err(), "granted too early");
        setlk(&a, ino, &want(1, 0, 9, Unlock), None).unwrap();
        got.recv_timeout(Duration::from_mins(1)).unwrap().unwrap();
    });
    assert!(getlk(&a, ino, &want(1, 0, 9, Shared)).unwrap().is_some());
}

#[test]
fn a_wait_can_be_broken_off_and_leaves_nothing() {
    let (a, b, ino) = fixture();
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    let canceller = Canceller::new();
    std::thread::scope(|s| {
        let waiter = s.spawn(|| setlk(&b, ino, &want(1, 0, 9, Shared), Some(&canceller)));
        std::thread::sleep(Duration::from_millis(50));
        canceller.cancel();
        assert!(matches!(waiter.join().unwrap(), Err(Error::Interrupted)));
    });
    assert_eq!(seen_by(&a, ino), (1, 0));
    assert_eq!((a.plocks.users.all(), b.plocks.users.all()), (1, 0));
}

#[test]
fn a_circle_of_waiters_is_refused() {
    let (a, b, ino) = fixture();
    setlk(&a, ino, &want(1, 0, 0, Exclusive), None).unwrap();
    setlk(&b, ino, &want(1, 1, 1, Exclusive), None).unwrap();
    std::thread::scope(|s| {
        let waiter = s.spawn(|| setlk(&a, ino, &want(1, 1, 1, Exclusive), Some(&Canceller::new())));
        until(|| seen_by(&b, ino).1 == 1);
        let circle = setlk(&b, ino, &want(1, 0, 0, Exclusive), Some(&Canceller::new()));
        assert!(matches!(circle, Err(Error::Deadlock)));
        drop_owner(&b, ino, 1).unwrap();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_circle_through_several_files_is_refused() {
    let (a, b, first) = fixture();
    let files = ["g", "h"].map(|name| {
        let root = a.volume.root();
        create(&a, root, name.as_bytes(), 0o644, &Cred::default(), true).unwrap().ino()
    });
    let (second, third) = (files[0], files[1]);
    let buckets = [first, second, third].map(|ino| a.volume.plock_bucket(ino));
    assert!(buckets[0] != buckets[1] && buckets[1] != buckets[2], "one bucket would show it");
    setlk(&a, first, &want(1, 0, 9, Exclusive), None).unwrap();
    setlk(&b, second, &want(2, 0, 9, Exclusive), None).unwrap();
    setlk(&a, third, &want(3, 0, 9, Exclusive), None).unwrap();
    let canceller = Canceller::new();
    let circles = std::thread::scope(|s| {
        let waits = |node, ino, owner| {
            let canceller = &canceller;
            s.spawn(move || setlk(node, ino, &want(owner, 5, 5, Shared), Some(canceller)))
        };
        let mut all =
            vec![(waits(&a, second, 1), &a, first, 1), (waits(&b, third, 2), &b, second, 2)];
        // Longer than the first look: a line of waiters is no circle.
        std::thread::sleep(2 * CIRCLE_AFTER);
        let in_line = all.iter().all(|(thread, ..)| !thread.is_finished());
        all.push((waits(&a, first, 3), &a, third, 3));
        let mut circles = 0;
        let began = Instant::now();
        while !all.is_empty() {
            if began.elapsed() > Duration::from_secs(30) {
                canceller.cancel();
            }
            let Some(done) = all.iter().position(|(thread, ..)| thread.is_finished()) else {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            // A refused owner gives up what it has, as programs do, and the others go on.
            let (thread, node, ino, owner) = all.swap_remove(done);
            match thread.join().unwrap() {
                Err(Error::Deadlock) => circles += 1,
                found => found.unwrap(),
            }
            drop_owner(node, ino, owner).unwrap();
        }
        assert!(in_line);
        circles
    });
    assert!(circles > 0);
    until(|| [first, second, third].iter().all(|ino| seen_by(&a, *ino).1 == 0));
}

#[test]
fn whole_file_locks_are_a_world_of_their_own() {
    let (a, b, ino) = fixture();
    flock(&a, ino, &want(1, 0, 0, Shared), None).unwrap();
    flock(&b, ino, &want(1, 0, 0, Shared), None).unwrap();
    setlk(&b, ino, &want(1, 0, u64::MAX, Exclusive), None).unwrap();
    // A conversion that cannot be had gives up what was held.
    assert!(matches!(flock(&a, ino, &want(1, 0, 0, Exclusive), None), Err(Error::WouldBlock)));
    flock(&b, ino, &want(1, 0, 0, Exclusive), None).unwrap();
    // fcntl's close does not touch it.
    drop_owner(&b, ino, 1).unwrap();
    assert!(matches!(flock(&a, ino, &want(1, 0, 0, Shared), None), Err(Error::WouldBlock)));
    flock(&b, ino, &want(1, 0, 0, Unlock), None).unwrap();
    flock(&a, ino, &want(1, 0, 0, Exclusive), None).unwrap();
}

#[test]
fn a_file_may_have_many_locks_and_a_bucket_gives_its_blocks_back() {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    let ino = create(&a, root, b"f", 0o644, &Cred::default(), true).unwrap().ino();
    let count = 500_u64;
    for i in 0..count {
        let node = if i % 5 == 0 { &b } else { &a };
        setlk(node, ino, &want(1, i * 2, i * 2, Exclusive), None).unwrap();
    }
    let all = usize::try_from(count).unwrap();
    assert_eq!((seen_by(&a, ino).0, seen_by(&b, ino).0), (all, all));
    assert!(blocks(&a, ino) > 5);
    for i in 0..count {
        let (here, there) = if i % 5 == 0 { (&b, &a) } else { (&a, &b) };
        let mine = getlk(here, ino, &want(2, i * 2, i * 2, Shared)).unwrap().unwrap();
        assert_eq!((mine.start, mine.end, mine.kind, mine.pid), (i * 2, i * 2, Exclusive, 42));
        if i % 50 == 0 {
            let blocked = setlk(there, ino, &want(1, i * 2, i * 2 + 1, Shared), None);
            assert!(matches!(blocked, Err(Error::WouldBlock)), "{i}");
        }
    }
    drop_owner(&a, ino, 1).unwrap();
    assert_eq!(seen_by(&b, ino).0, all / 5);
    drop_owner(&b, ino, 1).unwrap();
    assert_eq!((seen_by(&a, ino), blocks(&a, ino)), ((0, 0), 1));
    assert_eq!((a.plocks.users.all(), b.plocks.users.all()), (0, 0));
    a.unmount();
    b.unmount_clean();
}

#[test]
fn what_a_dead_node_left_is_checked_and_goes() {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    let ino = create(&a, root, b"f", 0o644, &Cred::default(), true).unwrap().ino();
    for i in 0..300 {
        setlk(&a, ino, &want(1, i * 2, i * 2, Exclusive), None).unwrap();
    }
    assert_eq!(seen_by(&b, ino), (300, 0));
    a.withdraw(&Error::NotPermitted);
    a.membership.abandon();
    until(|| seen_by(&b, ino) == (0, 0));
    assert!(blocks(&b, ino) > 4);
    setlk(&b, ino, &want(1, 0, 5, Exclusive), None).unwrap();
    setlk(&b, ino, &want(1, 0, 5, Unlock), None).unwrap();
    assert_eq!(blocks(&b, ino), 1);
    for i in 0..300 {
        setlk(&b, ino, &want(1, i * 2, i * 2, Exclusive), None).unwrap();
    }
    // Leaves with its locks: the chain stands there, and is sound.
    b.unmount_clean();
    let c = mount(&pool, 1);
    assert!(blocks(&c, ino) > 4);
    assert_eq!(seen_by(&c, ino), (0, 0));
    c.unmount();
}

#[test]
fn one_user_has_his_bound_and_can_give_up_parts_beyond_it() {
    let (a, _b, ino) = fixture();
    let most = a.plocks.users.user_max() as u64;
    for i in 0..most {
        setlk(
            &a,
            ino,
            &want(1, i * 3, i * 3 + 2, if i % 2 == 0 { Shared } else { Exclusive }),
            None,
        )
        .unwrap();
    }
    let far = want(1, 1 << 40, 1 << 40, Exclusive);
    assert!(matches!(setlk(&a, ino, &far, None), Err(Error::NoLocks)));
    // A lock that needs no entry of its own may still be had, and others have their own bound.
    setlk(&a, ino, &want(1, 0, 1, Shared), None).unwrap();
    setlk(&a, ino, &Plock { uid: 8, owner: 9, ..far }, None).unwrap();
    flock(&a, ino, &Plock { uid: 0, owner: 9, kind: Shared, ..far }, None).unwrap();
    assert!(matches!(flock(&a, ino, &want(3, 0, 0, Shared), None), Err(Error::NoLocks)));
    for i in 0..most {
        setlk(&a, ino, &want(1, i * 3 + 1, i * 3 + 1, Unlock), None).unwrap();
    }
    assert_eq!(seen_by(&a, ino).0 as u64, 2 * most + 2);
    drop_owner(&a, ino, 1).unwrap();
    setlk(&a, ino, &far, None).unwrap_err();
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
}

#[test]
fn what_unlocks_split_takes_no_locks_from_others_and_has_an_end() {
    let (a, _b, ino) = fixture();
    let most = 2 * a.plocks.users.user_max() as u64;
    setlk(&a, ino, &want(1, 0, 4 * most, Exclusive), None).unwrap();
    let piece = |i: u64| want(1, 2 * i + 1, 2 * i + 1, Unlock);
    for i in 1..most {
        setlk(&a, ino, &piece(i), None).unwrap();
    }
    assert_eq!(seen_by(&a, ino).0 as u64, most);
    let far = want(1, 1 << 40, 1 << 40, Exclusive);
    assert!(matches!(setlk(&a, ino, &far, None), Err(Error::NoLocks)));
    // As many as a user may have by unlocks, too: what splits nothing more can still be given up.
    assert!(matches!(setlk(&a, ino, &piece(most), None), Err(Error::NoLocks)));
    assert_eq!(
        getlk(&a, ino, &want(2, 2 * most + 1, 2 * most + 1, Shared)).unwrap().unwrap().end,
        4 * most
    );
    setlk(&a, ino, &want(1, 2 * most, 4 * most, Unlock), None).unwrap();
    for uid in [8, 0] {
        setlk(&a, ino, &Plock { uid, owner: 9, ..far }, None).unwrap();
    }
    drop_owner(&a, ino, 1).unwrap();
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
}

#[test]
fn a_long_chain_is_freed_some_blocks_at_a_time() {
    let (a, b, ino) = fixture();
    for i in 0..4_000 {
        setlk(&a, ino, &Plock { uid: 0, ..want(1, i * 2, i * 2, Exclusive) }, None).unwrap();
    }
    let full = blocks(&b, ino);
    assert!(full > 40, "{full}");
    drop_owner(&a, ino, 1).unwrap();
    let left = blocks(&b, ino);
    assert!((2..full - 30).contains(&left), "{left} of {full}");
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    setlk(&a, ino, &want(1, 0, 9, Unlock), None).unwrap();
    assert_eq!((seen_by(&b, ino), blocks(&b, ino)), ((0, 0), 1));
}

#[test]
fn waits_are_served_in_their_order_and_take_no_thread() {
    let (a, b, ino) = fixture();
    let (tell, told) = listener();
    let count = 2_000_u64;
    flock(&a, ino, &want(0, 0, 0, Exclusive), None).unwrap();
    let before = threads();
    let mut waits = Vec::new();
    for owner in 1..=count {
        waits.push(later(&a, ino, &want(owner, 0, 0, Exclusive), true, &tell).unwrap().unwrap());
    }
    // Other tests' threads count, too.
    assert!(threads() < before + waits.len() / 4, "a thread for each wait");
    assert!(told.try_recv().is_err());
    // Others are not held up: other owners of other files, and another kind of lock on this one.
    setlk(&b, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    assert!(matches!(flock(&b, ino, &want(1, 0, 0, Shared), None), Err(Error::WouldBlock)));
    // Every third gives up.
    for (wait, owner) in waits.iter().zip(1..) {
        if owner % 3 == 0 {
            end_wait(&a, *wait, Err(Error::Interrupted));
            let (who, how) = told.try_recv().unwrap();
            assert!(who == owner && matches!(how, Err(Error::Interrupted)));
        }
    }
    let mut holder = 0;
    for owner in (1..=count).filter(|owner| owner % 3 != 0) {
        flock(&a, ino, &want(holder, 0, 0, Unlock), None).unwrap();
        let (who, how) = told.try_recv().unwrap();
        how.unwrap();
        assert_eq!(who, owner);
        assert!(told.try_recv().is_err(), "two have it");
        holder = owner;
    }
    flock(&a, ino, &want(holder, 0, 0, Unlock), None).unwrap();
    setlk(&b, ino, &want(1, 0, 9, Unlock), None).unwrap();
    assert_eq!((seen_by(&b, ino), blocks(&b, ino)), ((0, 0), 1));
    assert_eq!((a.plocks.users.all(), b.plocks.users.all()), (0, 0));
    a.unmount();
    b.unmount_clean();
}
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn waits_for_another_node_are_granted_together_and_end_with_their_node() {
    let (a, b, ino) = fixture();
    let (tell, told) = listener();
    flock(&a, ino, &want(0, 0, 0, Exclusive), None).unwrap();
    for owner in 1..=20 {
        later(&b, ino, &want(owner, 0, 0, Shared), true, &tell).unwrap().unwrap();
    }
    later(&b, ino, &want(21, 0, 0, Exclusive), true, &tell).unwrap().unwrap();
    assert!(told.recv_timeout(Duration::from_millis(120)).is_err());
    flock(&a, ino, &want(0, 0, 0, Unlock), None).unwrap();
    for owner in 1..=20 {
        let (who, how) = told.recv_timeout(Duration::from_mins(1)).unwrap();
        how.unwrap();
        assert_eq!(who, owner);
    }
    assert!(told.try_recv().is_err());
    b.unmount();
    let (who, how) = told.recv_timeout(Duration::from_mins(1)).unwrap();
    assert!(who == 21 && matches!(how, Err(Error::Interrupted)));
    later(&a, ino, &want(30, 0, 9, Exclusive), false, &tell).unwrap();
    later(&a, ino, &want(31, 0, 9, Exclusive), false, &tell).unwrap().unwrap();
    a.withdraw(&Error::NotPermitted);
    let (who, how) = told.recv_timeout(Duration::from_mins(1)).unwrap();
    assert!(who == 31 && matches!(how, Err(Error::Withdrawn { .. })));
}

#[test]
fn locks_of_a_dead_node_count_for_nothing() {
    let (a, b, ino) = fixture();
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    a.meta.commit().unwrap();
    a.withdraw(&Error::NotPermitted);
    a.membership.abandon();
    setlk(&b, ino, &want(1, 0, 9, Exclusive), Some(&Canceller::new())).unwrap();
}

/// A program that asks again the moment it has unlocked comes after who has been waiting, on another
/// node as on its own.
#[test]
fn who_reads_on_lets_waiting_readers_in() {
    let (a, b, ino) = fixture();
    for (whole, end) in [(true, u64::MAX), (false, 99)] {
        let (tell, told) = listener();
        change(&a, ino, &want(1, 0, end, PlockKind::Exclusive), None, whole).unwrap();
        // On the same node, and on another.
        for (node, owner) in [(&a, 2), (&b, 3)] {
            let reader = want(owner, 10, end, PlockKind::Shared);
            assert!(later(node, ino, &reader, whole, &tell).unwrap().is_some());
        }
        change(&a, ino, &want(1, 0, end, PlockKind::Shared), None, whole).unwrap();
        for _ in 0..2 {
            told.recv_timeout(Duration::from_mins(1)).expect("a reader is let in").1.unwrap();
        }
        for (node, owner) in [(&a, 1), (&a, 2), (&b, 3)] {
            change(node, ino, &want(owner, 0, end, PlockKind::Unlock), None, whole).unwrap();
        }
    }
}

/// One that had to wait until it could hold less than before lets others in as well.
#[test]
fn who_waited_to_read_on_lets_waiting_readers_in() {
    let (a, b, ino) = fixture();
    let (tell, told) = listener();
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    setlk(&a, ino, &want(3, 10, 19, Exclusive), None).unwrap();
    for (node, owner) in [(&a, 2), (&b, 4)] {
        later(node, ino, &want(owner, 0, 9, Shared), false, &tell).unwrap().unwrap();
    }
    later(&a, ino, &want(1, 0, 19, Shared), false, &tell).unwrap().unwrap();
    assert!(told.try_recv().is_err());
    setlk(&a, ino, &want(3, 10, 19, Unlock), None).unwrap();
    let mut served: Vec<u64> = (0..3)
        .map(|_| {
            let (owner, how) = told.recv_timeout(Duration::from_secs(30)).expect("one still waits");
            how.unwrap();
            owner
        })
        .collect();
    served.sort_unstable();
    assert_eq!(served, [1, 2, 4]);
}

/// The first search finds waits that are too young: they have theirs at once, not with the next one of all.
#[test]
fn a_circle_that_is_too_young_for_a_search_has_the_next() {
    let (a, _b, first) = fixture();
    let root = a.volume.root();
    let second = create(&a, root, b"g", 0o644, &Cred::default(), true).unwrap().ino();
    assert_ne!(a.volume.plock_bucket(first), a.volume.plock_bucket(second));
    let (tell, told) = listener();
    setlk(&a, first, &want(9, 90, 99, Exclusive), None).unwrap();
    setlk(&a, first, &want(1, 0, 9, Exclusive), None).unwrap();
    setlk(&a, second, &want(2, 0, 9, Exclusive), None).unwrap();
    // This one begins the search.
    later(&a, first, &want(8, 90, 99, Exclusive), false, &tell).unwrap().unwrap();
    std::thread::sleep(CIRCLE_AFTER / 2);
    let began = Instant::now();
    later(&a, second, &want(1, 0, 9, Exclusive), false, &tell).unwrap().unwrap();
    later(&a, first, &want(2, 0, 9, Exclusive), false, &tell).unwrap().unwrap();
    let (_, how) = told.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(matches!(how, Err(Error::Deadlock)));
    assert!(began.elapsed() < CIRCLE_AFTER * 7, "{:?}", began.elapsed());
}

#[test]
fn who_waits_elsewhere_comes_before_who_comes_back() {
    let (a, b, ino) = fixture();
    for (waiter, greedy) in [(&a, &b), (&b, &a), (&a, &a)] {
        for kind in [Exclusive, Shared] {
            flock(greedy, ino, &want(1, 0, 0, Exclusive), None).unwrap();
            for round in 0..5 {
                let served = AtomicBool::new(false);
                std::thread::scope(|s| {
                    s.spawn(|| {
                        let blocks = Canceller::new();
                        flock(waiter, ino, &want(2, 0, 0, kind), Some(&blocks)).unwrap();
                        served.store(true, Ordering::SeqCst);
                        flock(waiter, ino, &want(2, 0, 0, Unlock), None).unwrap();
                    });
                    until(|| seen_by(greedy, ino).1 == 1);
                    flock(greedy, ino, &want(1, 0, 0, Unlock), None).unwrap();
                    let again = Canceller::new();
                    flock(greedy, ino, &want(1, 0, 0, Exclusive), Some(&again)).unwrap();
                    let in_turn = served.load(Ordering::SeqCst);
                    if !in_turn {
                        drop(flock(greedy, ino, &want(1, 0, 0, Unlock), None));
                    }
                    assert!(in_turn, "{kind:?}, round {round}: overtaken");
                });
            }
            flock(greedy, ino, &want(1, 0, 0, Unlock), None).unwrap();
        }
    }
}

/// The order of requests alone keeps nobody for ever: it may be all that keeps two from each other.
#[test]
fn a_request_that_nothing_held_blocks_is_served_in_the_end() {
    let (a, b, ino) = fixture();
    setlk(&a, ino, &want(3, 0, 0, Exclusive), None).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            let blocks = Canceller::new();
            setlk(&b, ino, &want(2, 0, 9, Exclusive), Some(&blocks)).unwrap();
        });
        until(|| seen_by(&a, ino).1 == 1);
        // 2 comes before 1, and waits for 3, who gives its part up only when 1 has been served.
        setlk(&a, ino, &want(1, 5, 5, Exclusive), Some(&Canceller::new())).unwrap();
        drop_owner(&a, ino, 3).unwrap();
        drop_owner(&a, ino, 1).unwrap();
    });
}

#[test]
fn a_node_that_is_told_of_its_turn_looks() {
    let (a, b, ino) = fixture();
    // As if a program of `b` waited for one of `a`; nobody looks.
    let bucket = bucket_of(&b, ino).unwrap();
    let turn = || b.locks.message(a.me, bucket.lock, &Hint::YourTurn, false);
    let is_called = || {
        let state = bucket.state();
        (state.poll.called, state.poll.next)
    };
    turn();
    assert_eq!(is_called(), (false, false), "nothing waits");
    bucket.state().poll.far = true;
    turn();
    assert_eq!(is_called(), (true, true));
    bucket.state().poll = PollNeed::default();
    a.unmount();
    b.unmount();
}

/// Three nodes want one lock all the time: none has it beside another, and each gets it.
#[test]
fn nodes_take_turns() {
    let pool = pool();
    let nodes = [0, 1, 2].map(|slot| mount(&pool, slot));
    let root = nodes[0].volume.root();
    let ino = create(&nodes[0], root, b"f", 0o644, &Cred::default(), true).unwrap().ino();
    let inside = AtomicBool::new(false);
    std::thread::scope(|s| {
        for node in &nodes {
            s.spawn(|| {
                for _ in 0..300 {
                    let blocks = Canceller::new();
                    flock(node, ino, &want(1, 0, 0, Exclusive), Some(&blocks)).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two have it");
                    inside.store(false, Ordering::SeqCst);
                    flock(node, ino, &want(1, 0, 0, Unlock), None).unwrap();
                }
            });
        }
    });
    assert_eq!(seen_by(&nodes[0], ino), (0, 0));
    let [a, b, c] = nodes;
    a.unmount();
    b.unmount();
    c.unmount_clean();
}

#[test]
fn a_close_waits_for_no_node_without_end() {
    let (a, b, ino) = fixture();
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    setlk(&a, ino, &want(2, 20, 29, Exclusive), None).unwrap();
    let (tell, told) = listener();
    let waits = later(&a, ino, &want(3, 0, 9, Exclusive), false, &tell).unwrap();
    assert!(waits.is_some());
    // The other node has the bucket, and does not give it up.
    let theirs = bucket_of(&b, ino).unwrap();
    let kept = theirs.open(&b, Mode::Exclusive).unwrap();
    let ours = bucket_of(&a, ino).unwrap();
    assert!(ours.open_until(&a, Mode::Exclusive, Instant::now()).unwrap().is_none());
    drop_owner(&a, ino, 1).unwrap();
    assert!(told.try_recv().is_err(), "granted without the bucket");
    drop(kept);
    // The waiting owner gets the lock, and the other node learns that the former owner is gone.
    let (owner, how) = told.recv_timeout(Duration::from_mins(1)).unwrap();
    assert!(owner == 3 && how.is_ok());
    drop_owner(&a, ino, 3).unwrap();
    until(|| seen_by(&b, ino) == (1, 0));
    setlk(&b, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    assert!(matches!(setlk(&b, ino, &want(1, 20, 29, Exclusive), None), Err(Error::WouldBlock)));
}

/// The wait of a program on `a` for what one on `b` holds, seen by `b` and then broken off, each of the two holding
/// what the other may want.
fn broken_off(a: &Node, b: &Node, ino: InodeNo, tell: &mpsc::Sender<(u64, Result<()>)>) {
    setlk(a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    setlk(b, ino, &want(2, 10, 19, Exclusive), None).unwrap();
    let wait = later(a, ino, &want(1, 10, 19, Exclusive), false, tell).unwrap().unwrap();
    assert_eq!(seen_by(b, ino), (2, 1));
    end_wait(a, wait, Err(Error::Interrupted));
}

#[test]
fn who_was_told_that_its_wait_is_over_is_in_no_circle() {
    let (a, b, ino) = fixture();
    let (tell, told) = listener();
    for _ in 0..50 {
        broken_off(&a, &b, ino, &tell);
        let (_, how) = told.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(matches!(how, Err(Error::Interrupted)));
        later(&b, ino, &want(2, 0, 9, Exclusive), false, &tell).unwrap().expect("it waits");
        setlk(&a, ino, &want(1, 0, 9, Unlock), None).unwrap();
        let (owner, how) = told.recv_timeout(Duration::from_secs(30)).unwrap();
        how.unwrap();
        assert_eq!(owner, 2);
        setlk(&b, ino, &want(2, 0, u64::MAX, Unlock), None).unwrap();
    }
}

#[test]
fn a_wait_ends_although_another_node_keeps_the_bucket() {
    let (a, b, ino) = fixture();
    let (tell, told) = listener();
    let bucket = bucket_of(&b, ino).unwrap();
    broken_off(&a, &b, ino, &tell);
    told.recv_timeout(Duration::from_secs(30)).unwrap().1.unwrap_err();
    setlk(&b, ino, &want(2, 10, 19, Unlock), None).unwrap();
    setlk(&b, ino, &want(2, 10, 19, Exclusive), None).unwrap();
    let wait = later(&a, ino, &want(1, 10, 19, Exclusive), false, &tell).unwrap().unwrap();
    let _kept = bucket.open(&b, Mode::Shared).unwrap();
    end_wait(&a, wait, Err(Error::Interrupted));
    let (_, how) = told.recv_timeout(Duration::from_secs(30)).expect("a wait without end");
    assert!(matches!(how, Err(Error::Interrupted)));
}

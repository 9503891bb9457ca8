//! Program locks on two mounted nodes.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::attr::Cred;
use crate::namei::create;
use crate::namei::rig::{Node, mount, pool};

fn rig() -> (Node, Node, InodeNo) {
    let pool = pool();
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    let ino = create(&a, root, b"f", 0o644, &Cred::default(), true).unwrap().ino();
    (a, b, ino)
}
fn want(owner: u64, start: u64, end: u64, kind: PlockKind) -> Plock {
    Plock { start, end, kind, owner, pid: 42 }
}
use PlockKind::{Exclusive, Shared, Unlock};

#[test]
fn locks_count_across_nodes() {
    let (a, b, ino) = rig();
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
    let (a, b, ino) = rig();
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
    let (a, b, ino) = rig();
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    let canceller = Canceller::new();
    std::thread::scope(|s| {
        let waiter = s.spawn(|| setlk(&b, ino, &want(1, 0, 9, Shared), Some(&canceller)));
        std::thread::sleep(Duration::from_millis(50));
        canceller.cancel();
        assert!(matches!(waiter.join().unwrap(), Err(Error::Interrupted)));
    });
    let bucket = Bucket::open(&a, ino, Mode::Shared).unwrap();
    assert_eq!((bucket.table.held.len(), bucket.table.waiting.len()), (1, 0));
}

#[test]
fn a_circle_of_waiters_is_refused() {
    let (a, b, ino) = rig();
    setlk(&a, ino, &want(1, 0, 0, Exclusive), None).unwrap();
    setlk(&b, ino, &want(1, 1, 1, Exclusive), None).unwrap();
    std::thread::scope(|s| {
        let waiter = s.spawn(|| setlk(&a, ino, &want(1, 1, 1, Exclusive), Some(&Canceller::new())));
        let mut tries = 0;
        while Bucket::open(&b, ino, Mode::Shared).unwrap().table.waiting.is_empty() {
            tries += 1;
            assert!(tries < 500, "the waiter is not recorded");
            std::thread::sleep(Duration::from_millis(5));
        }
        let circle = setlk(&b, ino, &want(1, 0, 0, Exclusive), Some(&Canceller::new()));
        assert!(matches!(circle, Err(Error::Deadlock)));
        drop_owner(&b, ino, 1).unwrap();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_circle_through_several_files_is_refused() {
    let (a, b, first) = rig();
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
            // Who is refused gives up what it has, as programs do, and the others go on.
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
    for bucket in buckets {
        assert!(Bucket::at(&a, bucket, Mode::Shared).unwrap().table.waiting.is_empty());
    }
}

#[test]
fn whole_file_locks_are_a_world_of_their_own() {
    let (a, b, ino) = rig();
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
fn a_full_bucket_has_no_locks_left() {
    let (a, _b, ino) = rig();
    let room = Table::capacity(a.volume.geo.body_len()) as u64;
    for i in 0..room {
        setlk(&a, ino, &want(1, i * 2, i * 2, Exclusive), None).unwrap();
    }
    let more = setlk(&a, ino, &want(1, 9_999, 9_999, Exclusive), None);
    assert!(matches!(more, Err(Error::NoLocks)));
    // Joining needs no entry; a split does.
    setlk(&a, ino, &want(1, 0, 2, Exclusive), None).unwrap();
    setlk(&a, ino, &want(1, 9_999, 9_999, Exclusive), None).unwrap();
    assert!(matches!(setlk(&a, ino, &want(1, 1, 1, Unlock), None), Err(Error::NoLocks)));
    drop_owner(&a, ino, 1).unwrap();
    setlk(&a, ino, &want(2, 0, u64::MAX, Exclusive), None).unwrap();
}

#[test]
fn locks_of_a_dead_node_count_for_nothing() {
    let (a, b, ino) = rig();
    setlk(&a, ino, &want(1, 0, 9, Exclusive), None).unwrap();
    a.meta.commit().unwrap();
    a.withdraw(&Error::NotPermitted);
    a.membership.abandon();
    setlk(&b, ino, &want(1, 0, 9, Exclusive), Some(&Canceller::new())).unwrap();
}

/// A program that asks again the moment it has unlocked comes after who has been waiting, on another
/// node as on its own.
#[test]
fn who_waits_elsewhere_comes_before_who_comes_back() {
    let (a, b, ino) = rig();
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
                    let mut tries = 0;
                    while Bucket::open(greedy, ino, Mode::Shared).unwrap().table.waiting.is_empty()
                    {
                        tries += 1;
                        assert!(tries < 2000, "the waiter is not recorded");
                        std::thread::sleep(Duration::from_millis(5));
                    }
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
    let (a, b, ino) = rig();
    setlk(&a, ino, &want(3, 0, 0, Exclusive), None).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            let blocks = Canceller::new();
            setlk(&b, ino, &want(2, 0, 9, Exclusive), Some(&blocks)).unwrap();
        });
        let mut tries = 0;
        while Bucket::open(&a, ino, Mode::Shared).unwrap().table.waiting.is_empty() {
            tries += 1;
            assert!(tries < 2000, "the waiter is not recorded");
            std::thread::sleep(Duration::from_millis(5));
        }
        // 2 comes before 1, and waits for 3, who gives its part up only when 1 has been served.
        setlk(&a, ino, &want(1, 5, 5, Exclusive), Some(&Canceller::new())).unwrap();
        drop_owner(&a, ino, 3).unwrap();
        drop_owner(&a, ino, 1).unwrap();
    });
}

//! Program locks of a pool that has no space for another block.

use braid_format::Bytes;

use super::*;
use crate::alloc::Reservation;
use crate::namei::fixture::pool_of;
use crate::plock_table::chain;

/// All space for blocks of metadata, as a node gets it.
fn all_space(node: &Node) -> Vec<Reservation> {
    let mut all = Vec::new();
    for many in [64, 1] {
        loop {
            match node.alloc.reserve(0, many, 0) {
                Ok(more) => all.push(more),
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
    all
}
/// The end and the kind of the first of another's locks that `node` sees there.
fn there(node: &Node, ino: InodeNo, at: u64) -> Option<(u64, PlockKind)> {
    getlk(node, ino, &want(77, at, at, Exclusive)).unwrap().map(|l| (l.end, l.kind))
}

#[test]
fn in_a_full_pool_an_unlock_succeeds_and_one_entry_stands_for_the_pieces() {
    let pool = pool_of(Bytes(128 << 20));
    let (a, b) = (mount(&pool, 0), mount(&pool, 1));
    let root = a.volume.root();
    let ino = create(&a, root, b"f", 0o644, &Cred::default(), true).unwrap().ino();
    let room = chain::capacity(a.volume.geo.body_len()) as u64;
    // Another owner's locks, and one of both kinds.
    setlk(&b, ino, &want(1, 9_000, 9_009, Exclusive), None).unwrap();
    setlk(&a, ino, &want(2, 5_000, 5_099, Shared), None).unwrap();
    setlk(&a, ino, &want(1, 0, 999, Shared), None).unwrap();
    setlk(&a, ino, &want(1, 500, 999, Exclusive), None).unwrap();
    let full = [all_space(&a), all_space(&b)];
    for i in 0..3 * room {
        setlk(&a, ino, &want(1, 2 * i + 1, 2 * i + 1, Unlock), None).unwrap();
    }
    for i in 0..5 {
        setlk(&a, ino, &want(2, 5_001 + 2 * i, 5_001 + 2 * i, Unlock), None).unwrap();
    }
    // Elsewhere the pieces are one, as strong as the strongest; who has few is seen exactly.
    assert_eq!((seen_by(&b, ino).0, blocks(&b, ino)), (8, 1));
    for at in [0, 1, 500, 999] {
        assert_eq!(there(&b, ino, at), Some((999, Exclusive)), "{at}");
    }
    assert_eq!((there(&b, ino, 5_001), there(&b, ino, 5_002)), (None, Some((5_002, Shared))));
    let covered = setlk(&b, ino, &want(3, 1, 1, Shared), None);
    assert!(matches!(covered, Err(Error::WouldBlock)), "{covered:?}");
    // Here they are what they are, but there is no room for another lock; nor for one that has waited.
    assert_eq!((there(&a, ino, 1), there(&a, ino, 2)), (None, Some((2, Shared))));
    let more = setlk(&a, ino, &want(3, 1, 1, Exclusive), None);
    assert!(matches!(more, Err(Error::NoLocks)), "{more:?}");
    let (tell, told) = listener();
    later(&a, ino, &want(4, 9_000, 9_000, Shared), false, &tell).unwrap().unwrap();
    setlk(&b, ino, &want(1, 9_005, 9_009, Unlock), None).unwrap();
    assert!(told.try_recv().is_err());
    setlk(&b, ino, &want(1, 9_000, 9_004, Unlock), None).unwrap();
    let (owner, how) = told.recv_timeout(Duration::from_secs(30)).expect("it is served");
    assert!(owner == 4 && matches!(how, Err(Error::NoLocks)), "{how:?}");
    // The other node has all the room that the one entry leaves, and then neither has any.
    let mut taken = 0;
    let refused = loop {
        let at = 9_000 + 2 * taken;
        match setlk(&b, ino, &want(1, at, at, Exclusive), None) {
            Ok(()) => taken += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, Error::NoLocks) && taken > room / 2, "{refused}, {taken}");
    assert_eq!(blocks(&b, ino), 1);
    setlk(&a, ino, &want(2, 5_021, 5_021, Unlock), None).unwrap();
    setlk(&a, ino, &want(1, 0, 0, Unlock), None).unwrap();
    assert_eq!(there(&b, ino, 600), Some((999, Exclusive)));
    assert!(there(&b, ino, 5_002).is_some() && there(&a, ino, 9_000).is_some());
    // Space comes: the next change makes all of it exact.
    drop(full);
    setlk(&a, ino, &want(1, 2, 2, Unlock), None).unwrap();
    for at in (1..450).chain([500, 999]) {
        assert_eq!(there(&b, ino, at), there(&a, ino, at), "{at}");
    }
    assert_eq!((there(&b, ino, 5_021), there(&b, ino, 4)), (None, Some((4, Shared))));
    setlk(&b, ino, &want(3, 1, 1, Exclusive), None).unwrap();
    for (node, owner) in [(&a, 1), (&a, 2), (&b, 1), (&b, 3)] {
        drop_owner(node, ino, owner).unwrap();
    }
    assert_eq!((seen_by(&a, ino), seen_by(&b, ino)), ((0, 0), (0, 0)));
    a.unmount();
    b.unmount_clean();
}

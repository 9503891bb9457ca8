//! Names that lead to what is damaged.

use std::time::{Duration, Instant};

use braid_pool::device::AlignedBuf;

use super::*;

/// The lock's record and the inode are not there any more, on all copies: where the order of locks allows it, and where
/// it is against the order, the answer is an error of that inode, and soon.
#[test]
fn a_name_of_a_slot_that_is_no_inode_any_more_is_answered_soon() {
    let pool = pool();
    let node = mount(&pool, 0);
    let root = node.volume.root();
    let low = touch_file(&node, root, "low").ino;
    let dir = make_dir(&node, root, "d");
    rename(&node, root, b"low", dir, b"low", 0).unwrap();
    let high = touch_file(&node, dir, "high").ino;
    assert!(low < dir && dir < high);
    let slots = [low, high].map(|ino| node.volume.slot_at(ino.into()));
    node.unmount();
    for at in slots {
        let mut ones = AlignedBuf::zeroed(4096);
        ones.fill(0xff);
        pool.write(at, &ones).unwrap();
    }

    let node = mount(&pool, 0);
    for (name, ino) in [("high", high), ("low", low)] {
        for mode in [Mode::Shared, Mode::Exclusive] {
            let begun = Instant::now();
            let found =
                lock_named(&node, dir, name.as_bytes(), mode).map(|found| found.child.ino());
            assert!(matches!(found, Err(Error::Inconsistent { .. })), "{name}: {found:?}");
            // Tries to read a record that is damaged rest in between, longer from time to time.
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{name} {ino}: {:?}",
                begun.elapsed()
            );
        }
    }
    assert!(names(&node, dir).len() >= 2);
    node.unmount();
}

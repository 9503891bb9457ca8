//! Lookups by file handle (`open_by_handle_at`, NFS): only so many of users other than root are under way at
//! once.
//!
//! Such a lookup may wait for another node, like any request. But anybody can send it for any number, as fast
//! as it can be written down: without having seen a name, and without a permission in between. So those
//! beyond the bound get no thread: they stand in a queue of their own, and each that ends takes the next.
//! Where a request keeps its thread, over io_uring, it is refused (`EAGAIN`, which the kernel makes
//! `ESTALE`). Whatever others ask for finds the other threads.

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::abi::{InHeader, op};
use crate::transport::queue::RequestQueue;
use crate::transport::space::Space;

/// Most lookups by handle of users other than root that are under way.
const MOST: usize = 32;

/// Those of a mount.
#[derive(Debug, Default)]
pub(crate) struct HandleLookups {
    under_way: Mutex<usize>,
    queue: Arc<RequestQueue>,
}

/// One that is under way and keeps its thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct OnRing<'a>(&'a HandleLookups);

impl Drop for OnRing<'_> {
    fn drop(&mut self) {
        *self.0.under_way.lock() -= 1;
    }
}

impl HandleLookups {
    /// Those that no thread is at.
    pub fn queue(&self) -> &Arc<RequestQueue> {
        &self.queue
    }
    /// Begins one, if there are not too many; else its message stands in the queue. Whether it began.
    pub fn begin(&self, space: &mut Space) -> bool {
        let mut under_way = self.under_way.lock();
        if *under_way >= MOST && self.queue.push(space) {
            return false;
        }
        *under_way += 1;
        true
    }
    /// One has ended: begins the next in the queue, whose message is in `space` then. `false`: there is none.
    pub fn end(&self, space: &mut Space) -> bool {
        let mut under_way = self.under_way.lock();
        let next = self.queue.pop(space);
        if !next {
            *under_way -= 1;
        }
        next
    }
    /// Begins one of user `uid` that keeps its thread; root's are not counted.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: too many are under way.
    pub fn on_ring(&self, uid: u32) -> Result<Option<OnRing<'_>>, Errno> {
        if uid == 0 {
            return Ok(None);
        }
        let mut under_way = self.under_way.lock();
        if *under_way >= MOST {
            return Err(Errno::AGAIN);
        }
        *under_way += 1;
        Ok(Some(OnRing(self)))
    }
}

/// Whether a name comes from a file handle: the kernel knows the number and wants the inode, or its parent.
pub(crate) fn is_of_handle(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Whether a message is a lookup by handle of a user other than root.
pub(crate) fn is_bounded(message: &[u8]) -> bool {
    let Ok((header, body)) = InHeader::read_from_prefix(message) else { return false };
    let name = body.split(|byte| *byte == 0).next().unwrap_or_default();
    header.opcode == op::LOOKUP && header.uid != 0 && is_of_handle(name)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::transport::space::Kept;

    fn space(unique: u64) -> Space {
        let header = InHeader { unique, ..InHeader::default() };
        let mut space = Space::new(4096);
        space.put(Kept::Short(header.as_bytes().into()));
        space
    }
    fn unique(space: &Space) -> u64 {
        InHeader::read_from_prefix(space.message()).unwrap().0.unique
    }

    #[test]
    fn those_beyond_the_bound_follow_one_after_the_other() {
        let lookups = HandleLookups::default();
        for n in 0..MOST as u64 {
            assert!(lookups.begin(&mut space(n)));
        }
        assert!(!lookups.begin(&mut space(100)) && !lookups.begin(&mut space(101)));
        assert!(lookups.on_ring(7).is_err() && lookups.on_ring(0).is_ok());
        let mut ended = space(0);
        for n in [100, 101] {
            assert!(lookups.end(&mut ended));
            assert_eq!(unique(&ended), n);
        }
        for _ in 0..MOST {
            assert!(!lookups.end(&mut ended));
        }
        let on_ring: Vec<_> = (0..MOST).map(|_| lookups.on_ring(7).unwrap()).collect();
        assert!(lookups.on_ring(7).is_err());
        drop(on_ring);
        assert!(lookups.begin(&mut ended));
    }

    #[test]
    fn lookups_by_handle_are_told_from_others() {
        let message = |opcode, uid, name: &[u8]| {
            [InHeader { opcode, uid, ..InHeader::default() }.as_bytes(), name].concat()
        };
        assert!(is_bounded(&message(op::LOOKUP, 1000, b".\0")));
        assert!(is_bounded(&message(op::LOOKUP, 1000, b"..\0")));
        assert!(!is_bounded(&message(op::LOOKUP, 0, b".\0")), "root's");
        assert!(!is_bounded(&message(op::LOOKUP, 1000, b"...\0")));
        assert!(!is_bounded(&message(op::UNLINK, 1000, b".\0")));
        assert!(!is_bounded(b""));
    }
}

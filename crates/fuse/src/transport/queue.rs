//! Requests that wait in the queue while every thread is busy.
//!
//! A few threads are kept for requests that free others: what they read besides goes into this queue, to
//! be answered as soon as another thread is done. Without it, requests that wait for what is
//! behind them at the device would wait for ever.

use std::collections::{HashMap, VecDeque};

use braid_device::fitting;
use parking_lot::Mutex;
use zerocopy::FromBytes;

use crate::abi::{InHeader, LkIn, READ_LOCKOWNER, ReadIn, SetattrIn, WriteIn, op, setattr, write};
use crate::transport::space::{Kept, Space};

/// Most bytes of short messages in queue. What does not fit keeps its thread. Long ones keep the memory
/// that is lent for them, which is bounded.
const BYTES_MAX: usize = 32 << 20;

/// Requests that no thread has begun.
pub(crate) trait QueuedRequests: Send + Sync {
    /// The threads that wait for the answers, by request.
    fn whose(&self) -> HashMap<u64, u32>;
    /// Takes a request out; the caller answers it. `false`: it does not wait any more.
    fn remove(&self, unique: u64) -> bool;
    /// Takes one out for which the kernel holds pages that are wanted ([`held_pages`]).
    fn take_held_pages(&self, wanted: Wanted<'_>) -> Option<Kept>;
    /// Whether there is one.
    fn has_held_pages(&self, wanted: Wanted<'_>) -> bool;
    /// The bytes of a node's pages that are to be filled.
    fn unbegun_fills(&self, node: u64) -> Vec<(u64, u64)>;
}

/// Which pages are wanted.
pub(crate) type Wanted<'a> = &'a dyn Fn(&HeldPages) -> bool;

/// Messages, first come first.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    messages: Mutex<(VecDeque<Kept>, usize)>,
}

/// Bytes of a message that count.
fn counted(message: &Kept) -> usize {
    match message {
        Kept::Short(bytes) => bytes.len(),
        Kept::Lent(..) => 0,
    }
}

impl RequestQueue {
    /// Puts a message at the end. `false`: there is no room.
    pub fn push(&self, space: &mut Space) -> bool {
        let (messages, bytes) = &mut *self.messages.lock();
        if !space.is_long() && *bytes + space.message().len() > fitting(BYTES_MAX) {
            return false;
        }
        let message = space.take();
        *bytes += counted(&message);
        messages.push_back(message);
        true
    }
    /// Takes the first one. `false`: there is none.
    pub fn pop(&self, space: &mut Space) -> bool {
        let mut state = self.messages.lock();
        let Some(message) = state.0.pop_front() else { return false };
        state.1 -= counted(&message);
        drop(state);
        space.put(message);
        true
    }
}

impl QueuedRequests for RequestQueue {
    fn whose(&self) -> HashMap<u64, u32> {
        let (messages, _) = &*self.messages.lock();
        messages.iter().filter_map(|m| header(m.bytes())).map(|h| (h.unique, h.pid)).collect()
    }
    fn remove(&self, unique: u64) -> bool {
        let (messages, bytes) = &mut *self.messages.lock();
        let at =
            messages.iter().position(|m| header(m.bytes()).is_some_and(|h| h.unique == unique));
        let message = at.and_then(|at| messages.remove(at));
        *bytes -= message.as_ref().map_or(0, counted);
        message.is_some()
    }
    fn take_held_pages(&self, wanted: Wanted<'_>) -> Option<Kept> {
        let (messages, bytes) = &mut *self.messages.lock();
        let is_wanted = |m: &Kept| held_pages(m.bytes()).is_some_and(|held| wanted(&held));
        let at = messages.iter().position(is_wanted)?;
        let message = messages.remove(at)?;
        *bytes -= counted(&message);
        Some(message)
    }
    fn has_held_pages(&self, wanted: Wanted<'_>) -> bool {
        let (messages, _) = &*self.messages.lock();
        messages.iter().any(|m| held_pages(m.bytes()).is_some_and(|held| wanted(&held)))
    }
    fn unbegun_fills(&self, node: u64) -> Vec<(u64, u64)> {
        HeldPages::filled(self.messages.lock().0.iter(), node)
    }
}

/// Pages that the kernel holds, or holds back, until a request is answered: those that it fills, and those whose
/// writeback waits for a truncation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldPages {
    /// Whose.
    pub node: u64,
    /// The first byte, and one past the last.
    pub bytes: (u64, u64),
    /// They get their contents; otherwise they are held back.
    pub are_filled: bool,
}

impl HeldPages {
    /// The bytes of `node`'s pages that are filled by these messages.
    pub fn filled<'a>(messages: impl Iterator<Item = &'a Kept>, node: u64) -> Vec<(u64, u64)> {
        let held = messages.filter_map(|message| held_pages(message.bytes()));
        held.filter(|held| held.node == node && held.are_filled).map(|held| held.bytes).collect()
    }
}

/// Those for which the kernel waits for the answer to a message.
pub(crate) fn held_pages(message: &[u8]) -> Option<HeldPages> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    let bytes = match header.opcode {
        op::READ => {
            let (read, _) = ReadIn::read_from_prefix(body).ok()?;
            let fills = read.read_flags & READ_LOCKOWNER == 0;
            fills.then_some((read.offset, read.offset.saturating_add(read.size.into())))
        }
        op::SETATTR => {
            let (set, _) = SetattrIn::read_from_prefix(body).ok()?;
            (set.valid & setattr::SIZE != 0).then_some((0, u64::MAX))
        }
        _ => None,
    };
    let are_filled = header.opcode == op::READ;
    Some(HeldPages { node: header.nodeid, bytes: bytes?, are_filled })
}

fn header(message: &[u8]) -> Option<InHeader> {
    InHeader::read_from_prefix(message).ok().map(|(header, _)| header)
}

/// What others may wait for in a request, and what it waits for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// It gives something up, or writes what a lock's demotion waits for. It waits for no other request of the same
    /// mount.
    Frees,
    /// It gives up what programs have locked, or may do so, and may wait for another node. It waits only for others
    /// that do the same.
    Unlocks,
    /// The same of a program that closes a file. It does not wait for another node for long.
    Closes,
    /// Anything else.
    Other,
}

/// Of which class a message is. One that makes no sense waits for nothing.
pub(crate) fn class_of(message: &[u8]) -> Class {
    let Ok((header, body)) = InHeader::read_from_prefix(message) else { return Class::Frees };
    match header.opcode {
        op::FORGET
        | op::BATCH_FORGET
        | op::INTERRUPT
        | op::RELEASEDIR
        | op::DESTROY
        | op::NOTIFY_REPLY => Class::Frees,
        op::RELEASE => Class::Unlocks,
        op::FLUSH => Class::Closes,
        op::WRITE => {
            let cached = |w: WriteIn| w.write_flags & write::CACHE != 0;
            let frees = WriteIn::read_from_prefix(body).is_ok_and(|(w, _)| cached(w));
            if frees { Class::Frees } else { Class::Other }
        }
        op::SETLK | op::SETLKW => {
            let unlock = |l: LkIn| i32::try_from(l.lk.kind) == Ok(libc::F_UNLCK);
            let unlocks = LkIn::read_from_prefix(body).is_ok_and(|(lock, _)| unlock(lock));
            if unlocks { Class::Unlocks } else { Class::Other }
        }
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    /// With a message in it.
    fn space(message: &[u8]) -> Space {
        let mut space = Space::new(4096);
        space.put(Kept::Short(message.into()));
        space
    }

    #[test]
    fn the_line_keeps_its_order_and_its_bound() {
        let queue = RequestQueue::default();
        assert!(queue.push(&mut space(b"first")) && queue.push(&mut space(b"second")));
        let mut next = space(b"");
        assert!(queue.pop(&mut next));
        assert_eq!(next.message(), b"first");
        let large = vec![1; 8 << 10];
        let took = (0..10_000).take_while(|_| queue.push(&mut space(&large))).count();
        assert_eq!(took, (BYTES_MAX - 6) / large.len());
        assert!(queue.pop(&mut next) && next.message() == b"second");
        for _ in 0..took {
            assert!(queue.pop(&mut next) && next.message() == large);
        }
        assert!(!queue.pop(&mut next));
        assert_eq!(queue.messages.lock().1, 0);
    }

    #[test]
    fn a_request_can_leave_the_queue() {
        let queue = RequestQueue::default();
        for (unique, pid) in [(2, 10), (4, 11), (6, 12)] {
            let message = InHeader { unique, pid, ..InHeader::default() };
            assert!(queue.push(&mut space(message.as_bytes())));
        }
        assert_eq!(queue.whose(), HashMap::from([(2, 10), (4, 11), (6, 12)]));
        assert!(queue.remove(4) && !queue.remove(4));
        let mut taken = space(b"");
        let mut next = || queue.pop(&mut taken).then(|| header(taken.message()).unwrap().unique);
        assert_eq!([next(), next(), next()], [Some(2), Some(6), None]);
        assert_eq!(queue.messages.lock().1, 0);
    }

    #[test]
    fn requests_for_which_pages_are_held_can_leave_the_queue() {
        let queue = RequestQueue::default();
        let message = |unique, opcode, nodeid, body: &[u8]| {
            let header = InHeader { opcode, unique, nodeid, ..InHeader::default() };
            [header.as_bytes(), body].concat()
        };
        let direct = ReadIn { read_flags: READ_LOCKOWNER, ..ReadIn::default() };
        let cuts = SetattrIn { valid: setattr::SIZE, ..SetattrIn::default() };
        let messages = [
            message(2, op::READ, 5, ReadIn::default().as_bytes()),
            message(4, op::READ, 6, ReadIn::default().as_bytes()),
            message(6, op::READ, 5, direct.as_bytes()),
            message(8, op::SETATTR, 5, cuts.as_bytes()),
            message(10, op::SETATTR, 5, SetattrIn::default().as_bytes()),
            message(12, op::READ, 5, &[]),
        ];
        assert!(messages.iter().all(|message| queue.push(&mut space(message))));
        let unique = |kept: Kept| header(kept.bytes()).unwrap().unique;
        assert!(!queue.has_held_pages(&|held| held.node == 5 && held.bytes.0 > 0));
        let taken = [(); 3].map(|()| queue.take_held_pages(&|held| held.node == 5).map(unique));
        assert_eq!(taken, [Some(2), Some(8), None]);
        let mut next = space(b"");
        let left = std::iter::from_fn(|| {
            queue.pop(&mut next).then(|| header(next.message()).unwrap().unique)
        });
        assert_eq!(left.collect::<Vec<_>>(), [4, 6, 10, 12]);
        assert_eq!(queue.messages.lock().1, 0);
    }

    #[test]
    fn what_frees_others_is_known() {
        let message = |opcode, body: &[u8]| {
            [InHeader { opcode, ..InHeader::default() }.as_bytes(), body].concat()
        };
        let class = |opcode, body: &[u8]| class_of(&message(opcode, body));
        let mut lock = LkIn::default();
        lock.lk.kind = libc::F_WRLCK.try_into().unwrap();
        assert_eq!(class(op::SETLKW, lock.as_bytes()), Class::Other);
        lock.lk.kind = libc::F_UNLCK.try_into().unwrap();
        for opcode in [op::SETLK, op::SETLKW] {
            assert_eq!(class(opcode, lock.as_bytes()), Class::Unlocks);
        }
        let mut what = WriteIn::default();
        assert_eq!(class(op::WRITE, what.as_bytes()), Class::Other);
        what.write_flags = write::CACHE;
        assert_eq!(class(op::WRITE, what.as_bytes()), Class::Frees);
        for opcode in [op::FORGET, op::BATCH_FORGET, op::INTERRUPT, op::RELEASEDIR, op::DESTROY] {
            assert_eq!(class(opcode, &[]), Class::Frees);
        }
        assert_eq!(
            [op::RELEASE, op::FLUSH].map(|o| class(o, &[])),
            [Class::Unlocks, Class::Closes]
        );
        assert_eq!([op::READ, op::WRITE].map(|o| class(o, &[])), [Class::Other; 2]);
        assert_eq!(class_of(&[]), Class::Frees);
    }
}

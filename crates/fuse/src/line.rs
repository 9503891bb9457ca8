//! Requests that stand in line while every thread is busy.
//!
//! A few threads are kept for requests that free others: what they read besides goes into this line, to
//! be answered as soon as another thread is done. Without it, requests that wait for what is
//! behind them at the device would wait for ever.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use zerocopy::FromBytes;

use crate::abi::{InHeader, LkIn, WriteIn, op, write};

/// Most bytes in line. What does not fit keeps its thread.
const BYTES_MAX: usize = 64 << 20;

/// Messages, first come first.
#[derive(Debug, Default)]
pub(crate) struct Line {
    messages: Mutex<(VecDeque<Box<[u8]>>, usize)>,
}

impl Line {
    /// Puts a message at the end. `false`: there is no room.
    pub fn push(&self, message: &[u8]) -> bool {
        let (messages, bytes) = &mut *self.messages.lock();
        if *bytes + message.len() > BYTES_MAX {
            return false;
        }
        *bytes += message.len();
        messages.push_back(message.into());
        true
    }
    /// Takes the first one: its length in `space`.
    pub fn pop(&self, space: &mut [u8]) -> Option<usize> {
        let (messages, bytes) = &mut *self.messages.lock();
        let message = messages.pop_front()?;
        *bytes -= message.len();
        let to = space.get_mut(..message.len())?;
        to.copy_from_slice(&message);
        Some(message.len())
    }
    /// The threads that wait for the answers, by request.
    pub fn whose(&self) -> HashMap<u64, u32> {
        let (messages, _) = &*self.messages.lock();
        messages.iter().filter_map(|m| header(m)).map(|h| (h.unique, h.pid)).collect()
    }
    /// Takes a request out: whoever does answers it. `false`: it does not stand in line any more.
    pub fn remove(&self, unique: u64) -> bool {
        let (messages, bytes) = &mut *self.messages.lock();
        let at = messages.iter().position(|m| header(m).is_some_and(|h| h.unique == unique));
        let message = at.and_then(|at| messages.remove(at));
        *bytes -= message.as_ref().map_or(0, |m| m.len());
        message.is_some()
    }
}

fn header(message: &[u8]) -> Option<InHeader> {
    InHeader::read_from_prefix(message).ok().map(|(header, _)| header)
}

/// Whether others may wait for what a request does: it gives something up, or writes what a lock's
/// demotion waits for. Such a request waits for no other that comes by the same mount.
pub(crate) fn frees_others(message: &[u8]) -> bool {
    let Ok((header, body)) = InHeader::read_from_prefix(message) else { return true };
    match header.opcode {
        op::FORGET
        | op::BATCH_FORGET
        | op::INTERRUPT
        | op::RELEASE
        | op::RELEASEDIR
        | op::FLUSH
        | op::DESTROY
        | op::NOTIFY_REPLY => true,
        op::WRITE => {
            WriteIn::read_from_prefix(body).is_ok_and(|(w, _)| w.write_flags & write::CACHE != 0)
        }
        op::SETLK | op::SETLKW => {
            let unlock = |l: LkIn| i32::try_from(l.lk.kind) == Ok(libc::F_UNLCK);
            LkIn::read_from_prefix(body).is_ok_and(|(lock, _)| unlock(lock))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn the_line_keeps_its_order_and_its_bound() {
        let line = Line::default();
        let mut space = vec![0; 2 << 20];
        assert!(line.push(b"first") && line.push(b"second"));
        assert_eq!(line.pop(&mut space).map(|n| space[..n].to_vec()), Some(b"first".to_vec()));
        let large = vec![1; 1 << 20];
        let took = (0..100).take_while(|_| line.push(&large)).count();
        assert_eq!(took, 63);
        assert_eq!(line.pop(&mut space), Some(6));
        for _ in 0..took {
            assert_eq!(line.pop(&mut space), Some(1 << 20));
        }
        assert_eq!(line.pop(&mut space), None);
        assert_eq!(line.messages.lock().1, 0);
    }

    #[test]
    fn a_request_can_leave_the_line() {
        let line = Line::default();
        for (unique, pid) in [(2, 10), (4, 11), (6, 12)] {
            let message = InHeader { unique, pid, ..InHeader::default() };
            assert!(line.push(message.as_bytes()));
        }
        assert_eq!(line.whose(), HashMap::from([(2, 10), (4, 11), (6, 12)]));
        assert!(line.remove(4) && !line.remove(4));
        let mut space = [0; size_of::<InHeader>()];
        let mut next = || line.pop(&mut space).and_then(|_| header(&space)).map(|h| h.unique);
        assert_eq!([next(), next(), next()], [Some(2), Some(6), None]);
        assert_eq!(line.messages.lock().1, 0);
    }

    #[test]
    fn what_frees_others_is_known() {
        let message = |opcode, body: &[u8]| {
            [InHeader { opcode, ..InHeader::default() }.as_bytes(), body].concat()
        };
        let mut lock = LkIn::default();
        lock.lk.kind = libc::F_WRLCK.try_into().unwrap();
        assert!(!frees_others(&message(op::SETLKW, lock.as_bytes())));
        lock.lk.kind = libc::F_UNLCK.try_into().unwrap();
        assert!(frees_others(&message(op::SETLK, lock.as_bytes())));
        let mut what = WriteIn::default();
        assert!(!frees_others(&message(op::WRITE, what.as_bytes())));
        what.write_flags = write::CACHE;
        assert!(frees_others(&message(op::WRITE, what.as_bytes())));
        assert!(frees_others(&message(op::RELEASE, &[])) && !frees_others(&message(op::READ, &[])));
        assert!(!frees_others(&message(op::WRITE, &[])) && frees_others(&[]));
    }
}

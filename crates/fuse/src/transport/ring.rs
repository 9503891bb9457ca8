//! Requests that the kernel hands over by io_uring (Linux 6.14): memory, messages and answers of
//! one place in a queue.
//!
//! The kernel keeps a queue for each processor and puts a request into any *entry* of the queue that
//! is free. An entry is a thread with its ring and with memory of its own, so a request that waits
//! holds up nobody; the program's own processor answers, and one system call both gives an answer
//! and fetches the next request.
//!
//! ```text
//!  memory:  | RingHead ...  free  ...  header, first structure | payload (pages)          |
//!           0                                                   PAYLOAD_AT
//! ```
//!
//! Here a message is put together as it would have come from `/dev/fuse`: header and first
//! structure are copied in front of the payload. An answer goes to the place of the payload, so a
//! message that is needed until the answer is copied away first; only data of large direct writes
//! stays where it is, and its answer waits ([`EntryReply`]).

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use braid_device::{CommandRing, HugeBuf};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{
    InHeader, OutHeader, READ_BUFFER_LEAST, RingCommand, RingHead, WriteIn, o, op, ring,
};
use crate::transport::reply::RingReply;
use crate::transport::request::{self, RequestBuf};

/// Where the payload begins: a page, as O_DIRECT to the devices needs it.
const PAYLOAD_AT: usize = 4096;
/// A direct write of so many bytes goes to the devices from where the kernel put it.
const IN_PLACE: usize = 32 << 10;
/// So much of an entry's memory stays with it.
const SMALL: usize = 64 << 10;
/// The rest goes back to the machine when it was not used for so long.
const USED_MAX: Duration = Duration::from_secs(10);

/// A place in the queue of a processor. Belongs to the thread that made it.
#[derive(Debug)]
pub struct RingEntry {
    ring: CommandRing,
    queue: u16,
    payload: usize,
    /// More of the memory was used than is worth keeping.
    used: bool,
}

impl RingEntry {
    /// In this queue, for requests and answers of at most `max` bytes.
    ///
    /// # Errors
    /// The kernel gives no ring.
    pub fn new(device: &Arc<OwnedFd>, queue: u16, max: usize) -> std::io::Result<Self> {
        let payload = max.max(READ_BUFFER_LEAST);
        let memory = HugeBuf::within(&request::PAGES, PAYLOAD_AT + payload);
        let ring = CommandRing::new(Arc::clone(device), memory, size_of::<RingHead>(), PAYLOAD_AT)?;
        Ok(Self { ring, queue, payload, used: false })
    }
    /// Tells the kernel of it. From now on requests may come, once every queue has an entry.
    ///
    /// # Errors
    /// The ring failed; that the kernel refused is what [`RingEntry::next`] says.
    pub fn register(&mut self) -> std::io::Result<()> {
        self.command(ring::REGISTER, 0);
        self.ring.hand_over()
    }
    fn command(&mut self, which: u32, commit_id: u64) {
        let command = RingCommand { commit_id, queue: self.queue, ..RingCommand::default() };
        self.ring.send(which, command.as_bytes());
    }
    /// Waits for a request, having handed over the answer to the last one. Memory that is not used
    /// meanwhile goes back to the machine, that of `copy` too.
    ///
    /// # Errors
    /// `ENOTCONN` and its like: unmounted. Others: the kernel refuses the entry.
    pub fn next(&mut self, copy: &mut RequestBuf) -> Result<Taken<'_>, Errno> {
        let mut result = None;
        if self.used {
            result = self.ring.wait(Some(USED_MAX)).map_err(failed)?;
            if result.is_none() {
                // The kernel writes to it on this thread only, inside a wait.
                self.ring.discard();
                copy.discard();
                self.used = false;
            }
        }
        let result = match result {
            Some(result) => result,
            None => self.ring.wait(None).map_err(failed)?.unwrap_or(-libc::EIO),
        };
        if result < 0 {
            return Err(Errno::from_raw_os_error(-result));
        }
        let max = self.payload;
        let message = gather(self.ring.memory(), max);
        self.used |= message.to - PAYLOAD_AT > SMALL;
        Ok(Taken { entry: self, message })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Assembles a message. Returns where it is, and the number by which the kernel knows it.
fn gather(memory: &mut [u8], max: usize) -> Message {
    let head = RingHead::read_from_prefix(memory).map(|(head, _)| head).unwrap_or_default();
    let header =
        InHeader::read_from_prefix(&head.in_out).map(|(header, _)| header).unwrap_or_default();
    let whole = usize::try_from(header.len).unwrap_or(0);
    let payload = usize::try_from(head.payload).unwrap_or(usize::MAX);
    let first = whole.checked_sub(size_of::<InHeader>()).and_then(|n| n.checked_sub(payload));
    let first = first.filter(|first| *first <= head.op_in.len() && payload <= max);
    let mut message = Message {
        commit_id: head.commit_id,
        unique: header.unique,
        opcode: header.opcode,
        from: PAYLOAD_AT,
        to: PAYLOAD_AT,
    };
    // A message that makes no sense is empty.
    let Some(first) = first else { return message };
    message.from = PAYLOAD_AT - first - size_of::<InHeader>();
    message.to = PAYLOAD_AT + payload;
    let parts = [&head.in_out[..size_of::<InHeader>()], &head.op_in[..first]];
    for (target, byte) in memory[message.from..].iter_mut().zip(parts.into_iter().flatten()) {
        *target = *byte;
    }
    message
}

/// A request that stands in memory.
#[derive(Debug, Clone, Copy)]
struct Message {
    commit_id: u64,
    unique: u64,
    opcode: u32,
    from: usize,
    to: usize,
}

/// A request that the kernel handed over, in its place.
#[derive(Debug)]
pub struct Taken<'a> {
    entry: &'a mut RingEntry,
    message: Message,
}

impl Taken<'_> {
    fn message(&mut self) -> &[u8] {
        let range = self.message.from..self.message.to;
        self.entry.ring.memory().get(range).unwrap_or_default()
    }
    /// Where an answer's payload goes.
    fn room(&mut self) -> &mut [u8] {
        let range = PAYLOAD_AT..PAYLOAD_AT + self.entry.payload;
        self.entry.ring.memory().get_mut(range).unwrap_or_default()
    }
    /// Writes an answer over the request.
    fn write(&mut self, unique: u64, code: i32, parts: [&[u8]; 2]) -> Result<(), Errno> {
        let [first, second] = parts;
        let payload = first.len() + second.len();
        let room = self.room().get_mut(..payload).ok_or(Errno::TOOBIG)?;
        room[..first.len()].copy_from_slice(first);
        room[first.len()..].copy_from_slice(second);
        self.write_head(unique, code, payload)
    }
    /// The head of an answer whose payload is there.
    fn write_head(&mut self, unique: u64, code: i32, payload: usize) -> Result<(), Errno> {
        self.entry.used |= payload > SMALL;
        let payload = u32::try_from(payload).map_err(|_| Errno::TOOBIG)?;
        let len = u32::try_from(size_of::<OutHeader>()).unwrap_or(0) + payload;
        let header = OutHeader { len, error: code, unique };
        let commit_id = self.message.commit_id;
        let mut head = RingHead { commit_id, payload, ..RingHead::default() };
        head.in_out[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        self.entry.ring.memory()[..size_of::<RingHead>()].copy_from_slice(head.as_bytes());
        Ok(())
    }
    /// Gives the entry back with the answer in it. `at_once`: the kernel has it on return;
    /// otherwise with the next wait.
    fn commit(self, at_once: bool) -> Result<(), Errno> {
        self.entry.command(ring::COMMIT_AND_FETCH, self.message.commit_id);
        if at_once {
            return self.entry.ring.hand_over().map_err(failed);
        }
        Ok(())
    }
    /// Whether the message is best read where it is.
    fn in_place(&mut self) -> bool {
        if self.message.opcode != op::WRITE || self.message.to - PAYLOAD_AT < IN_PLACE {
            return false;
        }
        let arguments = self.message().get(size_of::<InHeader>()..).unwrap_or_default();
        WriteIn::read_from_prefix(arguments).is_ok_and(|(write, _)| write.flags & o::DIRECT != 0)
    }
    /// Has the request answered: `answer` gets the message and where its answer goes.
    pub fn serve(mut self, copy: &mut RequestBuf, answer: impl FnOnce(&EntryReply<'_>, &[u8])) {
        let mut kept = Kept { unique: self.message.unique, ..Kept::default() };
        if self.in_place() {
            let entry = EntryReply { state: RefCell::new(State { taken: None, kept }) };
            answer(&entry, self.message());
            kept = entry.state.into_inner().kept;
        } else {
            let len = self.message.to - self.message.from;
            let to = copy.space().get_mut(..len);
            match to {
                Some(to) => to.copy_from_slice(self.message()),
                None => return self.finish(&kept),
            }
            let entry = EntryReply { state: RefCell::new(State { taken: Some(self), kept }) };
            answer(&entry, copy.filled(len));
            let state = entry.state.into_inner();
            match state.taken {
                Some(taken) => self = taken,
                None => return,
            }
            kept = state.kept;
        }
        self.finish(&kept);
    }
    fn finish(mut self, kept: &Kept) {
        let done = match (kept.given, kept.code) {
            // The answer is in its place already.
            (true, None) => Ok(()),
            (true, Some(code)) => self.write(kept.unique, code, [&kept.bytes, &[]]),
            (false, _) => Err(Errno::IO),
        };
        if let Err(errno) = done {
            tracing::error!(opcode = self.message.opcode, %errno, "a request without an answer");
            let _ = self.write(self.message.unique, -Errno::IO.raw_os_error(), [&[], &[]]);
        }
        // Only handing over can fail.
        let _ = self.commit(false);
    }
}

/// An answer that could not be put in its place yet.
#[derive(Debug, Default)]
struct Kept {
    unique: u64,
    given: bool,
    code: Option<i32>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct State<'a> {
    /// The place, if the message is not in it.
    taken: Option<Taken<'a>>,
    kept: Kept,
}

/// Takes the answer. It goes into its place, and then to the kernel; if the message stands there, it
/// is kept until that is no longer needed.
#[derive(Debug)]
pub struct EntryReply<'a> {
    state: RefCell<State<'a>>,
}

impl RingReply for EntryReply<'_> {
    fn answer(
        &self,
        unique: u64,
        code: i32,
        parts: [&[u8]; 2],
        at_once: bool,
    ) -> Result<(), Errno> {
        let mut state = self.state.borrow_mut();
        state.kept.unique = unique;
        if let Some(taken) = &mut state.taken {
            taken.write(unique, code, parts)?;
        } else {
            state.kept.code = Some(code);
            state.kept.bytes = parts.concat();
        }
        state.kept.given = true;
        if at_once && let Some(taken) = state.taken.take() {
            taken.commit(true)?;
        }
        Ok(())
    }
    fn may_be_early(&self) -> bool {
        self.state.borrow().taken.is_some()
    }
    fn fill(
        &self,
        unique: u64,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.state.borrow_mut();
        let taken = state.taken.as_mut().ok_or(Errno::IO)?;
        let len = fill(taken.room())?;
        taken.write_head(unique, 0, len)?;
        state.kept.given = true;
        match state.taken.take() {
            Some(taken) => taken.commit(true),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::request::Request;

    const MAX: usize = 8192;

    fn handed_over(header: InHeader, op_in: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut head = RingHead {
            commit_id: 77,
            payload: u32::try_from(payload.len()).unwrap(),
            ..RingHead::default()
        };
        head.in_out[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        head.op_in[..op_in.len()].copy_from_slice(op_in);
        let mut memory = vec![0xee; PAYLOAD_AT + MAX];
        memory[..size_of::<RingHead>()].copy_from_slice(head.as_bytes());
        memory[PAYLOAD_AT..PAYLOAD_AT + payload.len()].copy_from_slice(payload);
        memory
    }

    #[test]
    fn a_message_is_as_the_device_gives_it() {
        for (first, payload) in [(0, 0), (0, 5), (8, 0), (40, MAX), (128, 1)] {
            let (op_in, payload) = (vec![1; first], vec![2; payload]);
            let len = u32::try_from(size_of::<InHeader>() + first + payload.len()).unwrap();
            let header = InHeader { len, opcode: op::WRITE, unique: 6, ..InHeader::default() };
            let mut memory = handed_over(header, &op_in, &payload);
            let message = gather(&mut memory, MAX);
            assert_eq!((message.commit_id, message.unique, message.opcode), (77, 6, op::WRITE));
            let bytes = &memory[message.from..message.to];
            let request = Request::parse(bytes).unwrap();
            assert_eq!(request.header.unique, 6);
            assert_eq!(request.body.0, [op_in, payload].concat());
        }
    }

    #[test]
    fn lengths_that_make_no_sense_make_an_empty_message() {
        let edges = [0, 1, 39, 40, 41, 168, 169, 8191, 8193, u32::MAX];
        for (len, payload) in edges.into_iter().flat_map(|a| edges.map(|b| (a, b))) {
            let header = InHeader { len, unique: 6, ..InHeader::default() };
            let mut memory = handed_over(header, &[], &[]);
            let mut head = RingHead::read_from_prefix(&memory).unwrap().0;
            head.payload = payload;
            memory[..size_of::<RingHead>()].copy_from_slice(head.as_bytes());
            let message = gather(&mut memory, MAX);
            let bytes = &memory[message.from..message.to];
            assert!(bytes.is_empty() || bytes.len() == len as usize, "{len} {payload}");
            assert!(message.to - PAYLOAD_AT <= MAX && message.unique == 6);
        }
    }

    #[test]
    fn an_answer_is_kept_while_its_message_is_in_place() {
        let entry =
            EntryReply { state: RefCell::new(State { taken: None, kept: Kept::default() }) };
        assert!(!entry.may_be_early());
        assert_eq!(entry.fill(6, &mut |_| Ok(0)), Err(Errno::IO));
        entry.answer(6, 0, [b"ab", b"cd"], true).unwrap();
        let kept = entry.state.into_inner().kept;
        assert_eq!((kept.unique, kept.code, &kept.bytes[..]), (6, Some(0), &b"abcd"[..]));
        assert!(kept.given);
    }
}

//! A message as it travels.
//!
//! A message is 168 bytes: "BRHT", version (`u16`), kind (`u16`: 1 wanted, 3 granted, 5 ask, 6 give, 7 your turn, 8 look), sender's slot
//! (`u16`), mode (`u16`: of a wish or an ask; 1 shared, 2 exclusive, 3 concurrent), sender's incarnation, receiver's
//! incarnation (`u32`), 4 bytes 0, lock number, ticket (`u64`), and for a give the first 128 bytes of the record as in a
//! sector of 4,096; all little-endian. Anything else is ignored.
//!
//! A datagram is one message, or several that follow one another.

use std::sync::Arc;

use braid_format::lock_record::LockRecord;
use braid_format::{Incarnation, LockNo, NodeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::dlock::Hint;
use crate::{Life, Mode};

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawHint {
    magic: U32,
    version: U16,
    kind: U16,
    from_slot: U16,
    mode: U16,
    from_incarnation: U32,
    to_incarnation: U32,
    reserved: U32,
    lock: U64,
    ticket: U64,
    record: [u8; RECORD],
}
/// Bytes of a message.
pub(super) const HINT: usize = size_of::<RawHint>();
const _: () = assert!(HINT == 168);
/// Messages in a datagram, at most.
pub(crate) const TOGETHER_MAX: usize = 64;
/// Bytes of a record that a message has room for: a record of up to 13 nodes.
const RECORD: usize = 128;
/// Of the sector that a record in a message is the beginning of.
const SECTOR: usize = 4096;

const MAGIC: u32 = u32::from_le_bytes(*b"BRHT");
const VERSION: u16 = 2;
const WANTED: u16 = 1;
const GRANTED: u16 = 3;
const ASK: u16 = 5;
const GIVE: u16 = 6;
const YOUR_TURN: u16 = 7;
const LOOK: u16 = 8;

/// A received hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Who says it sent it.
    pub from: Life,
    /// About which lock.
    pub lock: LockNo,
    /// What it says.
    pub hint: Hint,
}

/// `hint` as it travels. A give whose record is too long says only that the record is to be read.
pub(super) fn encode(from: Life, to: Life, lock: LockNo, hint: &Hint) -> RawHint {
    let (kind, mode, ticket, record) = match hint {
        Hint::Wanted(mode) => (WANTED, *mode, 0, None),
        Hint::Granted => (GRANTED, Mode::Unlocked, 0, None),
        Hint::YourTurn => (YOUR_TURN, Mode::Unlocked, 0, None),
        Hint::Look => (LOOK, Mode::Unlocked, 0, None),
        Hint::Ask { mode, ticket } => (ASK, *mode, *ticket, None),
        Hint::Give { ticket, record } => match short(record) {
            Some(record) => (GIVE, Mode::Unlocked, *ticket, Some(record)),
            None => (GRANTED, Mode::Unlocked, 0, None),
        },
    };
    RawHint {
        magic: U32::new(MAGIC),
        version: U16::new(VERSION),
        kind: U16::new(kind),
        from_slot: U16::new(from.slot.0),
        mode: U16::new(mode as u16),
        from_incarnation: U32::new(from.incarnation.0),
        to_incarnation: U32::new(to.incarnation.0),
        reserved: U32::new(0),
        lock: U64::new(lock.0),
        ticket: U64::new(ticket),
        record: record.unwrap_or([0; RECORD]),
    }
}

/// The beginning of a record's sector, if nothing follows it.
fn short(record: &LockRecord) -> Option<[u8; RECORD]> {
    let mut sector = [0; SECTOR];
    record.encode(&mut sector);
    let (head, tail) = sector.split_first_chunk()?;
    tail.iter().all(|b| *b == 0).then_some(*head)
}

/// The messages in a datagram; none if it is anything else.
pub(super) fn decode_all(datagram: &[u8], me: Life) -> Vec<Received> {
    let (messages, rest) = datagram.as_chunks::<HINT>();
    if !rest.is_empty() || messages.len() > TOGETHER_MAX {
        return Vec::new();
    }
    messages.iter().filter_map(|message| decode(message, me)).collect()
}

pub(super) fn decode(bytes: &[u8], me: Life) -> Option<Received> {
    let raw = RawHint::read_from_bytes(bytes).ok()?;
    if raw.magic.get() != MAGIC
        || raw.version.get() != VERSION
        || raw.to_incarnation.get() != me.incarnation.0
    {
        return None;
    }
    let lock = LockNo(raw.lock.get());
    let (mode, ticket) = (Mode::from_u16(raw.mode.get())?, raw.ticket.get());
    let hint = match raw.kind.get() {
        WANTED if mode > Mode::Unlocked => Hint::Wanted(mode),
        GRANTED => Hint::Granted,
        YOUR_TURN => Hint::YourTurn,
        LOOK => Hint::Look,
        ASK if mode > Mode::Unlocked => Hint::Ask { mode, ticket },
        GIVE => {
            let mut sector = [0; SECTOR];
            sector.first_chunk_mut::<RECORD>()?.copy_from_slice(&raw.record);
            Hint::Give { ticket, record: Arc::new(LockRecord::decode(&sector, lock).ok()?) }
        }
        _ => return None,
    };
    let from = Life {
        slot: NodeId(raw.from_slot.get()),
        incarnation: Incarnation(raw.from_incarnation.get()),
    };
    Some(Received { from, lock, hint })
}

#[cfg(test)]
mod tests {
    use braid_format::lock_record::Waiter;

    use super::*;

    fn me(slot: u16) -> Life {
        Life { slot: NodeId(slot), incarnation: Incarnation(3) }
    }

    #[test]
    fn every_kind_travels() {
        let modes = [Mode::Shared, Mode::Exclusive, Mode::Concurrent];
        let ask = |mode| Hint::Ask { mode, ticket: 0x0123_4567_89ab_cdef };
        let mut record = LockRecord::unlocked(LockNo(99), 77);
        (record.mode, record.version, record.written) = (Mode::Exclusive, 5, 6);
        record.add_holder(me(2));
        record.waiters = (3..15).map(|n| Waiter { life: me(n), mode: Mode::Shared }).collect();
        let give = Hint::Give { ticket: 9, record: Arc::new(record.clone()) };
        let wanted = modes.map(Hint::Wanted).into_iter().chain(modes.map(ask));
        for hint in wanted.chain([Hint::Granted, Hint::YourTurn, Hint::Look, give]) {
            let raw = encode(me(1), me(2), LockNo(99), &hint);
            let expected = Received { from: me(1), lock: LockNo(99), hint };
            assert_eq!(decode(raw.as_bytes(), me(2)), Some(expected));
        }
        // One node more than a message has room for.
        record.add_opener(me(20));
        let long = Hint::Give { ticket: 9, record: Arc::new(record.clone()) };
        let raw = encode(me(1), me(2), LockNo(99), &long);
        assert_eq!(decode(raw.as_bytes(), me(2)).unwrap().hint, Hint::Granted);
        // A record is of the lock that is meant, and whole.
        record.openers.clear();
        let give = Hint::Give { ticket: 9, record: Arc::new(record) };
        let raw = encode(me(1), me(2), LockNo(99), &give);
        for at in (24..32).chain(40..HINT) {
            let mut bad = raw.as_bytes().to_vec();
            bad[at] ^= 1;
            assert_eq!(decode(&bad, me(2)), None, "byte {at}");
        }
    }

    #[test]
    fn a_datagram_holds_one_message_or_several() {
        let sent = |n| Received { from: me(1), lock: LockNo(n), hint: Hint::Granted };
        let mut datagram = Vec::new();
        assert_eq!(decode_all(&datagram, me(2)), []);
        for n in 0..TOGETHER_MAX as u64 {
            datagram.extend(encode(me(1), me(2), LockNo(n), &Hint::Granted).as_bytes());
            let expected: Vec<_> = (0..=n).map(sent).collect();
            assert_eq!(decode_all(&datagram, me(2)), expected);
        }
        // One that makes no sense is left out; a datagram that is not whole, or too long, says nothing.
        let mut bad = datagram[..3 * HINT].to_vec();
        bad[HINT] ^= 1;
        assert_eq!(decode_all(&bad, me(2)), [sent(0), sent(2)]);
        assert_eq!(decode_all(&datagram[1..], me(2)), []);
        datagram.extend(encode(me(1), me(2), LockNo(0), &Hint::Granted).as_bytes());
        assert_eq!(decode_all(&datagram, me(2)), []);
    }

    #[test]
    fn short_foreign_and_misdirected_datagrams_are_ignored() {
        let raw = encode(me(1), me(2), LockNo(99), &Hint::Granted);
        for len in 0..HINT {
            assert_eq!(decode(&raw.as_bytes()[..len], me(2)), None);
        }
        let mut long = raw.as_bytes().to_vec();
        long.push(0);
        assert_eq!(decode(&long, me(2)), None);
        for (at, value) in [(0, b'X'), (4, 9), (6, 0), (6, 4), (6, 5), (10, 9), (16, 1)] {
            let mut bad = raw.as_bytes().to_vec();
            bad[at] = value;
            assert_eq!(decode(&bad, me(2)), None, "byte {at}");
        }
    }
}

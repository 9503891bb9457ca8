//! The pool's history: what was done to it, and what happened to it. docs/FORMAT.md section 1.9.
//!
//! A ring of pages of one lock sector each, on up to [`HistoryPage::COPIES`] members, in the reserved area behind the claim of
//! a change. A page is changed by compare-and-write only, so nodes need no agreement, and no page is torn that a
//! device writes whole. Each member's ring is a ring of its own: a reader takes all of them together and
//! leaves out what it has by its number.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::crc::crc32c_with_hole;
use crate::units::{ByteOffset, Bytes, NodeId};

/// Head of a page; events follow, one behind the other, then zeros.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawHistoryPage {
    /// "BRHI".
    pub magic: U32,
    /// CRC-32C of the page with this field zero.
    pub crc: U32,
    /// The pool.
    pub pool_uuid: [u8; 16],
    /// Counted up from one page to the next: the highest is written to.
    pub sequence: U64,
    /// Bytes of events behind the head.
    pub used: U16,
    /// Zero.
    pub reserved: [u8; 6],
}
const _: () = assert!(size_of::<RawHistoryPage>() == 40);

/// Head of an event; its host and its text follow, UTF-8.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawEvent {
    /// When, by the clock of the writer's host: milliseconds since 1970.
    pub time: U64,
    /// Random: the same on all members.
    pub id: U64,
    /// An [`EventKind`].
    pub kind: U16,
    /// The writer's node slot; 65535: none.
    pub slot: U16,
    /// Who gave the command, a user's number; 4294967295: nobody.
    pub user: U32,
    /// Bytes of the writer's host name.
    pub host_len: u8,
    /// Bytes of the text.
    pub text_len: u8,
    /// Zero.
    pub reserved: [u8; 6],
}
const _: () = assert!(size_of::<RawEvent>() == 32);

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum EventKind {
    /// A command that changes the pool.
    Command = 1,
    /// A node has joined.
    Mount = 2,
    /// A node has left.
    Unmount = 3,
    /// A node that died was recovered.
    Recovery = 4,
    /// A node has withdrawn.
    Withdrawn = 5,
    /// A member is something else than before.
    Member = 6,
    /// A scrub has begun or ended.
    Scrub = 7,
    /// The pool is something else than before.
    Pool = 8,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Command,
        Self::Mount,
        Self::Unmount,
        Self::Recovery,
        Self::Withdrawn,
        Self::Member,
        Self::Scrub,
        Self::Pool,
    ];
    /// For people and programs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Mount => "mount",
            Self::Unmount => "unmount",
            Self::Recovery => "recovery",
            Self::Withdrawn => "withdrawn",
            Self::Member => "member",
            Self::Scrub => "scrub",
            Self::Pool => "pool",
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, by the clock of the writer's host: milliseconds since 1970.
    pub time: u64,
    /// Tells it from all others.
    pub id: u64,
    /// What it is about.
    pub kind: EventKind,
    /// The node that wrote it.
    pub slot: Option<NodeId>,
    /// Who gave the command, by number.
    pub user: Option<u32>,
    /// The writer's host, cut to fit.
    pub host: String,
    /// What happened, cut to fit.
    pub text: String,
}

/// A text, cut to at most `len` bytes.
fn cut(text: &str, len: usize) -> &str {
    let end = (0..=len.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

impl Event {
    /// Bytes of a host name, and of a text, that are kept: one event fits into the smallest page.
    const HOST_MAX: usize = 64;
    const TEXT_MAX: usize = 240;

    fn encode(&self, to: &mut Vec<u8>) {
        let (host, text) = (cut(&self.host, Self::HOST_MAX), cut(&self.text, Self::TEXT_MAX));
        let raw = RawEvent {
            time: self.time.into(),
            id: self.id.into(),
            kind: (self.kind as u16).into(),
            slot: self.slot.map_or(u16::MAX, |slot| slot.0).into(),
            user: self.user.unwrap_or(u32::MAX).into(),
            host_len: u8::try_from(host.len()).unwrap_or(0),
            text_len: u8::try_from(text.len()).unwrap_or(0),
            reserved: [0; 6],
        };
        to.extend(raw.as_bytes());
        to.extend(host.as_bytes());
        to.extend(text.as_bytes());
    }

    /// The first event of `bytes`, if it is one that this version knows, and what is behind it. `None`: there is
    /// none.
    fn decode(bytes: &[u8]) -> Option<(Option<Self>, &[u8])> {
        let (raw, rest) = RawEvent::read_from_prefix(bytes).ok()?;
        let (host, rest) = rest.split_at_checked(raw.host_len.into())?;
        let (text, rest) = rest.split_at_checked(raw.text_len.into())?;
        let text_of = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let kind = EventKind::ALL.into_iter().find(|k| *k as u16 == raw.kind.get());
        let event = kind.map(|kind| Self {
            time: raw.time.get(),
            id: raw.id.get(),
            kind,
            slot: Some(NodeId(raw.slot.get())).filter(|s| s.0 != u16::MAX),
            user: Some(raw.user.get()).filter(|u| *u != u32::MAX),
            host: text_of(host),
            text: text_of(text),
        });
        Some((event, rest))
    }
}

/// A page of the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryPage {
    /// Counted up from one page to the next.
    pub sequence: u64,
    events: Vec<u8>,
}

impl HistoryPage {
    /// Where the ring begins on a member, and its bytes.
    pub const AT: ByteOffset = ByteOffset(196 << 10);
    /// Bytes of the ring.
    pub const LEN: Bytes = Bytes(60 << 10);
    /// Members in use that have it.
    pub const COPIES: usize = 3;
    /// "BRHI".
    pub const MAGIC: u32 = u32::from_le_bytes(*b"BRHI");
    /// Where the checksum stands.
    pub const CRC_AT: usize = core::mem::offset_of!(RawHistoryPage, crc);
    const HEAD: usize = size_of::<RawHistoryPage>();

    /// One without events.
    pub const fn new(sequence: u64) -> Self {
        Self { sequence, events: Vec::new() }
    }

    /// What `bytes` say, if they are a page of `pool`.
    pub fn decode(bytes: &[u8], pool: [u8; 16]) -> Option<Self> {
        let (raw, rest) = RawHistoryPage::read_from_prefix(bytes).ok()?;
        let ours = raw.magic.get() == Self::MAGIC && raw.pool_uuid == pool;
        if !ours || crc32c_with_hole(bytes, Self::CRC_AT) != raw.crc.get() {
            return None;
        }
        let events = rest.get(..raw.used.get().into())?.to_vec();
        Some(Self { sequence: raw.sequence.get(), events })
    }

    /// The page with one event more; `None`: it has no room in `len` bytes.
    #[must_use]
    pub fn with(&self, event: &Event, len: usize) -> Option<Self> {
        let mut events = self.events.clone();
        event.encode(&mut events);
        let fits = Self::HEAD + events.len() <= len;
        fits.then_some(Self { sequence: self.sequence, events })
    }

    /// The page in `len` bytes.
    ///
    /// # Panics
    /// It does not fit: [`HistoryPage::with`] was told another length.
    pub fn encode(&self, pool: [u8; 16], len: usize) -> Vec<u8> {
        let raw = RawHistoryPage {
            magic: Self::MAGIC.into(),
            crc: 0.into(),
            pool_uuid: pool,
            sequence: self.sequence.into(),
            used: u16::try_from(self.events.len()).unwrap_or(0).into(),
            reserved: [0; 6],
        };
        let mut bytes = [raw.as_bytes(), &self.events].concat();
        assert!(bytes.len() <= len, "a page has no room for its events");
        bytes.resize(len, 0);
        let crc = crc32c_with_hole(&bytes, Self::CRC_AT).to_le_bytes();
        bytes.iter_mut().skip(Self::CRC_AT).zip(crc).for_each(|(to, byte)| *to = byte);
        bytes
    }

    /// Its events that this version knows, in the order in which they were written.
    pub fn events(&self) -> Vec<Event> {
        let (mut all, mut rest) = (Vec::new(), &self.events[..]);
        while let Some((event, behind)) = Event::decode(rest) {
            all.extend(event);
            rest = behind;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64, text: &str) -> Event {
        let (slot, user, host) = (Some(NodeId(3)), Some(1000), "host".to_owned());
        Event {
            time: 1_700_000_000_000,
            id,
            kind: EventKind::Member,
            slot,
            user,
            host,
            text: text.into(),
        }
    }

    #[test]
    fn a_page_gives_back_its_events_and_takes_no_more_than_it_has_room_for() {
        for len in [512, 4096] {
            let mut page = HistoryPage::new(7);
            let mut kept = Vec::new();
            for id in 0.. {
                let event = event(id, "member 1 (/dev/sdb) has failed");
                let Some(more) = page.with(&event, len) else { break };
                page = more;
                kept.push(event);
            }
            assert!(kept.len() >= len / 128, "{}", kept.len());
            let bytes = page.encode([5; 16], len);
            assert_eq!(bytes.len(), len);
            let back = HistoryPage::decode(&bytes, [5; 16]).expect("it is whole");
            assert_eq!((back.events(), back.sequence), (kept, 7));
            assert_eq!(HistoryPage::decode(&bytes, [6; 16]), None);
            for at in [0, 4, 39, 60, len - 1] {
                let mut torn = bytes.clone();
                torn[at] ^= 1;
                assert_eq!(HistoryPage::decode(&torn, [5; 16]), None, "byte {at}");
            }
        }
    }

    /// The longest event fits into the smallest page, and is cut between characters.
    #[test]
    fn long_texts_are_cut() {
        let mut long = event(1, &"ä".repeat(200));
        long.host = "h".repeat(100);
        let page = HistoryPage::new(1).with(&long, 512).expect("it fits");
        let back = page.events();
        assert_eq!((back[0].text.chars().count(), back[0].host.len()), (120, 64));
    }

    /// Whoever writes hostile bytes with a right checksum gets no panic.
    #[test]
    fn bytes_that_are_no_events_end_the_page() {
        let page = HistoryPage { sequence: 1, events: vec![0xff; 100] };
        assert_eq!(page.events(), []);
        let bytes = page.encode([1; 16], 512);
        assert!(HistoryPage::decode(&bytes, [1; 16]).is_some());
        assert_eq!(HistoryPage::decode(&[], [1; 16]), None);
    }

    #[test]
    fn the_ring_lies_between_the_claim_and_the_event_counts() {
        use crate::redundancy::{RawClaim, RawEventCount};
        assert_eq!(RawClaim::AT, ByteOffset(196_608));
        assert_eq!(HistoryPage::AT.0, RawClaim::AT.0 + 4096);
        assert_eq!(HistoryPage::AT.0 + HistoryPage::LEN.0, RawEventCount::AT.0);
    }

    /// Programs read these words.
    #[test]
    fn every_kind_has_its_word() {
        let words =
            ["command", "mount", "unmount", "recovery", "withdrawn", "member", "scrub", "pool"];
        assert_eq!(EventKind::ALL.map(EventKind::word), words);
    }
}

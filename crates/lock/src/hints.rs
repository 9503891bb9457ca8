//! Messages between nodes about locks ([`Hint`]). For speed only: any of them may be lost, doubled or late. Most say
//! "look at this lock" and may be forged, too: the receiver looks at the record, nothing more. [`Hint::Give`] is
//! believed: over TCP only who can read the slots can say it, on Unix sockets only processes of the same user, and both
//! may as well write the devices.
//!
//! They travel by datagrams over Unix sockets among the nodes of one host ([`unix`]), and by TCP,
//! sealed, between hosts ([`tcp`]). If neither reaches a node, it hears of wanted locks by the
//! heartbeats (`node/member/mail.rs`). A slot says where its node hears them: `unix:PATH`, `tcp:ADDRESS:PORT`, or
//! both with a space between.
//!
//! A message is 168 bytes: "BRHT", version (`u16`), kind (`u16`: 1 wanted, 3 granted, 5 ask, 6 give), sender's slot
//! (`u16`), mode (`u16`: of a wish or an ask; 1 shared, 2 exclusive, 3 concurrent), sender's incarnation, receiver's
//! incarnation (`u32`), 4 bytes 0, lock number, ticket (`u64`), and for a give the first 128 bytes of the record as in a
//! sector of 4,096; all little-endian. Anything else is ignored.

mod seal;
pub mod tcp;
pub mod unix;

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

use braid_format::lock_record::LockRecord;
use braid_format::node::SlotRecord;
use braid_format::{Incarnation, LockNo, NodeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::dlock::Hint;
use crate::{Life, Mode};

pub use tcp::TcpHints;
pub use unix::{HintSocket, sweep};

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHint {
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
const HINT: usize = size_of::<RawHint>();
const _: () = assert!(HINT == 168);
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
fn encode(from: Life, to: Life, lock: LockNo, hint: &Hint) -> RawHint {
    let (kind, mode, ticket, record) = match hint {
        Hint::Wanted(mode) => (WANTED, *mode, 0, None),
        Hint::Granted => (GRANTED, Mode::Unlocked, 0, None),
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

fn decode(bytes: &[u8], me: Life) -> Option<Received> {
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

/// Threads that receive hints by one way, each of which does what a message calls for; one is always left to receive.
pub(crate) const RECEIVERS: usize = 3;

/// By which way one node tells another which locks it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageWay {
    /// A socket of their host.
    Unix,
    /// A TCP connection, which stands.
    Tcp,
    /// One that has not been made yet, or was given up after a node had left.
    TcpUnused,
    /// TCP, but the other node was not reached: it learns of wanted locks from the devices, which is slower.
    TcpFails,
    /// None: it learns of wanted locks from the devices, which is slower.
    Devices,
}

impl MessageWay {
    /// For people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::TcpUnused => "tcp, unused",
            Self::TcpFails => "tcp fails",
            Self::Devices => "devices",
        }
    }
}

/// By which ways a node hears hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HintsBy {
    /// By none: whatever is wanted of it stands in the others' heartbeats.
    None,
    /// From nodes of its host.
    #[default]
    Unix,
    /// From those, and from other hosts at this address of its own; port 0: the first of
    /// [`TcpHints::PORTS`] that is free, or any.
    Tcp(SocketAddr),
    /// The same, but without it where that address cannot be had.
    MaybeTcp(IpAddr),
}

impl HintsBy {
    /// What suits a node that reaches its devices through these portals (`HOST:PORT`): the address by which
    /// it reaches the first of them that is not on this host. If all are on this host, that is an address of
    /// the loopback: no port is opened to the network that nobody asked for.
    pub fn beside<'a>(portals: impl IntoIterator<Item = &'a str>) -> Self {
        let found: Vec<IpAddr> = portals.into_iter().filter_map(own_address).collect();
        let first = found.iter().find(|ip| !ip.is_loopback()).or(found.first());
        first.copied().map_or(Self::Unix, Self::MaybeTcp)
    }
}

/// The address that packets to `portal` carry. None is sent.
fn own_address(portal: &str) -> Option<IpAddr> {
    let own = |to: SocketAddr| -> io::Result<IpAddr> {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        Ok(socket.local_addr()?.ip())
    };
    let found = portal.to_socket_addrs().ok()?.find_map(|to| own(to).ok())?;
    // An address of a link says nothing without the link.
    let link = matches!(found, IpAddr::V6(v6) if v6.is_unicast_link_local());
    (!found.is_unspecified() && !link).then_some(found)
}

/// A node's ends of all ways.
#[derive(Debug)]
pub struct Hints {
    boot_id: [u8; 16],
    unix: Option<HintSocket>,
    tcp: Option<Arc<TcpHints>>,
}

impl Hints {
    /// Room in the slot record.
    const ADDRESS_MAX: usize = 128;

    /// Those of `me` of file system `fs`, which its slot will tell others of: `identity` is its
    /// `node_uuid`, `boot_id` its host's.
    ///
    /// # Errors
    /// The system's, with the way that failed.
    pub fn bind(
        fs: uuid::Uuid,
        me: Life,
        identity: [u8; 16],
        boot_id: [u8; 16],
        by: HintsBy,
    ) -> Result<Self, (&'static str, io::Error)> {
        let unix = match by {
            HintsBy::None => None,
            _ => Some(HintSocket::bind(fs, me).map_err(|e| ("cannot make the hint socket", e))?),
        };
        let bind = |at| TcpHints::bind(fs, me, identity, at).map(Arc::new);
        let tcp = match by {
            HintsBy::None | HintsBy::Unix => None,
            HintsBy::Tcp(at) => Some(bind(at).map_err(|e| ("cannot hear hints by TCP", e))?),
            HintsBy::MaybeTcp(ip) => match bind(SocketAddr::new(ip, 0)) {
                Ok(tcp) => Some(tcp),
                Err(e) => {
                    tracing::warn!("no hints by TCP ({ip}): {e}");
                    None
                }
            },
        };
        Ok(Self { boot_id, unix, tcp })
    }
    /// What the slot says.
    pub fn address(&self) -> String {
        let unix = self.unix.as_ref().map(|u| format!("{}{}", HintSocket::PREFIX, u.path()));
        let tcp = self.tcp.as_ref().map(|t| format!("{}{}", TcpHints::PREFIX, t.address()));
        match (unix, tcp) {
            (Some(unix), Some(tcp)) if unix.len() + 1 + tcp.len() <= Self::ADDRESS_MAX => {
                format!("{unix} {tcp}")
            }
            // Too long for both: TCP reaches everybody.
            (_, Some(tcp)) => tcp,
            (Some(unix), None) => unix,
            (None, None) => String::new(),
        }
    }
    /// Sends if that is possible at once; whether it is on its way. Never blocks.
    pub fn send(&self, to: &SlotRecord, lock: LockNo, hint: &Hint) -> bool {
        let (path, at) = ways(&to.address);
        if to.boot_id == self.boot_id
            && let (Some(unix), Some(path)) = (&self.unix, path)
            && unix.send(path, to.life, lock, hint)
        {
            return true;
        }
        match (&self.tcp, at) {
            (Some(tcp), Some(at)) => tcp.send(to, at, lock, hint),
            _ => false,
        }
    }
    /// By which way hints go to the node of this slot.
    pub fn way(&self, to: &SlotRecord) -> MessageWay {
        let (path, at) = ways(&to.address);
        if to.boot_id == self.boot_id && self.unix.is_some() && path.is_some() {
            return MessageWay::Unix;
        }
        match (&self.tcp, at) {
            (Some(tcp), Some(_)) => tcp.way(to.life),
            _ => MessageWay::Devices,
        }
    }
    /// Why hints go to the node of this slot through the devices; `None`: they do not.
    pub fn why_devices(&self, to: &SlotRecord) -> Option<&'static str> {
        (self.way(to) == MessageWay::Devices).then_some(match &self.tcp {
            None => "this node does not listen for messages of other hosts",
            Some(_) => "it does not listen for messages of other hosts",
        })
    }
    /// Whether hints of the node of this slot come, or would come.
    pub fn hears(&self, from: &SlotRecord) -> bool {
        let here = from.boot_id == self.boot_id && self.unix.is_some();
        (here && ways(&from.address).0.is_some())
            || self.tcp.as_ref().is_some_and(|tcp| tcp.hears(from.life))
    }
    /// The ways, each to be listened to by a thread of its own.
    pub fn unix(&self) -> Option<&HintSocket> {
        self.unix.as_ref()
    }
    /// See [`Self::unix`].
    pub fn tcp(&self) -> Option<&Arc<TcpHints>> {
        self.tcp.as_ref()
    }
    /// Ends those threads.
    pub fn close(&self) {
        if let Some(unix) = &self.unix {
            unix.close();
        }
        if let Some(tcp) = &self.tcp {
            tcp.close();
        }
    }
}

/// The path, and the TCP address, that a slot names.
fn ways(address: &str) -> (Option<&str>, Option<&str>) {
    let (rest, tcp) = match address.rsplit_once(TcpHints::PREFIX) {
        Some((rest, tcp)) if rest.is_empty() || rest.ends_with(' ') => (rest.trim_end(), Some(tcp)),
        _ => (address, None),
    };
    (rest.strip_prefix(HintSocket::PREFIX), tcp)
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
        for hint in wanted.chain([Hint::Granted, give]) {
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

    #[test]
    fn a_slot_names_one_way_or_two_or_none() {
        assert_eq!(ways(""), (None, None));
        assert_eq!(ways("unix:/run/a b"), (Some("/run/a b"), None));
        assert_eq!(ways("tcp:[::1]:7"), (None, Some("[::1]:7")));
        assert_eq!(ways("unix:/run/a b tcp:1.2.3.4:7"), (Some("/run/a b"), Some("1.2.3.4:7")));
        assert_eq!(ways("unix:/run/tcp:x"), (Some("/run/tcp:x"), None));
        assert_eq!(ways("what"), (None, None));
    }

    #[test]
    fn the_address_beside_a_portal_is_one_that_others_reach() {
        let here = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(HintsBy::beside(["no such name:1", "127.0.0.1:3260"]), HintsBy::MaybeTcp(here));
        assert_eq!(HintsBy::beside(["no such name:1"]), HintsBy::Unix);
        assert_eq!(HintsBy::beside([]), HintsBy::Unix);
    }
}

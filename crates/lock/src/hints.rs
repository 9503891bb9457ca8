//! Hints: short messages that say "look at this lock". For speed only: any of them may be lost,
//! doubled, late or forged; the receiver looks at the record, nothing more.
//!
//! They travel by datagrams over Unix sockets among the nodes of one host ([`unix`]), and by TCP,
//! sealed, between hosts ([`tcp`]). If neither reaches a node, it hears of wanted locks by the
//! heartbeats (`node/member/mail.rs`). A slot says where its node hears them: `unix:PATH`, `tcp:ADDRESS:PORT`, or
//! both with a space between.
//!
//! A message is 32 bytes: "BRHT", version (`u16`), kind (`u16`: 1 wanted shared, 2 wanted
//! exclusive, 3 granted, 4 wanted concurrent), sender's slot and incarnation, receiver's incarnation, lock number; all
//! little-endian. Anything else is ignored.

mod seal;
pub mod tcp;
pub mod unix;

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

use braid_format::node::SlotRecord;
use braid_format::{Incarnation, LockNo, NodeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::dlock::Hint;
use crate::{Me, Mode};

pub use tcp::TcpHints;
pub use unix::{HintSocket, sweep};

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHint {
    magic: U32,
    version: U16,
    kind: U16,
    from_slot: U16,
    reserved: U16,
    from_incarnation: U32,
    to_incarnation: U32,
    reserved2: U32,
    lock: U64,
}
const _: () = assert!(size_of::<RawHint>() == 32);

const MAGIC: u32 = u32::from_le_bytes(*b"BRHT");

/// A received hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Who says it sent it.
    pub from: Me,
    /// About which lock.
    pub lock: LockNo,
    /// What it says.
    pub hint: Hint,
}

fn encode(from: Me, to: Me, lock: LockNo, hint: Hint) -> RawHint {
    let kind = match hint {
        Hint::Wanted(Mode::Exclusive) => 2,
        Hint::Wanted(Mode::Concurrent) => 4,
        Hint::Wanted(_) => 1,
        Hint::Granted => 3,
    };
    RawHint {
        magic: U32::new(MAGIC),
        version: U16::new(1),
        kind: U16::new(kind),
        from_slot: U16::new(from.slot.0),
        reserved: U16::new(0),
        from_incarnation: U32::new(from.incarnation.0),
        to_incarnation: U32::new(to.incarnation.0),
        reserved2: U32::new(0),
        lock: U64::new(lock.0),
    }
}

fn decode(bytes: &[u8], me: Me) -> Option<Received> {
    let raw = RawHint::read_from_bytes(bytes).ok()?;
    if raw.magic.get() != MAGIC
        || raw.version.get() != 1
        || raw.to_incarnation.get() != me.incarnation.0
    {
        return None;
    }
    let hint = match raw.kind.get() {
        1 => Hint::Wanted(Mode::Shared),
        2 => Hint::Wanted(Mode::Exclusive),
        3 => Hint::Granted,
        4 => Hint::Wanted(Mode::Concurrent),
        _ => return None,
    };
    let from = Me {
        slot: NodeId(raw.from_slot.get()),
        incarnation: Incarnation(raw.from_incarnation.get()),
    };
    Some(Received { from, lock: LockNo(raw.lock.get()), hint })
}

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
    /// What suits who reaches its devices through these portals (`HOST:PORT`): the address by which
    /// it reaches the first of them that is not on this host.
    pub fn beside<'a>(portals: impl IntoIterator<Item = &'a str>) -> Self {
        portals.into_iter().find_map(own_address).map_or(Self::Unix, Self::MaybeTcp)
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
    // Of no use to other hosts, and an address of a link says nothing without the link.
    let elsewhere = !found.is_loopback() && !found.is_unspecified();
    let link = matches!(found, IpAddr::V6(v6) if v6.is_unicast_link_local());
    (elsewhere && !link).then_some(found)
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
        me: Me,
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
    pub fn send(&self, to: &SlotRecord, lock: LockNo, hint: Hint) -> bool {
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
    use super::*;

    fn me(slot: u16) -> Me {
        Me { slot: NodeId(slot), incarnation: Incarnation(3) }
    }

    #[test]
    fn every_kind_travels() {
        let wanted = [Mode::Shared, Mode::Exclusive, Mode::Concurrent].map(Hint::Wanted);
        for hint in wanted.into_iter().chain([Hint::Granted]) {
            let raw = encode(me(1), me(2), LockNo(99), hint);
            let expected = Received { from: me(1), lock: LockNo(99), hint };
            assert_eq!(decode(raw.as_bytes(), me(2)), Some(expected));
        }
    }

    #[test]
    fn short_foreign_and_misdirected_datagrams_are_ignored() {
        let raw = encode(me(1), me(2), LockNo(99), Hint::Granted);
        for len in 0..32 {
            assert_eq!(decode(&raw.as_bytes()[..len], me(2)), None);
        }
        let mut long = raw.as_bytes().to_vec();
        long.push(0);
        assert_eq!(decode(&long, me(2)), None);
        for (at, value) in [(0, b'X'), (4, 9), (6, 0), (6, 5), (16, 1)] {
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
        assert_eq!(HintsBy::beside(["127.0.0.1:3260", "no such name:1"]), HintsBy::Unix);
        assert_eq!(HintsBy::beside(["[::1]:3260"]), HintsBy::Unix);
        assert_eq!(HintsBy::beside([]), HintsBy::Unix);
    }
}

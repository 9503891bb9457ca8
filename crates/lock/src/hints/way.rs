//! By which ways messages go to another node, and by which a node hears them.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The threads that receive hints by one way, each of which does what a message calls for. Counts those that do.
#[derive(Debug, Default)]
pub(crate) struct Receivers(AtomicUsize);

impl Receivers {
    /// How many there are.
    pub const THREADS: usize = 3;

    /// One of them does `work`, which gets whether it may wait: one thread is always left to receive.
    pub fn busy_with(&self, work: impl FnOnce(bool)) {
        let may_wait = self.0.fetch_add(1, Ordering::AcqRel) + 1 < Self::THREADS;
        work(may_wait);
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
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
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Unix, Self::Tcp, Self::TcpUnused, Self::TcpFails, Self::Devices];

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
    /// [`super::TcpHints::PORTS`] that is free, or any.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_receiver_is_always_left() {
        let all = Receivers::default();
        all.busy_with(|first| {
            all.busy_with(|second| {
                all.busy_with(|third| assert_eq!((first, second, third), (true, true, false)));
            });
        });
        all.busy_with(|again| assert!(again));
    }

    #[test]
    fn the_address_beside_a_portal_is_one_that_others_reach() {
        let here = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(HintsBy::beside(["no such name:1", "127.0.0.1:3260"]), HintsBy::MaybeTcp(here));
        assert_eq!(HintsBy::beside(["no such name:1"]), HintsBy::Unix);
        assert_eq!(HintsBy::beside([]), HintsBy::Unix);
    }
}

//! Messages between nodes about locks ([`Hint`]). For speed only: any of them may be lost, doubled or late. Most say
//! "look at this lock" and may be forged, too: the receiver looks at the record, nothing more. [`Hint::Give`] is
//! believed: over TCP only who can read the slots can say it, on Unix sockets only processes of the same user, and both
//! may as well write the devices.
//!
//! They travel by datagrams over Unix sockets among the nodes of one host ([`unix`]), and by TCP,
//! sealed, between hosts ([`tcp`]). If neither reaches a node, it learns which locks others want from
//! their heartbeats (`node/member/messages.rs`). A slot says where its node listens: `unix:PATH`,
//! `tcp:ADDRESS:PORT`, or both with a space between.
//!
//! Parts, bottom up:
//! ```text
//!  message, way  a message as it travels; by which ways, to whom
//!  seal          what makes a message by TCP one of a node of this file system
//!  unix, tcp     the two ways
//! ```

mod message;
mod seal;
pub mod tcp;
pub mod unix;
mod way;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use braid_format::LockNo;
use braid_format::node::SlotRecord;

use crate::Life;
use crate::dlock::Hint;

pub use message::Received;
pub(crate) use message::TOGETHER_MAX;
pub use tcp::TcpHints;
pub use unix::{HintSocket, sweep};
pub(crate) use way::Receivers;
pub use way::{HintsBy, MessageWay};

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
            && unix.send(path, to.life, &[(lock, hint.clone())])
        {
            return true;
        }
        match (&self.tcp, at) {
            (Some(tcp), Some(at)) => tcp.send(to, at, lock, hint),
            _ => false,
        }
    }
    /// As [`Self::send`]: several that the receiver takes together where that saves it work.
    pub fn send_together(&self, to: &SlotRecord, hints: &[(LockNo, Hint)]) {
        let (path, _) = ways(&to.address);
        for some in hints.chunks(TOGETHER_MAX) {
            if to.boot_id == self.boot_id
                && let (Some(unix), Some(path)) = (&self.unix, path)
                && unix.send(path, to.life, some)
            {
                continue;
            }
            for (lock, hint) in some {
                self.send(to, *lock, hint);
            }
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
    /// Whether messages go both ways between this node and that of the slot, or would: nothing says that they do not.
    pub fn joins(&self, other: &SlotRecord) -> bool {
        let way = self.way(other);
        !matches!(way, MessageWay::Devices | MessageWay::TcpFails)
            && (way == MessageWay::TcpUnused || self.hears(other))
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

    #[test]
    fn a_slot_names_one_way_or_two_or_none() {
        assert_eq!(ways(""), (None, None));
        assert_eq!(ways("unix:/run/a b"), (Some("/run/a b"), None));
        assert_eq!(ways("tcp:[::1]:7"), (None, Some("[::1]:7")));
        assert_eq!(ways("unix:/run/a b tcp:1.2.3.4:7"), (Some("/run/a b"), Some("1.2.3.4:7")));
        assert_eq!(ways("unix:/run/tcp:x"), (Some("/run/tcp:x"), None));
        assert_eq!(ways("what"), (None, None));
    }
}

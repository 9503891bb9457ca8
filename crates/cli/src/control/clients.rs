//! The clients of a server: the answer to [`Order::Clients`](crate::control::Order::Clients).

use anyhow::{Context, Result};
use braid_bulk::server;
use braid_format::text;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::requests::ProgramsIo;
use crate::control::Node;

/// A client.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ClientView {
    /// Of its session, as the server counts them.
    pub number: u64,
    /// Its certificate's name and, in brackets, what it calls itself.
    pub name: String,
    /// Where it has come from.
    pub address: Option<String>,
    /// It may only read.
    pub read_only: bool,
    /// Seconds since its session began.
    pub age_s: f64,
    /// Connections now. None: the network is gone, or the client is.
    pub connections: usize,
    /// Files that it has open.
    pub open_files: usize,
    /// Files that its programs have locked, each as often as programs have.
    pub locks: usize,
    /// Its programs' waits for locks.
    pub lock_waits: usize,
    /// Inodes of which it may keep something.
    pub leases: usize,
    /// Requests that came once more, since their replies were lost.
    pub repeated: u64,
    /// What it asked for, but for questions that wait for an event.
    pub requests: ProgramsIo,
}

/// What clients may keep.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LeasesView {
    /// Leases that clients have.
    pub held: usize,
    /// Leases that were given.
    pub granted: u64,
    /// Leases that were recalled.
    pub recalled: u64,
    /// How often a client was late to carry out a recall.
    pub late: u64,
}

/// A server.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ServiceView {
    /// When this was so, in nanoseconds since it began.
    pub at_ns: u64,
    /// Its clients, by their names.
    pub clients: Vec<ClientView>,
    /// What they may keep.
    pub leases: LeasesView,
}

fn view(client: &server::ClientView) -> ClientView {
    ClientView {
        requests: ProgramsIo::of_clients(&client.counts),
        number: client.number,
        name: client.name.replace(|c| !text::shows(c), "?"),
        address: client.address.map(|address| address.to_string()),
        read_only: client.read_only,
        age_s: client.age.as_secs_f64(),
        connections: client.connections,
        open_files: client.open_files,
        locks: client.locks,
        lock_waits: client.lock_waits,
        leases: client.leases,
        repeated: client.counts.repeated,
    }
}

/// The answer of a node.
///
/// # Errors
/// It serves no clients.
pub fn answer(node: &Node) -> Result<ServiceView> {
    let service = node.service.as_ref().context("this node is mounted, and serves no clients")?;
    let leases = service.leases();
    Ok(ServiceView {
        at_ns: u64::try_from(node.begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
        clients: service.clients().iter().map(view).collect(),
        leases: LeasesView {
            held: leases.held,
            granted: leases.granted,
            recalled: leases.recalled,
            late: leases.late,
        },
    })
}

impl ClientView {
    /// Who it is, and what is to be known of it.
    pub fn said(&self) -> String {
        let mut said = self.name.clone();
        if self.read_only {
            said.push_str(", read only");
        }
        if self.connections == 0 {
            said.push_str(", GONE");
        }
        said
    }
    /// How long ago its session began, as `1h 2m 3s`.
    #[expect(clippy::cast_possible_truncation, reason = "for people")]
    pub fn age(&self) -> String {
        format!("{:#}", SignedDuration::from_secs(self.age_s as i64))
    }
}

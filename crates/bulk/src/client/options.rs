//! Which servers a client uses, and how.

use std::sync::Arc;
use std::time::Duration;

use crate::tls::Identity;
use crate::wire::VERSION;

/// Port of the bulk service.
pub const PORT: u16 = 7420;

/// Which servers a client uses, and how.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Names or addresses of servers of the pool, at least one, each with a port: `host:port`, `[address]:port`. One is
    /// used at a time; if it is dead, another.
    pub servers: Vec<String>,
    /// The pool that they serve.
    pub pool: String,
    /// Who this is, for servers with TLS. `None`: plain TCP.
    pub identity: Option<Arc<Identity>>,
    /// For people: who this is.
    pub name: String,
    /// Connections for data, besides the one for everything else.
    pub connections: u16,
    /// Servers that do not answer are tried for so long.
    pub patience: Duration,
    /// The oldest version of the protocol that is enough. It is spoken with servers that do not know
    /// [`NEWEST_VERSION`](crate::wire::NEWEST_VERSION).
    pub version: u32,
}

impl ClientOptions {
    /// The usual ones, with one server, without TLS.
    pub fn new(server: &str, pool: &str) -> Self {
        Self {
            servers: vec![server.to_owned()],
            pool: pool.to_owned(),
            identity: None,
            name: String::new(),
            connections: 8,
            patience: Duration::from_mins(1),
            version: VERSION,
        }
    }
    /// The servers, for people.
    pub fn named(&self) -> String {
        self.servers.join(", ")
    }
}

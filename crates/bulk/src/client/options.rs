//! Which server a client uses, and how.

use std::sync::Arc;
use std::time::Duration;

use crate::tls::Identity;
use crate::wire::VERSION;

/// Port of the bulk service.
pub const PORT: u16 = 7420;

/// Which server a client uses, and how.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Name or address of the server, with a port: `host:port`, `[address]:port`.
    pub server: String,
    /// The pool that it serves.
    pub pool: String,
    /// Who this is, for a server with TLS. `None`: plain TCP.
    pub identity: Option<Arc<Identity>>,
    /// For people: who this is.
    pub name: String,
    /// Connections for data, besides the one for everything else.
    pub connections: u16,
    /// A server that does not answer is tried for so long.
    pub patience: Duration,
    /// Version of the protocol that is spoken.
    pub version: u32,
}

impl ClientOptions {
    /// The usual ones, without TLS.
    pub fn new(server: &str, pool: &str) -> Self {
        Self {
            server: server.to_owned(),
            pool: pool.to_owned(),
            identity: None,
            name: String::new(),
            connections: 8,
            patience: Duration::from_mins(1),
            version: VERSION,
        }
    }
}

//! How a file system is served.

use std::sync::Arc;
use std::time::Duration;

use super::id_map::IdMap;
use crate::tls::ServerTls;

/// Whose word of a client counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Squash {
    /// Each user's: root of a client is root of the pool.
    #[default]
    None,
    /// Root of a client, and whoever copies files, acts as the server's owner.
    Root,
    /// Everybody does.
    All,
}

/// Bounds of a server, and who its clients are.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The pool's name; clients name it, too.
    pub pool: String,
    /// Owner and group of what is copied; with `squash` those as whom others act.
    pub owner: (u32, u32),
    /// Whose word of a client counts.
    pub squash: Squash,
    /// Users and groups that have other numbers at clients.
    pub ids: IdMap,
    /// Who may be a client. `None`: plain TCP, and whoever reaches the port.
    pub tls: Option<Arc<ServerTls>>,
    /// Connections at a time.
    pub connections_max: usize,
    /// Connections at a time from one address.
    pub connections_from_one: usize,
    /// Clients at a time; a quarter of them by certificates of one name, or, without certificates, half of them from
    /// one address.
    pub sessions_max: usize,
    /// Connections of a client.
    pub slots: u16,
    /// Files that a client has open at a time; half of them a user of it who is not root.
    pub files_max: usize,
    /// Most bytes of data in a message. A connection takes so much memory.
    pub data_max: usize,
    /// When the server begins, only locks that clients had are granted for so long.
    pub grace: Duration,
    /// A client without a connection is forgotten after so long; a connection without a request ends.
    pub session_time: Duration,
}

impl ServerOptions {
    /// The usual bounds, without TLS.
    pub fn new(pool: &str) -> Self {
        Self {
            pool: pool.to_owned(),
            owner: (0, 0),
            squash: Squash::None,
            ids: IdMap::default(),
            tls: None,
            connections_max: 256,
            connections_from_one: 128,
            sessions_max: 64,
            slots: 32,
            files_max: 1 << 16,
            data_max: 1 << 20,
            grace: Duration::from_secs(6),
            session_time: Duration::from_secs(30),
        }
    }
}

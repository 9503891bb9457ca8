//! The node of this process, with what was counted of its requests.

use std::sync::Arc;
use std::time::Instant;

use braid_bulk::server::Observer;
use braid_fs::Fs;
use braid_fuse::RequestCounters;

/// A node of this host: mounted, or serving clients.
#[derive(Clone)]
pub struct Node {
    /// Its file system.
    pub fs: Fs,
    /// Requests of programs, which came by way of the kernel.
    pub requests: Arc<RequestCounters>,
    /// When it was mounted.
    pub begun: Instant,
    /// Clients, if it is a server.
    pub service: Option<Observer<Fs>>,
}

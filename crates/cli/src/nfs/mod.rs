//! NFS exports of a mount: NFS-Ganesha (Debian's packages nfs-ganesha and nfs-ganesha-vfs) serves it, and a
//! process of this program supervises the server.
//!
//! ```text
//!  braid export ──starts──> supervisor ──starts──> ganesha.nfsd ──opens by handle──> the mount
//!       │                    │  ▲ note, socket          │
//!       └──orders (JSON)─────┘  └── braid export --list  └── recovery state in the pool: .braid-nfs/NAME
//! ```
//!
//! Each mount has one server at most, whatever is exported of it. The supervisor starts the server again if
//! it ends, and ends it at once if the mount goes away. The server is killed if the supervisor dies.

mod config;
mod export;
mod ganesha;
pub mod list;
mod orders;
mod ports;
mod recovery;
mod restarts;
mod rpc;
mod supervise;

pub use export::{Export, Security, Server, Squash, check_client, is_plain};
pub use ganesha::find;
pub use orders::{Order, State, View};
pub use ports::{check_free, free as free_port};
pub use supervise::{Begin, run};

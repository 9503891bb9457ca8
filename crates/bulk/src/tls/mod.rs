//! TLS 1.3 with certificates on both sides. docs/BULK.md section 7 says what is promised.
//!
//! Each pool has an authority of its own that nobody else trusts. So a server proves by its certificate that it serves
//! the pool, whatever its address, and a client who it is: its name, and whether it may change anything, stand in it.

mod certificates;
mod channel;
mod folder;
mod identity;
mod server;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

pub use certificates::{Peer, Validity, check_name};
pub use channel::{Channel, Got};
pub use folder::{Client, Folder, write_secret};
pub use identity::{Identity, Role};
pub use server::ServerTls;

/// What both sides speak inside TLS (ALPN).
pub const ALPN: &[u8] = b"braid-bulk/1";

/// What keys and records are made with.
fn provider() -> Arc<CryptoProvider> {
    // The first one both know is taken. 128 bits are as safe here, and a quarter faster.
    let cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

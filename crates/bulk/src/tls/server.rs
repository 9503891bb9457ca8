//! What a server knows of its clients: the authority that they are of, and who is revoked.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use super::certificates::{self, Peer};
use super::folder::{Folder, Written};
use super::{ALPN, provider};
use crate::error::CertificateError;

/// A server's certificate, and who may be its client.
#[derive(Debug)]
pub struct ServerTls {
    folder: Folder,
    config: Arc<ServerConfig>,
    /// Numbers of certificates that count no more, and which state of the list that is.
    revoked: Mutex<(HashSet<String>, Option<Written>)>,
}

impl ServerTls {
    /// From a folder.
    ///
    /// # Errors
    /// Files cannot be read or do not fit; the server's certificate is not valid any more.
    pub fn open(folder: Folder) -> Result<Self, CertificateError> {
        let own = folder.server()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        own.check(now)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(own.roots()?, provider());
        let verifier = verifier.build().map_err(|e| rustls::Error::General(e.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![own.pair.certificate.clone()], own.pair.private())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Each connection shows its certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let revoked = Mutex::new((folder.revoked()?, folder.changed()));
        Ok(Self { folder, config: Arc::new(config), revoked })
    }

    /// How connections are taken.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Who shows this certificate. `None`: it is no client's.
    pub fn peer(&self, certificate: &CertificateDer<'_>) -> Option<Peer> {
        certificates::peer(certificate)
    }

    /// Whether a certificate counts no more, by the list as it is now.
    pub fn is_revoked(&self, peer: &Peer) -> bool {
        self.look();
        self.revoked.lock().0.contains(&peer.serial)
    }

    /// Reads the list of clients if it has changed. Whether it has.
    pub fn look(&self) -> bool {
        let changed = self.folder.changed();
        if self.revoked.lock().1 == changed {
            return false;
        }
        match self.folder.revoked() {
            Ok(list) => {
                // Whoever is revoked stays so, also if the folder is another one now.
                let mut revoked = self.revoked.lock();
                revoked.0.extend(list);
                revoked.1 = changed;
                true
            }
            Err(error) => {
                // The former list counts; it is said once for each change.
                tracing::error!(%error, "the list of clients cannot be read: who was revoked since is let in");
                self.revoked.lock().1 = changed;
                false
            }
        }
    }

    /// Notes that a client has come.
    pub fn seen(&self, peer: &Peer) {
        if let Err(error) = self.folder.note_seen(&peer.serial) {
            tracing::debug!(%error, client = peer.name, "when it was seen is not noted");
        }
    }
}

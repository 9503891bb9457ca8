//! What a client, or a further server, is given: its certificate and key, and the authority that it trusts.
//!
//! As a file it is TOML with certificates as PEM; as a token, the same bytes in one line of base64 (for URLs, without
//! padding). Both are secret.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::certificates::{self, Pair, Peer};
use super::{ALPN, provider};
use crate::error::{CertificateError, moment};

/// Longest text of an identity.
const TEXT_MAX: usize = 64 << 10;
/// Of the file, for whoever opens it.
const TITLE: &str =
    "# An identity of braid's bulk service. Whoever has it can use it: keep it secret.\n";

/// What an identity is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// For `braid cp`.
    Client,
    /// For `braid serve` on a further host.
    Server,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    role: Role,
    pool: String,
    #[serde(with = "uuid_text")]
    uuid: Uuid,
    name: String,
    servers: Vec<String>,
    authority: String,
    certificate: String,
    key: String,
}

/// The pool's number as text.
pub mod uuid_text {
    use super::Uuid;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes it.
    pub fn serialize<S: Serializer>(uuid: &Uuid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(uuid)
    }
    /// Reads it.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Uuid, D::Error> {
        Uuid::parse_str(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A certificate with its key, and what it is for.
#[derive(Clone)]
pub struct Identity {
    /// What it is for.
    pub role: Role,
    /// The pool's name when it was made.
    pub pool: String,
    /// The pool.
    pub uuid: Uuid,
    /// Its own name.
    pub name: String,
    /// Servers of the pool, `HOST:PORT`.
    pub servers: Vec<String>,
    /// The pool's authority.
    pub(super) authority: CertificateDer<'static>,
    pub(super) pair: Pair,
}

impl std::fmt::Debug for Identity {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({:?} {} of {})", self.role, self.name, self.pool)
    }
}

/// A certificate or a key as PEM.
pub fn pem(label: &str, bytes: &[u8]) -> String {
    const LINE: usize = 64;
    let text = STANDARD.encode(bytes);
    let mut out = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(LINE) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    writeln!(out, "-----END {label}-----").ok();
    out
}

/// Label of a certificate, and of a key.
pub const LABELS: (&str, &str) = ("CERTIFICATE", "PRIVATE KEY");

impl Identity {
    /// The text of a file.
    ///
    /// # Panics
    /// Never: it can be written as TOML.
    pub fn to_text(&self) -> String {
        let text = Text {
            role: self.role,
            pool: self.pool.clone(),
            uuid: self.uuid,
            name: self.name.clone(),
            servers: self.servers.clone(),
            authority: pem(LABELS.0, &self.authority),
            certificate: pem(LABELS.0, &self.pair.certificate),
            key: pem(LABELS.1, self.pair.key.secret_pkcs8_der()),
        };
        let text = toml::to_string(&text).expect("strings only");
        format!("{TITLE}{text}")
    }

    /// One line.
    pub fn to_token(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.to_text())
    }

    /// Whether a word is a token, and no path: it may be damaged.
    pub fn is_token(word: &str) -> bool {
        let good = |b: u8| b.is_ascii_alphanumeric() || b"_-".contains(&b);
        word.len() > 512 && word.bytes().all(good)
    }

    /// From a file's text or a token.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, CertificateError> {
        let bad = |why: &str| CertificateError::Identity { why: why.to_owned() };
        if text.len() > TEXT_MAX {
            return Err(bad("it is too long"));
        }
        let text = text.trim();
        let decoded: String;
        let text = if Self::is_token(text) {
            let bytes = URL_SAFE_NO_PAD.decode(text);
            let whole = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
            decoded = whole.ok_or_else(|| bad("the token was cut or changed"))?;
            &decoded
        } else {
            text
        };
        // The parser's message would show what it could not read, which is secret.
        let text: Text = toml::from_str(text).map_err(|_| {
            bad("neither what `braid serve invite` wrote nor the token that it printed")
        })?;
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes());
        let certificate = der(&text.certificate).map_err(|_| bad("its certificate is damaged"))?;
        let authority = der(&text.authority).map_err(|_| bad("its authority is damaged"))?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(text.key.as_bytes());
        let key = Arc::new(key.map_err(|_| bad("its key is damaged"))?);
        let pair = Pair { certificate, key };
        let Text { role, pool, uuid, name, servers, .. } = text;
        Ok(Self { role, pool, uuid, name, servers, authority, pair })
    }

    /// Who its certificate is for, if a client.
    pub fn peer(&self) -> Option<Peer> {
        certificates::peer(&self.pair.certificate)
    }

    /// Whether its certificate is its authority's, for this use, and valid at `now`.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, now: Duration) -> Result<(), CertificateError> {
        let damaged = |_| CertificateError::Identity { why: "its certificate is damaged".into() };
        let anchors = [anchor_from_trusted_cert(&self.authority).map_err(damaged)?];
        let own = EndEntityCert::try_from(&self.pair.certificate).map_err(damaged)?;
        let usage = match self.role {
            Role::Client => KeyUsage::client_auth(),
            Role::Server => KeyUsage::server_auth(),
        };
        let algorithms = provider().signature_verification_algorithms.all;
        let now = UnixTime::since_unix_epoch(now);
        let verified = own.verify_for_usage(algorithms, &anchors, &[], now, usage, None, None);
        let name = self.name.clone();
        match verified {
            Ok(_) => Ok(()),
            Err(webpki::Error::CertExpired { not_after, time }) => {
                let (until, now) = (moment(not_after.as_secs()), moment(time.as_secs()));
                let how = match self.role {
                    Role::Client => "invite",
                    Role::Server => "init --renew",
                };
                Err(CertificateError::Expired { name, until, now, how })
            }
            Err(webpki::Error::CertNotValidYet { not_before, time }) => {
                let (from, now) = (moment(not_before.as_secs()), moment(time.as_secs()));
                Err(CertificateError::Early { name, from, now })
            }
            Err(error) => {
                let why = format!("its certificate is not of its authority ({error})");
                Err(CertificateError::Identity { why })
            }
        }
    }

    /// Roots with the authority alone.
    pub(super) fn roots(&self) -> Result<Arc<RootCertStore>, CertificateError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone())?;
        Ok(Arc::new(roots))
    }

    /// How a client connects, and the name that the server must have.
    ///
    /// # Errors
    /// Certificate and key do not fit, or are for servers.
    pub fn client(&self) -> Result<(Arc<ClientConfig>, ServerName<'static>), CertificateError> {
        if self.role != Role::Client {
            let why = "it is for a server (`braid serve install`), not for a client".to_owned();
            return Err(CertificateError::Identity { why });
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(self.roots()?, provider());
        let verifier = verifier.build().map_err(|e| rustls::Error::General(e.to_string()))?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_webpki_verifier(verifier)
            .with_client_auth_cert(vec![self.pair.certificate.clone()], self.pair.private())?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Each connection shows its certificate.
        config.resumption = Resumption::disabled();
        let name = certificates::server_name(self.uuid);
        let name = ServerName::try_from(name)
            .map_err(|_| CertificateError::Identity { why: "its pool has no name".into() })?;
        Ok((Arc::new(config), name))
    }
}

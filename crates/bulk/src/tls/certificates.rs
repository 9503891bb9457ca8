//! What stands in certificates: makes them, and reads a peer's.
//!
//! ```text
//!  authority   CN "Braid bulk service UUID"; signs, no further authority below it
//!  server      DNS name UUID.bulk.internal, URI braid:server:NAME; for servers only
//!  client      URI braid:client:NAME:rw or :ro; for clients only
//! ```

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use uuid::Uuid;
use webpki::EndEntityCert;

use crate::error::CertificateError;

/// Clocks may differ by so much.
const SKEW: Duration = Duration::from_hours(24);
/// Longest name of a client or a server.
const NAME_MAX: usize = 64;

/// When a certificate is valid, seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// From then on.
    pub from: u64,
    /// Until then.
    pub until: u64,
}

impl Validity {
    /// From now on, and as clocks may differ a day before, for so many days.
    pub fn days(days: u32) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let until = now + Duration::from_hours(24) * days;
        Self { from: now.saturating_sub(SKEW).as_secs(), until: until.as_secs() }
    }
}

/// Who a certificate says that a client is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Number of the certificate, hexadecimal.
    pub serial: String,
    /// It may change nothing.
    pub read_only: bool,
}

/// Whether a client or a server may have this name: letters, digits, `.`, `_`, `-`.
///
/// # Errors
/// It may not.
pub fn check_name(name: &str) -> Result<(), CertificateError> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(good) && !name.starts_with('-') {
        Ok(())
    } else {
        Err(CertificateError::Name { name: name.to_owned() })
    }
}

/// The name by which all servers of a pool are known to their clients, whatever their addresses.
pub fn server_name(pool: Uuid) -> String {
    format!("{pool}.bulk.internal")
}

/// A certificate with its key.
#[derive(Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Its secret key, PKCS #8.
    pub key: Arc<PrivatePkcs8KeyDer<'static>>,
}

impl Pair {
    /// The key as rustls wants it.
    pub fn private(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone_key())
    }
    fn of(certificate: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self { certificate: certificate.der().clone(), key: Arc::new(key.serialize_der().into()) }
    }
}

fn params(validity: Validity, name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(validity.from);
    params.not_after = epoch + Duration::from_secs(validity.until);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from_slice(&serial()));
    params
}

/// A number that no other certificate has, above zero as the standard wants it.
fn serial() -> [u8; 16] {
    let mut serial = Uuid::new_v4().into_bytes();
    serial[0] = serial[0] & 0x3f | 0x40;
    serial
}

fn authority_params(pool: Uuid, validity: Validity) -> CertificateParams {
    let mut params = params(validity, &format!("Braid bulk service {pool}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn new_key() -> Result<KeyPair, CertificateError> {
    Ok(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
}

/// Makes a pool's authority.
///
/// # Errors
/// No random numbers.
pub fn authority(pool: Uuid, validity: Validity) -> Result<Pair, CertificateError> {
    let key = new_key()?;
    let certificate = authority_params(pool, validity).self_signed(&key)?;
    Ok(Pair::of(&certificate, &key))
}

fn signed(
    authority: (&Pair, Uuid),
    mut params: CertificateParams,
    (usage, uri): (ExtendedKeyUsagePurpose, &str),
) -> Result<(Pair, String), CertificateError> {
    let (pair, pool) = authority;
    let issuer = KeyPair::try_from(&*pair.key)?;
    // Its own certificate tells the rest; of these parameters only name and key matter.
    let issuer = Issuer::new(authority_params(pool, Validity::days(0)), issuer);
    let key = new_key()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    params.subject_alt_names.push(SanType::URI(Ia5String::try_from(uri)?));
    let number = params.serial_number.as_ref().map(SerialNumber::to_bytes).unwrap_or_default();
    let certificate = params.signed_by(&key, &issuer)?;
    Ok((Pair::of(&certificate, &key), hex(&number)))
}

/// Makes a server's certificate; its number, too.
///
/// # Errors
/// The name may not be, or no random numbers.
pub fn server(
    authority: (&Pair, Uuid),
    name: &str,
    validity: Validity,
) -> Result<(Pair, String), CertificateError> {
    check_name(name)?;
    let mut params = params(validity, name);
    let dns = Ia5String::try_from(server_name(authority.1))?;
    params.subject_alt_names.push(SanType::DnsName(dns));
    let uri = format!("braid:server:{name}");
    signed(authority, params, (ExtendedKeyUsagePurpose::ServerAuth, &uri))
}

/// Makes a client's certificate; its number, too.
///
/// # Errors
/// The name may not be, or no random numbers.
pub fn client(
    authority: (&Pair, Uuid),
    (name, read_only): (&str, bool),
    validity: Validity,
) -> Result<(Pair, String), CertificateError> {
    check_name(name)?;
    let access = if read_only { "ro" } else { "rw" };
    let uri = format!("braid:client:{name}:{access}");
    signed(authority, params(validity, name), (ExtendedKeyUsagePurpose::ClientAuth, &uri))
}

/// Hexadecimal digits of a number.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Who shows this certificate, which TLS has verified. `None`: it is no client's.
pub fn peer(certificate: &CertificateDer<'_>) -> Option<Peer> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let uri = certificate.valid_uri_names().find_map(|uri| uri.strip_prefix("braid:client:"))?;
    let (name, access) = uri.split_once(':')?;
    check_name(name).ok()?;
    let read_only = match access {
        "rw" => false,
        "ro" => true,
        _ => return None,
    };
    // The leading zero of a positive number does not count.
    let serial = certificate.serial();
    let serial = serial.strip_prefix(&[0]).unwrap_or(serial);
    Some(Peer { name: name.to_owned(), serial: hex(serial), read_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_says_who_its_client_is() {
        let (pool, validity) = (Uuid::new_v4(), Validity::days(2));
        let authority = authority(pool, validity).unwrap();
        for (name, read_only) in [("alice", false), ("backup-1.example_x", true)] {
            let (pair, serial) = client((&authority, pool), (name, read_only), validity).unwrap();
            let is = Peer { name: name.to_owned(), serial, read_only };
            assert_eq!(peer(&pair.certificate), Some(is));
        }
        let (pair, _) = server((&authority, pool), "one", validity).unwrap();
        assert_eq!(peer(&pair.certificate), None);
        assert_eq!(peer(&authority.certificate), None);
        for bad in ["", "-a", "a b", "a/b", "a:ro", "ä", &"n".repeat(65)] {
            assert!(client((&authority, pool), (bad, false), validity).is_err(), "{bad}");
        }
    }

    #[test]
    fn damaged_certificates_are_nobody() {
        let (pool, validity) = (Uuid::new_v4(), Validity::days(2));
        let authority = authority(pool, validity).unwrap();
        let (pair, _) = client((&authority, pool), ("alice", false), validity).unwrap();
        let bytes = pair.certificate.to_vec();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                peer(&CertificateDer::from(bytes));
            }
            peer(&CertificateDer::from(bytes[..at].to_vec()));
        }
    }
}

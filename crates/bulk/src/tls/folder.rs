//! The folder in which a server's host keeps certificates and keys: `/etc/braid/bulk/POOLUUID`.
//!
//! ```text
//!  pool.toml     the pool's name and number, this server's name, addresses of servers
//!  ca.crt        the pool's authority
//!  ca.key        its key; not on hosts that were given a certificate by another (`install`)
//!  server.crt, server.key
//!  clients.toml  who was invited, and who is revoked
//!  seen/SERIAL   changed when that client has come
//! ```
//!
//! The folder is its owner's alone (0700), and so is each file (0600). A file is replaced as a whole, and durably; the
//! folder is made under another name first. Whoever changes the list holds the folder's lock (flock(2)).

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, RenameFlags, flock, renameat_with};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::certificates::{self, Pair, Validity, check_name};
use super::identity::{Identity, LABELS, Role, pem, uuid_text};
use crate::error::CertificateError;

/// Days that an authority, and a server's certificate, is valid.
const AUTHORITY_DAYS: u32 = 20 * 365;
const SERVER_DAYS: u32 = 10 * 365;
/// What a new folder is made as, beside its place.
const NEW: &str = "new";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PoolFile {
    name: String,
    #[serde(with = "uuid_text")]
    uuid: Uuid,
    server: String,
    servers: Vec<String>,
}

/// Somebody who was invited.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Client {
    /// Its name.
    pub name: String,
    /// Number of its certificate, hexadecimal.
    pub serial: String,
    /// Client or server.
    pub role: Role,
    /// It may change nothing.
    pub read_only: bool,
    /// Valid from then on, seconds since 1970; 0: not known here.
    pub from: u64,
    /// Valid until then.
    pub until: u64,
    /// Revoked since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct ClientsFile {
    #[serde(default, rename = "client", skip_serializing_if = "Vec::is_empty")]
    clients: Vec<Client>,
}

/// Certificates of a pool's servers, and who its clients are.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
}

/// Tells one state of the list from another: each is a file of its own.
pub type Written = (u64, i64, i64);

type Result<T> = std::result::Result<T, CertificateError>;

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> CertificateError {
    let path = path.to_owned();
    |source| CertificateError::Io { path, source }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Makes what a directory holds durable.
fn sync(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed(dir))
}

/// Writes a file that its owner alone can read; an old one is replaced as a whole. It is durable on return.
///
/// # Errors
/// It cannot be written: what was there stays.
pub fn write_secret(path: &Path, text: &str) -> Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}", Uuid::new_v4().simple()));
    let part = PathBuf::from(part);
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().map_err(|error| {
        fs::remove_file(&part).ok();
        failed(path)(error)
    })?;
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => sync(dir),
        _ => sync(Path::new(".")),
    }
}

/// Whether an identity is a server's.
fn check_server(identity: &Identity) -> Result<()> {
    if identity.role != Role::Server {
        let why = "it is a client's (`braid cp --identity`), not a server's".to_owned();
        return Err(CertificateError::Identity { why });
    }
    Ok(())
}

impl Folder {
    /// The folder of the pool that `pool` names (by its name or number) among those in `base`.
    ///
    /// # Errors
    /// There is none, or several of that name.
    pub fn find(base: &Path, pool: &str) -> Result<Self> {
        let mut found = Vec::new();
        if let Ok(uuid) = Uuid::parse_str(pool) {
            return Self::of(base, uuid, pool);
        }
        for entry in fs::read_dir(base).into_iter().flatten().flatten() {
            let folder = Self { path: entry.path() };
            let is_folder = entry.file_name().to_str().is_some_and(|n| Uuid::parse_str(n).is_ok());
            if is_folder && folder.pool().is_ok_and(|file| file.name == pool) {
                found.push(folder);
            }
        }
        match found.len() {
            0 => Err(CertificateError::NoFolder { pool: pool.to_owned(), base: base.to_owned() }),
            1 => Ok(found.remove(0)),
            _ => Err(CertificateError::Several { pool: pool.to_owned(), base: base.to_owned() }),
        }
    }

    /// The folder of a pool.
    ///
    /// # Errors
    /// There is none.
    pub fn of(base: &Path, uuid: Uuid, pool: &str) -> Result<Self> {
        let path = base.join(uuid.to_string());
        if !path.join("pool.toml").exists() {
            let (pool, base) = (pool.to_owned(), base.to_owned());
            return Err(CertificateError::NoFolder { pool, base });
        }
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn pool(&self) -> Result<PoolFile> {
        self.toml("pool.toml")
    }

    fn toml<T: for<'a> Deserialize<'a>>(&self, name: &str) -> Result<T> {
        let path = self.path.join(name);
        let text = fs::read_to_string(&path).map_err(failed(&path))?;
        toml::from_str(&text).map_err(|e| CertificateError::Damaged { path, why: e.to_string() })
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        write_secret(&self.path.join(name), text)
    }

    fn put_pair(&self, name: &str, pair: &Pair) -> Result<()> {
        self.put(&format!("{name}.key"), &pem(LABELS.1, pair.key.secret_pkcs8_der()))?;
        self.put(&format!("{name}.crt"), &pem(LABELS.0, &pair.certificate))
    }

    fn certificate(&self, name: &str) -> Result<CertificateDer<'static>> {
        let path = self.path.join(format!("{name}.crt"));
        let bytes = fs::read(&path).map_err(failed(&path))?;
        let read = CertificateDer::from_pem_slice(&bytes);
        read.map_err(|e| CertificateError::Damaged { path, why: e.to_string() })
    }

    fn pair(&self, name: &str) -> Result<Pair> {
        let path = self.path.join(format!("{name}.key"));
        let bytes = fs::read(&path).map_err(failed(&path))?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(&bytes);
        let key = key.map_err(|e| CertificateError::Damaged { path, why: e.to_string() })?;
        Ok(Pair { certificate: self.certificate(name)?, key: Arc::new(key) })
    }

    fn authority(&self) -> Result<Pair> {
        if !self.path.join("ca.key").exists() {
            return Err(CertificateError::NoAuthority { path: self.path.clone() });
        }
        self.pair("ca")
    }

    /// Its own certificate.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn server(&self) -> Result<Identity> {
        let PoolFile { name: pool, uuid, server: name, servers } = self.pool()?;
        let (authority, pair) = (self.certificate("ca")?, self.pair("server")?);
        Ok(Identity { role: Role::Server, pool, uuid, name, servers, authority, pair })
    }

    /// Makes a pool's authority, and the certificate of its first server, which `servers` lead to.
    ///
    /// # Errors
    /// There is one, and it is not to be made anew; the folder cannot be written.
    pub fn init(
        base: &Path,
        (pool, uuid): (&str, Uuid),
        (server, servers): (&str, &[String]),
        force: bool,
    ) -> Result<Self> {
        check_name(server)?;
        let authority = certificates::authority(uuid, Validity::days(AUTHORITY_DAYS))?;
        let validity = Validity::days(SERVER_DAYS);
        let (own, _) = certificates::server((&authority, uuid), server, validity)?;
        let file = PoolFile {
            name: pool.to_owned(),
            uuid,
            server: server.to_owned(),
            servers: servers.to_vec(),
        };
        Self::make(base, &file, force, |folder| {
            folder.put_pair("ca", &authority)?;
            folder.put_pair("server", &own)
        })
    }

    /// Takes the certificate that another host's folder gave to a further server.
    ///
    /// # Errors
    /// It is none; there is a folder, and it is not to be replaced; it cannot be written.
    pub fn install(base: &Path, identity: &Identity, force: bool) -> Result<Self> {
        check_server(identity)?;
        let file = PoolFile {
            name: identity.pool.clone(),
            uuid: identity.uuid,
            server: identity.name.clone(),
            servers: identity.servers.clone(),
        };
        Self::make(base, &file, force, |folder| {
            folder.put("ca.crt", &pem(LABELS.0, &identity.authority))?;
            folder.put_pair("server", &identity.pair)
        })
    }

    /// What [`Folder::init`] would refuse; nothing is changed. Where the folder would be.
    ///
    /// # Errors
    /// As there.
    pub fn plan_new(base: &Path, uuid: Uuid, server: &str, force: bool) -> Result<PathBuf> {
        check_name(server)?;
        let path = base.join(uuid.to_string());
        if path.exists() && !force { Err(CertificateError::Exists { path }) } else { Ok(path) }
    }

    /// What [`Folder::install`] would refuse; nothing is changed. Where the folder would be.
    ///
    /// # Errors
    /// As there.
    pub fn plan_install(base: &Path, identity: &Identity, force: bool) -> Result<PathBuf> {
        check_server(identity)?;
        Self::plan_new(base, identity.uuid, &identity.name, force)
    }

    /// What [`Folder::renew`] and, with a name, [`Folder::invite`] would refuse; nothing is changed.
    ///
    /// # Errors
    /// As there.
    pub fn plan_issue(&self, name: Option<&str>) -> Result<()> {
        name.map_or(Ok(()), check_name)?;
        self.pool()?;
        self.authority().map(drop)
    }

    /// What [`Folder::revoke`] would refuse; nothing is changed. The certificates that it would revoke.
    ///
    /// # Errors
    /// As there.
    pub fn plan_revoke(&self, name: &str) -> Result<Vec<Client>> {
        let mut list = self.clients()?;
        list.retain(|client| client.name == name);
        if list.is_empty() {
            return Err(CertificateError::NoClient { name: name.to_owned() });
        }
        list.retain(|client| client.revoked.is_none());
        Ok(list)
    }

    /// Makes a folder beside its place, then puts it there.
    fn make(
        base: &Path,
        file: &PoolFile,
        force: bool,
        fill: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<Self> {
        let private =
            |path: &Path| DirBuilder::new().mode(0o700).create(path).map_err(failed(path));
        if !base.is_dir() {
            // What is above it may be others', too.
            let above = base.parent().filter(|above| !above.as_os_str().is_empty());
            above.map_or(Ok(()), |above| fs::create_dir_all(above).map_err(failed(above)))?;
            private(base)?;
        }
        let path = base.join(file.uuid.to_string());
        if path.exists() && !force {
            return Err(CertificateError::Exists { path });
        }
        let new = Self { path: base.join(format!("{}.{NEW}", file.uuid)) };
        // What a former try has left, if it was broken off.
        fs::remove_dir_all(&new.path).ok();
        private(&new.path)?;
        private(&new.path.join("seen"))?;
        fill(&new)?;
        new.put("clients.toml", "")?;
        let text = toml::to_string(file).expect("strings only");
        new.put("pool.toml", &text)?;
        let (from, to) = (&new.path, &path);
        let cwd = rustix::fs::CWD;
        if to.exists() {
            renameat_with(cwd, from, cwd, to, RenameFlags::EXCHANGE)
                .map_err(|e| failed(to)(e.into()))?;
            sync(base)?;
            // Nobody trusts it any more.
            fs::remove_dir_all(from).map_err(failed(from))?;
        } else {
            renameat_with(cwd, from, cwd, to, RenameFlags::NOREPLACE)
                .map_err(|e| failed(to)(e.into()))?;
        }
        sync(base)?;
        Ok(Self { path })
    }

    /// Makes the server's key and certificate anew, by the same authority; clients notice nothing.
    ///
    /// # Errors
    /// The authority's key is not here; the folder cannot be written.
    pub fn renew(&self) -> Result<()> {
        let (_lock, file) = (self.lock()?, self.pool()?);
        let authority = self.authority()?;
        let validity = Validity::days(SERVER_DAYS);
        let (own, _) = certificates::server((&authority, file.uuid), &file.server, validity)?;
        self.put_pair("server", &own)
    }

    /// Makes an identity for a client, valid for so many days. It is in the list before it exists.
    ///
    /// # Errors
    /// The name may not be; the authority's key is not here; the folder cannot be written.
    pub fn invite(&self, name: &str, read_only: bool, validity: Validity) -> Result<Identity> {
        self.issue(Role::Client, name, read_only, validity)
    }

    /// Makes an identity for a further server of the pool.
    ///
    /// # Errors
    /// As [`Folder::invite`].
    pub fn invite_server(&self, name: &str) -> Result<Identity> {
        self.issue(Role::Server, name, false, Validity::days(SERVER_DAYS))
    }

    fn issue(
        &self,
        role: Role,
        name: &str,
        read_only: bool,
        validity: Validity,
    ) -> Result<Identity> {
        let (_lock, file) = (self.lock()?, self.pool()?);
        let authority = self.authority()?;
        let by = (&authority, file.uuid);
        let (pair, serial) = match role {
            Role::Client => certificates::client(by, (name, read_only), validity)?,
            Role::Server => certificates::server(by, name, validity)?,
        };
        let mut list = self.clients()?;
        let Validity { from, until } = validity;
        let name = name.to_owned();
        list.push(Client {
            name: name.clone(),
            serial,
            role,
            read_only,
            from,
            until,
            revoked: None,
        });
        self.put_clients(list)?;
        let (pool, uuid, servers) = (file.name, file.uuid, file.servers);
        let authority = authority.certificate;
        Ok(Identity { role, pool, uuid, name, servers, authority, pair })
    }

    /// Revokes all certificates of a client's name; those that it has revoked.
    ///
    /// # Errors
    /// There is none of that name; the folder cannot be written.
    pub fn revoke(&self, name: &str) -> Result<Vec<Client>> {
        let _lock = self.lock()?;
        let (mut list, now) = (self.clients()?, now());
        if !list.iter().any(|client| client.name == name) {
            return Err(CertificateError::NoClient { name: name.to_owned() });
        }
        let mut revoked = Vec::new();
        for client in list.iter_mut().filter(|c| c.name == name && c.revoked.is_none()) {
            client.revoked = Some(now);
            revoked.push(client.clone());
        }
        self.put_clients(list)?;
        Ok(revoked)
    }

    /// Revokes one certificate, which another host's folder may have made.
    ///
    /// # Errors
    /// It is no number; the folder cannot be written.
    pub fn revoke_serial(&self, serial: &str) -> Result<Client> {
        let serial = Self::plan_revoke_serial(serial)?;
        let _lock = self.lock()?;
        let mut list = self.clients()?;
        let at = list.iter().position(|client| client.serial == serial).unwrap_or_else(|| {
            let (name, role, read_only) = ("?".to_owned(), Role::Client, false);
            let (from, until, revoked) = (0, 0, None);
            list.push(Client { name, serial, role, read_only, from, until, revoked });
            list.len() - 1
        });
        let client = &mut list[at];
        client.revoked.get_or_insert(now());
        let client = client.clone();
        self.put_clients(list)?;
        Ok(client)
    }

    /// What [`Folder::revoke_serial`] would refuse; the number as it would be noted.
    ///
    /// # Errors
    /// It is no number.
    pub fn plan_revoke_serial(serial: &str) -> Result<String> {
        let serial = serial.to_ascii_lowercase();
        if serial.is_empty() || !serial.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(CertificateError::Serial { serial });
        }
        Ok(serial)
    }

    /// Everybody who was invited.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn clients(&self) -> Result<Vec<Client>> {
        Ok(self.toml::<ClientsFile>("clients.toml")?.clients)
    }

    fn put_clients(&self, clients: Vec<Client>) -> Result<()> {
        let text = toml::to_string(&ClientsFile { clients }).expect("strings and numbers");
        self.put("clients.toml", &text)
    }

    /// Numbers of certificates that count no more.
    pub(super) fn revoked(&self) -> Result<HashSet<String>> {
        let clients = self.clients()?.into_iter();
        Ok(clients.filter(|c| c.revoked.is_some()).map(|c| c.serial).collect())
    }

    /// Which state of the list is there.
    pub(super) fn changed(&self) -> Option<Written> {
        let meta = fs::metadata(self.path.join("clients.toml")).ok()?;
        Some((meta.ino(), meta.mtime(), meta.mtime_nsec()))
    }

    pub(super) fn note_seen(&self, serial: &str) -> std::io::Result<()> {
        let path = self.path.join("seen").join(serial);
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.set_modified(SystemTime::now())
    }

    /// When a client has last begun to use this server.
    pub fn last_seen(&self, client: &Client) -> Option<SystemTime> {
        let path = self.path.join("seen").join(&client.serial);
        fs::metadata(path).and_then(|meta| meta.modified()).ok()
    }

    /// Held by whoever changes the folder.
    fn lock(&self) -> Result<File> {
        let lock = File::open(&self.path).map_err(failed(&self.path))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|e| failed(&self.path)(e.into()))?;
        Ok(lock)
    }
}

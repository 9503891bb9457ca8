//! Liveness bytes of a unit: kernel locks on a file of this host that stands for it.
//!
//! The kernel drops a lock when its process ends, but what the process had sent to the target may
//! still be on its way, or in the target. So who takes a byte writes beside it which sessions its
//! process has, and a byte whose lock is gone counts as held until those sessions have been *taken
//! over*: a login as the same port (initiator and ISID) ends the old session with all its commands
//! before it is answered (RFC 7143, section 6.3.5). Then nothing of the dead process can land any
//! more. The identity of the unit decides, not its address: where the unit does not answer by the
//! address at which the dead process had it, and this process has the same unit of the same target
//! open by another one, the login there counts. Where none succeeds the byte stays held, until a
//! person says that nothing can land any more.
//!
//! ```text
//! lock taken, note written -> (process) -> note erased, lock let go
//!                                \-> process dies: lock gone, note stands
//!                                       -> sessions of the note taken over -> note erased
//! ```
//!
//! A process that lives on after a session of its own broke with commands under way, while it had the
//! byte, and that did not log in again, lets the lock go and leaves the note: those commands may land
//! until somebody has taken the session over. From then on it logs in as none of its ports. If it had the
//! byte for a change only ([`CHANGE_BYTE`]) it lives on as it did: it may take the byte again, and logs in
//! again, which ends those commands; so does another process that takes the byte first.
//!
//! If the pool does without a unit, the life goes on by its bytes on the other members, with their sessions. So the
//! session with that unit gets a note of its own, beside the byte there: whoever uses the unit next, this process too,
//! ends that session alone.
//!
//! Other hosts have files of their own: the bytes say nothing about them.

use std::fmt::Write as _;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::node::LockPlace;
use parking_lot::Mutex;
use rustix::fs::FlockOperation;

use super::carried::{Carried, has_let_go, is_unsettled, last_broken, let_go};
use super::connection::{Ended, LOGIN_TIME, Patience, Port};
use super::link::Link;
use super::name::UnitName;
use super::probe::{Identity, identity};
use super::session::Session;
use crate::abilities::HeldByte;
use crate::host_locks::{ByteHeld, Locks, lock_place};
use crate::user_dir::user_dir;
use crate::{ByteLockGuard, CHANGE_BYTE};

/// Room for a note's name beside each byte.
const NOTE_MAX: usize = 64;

/// Where the turns of the bytes are locked: beyond all bytes that have a note.
const TURNS_AT: u64 = 1 << 40;

/// How long a dead process's address is tried where its unit may be reached by another one.
const OLD_ADDRESS_TIME: Duration = Duration::from_secs(3);
/// How long a unit may take to say which one it is.
const IDENTITY_TIME: Duration = Duration::from_secs(3);
/// Between two warnings that sessions of a dead process are not taken over.
const SAID_AGAIN: Duration = Duration::from_secs(30);

/// Names this initiator, instead of what the host says.
const INITIATOR_VARIABLE: &str = "BRAID_INITIATOR";

/// Bytes from the system's generator.
fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// A port that nobody else has: the host's initiator with an ISID of its own.
pub(super) fn new_port() -> Port {
    let bits = random();
    let random = u32::try_from(bits & 0xff_ffff).unwrap_or(0);
    let qualifier = u16::try_from(bits >> 32 & 0xffff).unwrap_or(0);
    Port { initiator: initiator(), isid: (random, qualifier) }
}

/// `$BRAID_INITIATOR`, else what /etc/iscsi says, else made of the host's name.
fn initiator() -> String {
    let said = std::env::var(INITIATOR_VARIABLE).ok().or_else(|| {
        let text = std::fs::read_to_string("/etc/iscsi/initiatorname.iscsi").ok()?;
        text.lines().find_map(|l| l.strip_prefix("InitiatorName=")).map(|n| n.trim().to_owned())
    });
    said.filter(|s| !s.is_empty()).unwrap_or_else(|| {
        let host = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
        let fits = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
        let host: String = host.chars().filter(|c| fits(*c)).take(100).collect();
        format!("iqn.2026-11.org.braid:host:{host}")
    })
}

/// A session of a process, as its note tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NotedSession {
    port: Port,
    unit: UnitName,
    /// Unknown in notes of earlier versions.
    identity: Option<Identity>,
}

impl NotedSession {
    fn line(&self) -> String {
        let (random, qualifier) = self.port.isid;
        let mut line = format!("{random} {qualifier} {} {}", self.port.initiator, self.unit);
        if let Some(identity) = &self.identity {
            let _ = write!(line, " {} {}", hex(&identity.unit), hex(&identity.target_port));
        }
        line
    }
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let isid = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let port = Port { initiator: words.next()?.to_owned(), isid };
        let unit = UnitName::parse(words.next()?)?;
        let identity = match words.next() {
            None => None,
            Some(id) => {
                let id = bytes(id)?.try_into().ok()?;
                Some(Identity { unit: id, target_port: bytes(words.next()?)? })
            }
        };
        Some(Self { port, unit, identity })
    }
    /// Ends the session of a dead process, with all that it has under way: at its own address, or else
    /// by one at which this process has the same unit.
    fn take_over(&self) -> Result<(), Ended> {
        let elsewhere = self.elsewhere();
        let time = if elsewhere.is_empty() { LOGIN_TIME } else { OLD_ADDRESS_TIME };
        let mut why = match self.log_in(&self.unit, time) {
            // A unit that does not say which one it is: its address and its target's name are right.
            Ok(None) => return Ok(()),
            Ok(Some(found)) if self.identity.as_ref().is_none_or(|own| *own == found) => {
                return Ok(());
            }
            Ok(Some(_)) => Ended("another unit answers by its name now".into()),
            Err(why) => why,
        };
        for unit in elsewhere {
            match self.log_in(&unit, LOGIN_TIME) {
                Ok(found) if found.is_some() && found == self.identity => {
                    tracing::warn!(was = %self.unit, is = %unit, "a dead process's session is ended by the address that its unit has now");
                    return Ok(());
                }
                Ok(_) => {}
                Err(e) => why = e,
            }
        }
        Err(why)
    }
    /// By which other names this process has that unit of that target open.
    fn elsewhere(&self) -> Vec<UnitName> {
        let Some(identity) = &self.identity else { return Vec::new() };
        let note = NOTE.lock();
        let own = note.as_ref().map_or(&[][..], |n| &n.sessions);
        let same = |s: &&NotedSession| {
            s.identity.as_ref() == Some(identity)
                && s.unit.target == self.unit.target
                && s.unit.portal != self.unit.portal
        };
        let mut units: Vec<_> = own.iter().filter(same).map(|s| s.unit.clone()).collect();
        units.dedup();
        units
    }
    /// Logs in as the session's port, which ends that session; which unit answers, if it says it.
    fn log_in(&self, unit: &UnitName, time: Duration) -> Result<Option<Identity>, Ended> {
        let never = std::sync::atomic::AtomicBool::new(false);
        let patience = Patience { until: Instant::now() + time, given_up: &never };
        let carried: Arc<Carried> = Arc::default();
        carried.set_answers_within(IDENTITY_TIME);
        let session = Session::login_again(unit, &self.port, patience, &carried)?;
        Ok(identity(&session, unit).ok())
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for b in bytes {
        let _ = write!(text, "{b:02x}");
    }
    text
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pair = |at| hex.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..hex.len()).step_by(2).map(pair).collect()
}

/// The sessions of this process: a file that others read when it has died.
#[derive(Debug)]
struct Note {
    dir: PathBuf,
    name: String,
    sessions: Vec<NotedSession>,
}

/// One for the process; made at the first session.
static NOTE: Mutex<Option<Note>> = Mutex::new(None);

impl Note {
    fn write(&self) -> io::Result<()> {
        let text: String = self.sessions.iter().map(|s| s.line() + "\n").collect();
        let new = self.dir.join(format!("{}.new", self.name));
        std::fs::write(&new, text)?;
        std::fs::rename(&new, self.dir.join(&self.name))
    }
    fn read(path: &Path) -> io::Result<Vec<NotedSession>> {
        let text = std::fs::read_to_string(path)?;
        let all = text.lines().map(NotedSession::parse).collect::<Option<Vec<_>>>();
        all.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The directory for such files: `/run/braid/iscsi` for root, else the user's own. One only, so that all processes of
/// this user meet there.
fn directory() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid();
    let dir = user_dir()?.join("iscsi");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    let found = std::fs::symlink_metadata(&dir)?;
    if !found.is_dir() || found.uid() != user.as_raw() || found.mode() & 0o022 != 0 {
        let why = format!("{}: not a directory of this user alone", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(dir)
}

/// The file at `path`, marked as in use: who removes it sees that, and who opened it while it was
/// removed opens another.
fn open_shared(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    loop {
        let file = options.open(path)?;
        rustix::fs::flock(&file, FlockOperation::LockShared)?;
        let same = std::fs::metadata(path)
            .is_ok_and(|m| file.metadata().is_ok_and(|f| f.ino() == m.ino()));
        if same {
            return Ok(file);
        }
    }
}

/// A unit's liveness bytes.
#[derive(Debug)]
pub(super) struct Alive {
    /// With the unit.
    session: NotedSession,
    carried: Arc<Carried>,
    dir: PathBuf,
    path: PathBuf,
    file: Arc<File>,
    locks: Locks,
    /// The folder: whoever uses it meets everybody else who does on one file for each unit.
    lock_place: LockPlace,
    /// When it was said last that a dead process's sessions are not taken over.
    said: Mutex<Option<Instant>>,
}

impl Alive {
    /// Those of the unit, for the session that `port` has by `link`.
    pub fn new(unit: &UnitName, port: &Port, link: &Link) -> io::Result<Self> {
        let identity = link.found().identity();
        let dir = directory()?;
        let path = dir.join(format!("unit-{}", hex(&identity.unit)));
        let file = Arc::new(open_shared(&path)?);
        let mut note = NOTE.lock();
        let note = note.get_or_insert_with(|| {
            let name = format!("process-{}-{:08x}", std::process::id(), random() >> 32);
            Note { dir: dir.clone(), name, sessions: Vec::new() }
        });
        let identity = Some(identity);
        let session = NotedSession { port: port.clone(), unit: unit.clone(), identity };
        note.sessions.push(session.clone());
        note.write()?;
        let lock_place = lock_place(&std::fs::metadata(&dir)?)?;
        let locks = Locks::new(file.clone());
        let said = Mutex::new(None);
        let carried = link.carried();
        Ok(Self { session, carried, dir, path, file, locks, lock_place, said })
    }
    /// Where its bytes are locked: the same for all who use one folder.
    pub fn lock_place(&self) -> LockPlace {
        self.lock_place
    }
    /// Removes the file if nobody else has it open and no note stands in it.
    fn remove_unused(&self) {
        let alone = rustix::fs::flock(&*self.file, FlockOperation::NonBlockingLockExclusive);
        if alone.is_ok() && std::fs::read(&self.path).is_ok_and(|all| all.iter().all(|b| *b == 0)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
    fn place(byte: u64) -> io::Result<u64> {
        let place = byte.checked_mul(NOTE_MAX as u64).filter(|p| *p < 1 << 40);
        place.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
    /// The note of who had the byte last and did not let it go.
    fn note(&self, byte: u64) -> io::Result<Option<String>> {
        let mut room = [0; NOTE_MAX];
        let len = self.file.read_at(&mut room, Self::place(byte)?)?;
        let name = room[..len].split(|b| *b == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        Ok(Some(name).filter(|n| n.starts_with("process-") && !n.contains('/')))
    }
    fn erase(file: &File, byte: u64) -> io::Result<()> {
        file.write_all_at(&[0; NOTE_MAX], Self::place(byte)?)
    }
    /// Takes a byte, or `None` if somebody has it, or had it and cannot be taken over.
    pub fn take(&self, byte: u64) -> io::Result<Option<ByteLockGuard>> {
        let place = Self::place(byte)?;
        let Some(_turn) = self.turn(byte)? else { return Ok(None) };
        if self.locks.is_byte_locked(byte)? || !self.settled(byte)? {
            return Ok(None);
        }
        let Some(held) = self.locks.byte(byte)? else { return Ok(None) };
        let own = NOTE.lock().as_ref().map(|n| n.name.clone()).unwrap_or_default();
        // What stayed of its own: those commands may be under way yet when this is over.
        let after = if self.note(byte)?.is_some_and(|n| n == own) { 0 } else { last_broken() };
        self.note_again()?;
        write_note(&self.file, place, &own)?;
        let (file, left) = (self.file.clone(), false);
        let (session, carried) = (self.session.clone(), self.carried.clone());
        Ok(Some(ByteLockGuard::new(Taken {
            _held: held,
            file,
            byte,
            after,
            session,
            carried,
            left,
        })))
    }
    /// The session stands in the process's note, also if the unit was left and is used again.
    fn note_again(&self) -> io::Result<()> {
        let mut note = NOTE.lock();
        let all = note.as_mut().ok_or(io::ErrorKind::NotFound)?;
        if !all.sessions.contains(&self.session) {
            all.sessions.push(self.session.clone());
            all.write()?;
            self.carried.come_back();
        }
        Ok(())
    }
    /// Whether somebody has the byte, or had it and may still have something under way.
    pub fn is_taken(&self, byte: u64) -> io::Result<bool> {
        if self.locks.is_byte_locked(byte)? {
            return Ok(true);
        }
        if self.note(byte)?.is_none() {
            return Ok(false);
        }
        let Some(_turn) = self.turn(byte)? else { return Ok(true) };
        Ok(self.locks.is_byte_locked(byte)? || !self.settled(byte)?)
    }
    /// The turn to take the byte, or to end what a dead process had under way: one at a time on this
    /// host. Not the byte's own lock: who only looks does not hold it.
    fn turn(&self, byte: u64) -> io::Result<Option<ByteHeld>> {
        self.locks.byte(TURNS_AT + byte)
    }
    /// In its turn, the byte's lock being free: whether nothing of who had it last can land any more.
    fn settled(&self, byte: u64) -> io::Result<bool> {
        let Some(name) = self.note(byte)? else { return Ok(true) };
        let path = self.dir.join(&name);
        let own = NOTE.lock().as_ref().is_some_and(|n| n.name == name);
        if own {
            // This process had it, and has lost a session since. Where it logs in again, that ends what the
            // session had under way; where it does not, only its end does.
            return Ok(byte == CHANGE_BYTE && !has_let_go());
        }
        match Note::read(&path) {
            Ok(sessions) => {
                for session in &sessions {
                    if let Err(e) = session.take_over() {
                        self.say_not_taken_over(&session.unit, &e.0);
                        return Ok(false);
                    }
                }
                let _ = std::fs::remove_file(&path);
            }
            // Taken over already, for another of its bytes, or the host was started anew.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        Self::erase(&self.file, byte)?;
        Ok(true)
    }
    fn say_not_taken_over(&self, unit: &UnitName, why: &str) {
        let mut said = self.said.lock();
        if said.is_some_and(|at| at.elapsed() < SAID_AGAIN) {
            return;
        }
        *said = Some(Instant::now());
        tracing::warn!(
            %unit,
            %why,
            "a dead process's session is not taken over, so its node counts as alive: where its target is gone for good, see to it that nothing it was sent can land any more, and say `braid fence --confirm`"
        );
    }
    /// Whether somebody who lives has the byte.
    pub fn is_held(&self, byte: u64) -> io::Result<bool> {
        self.locks.is_byte_locked(byte)
    }
    /// By a person's word nothing can land any more of who had the byte last; false if somebody who
    /// lives has it.
    pub fn settle_by_word(&self, byte: u64) -> io::Result<bool> {
        let Some(_held) = self.locks.byte(byte)? else { return Ok(false) };
        Self::erase(&self.file, byte)?;
        Ok(true)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if is_unsettled(0) {
            // What this session had under way may still land: whoever comes takes it over.
            return;
        }
        let mut note = NOTE.lock();
        let Some(all) = note.as_mut() else { return };
        all.sessions.retain(|s| s.port != self.session.port);
        let written = if all.sessions.is_empty() {
            std::fs::remove_file(all.dir.join(&all.name))
        } else {
            all.write()
        };
        if let Err(error) = written {
            tracing::warn!(%error, "the note of this process's sessions");
        }
        self.remove_unused();
    }
}

/// Says beside a byte, at `place` in its unit's file, who has it.
fn write_note(file: &File, place: u64, name: &str) -> io::Result<()> {
    let mut room = [0; NOTE_MAX];
    room.iter_mut().zip(name.bytes()).for_each(|(r, b)| *r = b);
    file.write_all_at(&room, place)
}

/// A byte held.
struct Taken {
    _held: ByteHeld,
    file: Arc<File>,
    byte: u64,
    /// The last session that broke before it was taken: what that had under way is not of its time.
    after: u64,
    /// With its unit.
    session: NotedSession,
    carried: Arc<Carried>,
    /// The life goes on without the unit.
    left: bool,
}

impl Taken {
    /// Takes the unit's session out of the process's note, into one that stands beside this byte alone. (In this order:
    /// if the process dies in between, the session stands in both, and is taken over by whoever looks first.)
    fn note_left(&self) -> io::Result<()> {
        let mut note = NOTE.lock();
        let all = note.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let name = format!("{}-left-{:08x}", all.name, random() >> 32);
        let sessions = vec![self.session.clone()];
        let own = Note { dir: all.dir.clone(), name, sessions };
        own.write()?;
        write_note(&self.file, Alive::place(self.byte)?, &own.name)?;
        all.sessions.retain(|s| s.port != self.session.port);
        all.write()
    }
}

impl HeldByte for Taken {
    fn leave(&mut self) {
        self.left = true;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // Once for all bytes of the unit: the first one that is left settles what this process knows of.
        let is_left = self.carried.is_left() || self.left && self.carried.is_unsettled();
        let unsettled = is_left || !self.left && is_unsettled(self.after);
        if is_left {
            match self.note_left() {
                Ok(()) => return self.carried.leave(),
                Err(error) => {
                    tracing::warn!(%error, "the note of a session with a unit that is left");
                }
            }
        }
        if unsettled {
            // Whoever comes takes the sessions over. Those of a life must not come back after that; one that
            // only made a change does: what it had under way then is ended by its own next login.
            if self.byte != CHANGE_BYTE {
                let_go();
            }
            return;
        }
        // Before the lock goes: fields drop after this.
        if let Err(error) = Alive::erase(&self.file, self.byte) {
            tracing::warn!(%error, "a liveness byte's note stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noted_session_is_read_as_it_was_written() {
        let unit = UnitName::parse("iscsi://[::1]:99/iqn.x/3").unwrap();
        let port = Port { initiator: "iqn.2026-11.org.braid:host:a".to_owned(), isid: (7, 8) };
        for target_port in [&b"iqn.x,t,0x0001"[..], b"a port", b""] {
            let identity = Some(Identity { unit: [5; 16], target_port: target_port.to_vec() });
            let session = NotedSession { port: port.clone(), unit: unit.clone(), identity };
            assert_eq!(NotedSession::parse(&session.line()), Some(session));
        }
        // Of an earlier version.
        let early = NotedSession { port, unit, identity: None };
        assert_eq!(NotedSession::parse(&early.line()), Some(early.clone()));
        for bad in ["", "1 2", "1 2 iqn.a no-unit", "1 2 iqn.a iscsi://h/t/0 zz zz"] {
            assert_eq!(NotedSession::parse(bad), None, "{bad}");
        }
        for bad in ["00", "0000000000000000000000000000000g -", "é0"] {
            assert_eq!(NotedSession::parse(&format!("{} {bad}", early.line())), None, "{bad}");
        }
    }
}

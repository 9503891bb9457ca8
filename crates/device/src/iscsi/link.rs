//! A unit's session, and the next one after that has broken: the target was started anew, or the
//! connection was cut.
//!
//! ```text
//!  Up --session broke, somebody wants something--> Down --logged in, the same unit, nothing lost--> Up
//!                                                   |
//!                                                   |  given up, or the lease is over; another unit;
//!                                                   |  its cache may be lost; its key is gone
//!                                                   v
//!                                                  Gone: refuses everything
//! ```
//!
//! * The new session is of the same port (initiator and ISID). A target ends what the old one had
//!   under way before it answers such a login (RFC 7143, section 6.3.5), and one that was started anew
//!   has nothing under way: so what is issued again after it comes after what was issued before.
//! * Nothing is issued on it before it is known that the unit is the one it was, that it has kept what
//!   it had said was written, and that the key which this device registered still stands, with a
//!   reservation. Nothing is registered: whose key is gone was fenced, or could not be fenced any more
//!   (a target that lost its registrations), and must not write.
//! * A login is tried until the lease of the node that uses the device is over, not after.
//! * A session is also ended from here when the target leaves a command unanswered. If the sessions
//!   after it end like that too, [`SILENT_MAX`] in succession, the unit is given up. One login more, by
//!   a thread of its own, then ends at the target what was under way.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::carried::{self, Carried};
use super::connection::{Ended, Patience, Port};
use super::name::UnitName;
use super::probe::{Found, Probe, probe};
use super::session::{Direction, Memory, NOT_ANSWERED, Session, Ticket};
use crate::ReservationKind;
use crate::scsi::{self, cdb};

/// How long a login is tried where no node's lease says it.
const USUAL: Duration = Duration::from_secs(10);
/// Between two logins; twice as much after each.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Why a session was ended from here.
const SEVERED: &str = "given up: this node has been fenced";
/// Most sessions that one command is issued in.
pub(super) const SESSIONS_MAX: u32 = 16;

/// Sessions in succession that end because a command was not answered, before the unit is given up.
const SILENT_MAX: u32 = 2;
/// Such an end counts as in succession if it comes within so many bounds after the one before.
const SUCCESSION: u32 = 6;

/// Why there is no session any more, and will be none.
#[derive(Debug, Clone)]
pub(super) enum Gone {
    /// Its key is gone.
    Fenced,
    /// Whatever it was.
    Ended(Arc<str>),
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fenced => f.write_str("this node has been fenced: its key is gone"),
            Self::Ended(why) => f.write_str(why),
        }
    }
}

impl From<Ended> for Gone {
    fn from(Ended(why): Ended) -> Self {
        Self::Ended(why)
    }
}

/// Why a login came to nothing.
enum Failed {
    /// The next may do better.
    Yet(Arc<str>),
    /// There is no next one.
    ForGood(Gone),
}

impl From<Ended> for Failed {
    fn from(Ended(why): Ended) -> Self {
        Self::Yet(why)
    }
}

/// The way to a unit.
#[derive(Debug)]
pub(super) struct Link {
    name: UnitName,
    port: Port,
    /// What the unit said of itself at first.
    found: Found,
    session: RwLock<Arc<Session>>,
    /// The unit's word for its cache ([`Found::cache`]) when that session began. A cache that was lost when all had
    /// been flushed has another one afterwards. Changed with the session.
    cache: Mutex<Vec<u8>>,
    /// The next one, while its unit is asked what it is.
    trial: Mutex<Option<Arc<Session>>>,
    /// Held by who looks for the next session.
    renewal: Mutex<Option<Gone>>,
    /// Why there is none, if not by a fence.
    given_up: OnceLock<Arc<str>>,
    severed: AtomicBool,
    /// The end of the lease of the node that uses it.
    lease: Mutex<Option<Instant>>,
    carried: Arc<Carried>,
    /// Of the commands that brought data, how many a flush has made durable.
    durable: AtomicU64,
    /// The key that was registered last; 0: none.
    key: AtomicU64,
    /// Sessions that ended in succession because a command was not answered, and when the last did.
    silent: Mutex<(u32, Option<Instant>)>,
}

impl Link {
    /// Logs in to a unit, and asks what it is.
    pub fn open(name: &UnitName, port: &Port, read_only: bool) -> Result<Self, crate::DeviceError> {
        let carried: Arc<Carried> = Arc::default();
        let never = AtomicBool::new(false);
        let patience = Patience { until: Instant::now() + USUAL * 2, given_up: &never };
        let session =
            Session::login_again(name, port, patience, &carried).map_err(|Ended(why)| {
                crate::DeviceError::NoSession { device: name.to_string().into(), why }
            })?;
        let found = match probe(&session, name, read_only) {
            Ok(found) => found,
            Err(error) => {
                drop(session);
                // It was only asked: nothing of that can land.
                carried.settle();
                return Err(error);
            }
        };
        Ok(Self {
            name: name.clone(),
            port: port.clone(),
            cache: Mutex::new(found.cache.clone()),
            found,
            session: RwLock::new(Arc::new(session)),
            trial: Mutex::new(None),
            renewal: Mutex::new(None),
            given_up: OnceLock::new(),
            severed: AtomicBool::new(false),
            lease: Mutex::new(None),
            carried,
            durable: AtomicU64::new(0),
            key: AtomicU64::new(0),
            silent: Mutex::default(),
        })
    }
    /// What the unit is.
    pub fn found(&self) -> &Found {
        &self.found
    }
    /// The key that was registered last; 0: none.
    pub fn key(&self) -> u64 {
        self.key.load(Ordering::Acquire)
    }
    /// A key was registered.
    pub fn registered(&self, key: u64) {
        self.key.store(key, Ordering::Release);
    }
    /// Commands so far that brought data and were done: those a flush makes durable that is issued
    /// now.
    pub fn written(&self) -> u64 {
        self.carried.written()
    }
    /// So many of them are durable.
    pub fn flushed(&self, written: u64) {
        self.durable.fetch_max(written, Ordering::AcqRel);
    }
    /// What is written to these blocks alone may be lost: it is written again before long.
    pub fn repeats(&self, blocks: Range<u64>) {
        self.carried.set_repeated(blocks);
    }
    /// Why nothing is asked of the unit any more, if not because of a fence.
    pub fn given_up(&self) -> Option<Arc<str>> {
        self.given_up.get().cloned()
    }
    /// Who uses it may change something until then.
    pub fn lease(&self, until: Instant) {
        *self.lease.lock() = Some(until);
    }
    /// In which a command is to be answered.
    pub fn answers_within(&self, time: Duration) {
        self.carried.set_answers_within(time);
    }
    /// A session ended for `why`: whether the unit is to be given up because it does not answer.
    fn is_silent(&self, why: &str) -> bool {
        let mut silent = self.silent.lock();
        if why != NOT_ANSWERED {
            return false;
        }
        let (now, soon) = (Instant::now(), self.carried.answers_within() * SUCCESSION);
        let in_succession = silent.1.is_some_and(|last| now.saturating_duration_since(last) < soon);
        *silent = (if in_succession { silent.0 + 1 } else { 1 }, Some(now));
        silent.0 >= SILENT_MAX
    }
    /// Whether others may take its sessions over: it logs in no more.
    fn is_anothers(&self) -> bool {
        carried::has_let_go() || self.carried.is_left()
    }
    /// What its sessions hand on.
    pub fn carried(&self) -> Arc<Carried> {
        self.carried.clone()
    }
    /// Ends at the target what was under way, once nobody uses the unit any more: what this port had
    /// sent cannot land after a login as the same port.
    fn settle_aside(&self) {
        let (name, port, carried) = (self.name.clone(), self.port.clone(), self.carried.clone());
        let settle = move || {
            let never = AtomicBool::new(false);
            let patience = Patience { until: Instant::now() + USUAL, given_up: &never };
            if carried::has_let_go() || carried.is_left() {
                return;
            }
            match Session::login_again(&name, &port, patience, &carried) {
                Ok(_) => tracing::warn!(unit = %name, "what it had not answered is ended there"),
                Err(Ended(why)) => {
                    tracing::warn!(unit = %name, %why, "what it had not answered may still land");
                }
            }
        };
        // Without a thread it stays unsettled, and whoever takes over settles it.
        let _ = std::thread::Builder::new().name("iscsi-settle".into()).spawn(settle);
    }
    /// Ends it for good: what is under way gets its ending, and nothing is taken any more.
    pub fn sever(&self) {
        self.severed.store(true, Ordering::Release);
        let session = self.session.read().clone();
        session.end(SEVERED);
        let trial = self.trial.lock().clone();
        if let Some(session) = trial {
            session.end(SEVERED);
        }
    }

    /// Starts a command, in the next session if this one has ended.
    ///
    /// # Safety
    /// As [`Session::start`].
    pub unsafe fn start(
        &self,
        cdb: &[u8],
        direction: Direction,
        memory: &[Memory],
        now: bool,
    ) -> Result<Ticket, Gone> {
        let mut refused = Ended("its sessions end as soon as they begin".into());
        for _ in 0..SESSIONS_MAX {
            let session = self.session.read().clone();
            // SAFETY: the caller's promise.
            match unsafe { session.start(cdb, direction, memory, now) } {
                Ok(ticket) => return Ok(ticket),
                Err(e) => refused = e,
            }
            if session.ended().is_none() {
                break;
            }
            self.renew(&session)?;
        }
        Err(refused.into())
    }
    /// Starts a reset of the unit, in the next session if this one has ended.
    pub fn reset(&self) -> Result<Ticket, Gone> {
        let session = self.session.read().clone();
        if session.ended().is_some() {
            self.renew(&session)?;
        }
        let session = self.session.read().clone();
        Ok(session.reset()?)
    }
    /// The session of a command broke before it was answered: waits for the next.
    pub fn renew_after(&self, ticket: &Ticket) -> Result<(), Gone> {
        let session = self.session.read().clone();
        if session.has_started(ticket) { self.renew(&session) } else { Ok(()) }
    }

    /// Whether nobody is to log in any more.
    fn is_over(&self) -> bool {
        self.severed.load(Ordering::Acquire) || self.is_anothers()
    }
    /// Finds the session after `broken`, unless somebody else has.
    fn renew(&self, broken: &Arc<Session>) -> Result<(), Gone> {
        broken.end("the session broke");
        let mut gone = self.renewal.lock();
        if let Some(gone) = &*gone {
            return Err(gone.clone());
        }
        if !Arc::ptr_eq(&self.session.read(), broken) {
            return Ok(());
        }
        let (unit, began) = (&self.name, Instant::now());
        let why = broken.ended().unwrap_or_default();
        let within = self.carried.answers_within();
        let unanswered = *why == *NOT_ANSWERED;
        if unanswered {
            tracing::error!(
                %unit,
                "does not answer: a command was under way for more than {within:?}; its session is ended, so that the command can land no more after the next login"
            );
        } else {
            tracing::warn!(%unit, %why, "its session has ended");
        }
        let silent = self.is_silent(&why);
        // Nor are the questions of a login answered, though the lease goes on by other units.
        let too_long = || unanswered && began.elapsed() >= within * SILENT_MAX;
        let (mut why, mut pause) = (Failed::Yet(why), PAUSE_MIN);
        let last = loop {
            let until = (*self.lease.lock()).unwrap_or(began + USUAL);
            let late = Instant::now() >= until;
            match why {
                Failed::ForGood(gone) => break gone,
                Failed::Yet(_) if self.severed.load(Ordering::Acquire) => {
                    break Gone::Ended(SEVERED.into());
                }
                Failed::Yet(why) if late || silent || too_long() || self.is_anothers() => {
                    if unanswered {
                        self.settle_aside();
                    }
                    break Gone::Ended(why);
                }
                Failed::Yet(_) => {}
            }
            match self.log_in(until) {
                Ok((session, cache)) => match self.put_in_use(session, cache) {
                    Ok(old) => {
                        tracing::info!(%unit, after = ?began.elapsed(), "logged in again");
                        drop(gone);
                        drop(old);
                        return Ok(());
                    }
                    Err(ended) => why = ended.into(),
                },
                Err(failed) => why = failed,
            }
            if let Failed::Yet(why) = &why {
                tracing::debug!(%unit, %why, "not logged in again");
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        };
        if let Gone::Ended(why) = &last
            && !self.is_over()
        {
            self.given_up.set(why.clone()).ok();
        }
        tracing::error!(%unit, "given up: {last}");
        *gone = Some(last.clone());
        Err(last)
    }
    /// The next session is the one in use from now on; the one before. Not if it was given up
    /// meanwhile: nothing is issued in it then.
    fn put_in_use(&self, next: Arc<Session>, cache: Vec<u8>) -> Result<Arc<Session>, Ended> {
        // Who severs looks at it after that.
        let mut session = self.session.write();
        if self.is_over() {
            return Err(Ended(SEVERED.into()));
        }
        *self.cache.lock() = cache;
        Ok(std::mem::replace(&mut *session, next))
    }
    /// One login; what it finds must be what there was. The session, and the unit's word for its cache.
    fn log_in(&self, until: Instant) -> Result<(Arc<Session>, Vec<u8>), Failed> {
        let patience = Patience { until, given_up: &self.severed };
        let session = Session::login_again(&self.name, &self.port, patience, &self.carried)?;
        let session = Arc::new(session);
        *self.trial.lock() = Some(session.clone());
        // Who severs ends it, now or then: a unit may not answer for ever.
        let examined =
            if self.is_over() { Err(Ended(SEVERED.into()).into()) } else { self.examine(&session) };
        *self.trial.lock() = None;
        examined.map(|cache| (session, cache))
    }
    /// Whether the unit is what it was; its word for its cache now.
    fn examine(&self, session: &Session) -> Result<Vec<u8>, Failed> {
        let yet = |e: crate::DeviceError| Failed::Yet(e.to_string().into());
        let found = probe(session, &self.name, self.found.opened_read_only).map_err(yet)?;
        if let Some(why) = self.found.differs(&found, &self.cache.lock(), self.is_durable()) {
            return Err(Failed::ForGood(Gone::Ended(why.into())));
        }
        if !self.stands(session).map_err(yet)? {
            return Err(Failed::ForGood(Gone::Fenced));
        }
        Ok(found.cache)
    }
    /// Whether a loss of the unit's cache would lose nothing.
    fn is_durable(&self) -> bool {
        self.durable.load(Ordering::Acquire) >= self.written()
    }
    /// Whether the key, if there is one, still keeps this port from being shut out, and others can
    /// shut it out by it.
    fn stands(&self, session: &Session) -> Result<bool, crate::DeviceError> {
        let key = self.key();
        if key == 0 {
            return Ok(true);
        }
        let probe = Probe { session, name: &self.name };
        let look = |action| {
            probe.ask(&cdb::reserve_in(action, scsi::RESERVE_IN_LEN), scsi::RESERVE_IN_LEN.into())
        };
        let keys = look(0)?.and_then(|bytes| scsi::keys(&bytes)).unwrap_or_default();
        let held = look(1)?.and_then(|bytes| scsi::reservation(&bytes));
        let for_registrants = held.is_some_and(|h| {
            use ReservationKind as Kind;
            matches!(h.kind, Kind::WriteExclusiveRegistrants | Kind::WriteExclusiveAll)
        });
        Ok(keys.contains(&key) && for_registrants)
    }
}

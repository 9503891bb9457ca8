//! A connection of libiscsi's: from a unit's name, through the login, to one in which a session can begin; waiting
//! for its socket.

use std::cell::Cell;
use std::ffi::{CString, c_int, c_void};
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::ffi::{self, Context, Library};
use super::name::UnitName;

/// A login takes no longer.
pub const LOGIN_TIME: Duration = Duration::from_secs(15);

/// A session that could not be, or was ended.
#[derive(Debug, Clone)]
pub struct Ended(pub Arc<str>);

pub fn ended(why: impl Into<String>) -> Ended {
    Ended(why.into().into())
}

/// Who we are to a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The initiator's name.
    pub initiator: String,
    /// 24 and 16 bits that tell this port from others of the same initiator.
    pub isid: (u32, u16),
}

/// How long a login may take.
#[derive(Debug, Clone, Copy)]
pub struct Patience<'a> {
    /// No longer than until then, nor than is usual.
    pub until: Instant,
    /// Nobody wants it any more.
    pub given_up: &'a AtomicBool,
}

/// What a connection's callback says; alive as long as its context.
#[derive(Debug, Default)]
pub(super) struct Connected {
    called: AtomicBool,
    /// The connection has ended.
    pub failed: AtomicBool,
}

unsafe extern "C" fn on_connect(_: *mut Context, status: c_int, _: *mut c_void, told: *mut c_void) {
    // SAFETY: `Connected` of this session, which outlives its context.
    let told = unsafe { &*told.cast::<Connected>() };
    // A second call says that the connection has ended.
    told.failed.store(status != ffi::STATUS_GOOD, Ordering::Relaxed);
    told.called.store(true, Ordering::Relaxed);
}

pub(super) fn text(word: &str) -> Result<CString, Ended> {
    CString::new(word).map_err(|_| ended("a zero byte in a name"))
}

/// Why there is no connection with `portal`, by the system's word, and what to do.
fn no_connection(portal: &str, why: &io::Error) -> Ended {
    let advice = match why.kind() {
        ErrorKind::ConnectionRefused => {
            "nothing listens there: start the target, or correct the address and the port"
        }
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            "look at that host and at the network, or correct the address"
        }
        _ => "look at the target's log, and at the network",
    };
    ended(format!("no connection to {portal}: {why}; {advice}"))
}

/// A context that is destroyed unless a session takes it.
pub(super) struct Fresh {
    pub library: &'static Library,
    pub context: *mut Context,
    pub connected: Box<Connected>,
    portal: String,
    /// The peer has closed, and what it had sent may not have been read yet.
    seen_closed: Cell<bool>,
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.context.is_null() {
            // SAFETY: alive, and ours alone.
            unsafe { (self.library.iscsi_destroy_context)(self.context) };
        }
    }
}

impl Fresh {
    pub fn new(name: &UnitName, port: &Port) -> Result<Self, Ended> {
        let library = Library::get().map_err(ended)?;
        let initiator = text(&port.initiator)?;
        // SAFETY: strings that live over the calls, which copy them; a context of our own.
        unsafe {
            let context = (library.iscsi_create_context)(initiator.as_ptr());
            if context.is_null() {
                return Err(ended("libiscsi has no memory"));
            }
            let (connected, portal) = (Box::default(), name.portal.clone());
            let seen_closed = Cell::new(false);
            let fresh = Self { library, context, connected, portal, seen_closed };
            (library.iscsi_set_noautoreconnect)(context, 1);
            let (random, qualifier) = port.isid;
            (library.iscsi_set_isid_random)(context, random & 0xff_ffff, qualifier.into());
            (library.iscsi_set_targetname)(context, text(&name.target)?.as_ptr());
            (library.iscsi_set_session_type)(context, ffi::SESSION_NORMAL);
            (library.iscsi_set_header_digest)(context, ffi::DIGEST_NONE);
            if let (Some(user), Some(secret)) = (&name.user, &name.secret) {
                let (user, secret) = (text(user)?, text(secret)?);
                let set = library.iscsi_set_initiator_username_pwd;
                set(context, user.as_ptr(), secret.as_ptr());
            }
            if let (Ok(user), Ok(secret)) = (
                std::env::var("LIBISCSI_CHAP_TARGET_USERNAME"),
                std::env::var("LIBISCSI_CHAP_TARGET_PASSWORD"),
            ) {
                let (user, secret) = (text(&user)?, text(&secret)?);
                let set = library.iscsi_set_target_username_pwd;
                set(context, user.as_ptr(), secret.as_ptr());
            }
            Ok(fresh)
        }
    }
    /// Logs in, and takes the unit attentions of the unit in.
    pub fn connect(&self, name: &UnitName, patience: Patience<'_>) -> Result<(), Ended> {
        let (library, context) = (self.library, self.context);
        let until = patience.until.min(Instant::now() + LOGIN_TIME);
        let portal = text(&self.portal)?;
        let told: *const Connected = &raw const *self.connected;
        // SAFETY: the context is ours; `told` lives as long as it.
        unsafe {
            // Of login and what belongs to it.
            let seconds = c_int::try_from(LOGIN_TIME.as_secs()).unwrap_or(15);
            (library.iscsi_set_timeout)(context, seconds);
            let connect = library.iscsi_full_connect_async;
            let told = told.cast_mut().cast();
            let lun = c_int::from(name.lun);
            if connect(context, portal.as_ptr(), lun, on_connect, told) != 0 {
                return Err(self.not_begun());
            }
        }
        while !self.connected.called.load(Ordering::Relaxed) {
            if Instant::now() > until {
                return Err(self.no_answer("login", LOGIN_TIME));
            }
            if patience.given_up.load(Ordering::Acquire) {
                return Err(ended("given up"));
            }
            let has_ended = || self.connected.called.load(Ordering::Relaxed);
            self.turn("login failed", Duration::from_millis(100), &has_ended)?;
        }
        if self.connected.failed.load(Ordering::Relaxed) {
            return Err(self.why("login failed"));
        }
        // SAFETY: as above. From here on nothing has a timeout.
        unsafe { (library.iscsi_set_timeout)(context, 0) };
        Ok(())
    }
    /// Waits for `pause` at most, and lets the library go on with what it has begun; `has_ended` says whether that
    /// is over. `what` failed, if it fails by itself.
    pub fn turn(
        &self,
        what: &str,
        pause: Duration,
        has_ended: &dyn Fn() -> bool,
    ) -> Result<(), Ended> {
        // SAFETY: the context is ours alone, and so is its socket.
        unsafe {
            let (fd, events) = (
                (self.library.iscsi_get_fd)(self.context),
                (self.library.iscsi_which_events)(self.context),
            );
            let (got, gone) = poll(fd, events, None, pause)?;
            // The library does not say why.
            let socket = (gone && fd >= 0).then(|| BorrowedFd::borrow_raw(fd));
            if let Some(Ok(Err(why))) = socket.map(rustix::net::sockopt::socket_error) {
                return Err(no_connection(&self.portal, &why.into()));
            }
            let failed = (self.library.iscsi_service)(self.context, got) != 0;
            if gone && !has_ended() && (failed || self.seen_closed.replace(true)) {
                let portal = &self.portal;
                return Err(ended(format!(
                    "{what}: {portal} closed the connection; look at the target's log"
                )));
            }
            if failed {
                return Err(self.why(what));
            }
        }
        Ok(())
    }
    /// Why no connection has begun: the library has looked the host up.
    pub fn not_begun(&self) -> Ended {
        let Ended(why) = self.why("no connection");
        if !why.contains("resolv") {
            return Ended(why);
        }
        let portal = &self.portal;
        ended(format!(
            "no connection to {portal}: no such host is known; correct its name, or give its address"
        ))
    }
    /// Nothing came to `what` within `time`.
    pub fn no_answer(&self, what: &str, time: Duration) -> Ended {
        let portal = &self.portal;
        ended(format!(
            "{portal} has not answered the {what} within {time:?}; look at that host and at the network"
        ))
    }
    pub fn why(&self, what: &str) -> Ended {
        // SAFETY: the context is ours alone.
        let said = unsafe { self.library.error(self.context) };
        ended(if said.is_empty() { what.to_owned() } else { format!("{what}: {said}") })
    }
}

/// Waits for events on `fd`, or for a wake-up; which came, and whether the peer has closed.
pub fn poll(
    fd: RawFd,
    events: c_int,
    wake: Option<&OwnedFd>,
    patience: Duration,
) -> Result<(c_int, bool), Ended> {
    let limit = Timespec::try_from(patience).map_err(|_| ended("a wait without end"))?;
    if fd < 0 {
        std::thread::sleep(patience.min(Duration::from_millis(10)));
        return Ok((0, false));
    }
    // SAFETY: libiscsi's socket, open as long as its context.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let bits = u16::try_from(events).unwrap_or(0);
    let wanted = PollFlags::from_bits_truncate(bits) | PollFlags::RDHUP;
    let mut fds = Vec::with_capacity(2);
    fds.push(PollFd::from_borrowed_fd(socket, wanted));
    if let Some(wake) = wake {
        fds.push(PollFd::new(wake, PollFlags::IN));
    }
    match rustix::event::poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(ended(format!("poll: {e}"))),
    }
    if let Some(wake) = wake
        && fds.get(1).is_some_and(|f| f.revents().contains(PollFlags::IN))
    {
        let _ = rustix::io::read(wake, &mut [0; 8]);
    }
    let got = fds.first().map_or(PollFlags::empty(), PollFd::revents);
    let gone = got.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
    Ok((c_int::from((got - PollFlags::RDHUP).bits()), gone))
}

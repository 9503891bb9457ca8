//! One session with a target, shared by threads.
//!
//! libiscsi's context is used by one thread at a time, under [`State`]'s mutex, and by none while
//! somebody polls the socket. Who waits for a command polls, if nobody else does: a lone thread's
//! command costs no change of threads. Commands that nobody waits for yet are served by a helper.
//!
//! ```text
//! submit: command queued and pushed into the socket
//! wait:   done? -> take it.   polled by another? -> sleep until done, or until the role is free
//!         else poll, serve what came; on leaving pass the role to one who waits, or to the helper
//! ```
//!
//! * Memory of a command, and the vectors that name it, stay where they are until its callback ran:
//!   [`Ticket`]'s drop waits for that.
//! * A session that breaks ends every command under way with an error, their outcome unknown, and
//!   refuses all later ones. What follows it is another one: see [`super::link`].
//! * A unit that has a volatile cache and says in the middle of a session that it was switched on ends the
//!   session, too, and no answer that comes after its word counts. What was not flushed is judged before
//!   the next session is used.
//! * A command that is not answered in time (see [`Carried::answers_within`]) ends the session: so it
//!   can land no more once the port has logged in again. A connection has a bound too: [`SILENCE`].

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFlags};

use super::carried::Carried;
use super::connection::{Connected, Ended, Fresh, Patience, Port, ended, poll};
use super::ffi::{self, Context, IoVec, Library, Task};
use super::name::UnitName;
use super::unanswered::{self, Since, Unanswered};
use crate::scsi;

/// A peer that acknowledges nothing for so long is gone, and the session with it.
const SILENCE: Duration = Duration::from_secs(30);
/// How often the helper looks at an idle session: for pings of the target, and its end.
const IDLE: Duration = Duration::from_secs(1);

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// Its status; libiscsi's own for a session that broke.
    pub status: c_int,
    /// Sense key, and code with qualifier.
    pub sense: (u8, u16),
    /// Bytes that were not moved.
    pub missing: usize,
}

/// Memory of a command, or a part of it: where, and how many bytes.
pub type Memory = (*mut u8, usize);

/// A command under way.
#[derive(Debug)]
struct Slot {
    /// Of its memory, one part after the other. libiscsi shortens them while it calls the kernel, and
    /// puts them back.
    vectors: UnsafeCell<Box<[IoVec]>>,
    /// It leaves what only a flush makes durable, and of which the loss does harm.
    leaves_unflushed: bool,
    /// When it was issued.
    since: Since,
    /// How it ended, and when.
    done: Mutex<Option<(Ending, Instant)>>,
    /// With the state's mutex.
    changed: Condvar,
    common: Arc<Common>,
}

/// What callbacks change.
#[derive(Debug)]
struct Common {
    under_way: AtomicUsize,
    /// libiscsi has given up on the connection.
    broken: AtomicBool,
    /// What the unit had to tell a new session has been taken in: see [`Session::watch_power`].
    watches_power: AtomicBool,
    /// The unit has lost power since, and with it what was not flushed.
    lost_power: AtomicBool,
    carried: Arc<Carried>,
    unanswered: Unanswered,
}

/// Why a session ended whose target did not answer a command.
pub(super) const NOT_ANSWERED: &str = "a command was not answered in time";
/// Why a session ended whose unit lost power.
const LOST_POWER: &str = "the unit was switched off and on";

/// Whether a command leaves what only a flush makes durable: it brings data, and these are no change of
/// reservations (PERSISTENT RESERVE OUT) and no COMPARE AND WRITE with FUA.
fn leaves_unflushed(cdb: &[u8], direction: Direction) -> bool {
    const FUA: u8 = 0x08;
    let durable = matches!(cdb, [0x5f, ..]) || matches!(cdb, [0x89, flags, ..] if flags & FUA != 0);
    matches!(direction, Direction::Write) && !durable
}

/// The blocks that a WRITE (16) is of, as which all transfers are issued.
fn written_blocks(cdb: &[u8]) -> Option<Range<u64>> {
    let [0x8a, _, rest @ ..] = cdb else { return None };
    let (first, rest) = rest.split_first_chunk()?;
    let (first, count) = (u64::from_be_bytes(*first), rest.first_chunk()?);
    Some(first..first.saturating_add(u32::from_be_bytes(*count).into()))
}

impl Common {
    /// Whether a command leaves what only a flush makes durable, and of which the loss does harm.
    fn leaves_unflushed(&self, cdb: &[u8], direction: Direction) -> bool {
        let repeated = || written_blocks(cdb).is_some_and(|b| self.carried.is_repeated(&b));
        leaves_unflushed(cdb, direction) && !repeated()
    }
    /// Whether the unit has lost power, by the ending of this command or of one before. The unit tells
    /// each session once, with the first command that comes after it: what is answered later in this
    /// session was done after the loss.
    fn has_lost_power(&self, ending: Ending) -> bool {
        let (key, code) = ending.sense;
        let told = ending.status == ffi::STATUS_CHECK && scsi::is_power_on(key, code);
        if told && self.watches_power.load(Ordering::Relaxed) {
            self.lost_power.store(true, Ordering::Relaxed);
        }
        self.lost_power.load(Ordering::Relaxed)
    }
}

impl Slot {
    fn new(cdb: &[u8], direction: Direction, memory: &[Memory], common: &Arc<Common>) -> Arc<Self> {
        let since =
            common.unanswered.issued(unanswered::is_slow(cdb), common.carried.answers_within());
        let vectors = memory.iter().map(|&(base, len)| IoVec { base: base.cast(), len }).collect();
        let (done, changed) = (Mutex::new(None), Condvar::new());
        let vectors = UnsafeCell::new(vectors);
        let leaves_unflushed = common.leaves_unflushed(cdb, direction);
        Arc::new(Self { vectors, leaves_unflushed, since, done, changed, common: common.clone() })
    }
}
impl Drop for Slot {
    fn drop(&mut self) {
        if self.done.lock().is_none() {
            // It was not issued.
            self.common.unanswered.ended(self.since);
        }
    }
}
// SAFETY: the vectors are written before the slot is shared, and only libiscsi uses them after, under
// the mutex of its context.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

#[derive(Debug)]
struct State {
    /// Null once the session has ended.
    context: *mut Context,
    /// Why it has.
    ended: Option<Arc<str>>,
    /// Somebody polls.
    polled: bool,
    waiting: Vec<Arc<Slot>>,
    closing: bool,
}
// SAFETY: the context is used under the mutex only.
unsafe impl Send for State {}

impl State {
    fn alive(&self) -> Result<*mut Context, Ended> {
        match &self.ended {
            Some(why) => Err(Ended(why.clone())),
            None => Ok(self.context),
        }
    }
}

/// A session with a target.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    helper: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    library: &'static Library,
    lun: c_int,
    fd: RawFd,
    /// Wakes who polls: there is more to send than the socket took.
    wake: OwnedFd,
    state: Mutex<State>,
    common: Arc<Common>,
    /// For the helper.
    work: Condvar,
    /// What a connection's callback says; alive as long as the context.
    connected: Box<Connected>,
}
impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session(unit {}, {:?})", self.lun, self.state)
    }
}

/// What a command does with memory.
#[derive(Debug, Clone, Copy)]
pub enum Direction {
    /// None.
    Neither,
    /// Into it.
    Read,
    /// From it.
    Write,
}

/// A command under way; dropping it waits for its end.
#[derive(Debug)]
pub struct Ticket {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
}

impl Ticket {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.slot.done.lock().is_some()
    }
    /// When it ended, if it has.
    pub fn ended(&self) -> Option<Instant> {
        self.slot.done.lock().map(|(_, at)| at)
    }
    /// Waits for the end.
    pub fn wait(&self) -> Ending {
        self.shared.wait(&self.slot)
    }
}
impl Drop for Ticket {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Takes the ending over; the slot's own reference was given to libiscsi.
fn finish(slot: *mut c_void, mut ending: Ending) {
    // SAFETY: made by `Arc::into_raw` at submission; a callback runs once.
    let slot = unsafe { Arc::from_raw(slot.cast_const().cast::<Slot>()) };
    if slot.common.has_lost_power(ending) {
        // Its answer says nothing of what stands after a flush: it is issued again in the next session,
        // if there is one.
        ending.status = ffi::STATUS_CANCELLED;
    }
    if matches!(ending.status, ffi::STATUS_CANCELLED | ffi::STATUS_ERROR) {
        slot.common.broken.store(true, Ordering::Relaxed);
        slot.common.carried.unsettle();
    } else if slot.leaves_unflushed && ending.status == ffi::STATUS_GOOD {
        slot.common.carried.wrote();
    }
    slot.common.under_way.fetch_sub(1, Ordering::Relaxed);
    slot.common.unanswered.ended(slot.since);
    *slot.done.lock() = Some((ending, Instant::now()));
    slot.changed.notify_one();
}

unsafe extern "C" fn on_command(
    _: *mut Context,
    status: c_int,
    task: *mut c_void,
    slot: *mut c_void,
) {
    let mut ending = Ending { status, sense: (0, 0), missing: 0 };
    let task = task.cast::<Task>();
    // SAFETY: the task of this command, in the layout of this version of the library; freed once.
    unsafe {
        if let Some(t) = task.as_ref() {
            let sense = &t.sense;
            let key = u8::try_from(sense.key).unwrap_or(u8::MAX);
            ending.sense = (key, u16::try_from(sense.ascq).unwrap_or(u16::MAX));
            if t.residual_status == ffi::UNDERFLOW {
                ending.missing = t.residual;
            }
            if let Ok(library) = Library::get() {
                (library.scsi_free_scsi_task)(task);
            }
        }
    }
    finish(slot, ending);
}

unsafe extern "C" fn on_reset(
    _: *mut Context,
    status: c_int,
    response: *mut c_void,
    slot: *mut c_void,
) {
    let answered = status == ffi::STATUS_GOOD && !response.is_null();
    // SAFETY: on success the library passes the response's code, a `uint32_t`.
    let refused = answered && unsafe { *response.cast::<u32>() } != 0;
    let status = if refused { ffi::STATUS_CHECK } else { status };
    finish(slot, Ending { status, sense: (0, 0), missing: 0 });
}

impl Session {
    /// Logs in as a port that had a session before: the target has ended all commands of that one
    /// when it answers.
    ///
    /// # Errors
    /// [`Ended`] with the reason.
    pub fn login_again(
        name: &UnitName,
        port: &Port,
        patience: Patience<'_>,
        carried: &Arc<Carried>,
    ) -> Result<Self, Ended> {
        let mut fresh = Fresh::new(name, port)?;
        fresh.connect(name, patience)?;
        carried.settle();
        // SAFETY: the context is ours alone.
        let fd = unsafe { (fresh.library.iscsi_get_fd)(fresh.context) };
        // SAFETY: libiscsi's socket, open as long as the context.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let silence = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, silence);
        // SAFETY: as above.
        unsafe { (fresh.library.iscsi_set_tcp_keepalive)(fresh.context, 10, 4, 5) };
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|e| ended(format!("eventfd: {e}")))?;
        let shared = Arc::new(Shared {
            library: fresh.library,
            lun: c_int::from(name.lun),
            fd,
            wake,
            state: Mutex::new(State {
                context: std::mem::replace(&mut fresh.context, null_mut()),
                ended: None,
                polled: false,
                waiting: Vec::new(),
                closing: false,
            }),
            common: Arc::new(Common {
                under_way: AtomicUsize::new(0),
                broken: AtomicBool::new(false),
                watches_power: AtomicBool::new(false),
                lost_power: AtomicBool::new(false),
                carried: carried.clone(),
                unanswered: Unanswered::new(),
            }),
            work: Condvar::new(),
            connected: std::mem::take(&mut fresh.connected),
        });
        let helped = shared.clone();
        let helper = std::thread::Builder::new()
            .name("iscsi".into())
            .spawn(move || {
                crate::processors::roam();
                helped.help();
            })
            .map_err(|e| ended(format!("no thread: {e}")))?;
        Ok(Self { shared, helper: Some(helper) })
    }
    /// Starts a command; `now` says that its caller waits at once.
    ///
    /// # Safety
    /// All of `memory` is valid, and used by nobody else as long as the ticket lives, which is dropped,
    /// not forgotten.
    ///
    /// # Errors
    /// [`Ended`]: it was not issued.
    pub unsafe fn start(
        &self,
        cdb: &[u8],
        direction: Direction,
        memory: &[Memory],
        now: bool,
    ) -> Result<Ticket, Ended> {
        let slot = Slot::new(cdb, direction, memory, &self.shared.common);
        let len = memory.iter().map(|(_, len)| len).sum();
        // SAFETY: the caller's promise; the slot lives until the callback.
        unsafe { self.shared.submit(cdb, direction, len, &slot) }?;
        if !now {
            self.shared.work.notify_one();
        }
        Ok(Ticket { shared: self.shared.clone(), slot })
    }
    /// Resets the unit.
    ///
    /// # Errors
    /// [`Ended`]: it was not issued.
    pub fn reset(&self) -> Result<Ticket, Ended> {
        let slot = Slot::new(&[], Direction::Neither, &[], &self.shared.common);
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let context = state.alive()?;
        let raw = Arc::into_raw(slot.clone()).cast_mut().cast::<c_void>();
        let lun = shared.lun.unsigned_abs();
        // SAFETY: the context is alive and used under its mutex; the callback takes `raw`.
        let rc = unsafe {
            (shared.library.iscsi_task_mgmt_lun_reset_async)(context, lun, on_reset, raw)
        };
        if rc != 0 {
            // SAFETY: not taken by the library.
            drop(unsafe { Arc::from_raw(raw.cast_const().cast::<Slot>()) });
            return Err(ended("libiscsi has no memory"));
        }
        shared.common.under_way.fetch_add(1, Ordering::Relaxed);
        shared.push(&mut state);
        drop(state);
        Ok(Ticket { shared: shared.clone(), slot })
    }
}

impl Session {
    /// Ends it: every command under way gets its ending at once, and none is taken any more.
    pub fn end(&self, why: &str) {
        let mut state = self.shared.state.lock();
        self.shared.die(&mut state, why);
        drop(state);
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
    }
    /// From now on the unit's word that it was switched on means that it lost power in this session: before
    /// it has said so because the session is new.
    pub fn watch_power(&self) {
        self.shared.common.watches_power.store(true, Ordering::Relaxed);
    }
    /// Why it has ended, if it has.
    pub fn ended(&self) -> Option<Arc<str>> {
        self.shared.state.lock().ended.clone()
    }
    /// Whether a command was started by it.
    pub fn has_started(&self, ticket: &Ticket) -> bool {
        Arc::ptr_eq(&self.shared, &ticket.shared)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.closing = true;
            self.shared.die(&mut state, "closed");
        }
        self.shared.work.notify_all();
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
        if let Some(helper) = self.helper.take() {
            let _ = helper.join();
        }
    }
}

impl Shared {
    /// # Safety
    /// As [`Session::start`].
    unsafe fn submit(
        &self,
        cdb: &[u8],
        direction: Direction,
        len: usize,
        slot: &Arc<Slot>,
    ) -> Result<(), Ended> {
        let (Ok(cdb_len), Ok(bytes)) = (c_int::try_from(cdb.len()), c_int::try_from(len)) else {
            return Err(ended("too long for one command"));
        };
        let xfer = match direction {
            Direction::Neither => ffi::XFER_NONE,
            Direction::Read => ffi::XFER_READ,
            Direction::Write => ffi::XFER_WRITE,
        };
        let mut state = self.state.lock();
        let context = state.alive()?;
        let library = self.library;
        // SAFETY: the context is alive and used under its mutex; task, vectors and slot live until
        // the callback, which frees the first and takes a reference of the last. Nobody but libiscsi
        // uses the vectors from here on.
        unsafe {
            let task = (library.scsi_create_task)(cdb_len, cdb.as_ptr(), xfer, bytes);
            if task.is_null() {
                return Err(ended("libiscsi has no memory"));
            }
            let vectors = &mut *slot.vectors.get();
            let count = c_int::try_from(vectors.len()).unwrap_or(c_int::MAX);
            let first = vectors.as_mut_ptr();
            match direction {
                Direction::Neither => {}
                Direction::Read => (library.scsi_task_set_iov_in)(task, first, count),
                Direction::Write => (library.scsi_task_set_iov_out)(task, first, count),
            }
            let raw = Arc::into_raw(slot.clone()).cast_mut().cast::<c_void>();
            let send = library.iscsi_scsi_command_async;
            if send(context, self.lun, task, on_command, null_mut(), raw) != 0 {
                let why = library.error(context);
                drop(Arc::from_raw(raw.cast_const().cast::<Slot>()));
                (library.scsi_free_scsi_task)(task);
                return Err(ended(why));
            }
        }
        self.common.under_way.fetch_add(1, Ordering::Relaxed);
        self.push(&mut state);
        Ok(())
    }
    /// Gives the socket what it takes.
    fn push(&self, state: &mut MutexGuard<'_, State>) {
        let out = c_int::from(PollFlags::OUT.bits());
        if self.events(state) & out != 0 {
            self.serve(state, out);
        }
        // Whoever polls does not look for room in the socket.
        if state.polled && self.events(state) & out != 0 {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }
    fn events(&self, state: &State) -> c_int {
        if state.context.is_null() {
            return 0;
        }
        // SAFETY: alive, under its mutex.
        unsafe { (self.library.iscsi_which_events)(state.context) }
    }
    /// Has libiscsi do what can be done; callbacks run in it.
    fn serve(&self, state: &mut MutexGuard<'_, State>, events: c_int) {
        if state.context.is_null() {
            return;
        }
        // SAFETY: alive, under its mutex; callbacks take other locks only (a slot's).
        let rc = unsafe { (self.library.iscsi_service)(state.context, events) };
        if rc != 0 {
            // SAFETY: as above.
            let why = unsafe { self.library.error(state.context) };
            self.die(state, &why);
        }
    }
    /// Ends the session: every command under way gets its callback, with an error.
    fn die(&self, state: &mut MutexGuard<'_, State>, why: &str) {
        let context = std::mem::replace(&mut state.context, null_mut());
        if context.is_null() {
            return;
        }
        let why = if why.is_empty() { "the session ended" } else { why };
        state.ended = Some(why.into());
        // SAFETY: alive, under its mutex, and never used again.
        unsafe { (self.library.iscsi_destroy_context)(context) };
        self.connected.failed.store(true, Ordering::Relaxed);
        for slot in &state.waiting {
            slot.changed.notify_one();
        }
    }
    /// One look at the socket, by the thread that has the role; the mutex is let go meanwhile.
    fn turn(&self, state: &mut MutexGuard<'_, State>, patience: Duration) {
        let events = self.events(state);
        let seen =
            MutexGuard::unlocked(state, || poll(self.fd, events, Some(&self.wake), patience));
        match seen {
            Ok((got, gone)) => {
                if got != 0 {
                    self.serve(state, got);
                }
                let broken = self.common.broken.load(Ordering::Relaxed);
                if gone || broken || self.connected.failed.load(Ordering::Relaxed) {
                    self.drain(state);
                    let lost_power = self.common.lost_power.load(Ordering::Relaxed);
                    let why =
                        if lost_power { LOST_POWER } else { "the target closed the connection" };
                    self.die(state, why);
                }
            }
            Err(Ended(why)) => self.die(state, &why),
        }
        let common = &self.common;
        if self.under_way(state) && common.unanswered.is_beyond(common.carried.answers_within()) {
            self.die(state, NOT_ANSWERED);
        }
    }
    /// What the peer sent before it closed.
    fn drain(&self, state: &mut MutexGuard<'_, State>) {
        const LOOKS_MAX: usize = 4096;
        let input = c_int::from(PollFlags::IN.bits());
        for _ in 0..LOOKS_MAX {
            if !self.under_way(state) {
                return;
            }
            match poll(self.fd, input, None, Duration::ZERO) {
                Ok((got, _)) if got & input != 0 => self.serve(state, input),
                _ => return,
            }
        }
    }
    fn wait(&self, slot: &Arc<Slot>) -> Ending {
        let mut state = self.state.lock();
        let mut ours = false;
        let ending = loop {
            if let Some((ending, _)) = *slot.done.lock() {
                break ending;
            }
            if state.polled && !ours {
                state.waiting.push(slot.clone());
                slot.changed.wait(&mut state);
                state.waiting.retain(|s| !Arc::ptr_eq(s, slot));
                continue;
            }
            (state.polled, ours) = (true, true);
            self.turn(&mut state, self.patience());
        };
        if ours {
            state.polled = false;
            self.pass_on(&state);
        }
        ending
    }
    /// The role of polling goes to one who waits, or to the helper.
    fn pass_on(&self, state: &State) {
        match state.waiting.iter().find(|s| s.done.lock().is_none()) {
            Some(next) => {
                next.changed.notify_one();
            }
            None => {
                self.work.notify_one();
            }
        }
    }
    /// The helper's work.
    fn help(&self) {
        let mut state = self.state.lock();
        while !state.closing {
            let busy = self.under_way(&state);
            if state.polled || !busy {
                let idle = self.work.wait_for(&mut state, IDLE).timed_out();
                if !idle || state.polled || state.closing || state.context.is_null() {
                    continue;
                }
                self.turn(&mut state, Duration::ZERO);
                continue;
            }
            state.polled = true;
            while !state.closing && self.under_way(&state) {
                self.turn(&mut state, self.patience());
            }
            state.polled = false;
            self.pass_on(&state);
        }
    }
    /// How long the socket is waited for at a time while something is under way.
    fn patience(&self) -> Duration {
        unanswered::look_after(self.common.carried.answers_within())
    }
    fn under_way(&self, state: &State) -> bool {
        !state.context.is_null() && self.common.under_way.load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::cdb;

    #[test]
    fn only_writes_inside_what_is_repeated_leave_nothing_to_flush() {
        let common = Common {
            under_way: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            watches_power: AtomicBool::new(false),
            lost_power: AtomicBool::new(false),
            carried: Arc::default(),
            unanswered: Unanswered::new(),
        };
        let write = |first, count| {
            let cdb = cdb::sixteen(0x8a, 0, first, count);
            common.leaves_unflushed(&cdb, Direction::Write)
        };
        assert!(write(8, 1) && write(0, 0), "nothing is repeated");
        common.carried.set_repeated(8..10);
        assert!(!write(8, 1) && !write(9, 1) && !write(8, 2));
        assert!(write(7, 1) && write(7, 2) && write(9, 2) && write(10, 1) && write(7, 4));
        assert!(write(u64::MAX, 8) && write(8, 0));
        // Others are no transfers: blocks that are the same, unmapped, compared without FUA.
        for cdb in [cdb::sixteen(0x93, 0, 8, 1), cdb::compare_and_write(8, 1, false)] {
            assert!(common.leaves_unflushed(&cdb, Direction::Write));
        }
        assert!(common.leaves_unflushed(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], Direction::Write));
        assert!(!common.leaves_unflushed(&cdb::sixteen(0x88, 0, 7, 1), Direction::Read));
        common.carried.set_repeated(20..21);
        assert!(write(8, 1) && !write(20, 1));
    }
}

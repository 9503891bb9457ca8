//! Which commands a rule is about, and what becomes of them.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use braid_format::{ByteOffset, Bytes};
use parking_lot::{Condvar, Mutex};

use crate::{Command, CommandKind, Completion, Device, DeviceError};

type Condition = dyn Fn(ByteOffset, &Command<'_>) -> bool + Send + Sync;
type Hook = dyn Fn(ByteOffset, &Command<'_>) + Send + Sync;
type EndHook = dyn Fn(ByteOffset, &Command<'_>, &Result<Completion, DeviceError>) + Send + Sync;
type MakeError = dyn Fn(ByteOffset) -> DeviceError + Send + Sync;

/// A command that a rule took note of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted {
    /// What it was.
    pub kind: CommandKind,
    /// Where its range begins.
    pub at: ByteOffset,
    /// Bytes of its range.
    pub len: Bytes,
}

/// What becomes of a command.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    Passes,
    Fails,
    FailsDone,
    /// Whole sectors up to this many bytes land.
    Tears(Bytes),
    Keeps,
    Loses,
    Unsupported,
}

/// The range of a command, empty for a flush.
fn range(at: ByteOffset, len: Bytes) -> Range<u64> {
    at.get()..at.get().saturating_add(len.get())
}

/// A write that failed and has not landed yet.
#[derive(Debug)]
struct Kept {
    device: Arc<dyn Device>,
    at: ByteOffset,
    data: Box<[u8]>,
}

#[derive(Debug)]
struct State {
    on: bool,
    /// Commands that it lets go before it strikes.
    skip: u64,
    /// Commands that it strikes.
    left: u64,
    held: bool,
    hits: u64,
    bytes: Bytes,
    under_way: usize,
    most: usize,
    noted: Vec<Noted>,
    kept: Vec<Kept>,
}

/// A rule of a [`ScriptedDevice`](super::ScriptedDevice). It is about some commands: of these kinds, over
/// this range, under these conditions, the n-th. A command that it is about is *struck*: counted, and what
/// the rule says happens to it. All rules that are about a command strike it; the first one that does not
/// let it pass decides how it ends.
pub struct Rule {
    /// `None`: all.
    kinds: Option<Vec<CommandKind>>,
    conditions: Vec<Box<Condition>>,
    delay: Duration,
    before: Option<Box<Hook>>,
    after: Option<Box<EndHook>>,
    outcome: Outcome,
    error: Option<Box<MakeError>>,
    notes: bool,
    state: Mutex<State>,
    released: Condvar,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Rule");
        debug.field("kinds", &self.kinds).field("outcome", &self.outcome);
        debug.field("state", &self.state).finish_non_exhaustive()
    }
}

/// Which commands it is about.
impl Rule {
    /// About all commands; they pass.
    pub fn all() -> Self {
        let state = State {
            on: true,
            skip: 0,
            left: u64::MAX,
            held: false,
            hits: 0,
            bytes: Bytes(0),
            under_way: 0,
            most: 0,
            noted: Vec::new(),
            kept: Vec::new(),
        };
        Self {
            kinds: None,
            conditions: Vec::new(),
            delay: Duration::ZERO,
            before: None,
            after: None,
            outcome: Outcome::Passes,
            error: None,
            notes: false,
            state: Mutex::new(state),
            released: Condvar::new(),
        }
    }
    /// About commands of these kinds; they pass.
    pub fn on(kinds: &[CommandKind]) -> Self {
        Self { kinds: Some(kinds.to_vec()), ..Self::all() }
    }
    /// Only commands for which this holds, too.
    #[must_use]
    pub fn when(
        mut self,
        holds: impl Fn(ByteOffset, &Command<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.conditions.push(Box::new(holds));
        self
    }
    /// Only commands whose range begins there.
    #[must_use]
    pub fn beginning(self, place: ByteOffset) -> Self {
        self.when(move |at, _| at == place)
    }
    /// Only commands whose range has that byte in it.
    #[must_use]
    pub fn covering(self, place: ByteOffset) -> Self {
        self.when(move |at, command| range(at, command.len()).contains(&place.get()))
    }
    /// Only commands whose range has a byte of these in it.
    #[must_use]
    pub fn overlapping(self, bytes: Range<u64>) -> Self {
        self.when(move |at, command| {
            let range = range(at, command.len());
            range.start < bytes.end && bytes.start < range.end
        })
    }
    /// Only writes of these bytes, whatever their length: for contents that a test can tell.
    #[must_use]
    pub fn writing(self, content: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        self.when(move |_, command| matches!(command, Command::Write(buf) if content(buf)))
    }
    /// Not the first `commands`.
    #[must_use]
    pub fn after_first(mut self, commands: u64) -> Self {
        self.state.get_mut().skip = commands;
        self
    }
    /// So many commands, and then none.
    #[must_use]
    pub fn times(mut self, commands: u64) -> Self {
        self.state.get_mut().left = commands;
        self
    }
    /// One command.
    #[must_use]
    pub fn once(self) -> Self {
        self.times(1)
    }
    /// None before [`Rule::enable`].
    #[must_use]
    pub fn disabled(mut self) -> Self {
        self.state.get_mut().on = false;
        self
    }
}

/// What becomes of them.
impl Rule {
    /// Calls this before a command is done. It may use the device.
    #[must_use]
    pub fn calls(
        mut self,
        hook: impl Fn(ByteOffset, &Command<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.before = Some(Box::new(hook));
        self
    }
    /// Calls this before one command is done, and drops it.
    #[must_use]
    pub fn calls_once(self, hook: impl FnOnce() + Send + 'static) -> Self {
        let hook = Mutex::new(Some(hook));
        self.once().calls(move |_, _| {
            let hook = hook.lock().take();
            if let Some(hook) = hook {
                hook();
            }
        })
    }
    /// Calls this when a command has ended, with what came of it. It may use the device.
    #[must_use]
    pub fn then_calls<F>(mut self, hook: F) -> Self
    where
        F: Fn(ByteOffset, &Command<'_>, &Result<Completion, DeviceError>) + Send + Sync + 'static,
    {
        self.after = Some(Box::new(hook));
        self
    }
    /// A command takes this much longer.
    #[must_use]
    pub fn delays(mut self, time: Duration) -> Self {
        self.delay = time;
        self
    }
    /// A command is not begun before [`Rule::release`].
    #[must_use]
    pub fn holds(mut self) -> Self {
        self.state.get_mut().held = true;
        self
    }
    /// An error, [`DeviceError::Injected`] if no other is given, and nothing is done.
    #[must_use]
    pub fn fails(mut self) -> Self {
        self.outcome = Outcome::Fails;
        self
    }
    /// As [`Rule::fails`], with this error.
    #[must_use]
    pub fn fails_with(
        mut self,
        error: impl Fn(ByteOffset) -> DeviceError + Send + Sync + 'static,
    ) -> Self {
        self.error = Some(Box::new(error));
        self.fails()
    }
    /// An error, although it is done.
    #[must_use]
    pub fn fails_done(mut self) -> Self {
        self.outcome = Outcome::FailsDone;
        self
    }
    /// An error, and only whole sectors of the first `len` bytes of a write land.
    #[must_use]
    pub fn tears(mut self, len: Bytes) -> Self {
        self.outcome = Outcome::Tears(len);
        self
    }
    /// An error, and a write lands at [`Rule::land_kept`].
    #[must_use]
    pub fn keeps(mut self) -> Self {
        self.outcome = Outcome::Keeps;
        self
    }
    /// Success, and nothing is done.
    #[must_use]
    pub fn loses(mut self) -> Self {
        self.outcome = Outcome::Loses;
        self
    }
    /// The device does not do that.
    #[must_use]
    pub fn is_unsupported(mut self) -> Self {
        self.outcome = Outcome::Unsupported;
        self
    }
    /// Takes note of each command.
    #[must_use]
    pub fn notes(mut self) -> Self {
        self.notes = true;
        self
    }
}

/// While the device is used.
impl Rule {
    /// Whether it strikes commands from now on. What it has counted stays.
    pub fn enable(&self, on: bool) {
        self.state.lock().on = on;
    }
    /// Strikes, from now on, all commands but the next `skip`.
    pub fn strike_after(&self, skip: u64) {
        let mut state = self.state.lock();
        (state.on, state.skip, state.left) = (true, skip, u64::MAX);
    }
    /// Commands that are held go on, and no more are held.
    pub fn release(&self) {
        self.state.lock().held = false;
        self.released.notify_all();
    }
    /// Writes land that were kept, in order; how many.
    ///
    /// # Errors
    /// Of the devices.
    pub fn land_kept(&self) -> Result<usize, DeviceError> {
        let kept = std::mem::take(&mut self.state.lock().kept);
        kept.iter().try_for_each(|write| write.device.write(write.at, &write.data))?;
        Ok(kept.len())
    }
    /// Commands that it struck.
    pub fn hits(&self) -> u64 {
        self.state.lock().hits
    }
    /// Bytes of their ranges.
    pub fn bytes(&self) -> Bytes {
        self.state.lock().bytes
    }
    /// How many of them at most were under way at the same time.
    pub fn most_at_once(&self) -> usize {
        self.state.lock().most
    }
    /// Those that it struck, in order, if it takes note of them.
    pub fn noted(&self) -> Vec<Noted> {
        self.state.lock().noted.clone()
    }
}

/// For the device.
impl Rule {
    /// Counts a command that it is about; `None` if it is not.
    pub(super) fn strike(
        self: &Arc<Self>,
        at: ByteOffset,
        command: &Command<'_>,
    ) -> Option<Struck> {
        let kind = command.kind();
        if self.kinds.as_ref().is_some_and(|kinds| !kinds.contains(&kind))
            || !self.conditions.iter().all(|holds| holds(at, command))
        {
            return None;
        }
        let state = &mut *self.state.lock();
        if !state.on {
            return None;
        }
        if state.skip > 0 {
            state.skip -= 1;
            return None;
        }
        state.left = state.left.checked_sub(1)?;
        state.hits += 1;
        state.bytes = Bytes(state.bytes.get() + command.len().get());
        state.under_way += 1;
        state.most = state.most.max(state.under_way);
        if self.notes {
            state.noted.push(Noted { kind, at, len: command.len() });
        }
        Some(Struck(self.clone()))
    }
    pub(super) fn before(&self, at: ByteOffset, command: &Command<'_>) {
        if let Some(hook) = &self.before {
            hook(at, command);
        }
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        self.released.wait_while(&mut self.state.lock(), |state| state.held);
    }
    pub(super) fn after(
        &self,
        at: ByteOffset,
        command: &Command<'_>,
        done: &Result<Completion, DeviceError>,
    ) {
        if let Some(hook) = &self.after {
            hook(at, command, done);
        }
    }
    pub(super) fn outcome(&self) -> Outcome {
        self.outcome
    }
    pub(super) fn error(&self, at: ByteOffset) -> Option<DeviceError> {
        self.error.as_ref().map(|error| error(at))
    }
    pub(super) fn keep(&self, device: &Arc<dyn Device>, at: ByteOffset, data: &[u8]) {
        let kept = Kept { device: device.clone(), at, data: data.into() };
        self.state.lock().kept.push(kept);
    }
}

/// A rule that has struck a command, until the command ends.
#[derive(Debug)]
pub(super) struct Struck(Arc<Rule>);

impl Deref for Struck {
    type Target = Rule;
    fn deref(&self) -> &Rule {
        &self.0
    }
}

impl Drop for Struck {
    fn drop(&mut self) {
        self.0.state.lock().under_way -= 1;
    }
}

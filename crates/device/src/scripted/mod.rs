//! A device that follows a script: rules that a test gives it, and may change while it is used.
//!
//! It is in this crate, as the other devices for tests are, and not in `braid-testkit`. Unit tests of this
//! crate use it too: a crate that depends on this one would bring them the types of a second copy. And
//! it is behind no feature: every crate would then be built twice, for the programs and for their tests.

mod power;
mod rule;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::ByteOffset;
use parking_lot::RwLock;

use crate::{
    Abilities, ByteLockGuard, Command, CommandKind, Completion, Device, DeviceError, DeviceInfo,
    LivenessLocks,
};

pub use power::Power;
pub use rule::{Noted, Rule};

use rule::Outcome;

/// A device over another one that does what its [`Rule`]s say. A command that no rule is about is passed
/// on, so without rules it is the device below. Commands are under way together as they come.
#[derive(Debug)]
pub struct ScriptedDevice {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    rules: RwLock<Vec<Arc<Rule>>>,
    power: Option<Arc<Power>>,
    refuses_locks: AtomicBool,
}

impl ScriptedDevice {
    /// `inner`, without a rule yet.
    pub fn over(inner: Arc<dyn Device>) -> Arc<Self> {
        Self::described(inner, |_| {})
    }
    /// `inner`, which says of itself what `describe` makes of it: for example that it is smaller. Its
    /// commands are checked against that.
    pub fn described(inner: Arc<dyn Device>, describe: impl FnOnce(&mut DeviceInfo)) -> Arc<Self> {
        let mut info = inner.info().clone();
        describe(&mut info);
        Arc::new(Self::new(inner, info, None))
    }
    /// `inner`, as long as there is power.
    pub fn powered(inner: Arc<dyn Device>, power: &Arc<Power>) -> Arc<Self> {
        let info = inner.info().clone();
        Arc::new(Self::new(inner, info, Some(power.clone())))
    }
    fn new(inner: Arc<dyn Device>, info: DeviceInfo, power: Option<Arc<Power>>) -> Self {
        let (rules, refuses_locks) = (RwLock::default(), AtomicBool::new(false));
        Self { inner, info, rules, power, refuses_locks }
    }
    /// The device under it.
    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }
    /// Follows a rule from now on, after those that it has: one of its own, or one that several devices
    /// share and that counts the commands of all of them.
    pub fn add(&self, rule: impl Into<Arc<Rule>>) -> Arc<Rule> {
        let rule = rule.into();
        self.rules.write().push(rule.clone());
        rule
    }
    /// Fails from now on to lock a liveness byte.
    pub fn refuse_locks(&self) {
        self.refuses_locks.store(true, Ordering::Release);
    }
    fn injected(&self, operation: &'static str, at: ByteOffset) -> DeviceError {
        DeviceError::Injected { device: self.info.name.as_str().into(), operation, at }
    }
    /// Has the device below do it.
    fn pass(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        if command.kind() != CommandKind::Flush {
            self.info.check(at, command.len())?;
        }
        self.inner.submit(at, command)
    }
    fn end(
        &self,
        rule: &Rule,
        at: ByteOffset,
        command: Command<'_>,
    ) -> Result<Completion, DeviceError> {
        let error = rule.error(at).unwrap_or_else(|| self.injected(command.name(), at));
        match (rule.outcome(), command) {
            (Outcome::Passes, command) => return self.pass(at, command),
            (Outcome::FailsDone, command) => drop(self.pass(at, command)?),
            (Outcome::Tears(len), Command::Write(buf)) => {
                let sector = self.info.sector.to_usize();
                let whole = len.to_usize().min(buf.len()) / sector * sector;
                drop(self.pass(at, Command::Write(&buf[..whole]))?);
            }
            (Outcome::Keeps, Command::Write(buf)) => rule.keep(&self.inner, at, buf),
            (Outcome::Loses, _) => return Ok(Completion::Done),
            (Outcome::Unsupported, _) => return Ok(Completion::Unsupported),
            (Outcome::Fails | Outcome::Tears(_) | Outcome::Keeps, _) => {}
        }
        Err(error)
    }
}

impl Device for ScriptedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&self, at: ByteOffset, mut command: Command<'_>) -> Result<Completion, DeviceError> {
        if self.power.as_ref().is_some_and(|power| !power.serves(command.kind())) {
            return Err(self.injected(command.name(), at));
        }
        // Without the lock: what a rule calls may add rules, and use the device.
        let rules = self.rules.read().clone();
        let struck: Vec<_> = rules.iter().filter_map(|rule| rule.strike(at, &command)).collect();
        for rule in &struck {
            rule.before(at, &command);
        }
        let done = match struck.iter().find(|rule| !matches!(rule.outcome(), Outcome::Passes)) {
            Some(rule) => self.end(rule, at, command.again()),
            None => self.pass(at, command.again()),
        };
        for rule in &struck {
            rule.after(at, &command, &done);
        }
        done
    }
    fn abilities(&self) -> Abilities<'_> {
        let below = self.inner.abilities();
        if self.refuses_locks.load(Ordering::Acquire) {
            return Abilities { locks: self, ..below };
        }
        below
    }
}

/// Those of a device that fails to lock them.
impl LivenessLocks for ScriptedDevice {
    fn lock_byte(&self, byte: u64) -> Result<Option<ByteLockGuard>, DeviceError> {
        Err(self.injected("lock", ByteOffset(byte)))
    }
    fn byte_locked(&self, byte: u64) -> Result<bool, DeviceError> {
        self.inner.abilities().locks.byte_locked(byte)
    }
}

#[cfg(test)]
mod tests;

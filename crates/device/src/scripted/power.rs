//! The power of several devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::CommandKind;

/// The power that several devices share. It can be cut after so many of their commands: for each place
/// where a change may stop, a test stops it there.
#[derive(Debug)]
pub struct Power {
    /// Commands until it is cut.
    left: AtomicU64,
}

impl Power {
    /// Power that stays.
    pub fn on() -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(u64::MAX) })
    }
    /// Lets the devices do `commands` more between them. Reads do not count, and neither do discards, which
    /// are done without power, too: nobody hears of them.
    pub fn cut_after(&self, commands: u64) {
        self.left.store(commands, Ordering::Relaxed);
    }
    /// Whether it has not been cut yet.
    pub fn is_on(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }
    /// Whether a command can be done; it counts.
    pub(super) fn serves(&self, kind: CommandKind) -> bool {
        match kind {
            CommandKind::Discard => true,
            CommandKind::Read => self.is_on(),
            _ => {
                let less = |n: u64| n.checked_sub(1);
                self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
            }
        }
    }
}

//! Hints by way of etcd: a key for each slot, written in the transaction that calls for the hint,
//! watched by the slot's node. They reach every host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use braid_format::{Incarnation, LockNo};

use super::keys::{Etcd, slot_name};
use crate::dlock::Hint;
use crate::{Life, Mode};

/// Between two attempts to watch while etcd is away.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn encode(to: Life, lock: LockNo, hint: &Hint) -> String {
    let kind = match hint {
        Hint::Wanted(mode) | Hint::Ask { mode, .. } => match mode {
            Mode::Exclusive => "wanted-exclusive",
            Mode::Concurrent => "wanted-concurrent",
            Mode::Shared | Mode::Unlocked => "wanted-shared",
        },
        Hint::Granted | Hint::Give { .. } => "granted",
        Hint::YourTurn => "your-turn",
        Hint::Look => "look",
    };
    format!("{} {} {kind}", to.incarnation.0, lock.0)
}

fn decode(value: &[u8], me: Life) -> Option<(LockNo, Hint)> {
    let mut words = std::str::from_utf8(value).ok()?.split(' ');
    let to = Incarnation(words.next()?.parse().ok()?);
    let lock = LockNo(words.next()?.parse().ok()?);
    let hint = match words.next()? {
        "wanted-exclusive" => Hint::Wanted(Mode::Exclusive),
        "wanted-shared" => Hint::Wanted(Mode::Shared),
        "wanted-concurrent" => Hint::Wanted(Mode::Concurrent),
        "granted" => Hint::Granted,
        "your-turn" => Hint::YourTurn,
        "look" => Hint::Look,
        _ => return None,
    };
    (to == me.incarnation).then_some((lock, hint))
}

/// A watch of one node's hints; ends, within seconds, when it is dropped.
#[derive(Debug)]
pub struct HintWatch(Arc<AtomicBool>);

impl Drop for HintWatch {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Etcd {
    /// Hands hints to `me` to `on_hint` until the watch is dropped. After a loss of the connection it
    /// goes on where it was.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn watch_hints(
        self: &Arc<Self>,
        me: Life,
        on_hint: Box<dyn Fn(LockNo, Hint) + Send>,
    ) -> std::io::Result<HintWatch> {
        let ended = Arc::new(AtomicBool::new(false));
        let (etcd, stop) = (self.clone(), ended.clone());
        std::thread::Builder::new().name("etcd-hints".into()).spawn(move || {
            let key = etcd.key(&slot_name("hints", me.slot));
            let mut from = 0;
            while !stop.load(Ordering::Acquire) {
                let before = from;
                from = etcd.client.watch(&key, from, &mut |value| {
                    if let Some((lock, hint)) = decode(value, me) {
                        on_hint(lock, hint);
                    }
                    !stop.load(Ordering::Acquire)
                });
                if from == before && !stop.load(Ordering::Acquire) {
                    std::thread::sleep(PAUSE);
                }
            }
        })?;
        Ok(HintWatch(ended))
    }
}

#[cfg(test)]
mod tests {
    use braid_format::NodeId;

    use super::*;

    #[test]
    fn hints_are_for_one_life() {
        let me = Life { slot: NodeId(3), incarnation: Incarnation(7) };
        let wanted = [Mode::Shared, Mode::Exclusive, Mode::Concurrent].map(Hint::Wanted);
        for hint in wanted.into_iter().chain([Hint::Granted, Hint::YourTurn, Hint::Look]) {
            let text = encode(me, LockNo(99), &hint);
            assert_eq!(decode(text.as_bytes(), me), Some((LockNo(99), hint)));
            let next = Life { incarnation: Incarnation(8), ..me };
            assert_eq!(decode(text.as_bytes(), next), None);
        }
        for text in ["", "7", "7 x granted", "7 9 what", "\u{ff}"] {
            assert_eq!(decode(text.as_bytes(), me), None);
        }
    }
}

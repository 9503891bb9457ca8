//! A node's locks as JSON: the answer to [`Order::Locks`](crate::control::Order::Locks).

use std::time::Duration;

use braid_fs::lock::{LockStats, Mode};
use braid_fs::{Fs, NamedLock};
use serde_json::{Value, json};

/// Most locks in an answer.
const LINES_MAX: usize = 10_000;

/// The answer to `Order::Locks`.
pub fn answer(fs: &Fs, hot: bool, lines: usize) -> Value {
    let status = fs.status();
    let locks = fs.locks(hot, lines.min(LINES_MAX));
    json!({
        "node": status.slot.get(),
        "in_memory": status.locks_held,
        "counts": counts(&status.locks),
        "locks": locks.iter().map(as_json).collect::<Vec<_>>(),
    })
}

fn counts(s: &LockStats) -> Value {
    let micros = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    let mut classes = Vec::new();
    for (n, count) in (0_u32..).zip(s.waited.classes).filter(|c| c.1 > 0) {
        classes.push(json!({"up_to_us": 1_u64 << n, "count": count}));
    }
    json!({
        "acquired": s.acquires,
        "cached": s.cached,
        "compare_and_writes": s.caws,
        "reads": s.reads,
        "given_up": s.demotions,
        "asks": s.asks,
        "gives": s.gives,
        "hints_sent": s.hints_sent,
        "hints_received": s.hints_received,
        "polls": s.polls,
        "waited": {
            "count": s.waited.count(),
            "p50_us": s.waited.per_mille(500).map(micros),
            "p99_us": s.waited.per_mille(990).map(micros),
            "max_us": s.waited.per_mille(1000).map(micros),
            "classes": classes,
        },
    })
}

/// The word for a mode.
pub fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Unlocked => "-",
        Mode::Shared => "shared",
        Mode::Exclusive => "exclusive",
        Mode::Concurrent => "concurrent",
    }
}

fn as_json(lock: &NamedLock) -> Value {
    let v = &lock.view;
    json!({
        "lock": v.lock.get(),
        "of": lock.of,
        "held": mode(v.held),
        "wanted": mode(v.wanted),
        "users": v.users,
        "waiting": v.waiting,
        "giving_up_to": v.demoting.map(mode),
        "held_for_s": v.held_for.map(|d| d.as_secs_f64()),
        "hand_overs": v.hand_overs,
        "holders": v.holders.iter().map(|h| h.slot.get()).collect::<Vec<_>>(),
        "waiters": v.waiters.iter().map(|(w, m)| json!({"node": w.slot.get(), "mode": mode(*m)}))
            .collect::<Vec<_>>(),
    })
}

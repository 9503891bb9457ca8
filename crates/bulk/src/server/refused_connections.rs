//! Connections that are turned away, for the log. Anybody who reaches the port may try as often as he likes, so not
//! each try has a line.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// At most one line in this time.
const PAUSE: Duration = Duration::from_secs(10);

/// Connections that were turned away.
#[derive(Debug, Default)]
pub(super) struct RefusedConnections(Mutex<Unlogged>);

#[derive(Debug, Default)]
struct Unlogged {
    /// When the last line was written.
    logged: Option<Instant>,
    /// How many were turned away since.
    since: u64,
}

impl RefusedConnections {
    /// One more. It is logged if the last line is long ago, with the number of those that were not.
    pub fn turned_away(&self, from: SocketAddr, why: &dyn Display) {
        if let Some(unlogged) = self.note(Instant::now()) {
            tracing::info!(%from, unlogged, "a connection is turned away: {why}");
        }
    }
    /// How many have no line, if this one is to have one.
    fn note(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.logged.is_some_and(|logged| now.duration_since(logged) < PAUSE) {
            state.since += 1;
            return None;
        }
        state.logged = Some(now);
        Some(std::mem::take(&mut state.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_says_how_many_had_none() {
        let (refused, start) = (RefusedConnections::default(), Instant::now());
        assert_eq!(refused.note(start), Some(0));
        let more = (1..1000).filter_map(|n| refused.note(start + Duration::from_millis(n)));
        assert_eq!(more.count(), 0);
        assert_eq!(refused.note(start + PAUSE), Some(999));
        assert_eq!(refused.note(start + PAUSE * 2), Some(0));
    }
}

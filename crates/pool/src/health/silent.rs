//! Members that answer nothing: transfers are under way, and none ends. Reads and writes are looked at apart: a disk
//! may answer the ones and not the others.

use std::collections::HashMap;
use std::time::Duration;

use braid_device::Issued;
use braid_format::MemberIndex;
use uuid::Uuid;

/// A member of which no read, or no write, has ended for so long, while some were under way, is silent.
pub(crate) const SILENT: Duration = Duration::from_secs(10);

/// What was seen of a member's reads, or of its writes.
#[derive(Debug, Clone, Copy)]
struct Transfers {
    ended: u64,
    /// At this look the first of them was under way, and none has ended since.
    since: Duration,
}

impl Transfers {
    /// At `now`, when so many had been issued and had ended.
    fn look(before: Option<Self>, now: Duration, (issued, ended): (u64, u64)) -> Self {
        let waits = before.filter(|before| issued > ended && before.ended == ended);
        Self { ended, since: waits.map_or(now, |before| before.since) }
    }
}

/// What was seen of a member.
#[derive(Debug, Clone, Copy)]
struct Seen {
    reads: Transfers,
    writes: Transfers,
    silent: bool,
}

impl Seen {
    /// Since when it has answered nothing of the one kind or the other.
    fn since(&self) -> Duration {
        self.reads.since.min(self.writes.since)
    }
}

/// What was seen of the members, by their identities.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    seen: HashMap<Uuid, Seen>,
    now: Duration,
}

/// A member that answers nothing, or answers again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticedSilence {
    /// Its place and its device.
    pub member: String,
    /// It answers nothing.
    pub silent: bool,
}

/// A member that answers nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilentMember {
    /// Its place.
    pub member: MemberIndex,
    /// For how long it has not.
    pub time: Duration,
    /// This node asks it nothing any more.
    pub given_up: bool,
}

impl Silence {
    /// Takes in what was issued to the members until `now`, a time from any beginning: those that are
    /// silent since this look, or are so no more.
    pub fn look(
        &mut self,
        now: Duration,
        members: impl Iterator<Item = (Uuid, Issued)>,
    ) -> Vec<(Uuid, bool)> {
        self.now = now;
        let before = std::mem::take(&mut self.seen);
        let mut noticed = Vec::new();
        for (uuid, issued) in members {
            let was = before.get(&uuid).copied();
            let [reads, writes] = [issued.reads, issued.writes].map(|n| (n.requests(), n.ended()));
            let mut seen = Seen {
                reads: Transfers::look(was.map(|was| was.reads), now, reads),
                writes: Transfers::look(was.map(|was| was.writes), now, writes),
                silent: false,
            };
            seen.silent = now.saturating_sub(seen.since()) >= SILENT;
            if seen.silent != was.is_some_and(|was| was.silent) {
                noticed.push((uuid, seen.silent));
            }
            self.seen.insert(uuid, seen);
        }
        noticed
    }
    /// A member is not silent: it is watched from the last look on.
    pub fn clear(&mut self, uuid: Uuid) {
        let now = self.now;
        if let Some(seen) = self.seen.get_mut(&uuid) {
            seen.reads.since = now;
            seen.writes.since = now;
            seen.silent = false;
        }
    }
    /// For how long a member had been silent at the last look.
    pub fn time(&self, uuid: Uuid) -> Option<Duration> {
        let seen = self.seen.get(&uuid).filter(|seen| seen.silent)?;
        Some(self.now.saturating_sub(seen.since()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued(begun: u64, ended: u64) -> Issued {
        let mut issued = Issued::default();
        issued.writes.sizes[3] = begun;
        issued.writes.times.classes[0] = ended;
        issued
    }

    #[test]
    fn who_has_transfers_under_way_and_ends_none_is_silent() {
        let (mut silence, member) = (Silence::default(), Uuid::from_u128(1));
        let mut look = |seconds: u64, begun, ended| {
            let now = Duration::from_secs(seconds);
            let noticed = silence.look(now, [(member, issued(begun, ended))].into_iter());
            let noticed = noticed.first().map(|n| n.1);
            (noticed, silence.time(member).map(|t| t.as_secs()))
        };
        assert_eq!(look(0, 5, 5), (None, None));
        // Idle for long, then busy.
        assert_eq!(look(60, 5, 5), (None, None));
        assert_eq!(look(61, 9, 7), (None, None));
        assert_eq!(look(70, 9, 7), (None, None));
        assert_eq!(look(71, 9, 8), (None, None), "one has ended");
        assert_eq!(look(80, 12, 8), (None, None));
        assert_eq!(look(81, 12, 8), (Some(true), Some(10)));
        assert_eq!(look(90, 12, 8), (None, Some(19)));
        assert_eq!(look(91, 12, 12), (Some(false), None));
        // Reads are answered, and a write is not.
        let mut reads = 0;
        let mut reads_answered = |seconds| {
            reads += 1;
            let mut now = issued(13, 12);
            now.reads.sizes[3] = reads;
            now.reads.times.classes[0] = reads;
            let noticed = silence.look(Duration::from_secs(seconds), [(member, now)].into_iter());
            noticed.first().map(|n| n.1)
        };
        assert_eq!(
            (reads_answered(92), reads_answered(100), reads_answered(101)),
            (None, None, Some(true))
        );
        // Gone from the pool.
        assert_eq!(silence.look(Duration::from_secs(102), std::iter::empty()), []);
        assert_eq!(silence.time(member), None);
    }
}

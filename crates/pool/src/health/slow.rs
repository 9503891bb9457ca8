//! Members that are slow but work: found by the time that their transfers take.
//!
//! About every ten seconds each member is compared with its peers: the other members of its
//! redundancy groups, or, if it is in no group, the other members outside of groups. A member is
//! *slow* if its reads or its writes take more than four times the median of its peers, under
//! similar load. It is slow until they take less than twice the median. Slow members are reported
//! only.

use std::time::Duration;

use braid_device::{Issued, Traffic};
use braid_format::MemberIndex;

/// Stretches of time that are compared.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// Fewer transfers than these say nothing.
pub(crate) const LEAST: u64 = 16;
/// So many times the peers' time is slow,
const SLOW: u32 = 4;
/// and if it is less than so many times, the member is no longer slow.
const SOUND: u32 = 2;
/// A member that takes less than this is not slow, whatever the others take.
const FLOOR: Duration = Duration::from_millis(5);
/// Loads are similar when neither is more than so many times the other.
const SIMILAR: u64 = 4;

/// What was seen of the members' times.
#[derive(Debug, Default)]
pub(crate) struct SlowDetector {
    /// When the window began, and what had been issued then.
    window: Option<(Duration, Vec<Issued>)>,
    pub slow: Vec<MemberIndex>,
}

/// A member's last window, in one direction: its mean time, and its peers' median.
type Compared = (Duration, Duration);

/// A member that has become slow, or is no longer slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noticed {
    /// Which.
    pub member: MemberIndex,
    /// It has become slow.
    pub slow: bool,
    /// How long its transfers took on average; `None` if it left the comparison.
    pub took: Duration,
    /// The same of its peers: their median.
    pub peers: Duration,
}

fn similar(a: &Traffic, b: &Traffic) -> bool {
    let near = |a: u64, b: u64| a <= b.saturating_mul(SIMILAR) && b <= a.saturating_mul(SIMILAR);
    a.ended() >= LEAST
        && b.ended() >= LEAST
        && near(a.ended(), b.ended())
        && near(a.mean().0, b.mean().0)
}

/// A member's mean time beside the median of those peers that had similar load, if there are any.
fn compare<'a>(own: &Traffic, peers: impl Iterator<Item = &'a Traffic>) -> Option<Compared> {
    let mut times: Vec<Duration> =
        peers.filter(|p| similar(own, p)).filter_map(Traffic::latency).collect();
    times.sort_unstable();
    // Of an even number, the lesser of the middle two: if two of three are slow, one is known to be
    // faster.
    Some((own.latency()?, *times.get(times.len().checked_sub(1)? / 2)?))
}

impl SlowDetector {
    /// Whether there is something to compare, or to begin with.
    pub fn due(&self, now: Duration) -> bool {
        self.window.as_ref().is_none_or(|(begun, _)| now.saturating_sub(*begun) >= WINDOW)
    }

    /// Compares, if the window is over. `issued` and `peers` are in member order; one that is not in
    /// use has no peers.
    pub fn look(
        &mut self,
        now: Duration,
        issued: Vec<Issued>,
        peers: &[Vec<MemberIndex>],
    ) -> Vec<Noticed> {
        let before = match &self.window {
            Some((begun, _)) if now.saturating_sub(*begun) < WINDOW => return Vec::new(),
            Some((_, before)) => before,
            None => {
                self.window = Some((now, issued));
                return Vec::new();
            }
        };
        let none = Issued::default();
        let window: Vec<Issued> = issued
            .iter()
            .enumerate()
            .map(|(i, now)| now.since(before.get(i).unwrap_or(&none)))
            .collect();
        let mut noticed = Vec::new();
        for ((member, own), peers) in (0_u16..).map(MemberIndex).zip(&window).zip(peers) {
            let of = |direction: fn(&Issued) -> &Traffic| {
                let others = peers.iter().filter_map(|p| window.get(usize::from(p.0)));
                compare(direction(own), others.map(direction))
            };
            let both: Vec<Compared> =
                [of(|i| &i.reads), of(|i| &i.writes)].into_iter().flatten().collect();
            let worst = both
                .iter()
                .copied()
                .max_by_key(|(own, peers)| own.as_nanos() * 1000 / peers.as_nanos().max(1));
            let was = self.slow.contains(&member);
            let is = match worst {
                _ if peers.is_empty() => false,
                None => was,
                Some((own, peers)) if was => own >= FLOOR && own > peers * SOUND,
                Some((own, peers)) => own >= FLOOR && own > peers * SLOW,
            };
            if is != was {
                let (took, peers) = worst.unwrap_or_default();
                noticed.push(Noticed { member, slow: is, took, peers });
            }
        }
        for n in &noticed {
            self.slow.retain(|m| *m != n.member);
            self.slow.extend(n.slow.then_some(n.member));
        }
        self.window = Some((now, issued));
        noticed
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    /// `n` reads of 64 KiB that took `ms` milliseconds each.
    fn reads(n: u64, ms: u64) -> Issued {
        let mut all = Issued::default();
        all.reads.bytes.0 = n << 16;
        all.reads.sizes[7] = n;
        all.reads.times.classes[0] = n;
        all.reads.times.nanos = n * ms * 1_000_000;
        all
    }

    fn peers(n: u16) -> Vec<Vec<MemberIndex>> {
        let all = (0..n).map(MemberIndex);
        all.clone().map(|m| all.clone().filter(|p| *p != m).collect()).collect()
    }

    /// What each of some windows makes noticed.
    fn watch(windows: &[&[Issued]]) -> Vec<Vec<(u16, bool)>> {
        let mut watch = SlowDetector::default();
        let n = windows[0].len();
        let mut total = vec![Issued::default(); n];
        let mut now = Duration::ZERO;
        watch.look(now, total.clone(), &peers(n.try_into().unwrap()));
        let mut all = Vec::new();
        for window in windows {
            total.iter_mut().zip(*window).for_each(|(t, w)| *t = t.plus(w));
            now += WINDOW;
            let noticed = watch.look(now, total.clone(), &peers(n.try_into().unwrap()));
            all.push(noticed.iter().map(|n| (n.member.0, n.slow)).collect());
        }
        all
    }

    #[test]
    fn one_that_is_slow_beside_its_peers_is_named_once_and_once_when_it_recovers() {
        let sound = [reads(100, 8), reads(100, 9), reads(90, 10)];
        let slow = [reads(100, 8), reads(100, 41), reads(90, 10)];
        let better = [reads(100, 8), reads(100, 25), reads(90, 10)];
        let seen = watch(&[&sound, &slow, &slow, &better, &sound, &sound]);
        assert_eq!(seen, [vec![], vec![(1, true)], vec![], vec![], vec![(1, false)], vec![]]);
    }

    #[test]
    fn a_pool_that_is_slow_as_a_whole_or_differently_loaded_names_nobody() {
        assert_eq!(watch(&[&[reads(100, 500), reads(100, 600), reads(100, 400)]]), [vec![]]);
        // Little load says nothing, nor does a much larger one.
        assert_eq!(watch(&[&[reads(100, 8), reads(10, 500)]]), [vec![]]);
        assert_eq!(watch(&[&[reads(100, 8), reads(500, 500)]]), [vec![]]);
        // Nor do times that are all short.
        assert_eq!(watch(&[&[reads(100, 0), reads(100, 4)]]), [vec![]]);
    }
}

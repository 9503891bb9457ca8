//! Members that are slow, not dead: told from the time that transfers took.
//!
//! Every ten seconds or so each member is compared with its peers: the other members of its
//! redundancy groups, or, for one outside of groups, the others outside. It is *slow* when its
//! reads or its writes took more than four times the median of the peers', under similar load. It
//! is slow no more when they take less than twice as long. Nothing is done about it here.

use std::time::Duration;

use braid_device::{Issued, Traffic};
use braid_format::MemberIndex;
use braid_format::label::MemberState;

use crate::Pool;
use crate::group::Group;

/// Stretches of time that are compared.
const WINDOW: Duration = Duration::from_secs(10);
/// Fewer transfers than these say nothing.
const LEAST: u64 = 16;
/// So many times the peers' time is slow,
const SLOW: u32 = 4;
/// and less than so many times is slow no more.
const SOUND: u32 = 2;
/// Whoever takes less than this is not slow, whatever the others take.
const FLOOR: Duration = Duration::from_millis(5);
/// Loads are similar when neither is more than so many times the other.
const SIMILAR: u64 = 4;

/// What was seen of the members' times.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// When the window began, and what had been issued then.
    window: Option<(Duration, Vec<Issued>)>,
    slow: Vec<MemberIndex>,
}

/// A member's last window, in one direction: its mean time, and its peers' median.
type Compared = (Duration, Duration);

/// A member that has become slow, or is slow no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noticed {
    /// Which.
    pub member: MemberIndex,
    /// It has become slow.
    pub slow: bool,
    /// How long its transfers took on average; nothing where it left the comparison.
    pub took: Duration,
    /// The same of its peers: their median.
    pub peers: Duration,
}

fn similar(a: &Traffic, b: &Traffic) -> bool {
    let near = |a: u64, b: u64| a <= b.saturating_mul(SIMILAR) && b <= a.saturating_mul(SIMILAR);
    a.ended >= LEAST && b.ended >= LEAST && near(a.ended, b.ended) && near(a.mean().0, b.mean().0)
}

/// A member's mean time beside the median of those peers that had similar load, if there are any.
fn compare<'a>(own: &Traffic, peers: impl Iterator<Item = &'a Traffic>) -> Option<Compared> {
    let mut times: Vec<Duration> =
        peers.filter(|p| similar(own, p)).filter_map(Traffic::latency).collect();
    times.sort_unstable();
    // Of an even number the lesser: where two of three are slow, one is known to be faster.
    Some((own.latency()?, *times.get(times.len().checked_sub(1)? / 2)?))
}

impl Watch {
    /// Whether there is something to compare, or to begin with.
    fn due(&self, now: Duration) -> bool {
        self.window.as_ref().is_none_or(|(begun, _)| now.saturating_sub(*begun) >= WINDOW)
    }

    /// Compares, if the window is over. `issued` and `peers` are in member order; one that is not in
    /// use has no peers.
    fn look(
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

impl Pool {
    /// Compares the members' times, every ten seconds of those that `now` counts (from any
    /// beginning): who has become slow since the call before, or is slow no more.
    pub fn watch(&self, now: Duration) -> Vec<Noticed> {
        if !self.0.slow.lock().due(now) {
            return Vec::new();
        }
        let peers: Vec<Vec<MemberIndex>> = {
            let topology = self.0.topology.read();
            let active = |m: &MemberIndex| topology.state(*m) == MemberState::Active;
            let groups = topology.map.groups();
            let of = |member: MemberIndex| -> Vec<MemberIndex> {
                if !active(&member) {
                    return Vec::new();
                }
                let mut peers: Vec<MemberIndex> = groups
                    .iter()
                    .filter(|g| g.members().any(|m| m == member))
                    .flat_map(Group::members)
                    .collect();
                if topology.bare.contains(&member) {
                    peers.extend(&topology.bare);
                }
                peers.retain(|m| *m != member && active(m));
                peers.sort_unstable();
                peers.dedup();
                peers
            };
            topology.members().map(of).collect()
        };
        let issued = self.issued();
        self.0.slow.lock().look(now, issued, &peers)
    }

    /// The members that were slow when their times were last compared ([`Pool::watch`]).
    pub fn slow(&self) -> Vec<MemberIndex> {
        self.0.slow.lock().slow.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use braid_device::{Device, DeviceError, MemoryDevice, pass_on};
    use braid_format::{ByteOffset, Bytes};

    use super::*;
    use crate::CreateOptions;
    use crate::layout::parse;

    /// Takes its time over every write.
    #[derive(Debug)]
    struct Delaying(Arc<dyn Device>, Duration);
    impl Device for Delaying {
        fn write(&self, at: ByteOffset, buf: &[u8]) -> Result<(), DeviceError> {
            std::thread::sleep(self.1);
            self.0.write(at, buf)
        }
        pass_on!(0: info read flush compare_and_write discard write_zeroes lock_byte byte_locked);
    }

    #[test]
    fn a_device_that_delays_is_named_stays_in_use_and_nothing_is_lost() {
        for layout in ["mirror(all)", "stripe(all)"] {
            for (delays, expected) in [([0, 20], &[1][..]), ([20, 20], &[])] {
                let device = |(i, ms): (usize, u64)| {
                    let inner = MemoryDevice::new(&format!("m{i}"), Bytes(64 << 20), Bytes(512));
                    Arc::new(Delaying(inner, Duration::from_millis(ms))) as Arc<dyn Device>
                };
                let devices = delays.into_iter().enumerate().map(device).collect();
                let mut options = CreateOptions::new("slow");
                options.layout = Some(parse::layout(layout, &BTreeMap::new()).unwrap());
                let pool = Pool::create(devices, &options).unwrap();
                assert!(pool.watch(Duration::ZERO).is_empty());
                let block = |i: u64| vec![u8::try_from(i).unwrap(); 65536];
                let at = |i: u64| ByteOffset(i << 18);
                (0..LEAST * 2 + 2).for_each(|i| pool.write(at(i), &block(i)).unwrap());
                let noticed = pool.watch(WINDOW);
                let named: Vec<u16> =
                    noticed.iter().filter(|n| n.slow).map(|n| n.member.0).collect();
                assert_eq!(named, expected, "{layout}: {noticed:?}");
                assert_eq!(pool.slow().len(), expected.len());
                for i in 0..LEAST * 2 + 2 {
                    let mut back = vec![0; 65536];
                    pool.read(at(i), &mut back).unwrap();
                    assert!(back == block(i), "{layout}, block {i}");
                }
                let states = pool.member_states();
                assert!(states.iter().all(|(_, s)| *s == MemberState::Active), "{states:?}");
            }
        }
    }

    /// `n` reads of 64 KiB that took `ms` milliseconds each.
    fn reads(n: u64, ms: u64) -> Issued {
        let mut all = Issued::default();
        all.reads.bytes.0 = n << 16;
        all.reads.sizes[7] = n;
        all.reads.ended = n;
        all.reads.nanos = n * ms * 1_000_000;
        all
    }

    fn peers(n: u16) -> Vec<Vec<MemberIndex>> {
        let all = (0..n).map(MemberIndex);
        all.clone().map(|m| all.clone().filter(|p| *p != m).collect()).collect()
    }

    /// What each of some windows makes noticed.
    fn watch(windows: &[&[Issued]]) -> Vec<Vec<(u16, bool)>> {
        let mut watch = Watch::default();
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

//! Connections that have not logged in: how many there may be, and who makes room.
//!
//! Whoever makes connections and says nothing must not keep others out. So a new connection is always
//! taken: if there are too many, in all or from one address, another one is cut for it. Connections
//! that have sent no login request are cut first, then those that name no initiator which has logged
//! in before; among equals one of the address that has most of them, and of these the eldest.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Most connections that have not logged in.
pub(crate) const STRANGERS_MAX: usize = 64;
/// Most of them from one address.
const PER_ADDRESS_MAX: usize = 16;
/// Connections that were cut and whose threads have not ended yet; beyond that none is taken.
const LEAVING_MAX: usize = 256;
/// Initiators that are remembered.
const KNOWN_MAX: usize = 1024;

/// How much is known of a connection; the least is cut first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It has said nothing.
    Silent,
    /// It has sent a login request.
    Speaks,
    /// Its initiator has logged in before.
    Known,
}

#[derive(Debug)]
struct Stranger<T> {
    number: u64,
    from: IpAddr,
    rank: Rank,
    /// It was cut, and its thread has not ended.
    leaves: bool,
    link: T,
}

/// Connections that have not logged in, in the order in which they came; `T` is what cuts one.
#[derive(Debug)]
pub(crate) struct Strangers<T> {
    next: u64,
    all: Vec<Stranger<T>>,
    known: VecDeque<String>,
}

impl<T> Default for Strangers<T> {
    fn default() -> Self {
        Self { next: 0, all: Vec::new(), known: VecDeque::new() }
    }
}

impl<T> Strangers<T> {
    /// A connection came: its number, and the one that is to be cut for it. `None`: there are so many
    /// that were cut and have not ended that this one is not taken.
    pub fn arrive(&mut self, from: IpAddr, link: T) -> Option<(u64, Option<&T>)> {
        if self.all.iter().filter(|s| s.leaves).count() >= LEAVING_MAX {
            return None;
        }
        let mut each: HashMap<IpAddr, usize> = HashMap::new();
        for stranger in self.all.iter().filter(|s| !s.leaves) {
            *each.entry(stranger.from).or_default() += 1;
        }
        let many = each.get(&from).is_some_and(|n| *n >= PER_ADDRESS_MAX);
        let full = each.values().sum::<usize>() >= STRANGERS_MAX;
        let order = |s: &Stranger<T>| {
            let crowd = each.get(&s.from).copied().unwrap_or(0);
            (s.rank, std::cmp::Reverse(crowd), s.number)
        };
        let may = |s: &Stranger<T>| !s.leaves && (!many || s.from == from);
        let chosen = (many || full)
            .then(|| self.all.iter().filter(|s| may(s)).min_by_key(|s| order(s)).map(|s| s.number))
            .flatten();
        let number = self.next;
        self.next += 1;
        self.all.push(Stranger { number, from, rank: Rank::Silent, leaves: false, link });
        let victim = self.all.iter_mut().find(|s| Some(s.number) == chosen).map(|s| {
            s.leaves = true;
            &s.link
        });
        Some((number, victim))
    }
    /// It has sent a login request, and this is the initiator that it names, if it has yet.
    pub fn heard(&mut self, number: u64, initiator: &str) {
        let known = !initiator.is_empty() && self.known.iter().any(|name| name == initiator);
        if let Some(stranger) = self.all.iter_mut().find(|s| s.number == number) {
            stranger.rank = if known { Rank::Known } else { Rank::Speaks };
        }
    }
    /// It is none any more; `initiator` if it has logged in.
    pub fn leave(&mut self, number: u64, initiator: Option<&str>) {
        self.all.retain(|s| s.number != number);
        let Some(initiator) = initiator else { return };
        self.known.retain(|name| name != initiator);
        if self.known.len() >= KNOWN_MAX {
            self.known.pop_front();
        }
        self.known.push_back(initiator.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }
    /// Who is cut for a connection from `n`.
    fn cut_for(all: &mut Strangers<u64>, n: u8) -> Option<u64> {
        let link = all.next;
        all.arrive(address(n), link).unwrap().1.copied()
    }

    #[test]
    fn one_address_makes_room_for_itself_and_a_crowd_for_the_few() {
        let mut all = Strangers::default();
        for _ in 0..PER_ADDRESS_MAX {
            assert_eq!(cut_for(&mut all, 1), None);
        }
        assert_eq!(cut_for(&mut all, 2), None);
        assert_eq!(cut_for(&mut all, 1), Some(0), "its own eldest");
        all.leave(0, None);
        for n in 3..8 {
            for _ in 0..10 {
                cut_for(&mut all, n);
            }
        }
        // 1, 2 and 3 have made room for the others.
        assert_eq!(cut_for(&mut all, 9), Some(4), "the eldest of the address with most");
        assert!(all.all.iter().any(|s| s.from == address(2) && !s.leaves));
    }

    #[test]
    fn who_speaks_stays_and_who_is_known_stays_longer() {
        let mut all = Strangers::default();
        cut_for(&mut all, 1);
        all.leave(0, Some("iqn.x:known"));
        for _ in 0..PER_ADDRESS_MAX {
            cut_for(&mut all, 1);
        }
        all.heard(1, "iqn.x:known");
        all.heard(2, "iqn.x:other");
        all.heard(3, "");
        for n in 4..=16 {
            assert_eq!(cut_for(&mut all, 1), Some(n));
        }
        // The new ones are silent too: the eldest of them goes, never one that has spoken.
        assert_eq!(cut_for(&mut all, 1), Some(17));
        for n in 18..=30 {
            all.heard(n, "");
        }
        assert_eq!(cut_for(&mut all, 1), Some(2));
    }

    #[test]
    fn what_was_cut_and_does_not_end_is_bounded() {
        let mut all = Strangers::default();
        let taken = (0..10_000).take_while(|_| all.arrive(address(1), 0).is_some()).count();
        assert_eq!(taken, PER_ADDRESS_MAX + LEAVING_MAX);
        all.leave(0, None);
        assert!(all.arrive(address(1), 0).is_some());
    }
}

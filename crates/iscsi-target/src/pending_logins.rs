//! Connections that have not logged in: how many there may be, and which one is cut to make room.
//!
//! Silent connections must not keep others out. So a new connection is always taken: if there are too
//! many, in all or from one address, another one is cut for it. Connections that have sent no login
//! request are cut first, then those that name no initiator which has logged in before. Among equals
//! it is one of the address that has most of them, and of these the oldest.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Most connections that have not logged in.
const PENDING_MAX: usize = 64;
/// Most of them from one address.
const PER_ADDRESS_MAX: usize = 16;
/// Connections that were cut and whose threads have not ended yet; beyond that none is taken.
const CUT_MAX: usize = 256;
/// Initiators that are remembered.
const KNOWN_MAX: usize = 1024;

/// How much is known of a connection; the least is cut first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It has sent nothing.
    Silent,
    /// It has sent a login request.
    RequestSent,
    /// Its initiator has logged in before.
    Known,
}

#[derive(Debug)]
struct PendingLogin<T> {
    number: u64,
    from: IpAddr,
    rank: Rank,
    /// It was cut, and its thread has not ended.
    cut: bool,
    link: T,
}

/// Connections that have not logged in, oldest first; `T` is what cuts one.
#[derive(Debug)]
pub(crate) struct PendingLogins<T> {
    next: u64,
    all: Vec<PendingLogin<T>>,
    known: VecDeque<String>,
}

impl<T> Default for PendingLogins<T> {
    fn default() -> Self {
        Self { next: 0, all: Vec::new(), known: VecDeque::new() }
    }
}

impl<T> PendingLogins<T> {
    /// A connection arrives: its number, and the one that is to be cut for it. `None`: there are so many
    /// that were cut and have not ended that this one is not taken.
    pub fn arrive(&mut self, from: IpAddr, link: T) -> Option<(u64, Option<&T>)> {
        if self.all.iter().filter(|l| l.cut).count() >= CUT_MAX {
            return None;
        }
        let mut each: HashMap<IpAddr, usize> = HashMap::new();
        for login in self.all.iter().filter(|l| !l.cut) {
            *each.entry(login.from).or_default() += 1;
        }
        let many = each.get(&from).is_some_and(|n| *n >= PER_ADDRESS_MAX);
        let full = each.values().sum::<usize>() >= PENDING_MAX;
        let order = |l: &PendingLogin<T>| {
            let crowd = each.get(&l.from).copied().unwrap_or(0);
            (l.rank, std::cmp::Reverse(crowd), l.number)
        };
        let may = |l: &PendingLogin<T>| !l.cut && (!many || l.from == from);
        let chosen = (many || full)
            .then(|| self.all.iter().filter(|l| may(l)).min_by_key(|l| order(l)).map(|l| l.number))
            .flatten();
        let number = self.next;
        self.next += 1;
        self.all.push(PendingLogin { number, from, rank: Rank::Silent, cut: false, link });
        let victim = self.all.iter_mut().find(|l| Some(l.number) == chosen).map(|l| {
            l.cut = true;
            &l.link
        });
        Some((number, victim))
    }
    /// It has sent a login request, and this is the initiator that it names, if it has yet.
    pub fn request_received(&mut self, number: u64, initiator: &str) {
        let known = !initiator.is_empty() && self.known.iter().any(|name| name == initiator);
        if let Some(login) = self.all.iter_mut().find(|l| l.number == number) {
            login.rank = if known { Rank::Known } else { Rank::RequestSent };
        }
    }
    /// The connection has ended, or has logged in as `initiator`.
    pub fn remove(&mut self, number: u64, initiator: Option<&str>) {
        self.all.retain(|l| l.number != number);
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
    fn cut_for(all: &mut PendingLogins<u64>, n: u8) -> Option<u64> {
        let link = all.next;
        all.arrive(address(n), link).unwrap().1.copied()
    }

    #[test]
    fn an_address_with_many_connections_makes_room_for_others() {
        let mut all = PendingLogins::default();
        for _ in 0..PER_ADDRESS_MAX {
            assert_eq!(cut_for(&mut all, 1), None);
        }
        assert_eq!(cut_for(&mut all, 2), None);
        assert_eq!(cut_for(&mut all, 1), Some(0), "its own oldest");
        all.remove(0, None);
        for n in 3..8 {
            for _ in 0..10 {
                cut_for(&mut all, n);
            }
        }
        // 1, 2 and 3 have made room for the others.
        assert_eq!(cut_for(&mut all, 9), Some(4), "the oldest of the address with most");
        assert!(all.all.iter().any(|l| l.from == address(2) && !l.cut));
    }

    #[test]
    fn a_request_is_worth_more_than_silence_and_a_known_initiator_most() {
        let mut all = PendingLogins::default();
        cut_for(&mut all, 1);
        all.remove(0, Some("iqn.x:known"));
        for _ in 0..PER_ADDRESS_MAX {
            cut_for(&mut all, 1);
        }
        all.request_received(1, "iqn.x:known");
        all.request_received(2, "iqn.x:other");
        all.request_received(3, "");
        for n in 4..=16 {
            assert_eq!(cut_for(&mut all, 1), Some(n));
        }
        // The new ones are silent too: the oldest of them goes, never one that has spoken.
        assert_eq!(cut_for(&mut all, 1), Some(17));
        for n in 18..=30 {
            all.request_received(n, "");
        }
        assert_eq!(cut_for(&mut all, 1), Some(2));
    }

    #[test]
    fn connections_that_were_cut_and_have_not_ended_are_bounded() {
        let mut all = PendingLogins::default();
        let taken = (0..10_000).take_while(|_| all.arrive(address(1), 0).is_some()).count();
        assert_eq!(taken, PER_ADDRESS_MAX + CUT_MAX);
        all.remove(0, None);
        assert!(all.arrive(address(1), 0).is_some());
    }
}

//! Locks on regions among simulated nodes: sticky, as those of the file system are. Volumes have them, and files on
//! mirrors.

use braid_pool::RegionHold;

/// How many there are.
pub(crate) const COUNT: u64 = 5;

#[derive(Debug, Clone, Copy)]
struct Holder {
    node: usize,
    exclusive: bool,
    users: u32,
    /// One of its users wants no other.
    alone: bool,
}

/// What one acquisition needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Try {
    Held,
    /// Somebody has it.
    Wait,
}

#[derive(Debug)]
pub(crate) struct Regions {
    all: Vec<Vec<Holder>>,
    /// Regions that somebody waits for.
    wanted: Vec<bool>,
}

impl Default for Regions {
    fn default() -> Self {
        let count = usize::try_from(COUNT).unwrap_or(1);
        Self { all: vec![Vec::new(); count], wanted: vec![false; count] }
    }
}

impl Regions {
    fn at(region: u64) -> usize {
        usize::try_from(region % COUNT).unwrap_or(0)
    }

    /// Takes a region, if that can be. What nodes in `but`, who are dead, hold counts for nothing.
    pub fn try_hold(&mut self, region: u64, node: usize, hold: RegionHold, but: &[usize]) -> Try {
        let n = Self::at(region);
        let exclusive = hold != RegionHold::Shared;
        let Some(holders) = self.all.get_mut(n) else { return Try::Wait };
        let against =
            |h: &&Holder| h.node != node && !but.contains(&h.node) && (exclusive || h.exclusive);
        if holders.iter().any(|h| against(&h)) {
            if let Some(wanted) = self.wanted.get_mut(n) {
                *wanted = true;
            }
            return Try::Wait;
        }
        let alone = hold == RegionHold::Alone;
        match holders.iter_mut().find(|h| h.node == node) {
            Some(own) if own.users > 0 && (alone || own.alone) => Try::Wait,
            Some(own) => {
                own.exclusive |= exclusive;
                own.users += 1;
                own.alone = alone;
                Try::Held
            }
            None => {
                holders.push(Holder { node, exclusive, users: 1, alone });
                Try::Held
            }
        }
    }

    /// One user less.
    pub fn release(&mut self, region: u64, node: usize) {
        let holders = self.all.get_mut(Self::at(region)).into_iter().flatten();
        for h in holders.filter(|h| h.node == node) {
            h.users = h.users.saturating_sub(1);
            h.alone = false;
        }
    }

    /// Regions that `node` has for nothing, wanted by others or (`all`) not; whether exclusively.
    pub fn idle(&self, node: usize, all: bool) -> Vec<(u64, bool)> {
        let mut idle = Vec::new();
        for (n, (holders, wanted)) in (0_u64..).zip(self.all.iter().zip(&self.wanted)) {
            let own = holders.iter().find(|h| h.node == node && h.users == 0);
            idle.extend(own.filter(|_| all || *wanted).map(|h| (n, h.exclusive)));
        }
        idle
    }

    /// `node` gives a region up.
    pub fn give_up(&mut self, region: u64, node: usize) {
        let n = Self::at(region);
        if let Some(holders) = self.all.get_mut(n) {
            holders.retain(|h| h.node != node || h.users > 0);
        }
        if let Some(wanted) = self.wanted.get_mut(n) {
            *wanted = false;
        }
    }

    /// What a dead node held.
    pub fn of(&self, node: usize) -> Vec<u64> {
        let holds = |holders: &&Vec<Holder>| holders.iter().any(|h| h.node == node);
        (0_u64..).zip(&self.all).filter(|(_, h)| holds(h)).map(|(n, _)| n).collect()
    }

    /// A dead node is recovered: it holds nothing.
    pub fn forget(&mut self, node: usize) {
        self.all.iter_mut().for_each(|holders| holders.retain(|h| h.node != node));
    }
}

//! States that differ only in the names of nodes, nonces and tickets are the same.

use std::hash::{Hash, Hasher};

use super::*;

/// Fast, and good enough for a few million states (64 bits, every word avalanched).
pub(super) struct Mix(pub u64);
impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        let x = (self.0 ^ n).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.0 = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }
    fn write_u16(&mut self, n: u16) {
        self.write_u64(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    fn write_isize(&mut self, n: isize) {
        self.write_u64(n.cast_unsigned() as u64);
    }
}

/// A state up to renaming: nodes by their places in an order, nonces and tickets in the order in which they are met.
pub(super) struct Canon {
    pub nonces: Vec<u64>,
    pub tickets: Vec<u64>,
    pub place: [usize; 4],
    pub hasher: Mix,
}
impl Canon {
    pub fn record(&mut self, r: &LockRecord) {
        let known = self.nonces.iter().position(|n| *n == r.nonce);
        let name = known.unwrap_or(self.nonces.len());
        name.hash(&mut self.hasher);
        if known.is_some() {
            return;
        }
        self.nonces.push(r.nonce);
        r.mode.hash(&mut self.hasher);
        // They stand in the order of slots, which renaming changes.
        let mut holders: Vec<_> = r.holders.iter().map(|l| self.life(*l)).collect();
        holders.sort_unstable();
        holders.hash(&mut self.hasher);
        for w in &r.waiters {
            (self.life(w.life), w.mode).hash(&mut self.hasher);
        }
        let mut openers: Vec<_> = r.openers.iter().map(|l| self.life(*l)).collect();
        openers.sort_unstable();
        openers.hash(&mut self.hasher);
        (r.holders.len(), r.waiters.len()).hash(&mut self.hasher);
    }
    fn life(&self, l: Life) -> (usize, u32) {
        (self.place[usize::from(l.slot.0)], l.incarnation.0)
    }
    fn seen(&mut self, s: &Seen) {
        self.record(&s.record);
        let mut dead: Vec<_> = s.dead.iter().map(|l| self.life(*l)).collect();
        dead.sort_unstable();
        dead.hash(&mut self.hasher);
    }
    fn io(&mut self, expected: &LockRecord, new: &LockRecord) {
        self.record(expected);
        self.record(new);
    }
    fn ticket(&mut self, ticket: u64) {
        let known = self.tickets.iter().position(|t| *t == ticket);
        known.unwrap_or(self.tickets.len()).hash(&mut self.hasher);
        if known.is_none() {
            self.tickets.push(ticket);
        }
    }
    pub fn message(&mut self, from: Life, to: Life, hint: &Hint) {
        (self.life(from), self.life(to)).hash(&mut self.hasher);
        match hint {
            Hint::Ask { mode, ticket } => {
                (0, mode).hash(&mut self.hasher);
                self.ticket(*ticket);
            }
            Hint::Give { ticket, record } => {
                1.hash(&mut self.hasher);
                self.ticket(*ticket);
                self.record(record);
            }
            other => panic!("not modelled: {other:?}"),
        }
    }
    pub fn node(&mut self, n: &Node) {
        let d = &n.dlock;
        (n.life.incarnation.0, n.fate, n.demote, n.using, n.goal, n.wants).hash(&mut self.hasher);
        (n.open, n.recorded, n.leaving).hash(&mut self.hasher);
        (d.held, d.want, d.giving, d.demanded, d.look, d.guessed).hash(&mut self.hasher);
        (d.asked.map(|(to, _)| self.life(to)), d.unanswered).hash(&mut self.hasher);
        d.asked.into_iter().for_each(|(_, ticket)| self.ticket(ticket));
        for ask in &d.asks {
            (self.life(ask.life), ask.mode).hash(&mut self.hasher);
            self.ticket(ask.ticket);
        }
        (d.timer.is_some(), d.paused, d.failures.min(2)).hash(&mut self.hasher);
        (d.known.is_some(), d.born.is_some()).hash(&mut self.hasher);
        if let Some(s) = &d.known {
            self.seen(s);
        }
        match &d.io {
            None => 0.hash(&mut self.hasher),
            Some(Io::Reading) => 1.hash(&mut self.hasher),
            Some(Io::Writing { expected, new }) => {
                2.hash(&mut self.hasher);
                self.io(expected, new);
            }
        }
        n.issued.is_some().hash(&mut self.hasher);
        match &n.answer {
            None => 0.hash(&mut self.hasher),
            Some(Event::Written) => 1.hash(&mut self.hasher),
            Some(Event::Mismatch(s) | Event::Read(s)) => {
                2.hash(&mut self.hasher);
                self.seen(s);
            }
            Some(other) => panic!("no answer: {other:?}"),
        }
    }
}

//! Leases: what clients may keep of inodes, until it is recalled.
//!
//! ```text
//!            a reply names the inode             another changes it, or wants its lock
//!   nothing ─────────────────────────> leased ────────────────────────────────────────> recalled
//!      ^                                                                                    │
//!      └── the client says that it is done, or has not asked for recalls for TERM + MARGIN ─┘
//! ```
//!
//! A lease begins before what it is of is read: whatever changes afterwards is recalled. It is of the whole inode:
//! attributes, names, extended attributes, contents. A client asks again and again which leases are recalled (LEASES),
//! and relies on leases for [`TERM`] from when it asked, if it was answered. So whoever waits for a recall waits for
//! [`TERM`] and [`MARGIN`] at most, from the last question that was answered before the recall: then the client has
//! lost all leases, and knows it by its own clock. Answers that hold the recall do not prolong that.
//!
//! Nobody holds a lock while he waits here, but whoever gives the inode's lock up to another node, which is what
//! the wait is for. A client's answer needs no lock of the file system: questions are answered from this table.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use braid_format::InodeNo;
use braid_fs::lock::SERVED_WAIT;
use parking_lot::{Condvar, Mutex};

use crate::wire::Recalls;

/// A client relies on its leases for so long after it asked for recalls.
pub const TERM: Duration = Duration::from_secs(2);
/// The server waits for so much longer: clocks run at different rates.
pub const MARGIN: Duration = Duration::from_millis(400);
const _: () = assert!(TERM.saturating_add(MARGIN).as_millis() <= SERVED_WAIT.as_millis());
/// A recall that takes longer counts as late, although it was carried out.
const SLOW: Duration = Duration::from_secs(1);
/// The same if recalls of a client together are waited for so long within a minute.
const SLOW_MINUTE: Duration = Duration::from_secs(3);
/// Most leases of a client. If it has more, all are recalled.
const LEASES_MAX: usize = 1 << 16;
/// A client that was late has no leases for so long; twice that the next time, and so on.
const PENANCE: Duration = Duration::from_secs(2);
/// At most so long.
const PENANCE_MAX: Duration = Duration::from_mins(1);
/// After so long without a fault it is as if there had been none.
const FORGIVEN: Duration = Duration::from_mins(5);
/// Most clients whose faults are remembered.
const FAULTS_MAX: usize = 1024;

/// Names whoever has leases.
pub type Holder = u64;

/// Of one time or the other.
#[derive(Debug)]
struct Recall {
    number: u64,
    inodes: Vec<InodeNo>,
    /// All leases.
    all: bool,
    since: Instant,
    /// Nobody waits for it any longer than until then. `None`: nobody waits.
    until: Option<Instant>,
}

#[derive(Debug)]
struct Client {
    /// By which its faults are remembered.
    name: String,
    leases: HashSet<InodeNo>,
    /// Recalls that it has not carried out, in their order.
    recalls: VecDeque<Recall>,
    /// Number of the last recall.
    last: u64,
    /// When the last question came that was answered, and gave time.
    asked: Option<Instant>,
    /// It will not ask any more.
    is_gone: bool,
    /// Since when it is measured how long its recalls take, and how long they took.
    slow: Option<(Instant, Duration)>,
}

impl Client {
    /// A recall was carried out after that time. Whether it is late, this one or all of the last minute together.
    fn took(&mut self, time: Duration, now: Instant) -> bool {
        let minute = Duration::from_mins(1);
        let (since, before) = self.slow.unwrap_or((now, Duration::ZERO));
        let is_over = now.saturating_duration_since(since) >= minute;
        let (since, sum) = if is_over { (now, time) } else { (since, before + time) };
        let is_late = time > SLOW || sum > SLOW_MINUTE;
        self.slow = (!is_late).then_some((since, sum));
        is_late
    }
}

/// How often a client was late.
#[derive(Debug, Clone, Copy)]
struct Faults {
    count: u32,
    last: Instant,
}

impl Faults {
    fn penance(self) -> Duration {
        (PENANCE * 2_u32.saturating_pow(self.count.saturating_sub(1).min(16))).min(PENANCE_MAX)
    }
}

/// Counts since the server began, and leases now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Leases that clients have.
    pub held: usize,
    /// Leases that were given.
    pub granted: u64,
    /// Leases that were recalled.
    pub recalled: u64,
    /// Clients that were late.
    pub late: u64,
}

#[derive(Debug, Default)]
struct Table {
    clients: HashMap<Holder, Client>,
    holders: HashMap<InodeNo, Vec<Holder>>,
    /// Recalls of an inode that are not carried out.
    recalled: HashMap<InodeNo, Vec<(Holder, u64)>>,
    /// Changes under way beside which an inode is read: nothing of it is to be kept.
    changes: HashMap<InodeNo, u32>,
    faults: HashMap<String, Faults>,
    /// The node may not act: nothing is to be kept.
    suspended: bool,
    last: Holder,
    counts: LeaseCounts,
}

fn take_from<K: std::hash::Hash + Eq, T>(
    map: &mut HashMap<K, Vec<T>>,
    key: &K,
    goes: impl Fn(&T) -> bool,
) {
    if let Some(list) = map.get_mut(key) {
        list.retain(|one| !goes(one));
        if list.is_empty() {
            map.remove(key);
        }
    }
}

impl Table {
    fn is_penitent(&self, name: &str, now: Instant) -> bool {
        let faults = self.faults.get(name);
        faults.is_some_and(|f| now.saturating_duration_since(f.last) < f.penance())
    }

    fn fault(&mut self, name: &str, now: Instant) {
        if self.faults.len() >= FAULTS_MAX && !self.faults.contains_key(name) {
            let oldest = self.faults.iter().min_by_key(|(_, f)| f.last).map(|(n, _)| n.clone());
            oldest.map(|oldest| self.faults.remove(&oldest));
        }
        let faults = self.faults.entry(name.to_owned()).or_insert(Faults { count: 0, last: now });
        if now.saturating_duration_since(faults.last) >= FORGIVEN {
            faults.count = 0;
        }
        *faults = Faults { count: faults.count.saturating_add(1), last: now };
        self.counts.late += 1;
        let penance = faults.penance();
        tracing::warn!(client = name, ?penance, "a client is late: it has no leases for a while");
    }

    /// Whether the client has a lease of an inode from now on.
    fn grant(&mut self, holder: Holder, ino: InodeNo, now: Instant) -> bool {
        let Some(client) = self.clients.get(&holder) else { return false };
        // Whoever does not ask does not rely on anything.
        let asks = client.asked.is_some_and(|at| now.saturating_duration_since(at) < TERM);
        let refused = self.suspended || !asks || client.is_gone || self.changes.contains_key(&ino);
        if refused || self.is_penitent(&client.name, now) {
            return false;
        }
        if client.leases.contains(&ino) {
            return true;
        }
        if client.leases.len() >= LEASES_MAX {
            self.recall_all(holder, now);
            return false;
        }
        if let Some(client) = self.clients.get_mut(&holder) {
            client.leases.insert(ino);
        }
        self.holders.entry(ino).or_default().push(holder);
        self.counts.held += 1;
        self.counts.granted += 1;
        true
    }

    /// Recalls some of a client's leases.
    fn recall_of(&mut self, holder: Holder, inodes: Vec<InodeNo>, all: bool, now: Instant) {
        let Some(client) = self.clients.get_mut(&holder) else { return };
        client.last += 1;
        let number = client.last;
        self.counts.recalled += inodes.len() as u64;
        self.counts.held -= inodes.len();
        for ino in &inodes {
            client.leases.remove(ino);
            take_from(&mut self.holders, ino, |other| *other == holder);
            self.recalled.entry(*ino).or_default().push((holder, number));
        }
        // Who has never been answered relies on nothing.
        let until = Some(client.asked.map_or(now, |at| at + TERM + MARGIN));
        client.recalls.push_back(Recall { number, inodes, all, since: now, until });
    }

    fn recall_all(&mut self, holder: Holder, now: Instant) {
        let Some(client) = self.clients.get(&holder) else { return };
        let inodes: Vec<_> = client.leases.iter().copied().collect();
        self.recall_of(holder, inodes, true, now);
    }

    /// An inode changes, or its lock goes. `by`: that client knows it. Returns whether something is recalled.
    fn recall(&mut self, ino: InodeNo, by: Option<Holder>, now: Instant) -> bool {
        let Some(holders) = self.holders.get(&ino).cloned() else { return false };
        for holder in &holders {
            if by != Some(*holder) {
                self.recall_of(*holder, vec![ino], false, now);
            } else if let Some(client) = self.clients.get_mut(holder) {
                client.leases.remove(&ino);
                take_from(&mut self.holders, &ino, |other| other == holder);
                self.counts.held -= 1;
            }
        }
        true
    }

    /// A client has carried out its recalls up to a number.
    fn done(&mut self, holder: Holder, number: u64, now: Instant) {
        let is_done = |recall: &Recall| recall.number <= number;
        let Some(client) = self.clients.get_mut(&holder) else { return };
        let waited_for = client.recalls.iter().filter(|r| is_done(r) && r.until.is_some());
        let times: Vec<_> = waited_for.map(|r| now.saturating_duration_since(r.since)).collect();
        let mut is_slow = false;
        for time in times {
            is_slow |= client.took(time, now);
        }
        let name = client.name.clone();
        self.forget_recalls(holder, is_done);
        if is_slow {
            self.fault(&name, now);
        }
    }

    /// Takes note of clients that did not carry out a recall in time. Such a client does not rely on the recalled lease any
    /// more: either an answer has told it of the recall, or it has had no answer, and its time is over. But an answer
    /// prolongs its other leases. So these are recalled too, and waited for.
    fn expire(&mut self, now: Instant) {
        let is_over = |recall: &Recall| recall.until.is_some_and(|until| until <= now);
        let late = self.clients.iter().filter(|(_, c)| c.recalls.iter().any(is_over));
        let late: Vec<Holder> = late.map(|(holder, _)| *holder).collect();
        for holder in late {
            self.forget_recalls(holder, is_over);
            let Some(client) = self.clients.get(&holder) else { continue };
            if client.is_gone {
                if client.recalls.is_empty() {
                    self.clients.remove(&holder);
                }
                continue;
            }
            let asked = client.asked;
            let name = client.name.clone();
            if !self.is_penitent(&name, now) {
                self.fault(&name, now);
            }
            if asked.is_none_or(|at| at + TERM + MARGIN <= now) {
                self.lose(holder);
            }
            self.recall_all(holder, now);
            let Some(client) = self.clients.get_mut(&holder) else { continue };
            client.asked = None;
            // Nobody waits for a recall of no lease.
            let last = client.recalls.back_mut().filter(|recall| recall.inodes.is_empty());
            if let Some(recall) = last {
                recall.until = None;
            }
        }
    }

    /// Nobody waits any more for some of a client's recalls.
    fn forget_recalls(&mut self, holder: Holder, which: impl Fn(&Recall) -> bool) {
        let Some(client) = self.clients.get_mut(&holder) else { return };
        let (gone, rest) = client.recalls.drain(..).partition(|recall| which(recall));
        let gone: VecDeque<Recall> = gone;
        client.recalls = rest;
        for recall in gone {
            for ino in &recall.inodes {
                take_from(&mut self.recalled, ino, |one| *one == (holder, recall.number));
            }
        }
    }

    /// A client has nothing any more.
    fn lose(&mut self, holder: Holder) {
        let Some(client) = self.clients.get_mut(&holder) else { return };
        self.counts.held -= client.leases.len();
        for ino in client.leases.drain() {
            take_from(&mut self.holders, &ino, |other| *other == holder);
        }
        self.forget_recalls(holder, |_| true);
    }

    /// Until when there is to be waited for recalls of these inodes (all, if there are none), but for those that
    /// `by` has to carry out.
    fn wait_until(&self, inodes: Option<&[InodeNo]>, by: Option<Holder>) -> Option<Instant> {
        let until = |(holder, number): &(Holder, u64)| {
            let client = self.clients.get(holder).filter(|_| by != Some(*holder))?;
            client.recalls.iter().find(|recall| recall.number == *number)?.until
        };
        match inodes {
            Some(inodes) => inodes
                .iter()
                .filter_map(|ino| self.recalled.get(ino))
                .flatten()
                .filter_map(until)
                .max(),
            None => self.recalled.values().flatten().filter_map(until).max(),
        }
    }

    /// What a client is told that asked at `asked`.
    fn answer(&mut self, holder: Holder, asked: Instant, now: Instant) -> Recalls {
        let idle = self.suspended;
        let Some(client) = self.clients.get(&holder) else { return Recalls::default() };
        let penitent = self.is_penitent(&client.name, now);
        let Some(client) = self.clients.get_mut(&holder) else { return Recalls::default() };
        let term = if idle || penitent { Duration::ZERO } else { TERM };
        if !term.is_zero() {
            client.asked = Some(asked);
        }
        let all = client.recalls.iter().any(|recall| recall.all);
        let recalls = client.recalls.iter().filter(|_| !all);
        let inodes = recalls.flat_map(|recall| recall.inodes.iter().copied()).collect();
        let term_ms = u32::try_from(term.as_millis()).unwrap_or(0);
        Recalls { number: client.last, term_ms, all, inodes }
    }
}

/// The leases of all clients.
#[derive(Debug, Default)]
pub struct Leases {
    /// Taken alone.
    table: Mutex<Table>,
    /// A recall was made or carried out, or a client goes.
    changed: Condvar,
}

impl Leases {
    /// A client has come. Its faults are remembered under `name`.
    pub fn enter(&self, name: &str) -> Holder {
        let mut table = self.table.lock();
        table.last += 1;
        let holder = table.last;
        let client = Client {
            name: name.to_owned(),
            leases: HashSet::new(),
            recalls: VecDeque::new(),
            last: 0,
            asked: None,
            is_gone: false,
            slow: None,
        };
        table.clients.insert(holder, client);
        holder
    }

    /// A client goes. If it has not said so itself, it may rely on its leases for a while.
    pub fn leave(&self, holder: Holder, by_itself: bool) {
        let mut table = self.table.lock();
        if by_itself {
            table.lose(holder);
            table.clients.remove(&holder);
        } else {
            table.recall_all(holder, Instant::now());
            if let Some(client) = table.clients.get_mut(&holder) {
                client.is_gone = true;
            }
        }
        self.changed.notify_all();
    }

    /// Forgets clients whose time is over.
    pub fn tend(&self) {
        self.table.lock().expire(Instant::now());
        self.changed.notify_all();
    }

    /// Gives a client a lease of an inode, before anything is read of it. `false`: it gets none.
    pub fn grant(&self, holder: Holder, ino: InodeNo) -> bool {
        self.table.lock().grant(holder, ino, Instant::now())
    }

    /// Something of an inode changes. Waits for nobody. Returns whether `holder` has to carry out a recall, too.
    pub fn recall(&self, ino: InodeNo, holder: Option<Holder>, knows: bool) -> bool {
        let mut table = self.table.lock();
        let had =
            holder.is_some_and(|h| table.holders.get(&ino).is_some_and(|all| all.contains(&h)));
        if table.recall(ino, holder.filter(|_| knows), Instant::now()) {
            self.changed.notify_all();
        }
        had && !knows
    }

    /// A change begins (or ends) beside which an inode is read.
    pub fn change(&self, ino: InodeNo, begins: bool) {
        let mut table = self.table.lock();
        if begins {
            *table.changes.entry(ino).or_default() += 1;
        } else if let Some(count) = table.changes.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                table.changes.remove(&ino);
            }
        }
    }

    /// Waits until no recall of these inodes (`None`: of any) is under way but by `holder`, at most until `end`. That
    /// takes at most [`TERM`] and [`MARGIN`].
    pub fn wait(&self, inodes: Option<&[InodeNo]>, holder: Option<Holder>, end: Option<Instant>) {
        let mut table = self.table.lock();
        loop {
            let now = Instant::now();
            let Some(until) = table.wait_until(inodes, holder) else { return };
            if until <= now {
                table.expire(now);
                self.changed.notify_all();
                continue;
            }
            if end.is_some_and(|end| end <= now) {
                return;
            }
            self.changed.wait_until(&mut table, end.map_or(until, |end| end.min(until)));
        }
    }

    /// Those of these inodes that a client has to drop, and has not said that it did.
    pub fn unheard(&self, holder: Holder, inodes: &[InodeNo]) -> Vec<InodeNo> {
        let table = self.table.lock();
        let is_unheard = |ino: &&InodeNo| {
            table.recalled.get(ino).is_some_and(|all| all.iter().any(|one| one.0 == holder))
        };
        inodes.iter().filter(is_unheard).copied().collect()
    }

    /// The node may not act any more: recalls everything, and waits until `end` at most.
    pub fn suspend(&self, end: Instant) {
        {
            let mut table = self.table.lock();
            table.suspended = true;
            let holders: Vec<_> = table.clients.keys().copied().collect();
            for holder in holders {
                table.recall_all(holder, Instant::now());
            }
        }
        self.changed.notify_all();
        self.wait(None, None, Some(end));
    }

    /// It may again.
    pub fn resume(&self) {
        self.table.lock().suspended = false;
    }

    /// Whether it may not act now.
    pub fn is_suspended(&self) -> bool {
        self.table.lock().suspended
    }

    /// A client asks for recalls, having carried out those up to `done`; waits for some for `patience`, unless
    /// `ends`.
    pub fn ask(
        &self,
        holder: Holder,
        done: u64,
        patience: Duration,
        ends: impl Fn() -> bool,
    ) -> Recalls {
        let asked = Instant::now();
        let mut table = self.table.lock();
        table.expire(asked);
        table.done(holder, done, asked);
        self.changed.notify_all();
        loop {
            let now = Instant::now();
            let waits = table.clients.get(&holder).is_some_and(|c| c.recalls.is_empty());
            if !waits || ends() || now >= asked + patience {
                return table.answer(holder, asked, now);
            }
            self.changed.wait_until(&mut table, asked + patience);
        }
    }

    /// Leases that somebody has.
    pub fn held_by(&self, holder: Holder) -> usize {
        self.table.lock().clients.get(&holder).map_or(0, |client| client.leases.len())
    }
    /// Counts, for displays.
    pub fn counts(&self) -> LeaseCounts {
        self.table.lock().counts
    }
}

#[cfg(test)]
#[allow(clippy::unchecked_time_subtraction, reason = "tests")]
mod tests {
    use super::*;

    const A: InodeNo = InodeNo(7);
    const B: InodeNo = InodeNo(8);
    const MS: Duration = Duration::from_millis(1);

    fn table(names: &[&str], now: Instant) -> (Leases, Vec<Holder>) {
        let leases = Leases::default();
        let holders: Vec<_> = names.iter().map(|name| leases.enter(name)).collect();
        for holder in &holders {
            leases.table.lock().answer(*holder, now, now);
        }
        (leases, holders)
    }

    #[test]
    fn who_has_not_asked_has_no_lease_and_is_not_waited_for() {
        let leases = Leases::default();
        let (holder, now) = (leases.enter("a"), Instant::now());
        let mut table = leases.table.lock();
        assert!(!table.grant(holder, A, now));
        table.answer(holder, now, now);
        assert!(table.grant(holder, A, now));
        assert!(!table.grant(holder, B, now + TERM), "it has not asked for long");
        assert!(table.recall(A, None, now + 2 * TERM));
        assert!(table.wait_until(Some(&[A]), None).unwrap() < now + 2 * TERM);
    }

    #[test]
    fn a_reply_names_what_its_client_has_still_to_drop() {
        let now = Instant::now();
        let (leases, holders) = table(&["a", "b"], now);
        let (a, b) = (holders[0], holders[1]);
        assert!(leases.grant(a, A) && leases.grant(a, B) && leases.grant(b, B));
        leases.recall(A, Some(b), true);
        leases.recall(B, Some(b), true);
        assert_eq!((leases.unheard(a, &[A, B]), leases.unheard(b, &[A, B])), (vec![A, B], vec![]));
        leases.table.lock().done(a, 1, Instant::now());
        assert_eq!(leases.unheard(a, &[A, B]), [B]);
    }

    #[test]
    fn a_recall_is_waited_for_until_it_is_carried_out() {
        let now = Instant::now();
        let (leases, holders) = table(&["a", "b"], now);
        let mut table = leases.table.lock();
        let (a, b) = (holders[0], holders[1]);
        assert!(table.grant(a, A, now) && table.grant(b, A, now) && table.grant(b, B, now));
        assert_eq!(table.counts.held, 3);
        table.recall(A, Some(a), now + MS);
        assert_eq!(table.wait_until(Some(&[B]), None), None);
        assert_eq!(table.wait_until(Some(&[A]), Some(b)), None, "its own");
        assert_eq!(table.wait_until(Some(&[A]), Some(a)), Some(now + TERM + MARGIN));
        let told = table.answer(b, now + 2 * MS, now + 2 * MS);
        assert_eq!((told.number, &told.inodes[..], told.all), (1, &[A][..], false));
        assert_eq!(table.wait_until(Some(&[A]), None), Some(now + TERM + MARGIN), "no longer");
        // Given anew before the former is carried out: it stays.
        assert!(table.grant(b, A, now + 2 * MS));
        table.done(b, 1, now + 3 * MS);
        assert_eq!(table.wait_until(None, None), None);
        assert_eq!((table.counts.held, table.counts.late), (2, 0));
        assert!(table.recalled.is_empty());
    }

    #[test]
    fn an_answer_that_never_came_back_prolongs_what_it_does_not_recall() {
        let now = Instant::now();
        let (leases, holders) = table(&["a"], now);
        let (a, mut table) = (holders[0], leases.table.lock());
        assert!(table.grant(a, A, now) && table.grant(a, B, now));
        table.recall(A, None, now + MS);
        // It tells of the recall, and lets the client rely on the rest; the client is heard of no more.
        let asked = now + TERM / 2;
        assert_eq!(table.answer(a, asked, asked).inodes, [A]);
        table.expire(now + TERM + MARGIN);
        let of = |table: &Table, ino| table.wait_until(Some(&[ino]), None);
        assert_eq!((of(&table, A), of(&table, B)), (None, Some(asked + TERM + MARGIN)));
        assert_eq!(table.faults["a"].count, 1);
        table.expire(asked + TERM + MARGIN);
        assert_eq!((of(&table, B), table.counts.held, table.faults["a"].count), (None, 0, 1));
        assert!(table.answer(a, asked + TERM * 2, asked + TERM * 2).all);
    }

    #[test]
    fn who_is_slow_again_and_again_is_late() {
        let begun = Instant::now();
        let (leases, holders) = table(&["a"], begun);
        let (a, mut table) = (holders[0], leases.table.lock());
        let mut changes = 0;
        while table.faults.is_empty() {
            let now = begun + SLOW * changes;
            table.answer(a, now, now);
            assert!(table.grant(a, A, now), "{changes}");
            table.recall(A, None, now);
            changes += 1;
            table.done(a, changes.into(), now + SLOW - MS);
        }
        assert_eq!(changes, 4);
    }

    #[test]
    fn who_is_late_loses_everything_and_gets_nothing_for_a_while() {
        let now = Instant::now();
        let (leases, holders) = table(&["a"], now);
        let mut table = leases.table.lock();
        let a = holders[0];
        assert!(table.grant(a, A, now) && table.grant(a, B, now));
        table.recall(A, None, now);
        let late = now + TERM + MARGIN;
        table.expire(late - MS);
        assert_eq!(table.counts.held, 1);
        table.expire(late);
        assert_eq!((table.counts.held, table.counts.late), (0, 1));
        assert_eq!(table.wait_until(None, None), None);
        let told = table.answer(a, late, late);
        assert_eq!((told.all, told.term_ms), (true, 0));
        table.done(a, told.number, late);
        let again = late + PENANCE;
        assert!(!table.grant(a, A, again - MS));
        assert_eq!(table.answer(a, again, again).term_ms, 2000);
        assert!(table.grant(a, A, again));
        // Twice as long the next time, under another number too.
        table.recall(A, None, again);
        table.expire(again + TERM + MARGIN);
        assert_eq!(table.faults["a"].penance(), 2 * PENANCE);
        assert!(table.is_penitent("a", again + TERM + MARGIN + PENANCE));
        assert!(!table.is_penitent("b", again));
    }

    #[test]
    fn a_slow_answer_is_a_fault() {
        let now = Instant::now();
        let (leases, holders) = table(&["a"], now);
        let mut table = leases.table.lock();
        assert!(table.grant(holders[0], A, now));
        table.recall(A, None, now);
        table.done(holders[0], 1, now + SLOW + MS);
        assert_eq!(table.counts.late, 1);
        assert_eq!(table.answer(holders[0], now + SLOW + MS, now + SLOW + MS).term_ms, 0);
    }

    #[test]
    fn nothing_is_given_while_an_inode_changes_or_the_node_is_suspended() {
        let now = Instant::now();
        let (leases, holders) = table(&["a"], now);
        leases.change(A, true);
        leases.change(A, true);
        leases.change(A, false);
        assert!(!leases.grant(holders[0], A) && leases.grant(holders[0], B));
        leases.change(A, false);
        assert!(leases.grant(holders[0], A));
        leases.suspend(Instant::now());
        assert!(!leases.grant(holders[0], InodeNo(9)));
        assert!(leases.ask(holders[0], 0, TERM, || false).all);
        leases.resume();
        assert_eq!(leases.counts().held, 0);
    }

    #[test]
    fn leases_are_bounded() {
        let now = Instant::now();
        let (leases, holders) = table(&["a"], now);
        let mut table = leases.table.lock();
        for n in 0..LEASES_MAX as u64 {
            assert!(table.grant(holders[0], InodeNo(n), now));
        }
        assert!(!table.grant(holders[0], InodeNo(u64::MAX), now));
        assert_eq!((table.counts.held, table.holders.len()), (0, 0));
        let told = table.answer(holders[0], now, now);
        assert!(told.all && told.inodes.is_empty());
        table.done(holders[0], told.number, now);
        assert!(table.recalled.is_empty());
        assert!(table.grant(holders[0], InodeNo(u64::MAX), now));
    }

    #[test]
    fn a_client_that_is_gone_is_waited_for_like_others_and_then_forgotten() {
        let now = Instant::now();
        let (leases, holders) = table(&["a", "b"], now);
        assert!(leases.grant(holders[0], A) && leases.grant(holders[1], B));
        leases.leave(holders[0], false);
        leases.leave(holders[1], true);
        let mut table = leases.table.lock();
        assert_eq!(table.wait_until(None, None), Some(now + TERM + MARGIN));
        table.expire(now + TERM + MARGIN);
        assert!(table.clients.is_empty() && table.holders.is_empty());
        assert!(table.recalled.is_empty() && table.counts.held == 0);
    }
}

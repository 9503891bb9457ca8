//! Exhaustive breadth-first search over the real `step`: every order of events of a few nodes
//! on one lock, with the faults below, up to renaming of nodes and nonces.
//!
//! Permitted faults (each with a budget):
//! * a node dies at any moment; a write it has in flight may land until it is recovered, or never;
//! * a dead node's slot is taken again by a new life;
//! * a write's outcome is unknown: it landed, it never will, or it lands later;
//! * a read fails;
//! * a waiting thread gives up;
//! * a hint comes though nothing has happened (so hints may be doubled, late, or forged);
//! * an ask or a give is lost, doubled, late, or overtaken by others; an ask is forged.
//!
//! Other hints between nodes are not modelled: all are lost. No message need ever arrive. What remains is the slow
//! path, the timer of the waiting and the wish in the heartbeat; with those alone everybody must be served.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use braid_format::{Incarnation, NodeId};

use super::*;
use canon::{Canon, Mix};

const LOCK: LockNo = LockNo(7);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fate {
    Alive,
    Crashed,
    Recovered,
}

#[derive(Debug, Clone)]
struct Node {
    life: Life,
    fate: Fate,
    dlock: Dlock,
    /// Issued, has had no effect.
    issued: Option<Action>,
    /// Had its effect; the answer is under way.
    answer: Option<Event>,
    demote: Option<Mode>,
    using: Mode,
    goal: Mode,
    wants: u8,
    /// A program has the file open.
    open: bool,
    /// The record may name this node as an opener (`Inode::leaves_opener`).
    recorded: bool,
    /// Its goal is to get out of the record again.
    leaving: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    crashes: u8,
    rejoins: u8,
    unknown: u8,
    unwant: u8,
    spurious: u8,
    shrink: u8,
    opens: u8,
    /// Asks that are sent.
    asks: u8,
    /// Messages that arrive once more.
    doubled: u8,
    forged: u8,
}

#[derive(Debug, Clone)]
struct World {
    disk: Arc<LockRecord>,
    nodes: Vec<Node>,
    /// Writes whose issuer was told "unknown" (or died) and that may still land.
    late: Vec<(usize, Arc<LockRecord>, Arc<LockRecord>)>,
    /// Asks and gives under way: from whom, to whom.
    messages: Vec<(Life, Life, Hint)>,
    /// Who knows nothing of the lock takes a record with this nonce for what stands.
    guess: Option<u64>,
    /// Who knows nothing of the lock asks the next node.
    presumes: bool,
    /// What nodes may want.
    modes: &'static [Mode],
    budget: Budget,
    nonce: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    Want(Mode),
    Open,
    Close,
    EndUse,
    Release,
    Shrink,
    Unwant,
    Land,
    Deliver,
    FailNever,
    FailLanded,
    FailLate,
    LateLand(usize),
    Arrive(usize),
    Doubled(usize),
    Lost(usize),
    Forged(usize),
    Timer,
    Wish,
    Spurious,
    Crash,
    Recover,
    Rejoin,
}
impl Move {
    /// Happens sooner or later without anybody's decision or bad luck.
    fn fair(self) -> bool {
        use Move as M;
        matches!(
            self,
            M::EndUse | M::Release | M::Land | M::Deliver | M::Timer | M::Wish | M::Recover
        )
    }
}

impl World {
    fn new(nodes: usize, wants: u8, guess: Option<u64>, budget: Budget) -> Self {
        let node = |slot| Node {
            life: Life { slot: NodeId(slot), incarnation: Incarnation(1) },
            fate: Fate::Alive,
            dlock: Dlock::new(LOCK),
            issued: None,
            answer: None,
            demote: None,
            using: Mode::Unlocked,
            goal: Mode::Unlocked,
            wants,
            open: false,
            recorded: false,
            leaving: false,
        };
        let nodes = u16::try_from(nodes).unwrap();
        Self {
            disk: Arc::new(LockRecord::unlocked(LOCK, 0)),
            nodes: (0..nodes).map(node).collect(),
            late: Vec::new(),
            messages: Vec::new(),
            guess,
            presumes: false,
            modes: &[Mode::Shared, Mode::Exclusive],
            budget,
            nonce: 0,
        }
    }
    /// The first node wrote the record as its own.
    fn born(mut self) -> Self {
        self.disk = Arc::new(LockRecord::born(LOCK, self.nodes[0].life, 0));
        self.nodes[0].dlock = Dlock::born(LOCK, 0);
        self
    }
    /// Nodes ask before they have read the record, whoever holds the lock.
    fn presuming(self) -> Self {
        Self { presumes: true, ..self }
    }
    /// Nodes want concurrent holds too.
    fn with_concurrent(self) -> Self {
        Self { modes: &[Mode::Shared, Mode::Exclusive, Mode::Concurrent], ..self }
    }

    fn seen(&self) -> Seen {
        let r = &self.disk;
        let named =
            r.holders.iter().chain(r.waiters.iter().map(|w| &w.life)).chain(r.openers.iter());
        let dead = |l: &Life| {
            let node = &self.nodes[usize::from(l.slot.0)];
            node.life != *l || node.fate == Fate::Recovered
        };
        Seen { record: self.disk.clone(), dead: named.copied().filter(dead).collect() }
    }

    fn step(&mut self, i: usize, event: Event) {
        self.nonce += 1;
        let (me, now) = (self.nodes[i].life, Time::ZERO);
        let ask = (self.budget.asks > 0).then_some(Time::ZERO);
        let other = self.nodes[(i + 1) % self.nodes.len()].life;
        let presumed = (self.presumes && other != me).then_some(other);
        let poll = (Time::ZERO, Time::ZERO);
        let cx = Context { me, now, nonce: self.nonce, poll, ask, presumed };
        let node = &mut self.nodes[i];
        for action in node.dlock.step(&cx, event) {
            match action {
                Action::Granted(mode) => {
                    node.demote = None;
                    if node.goal > Mode::Unlocked && mode.covers(node.goal) {
                        node.using = node.goal;
                        (node.goal, node.leaving) = (Mode::Unlocked, false);
                    }
                }
                Action::Demote(to) => node.demote = Some(to),
                Action::Hint { to, hint: hint @ (Hint::Ask { .. } | Hint::Give { .. }) } => {
                    self.budget.asks -= u8::from(matches!(hint, Hint::Ask { .. }));
                    self.messages.push((me, to, hint));
                }
                Action::Hint { .. } => {}
                io => {
                    assert!(node.issued.is_none() && node.answer.is_none(), "two in flight");
                    node.issued = Some(io);
                }
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "a list of all moves")]
    fn moves(&self) -> Vec<(usize, Move)> {
        use Move as M;
        let mut out = Vec::new();
        let b = self.budget;
        for k in 0..self.late.len() {
            out.push((self.late[k].0, M::LateLand(k)));
        }
        for (k, (_, to, _)) in self.messages.iter().enumerate() {
            let i = usize::from(to.slot.0);
            out.extend([(i, M::Arrive(k)), (i, M::Lost(k))]);
            out.extend((b.doubled > 0).then_some((i, M::Doubled(k))));
        }
        for (i, n) in self.nodes.iter().enumerate() {
            let mut add = |m| out.push((i, m));
            match n.fate {
                Fate::Crashed => {
                    add(M::Recover);
                    continue;
                }
                Fate::Recovered => {
                    if b.rejoins > 0 {
                        add(M::Rejoin);
                    }
                    continue;
                }
                Fate::Alive => {}
            }
            let quiet = !n.dlock.is_busy() && !n.dlock.is_giving();
            if n.wants > 0 && n.goal == Mode::Unlocked && n.using == Mode::Unlocked {
                for mode in self.modes {
                    add(M::Want(*mode));
                }
            }
            if n.using > Mode::Unlocked {
                add(M::EndUse);
            }
            if n.using > Mode::Unlocked && b.opens > 0 && !n.open {
                add(M::Open);
            }
            if n.open && n.using == Mode::Unlocked && n.goal == Mode::Unlocked {
                add(M::Close);
            }
            if quiet && n.demote.is_some_and(|to| n.using <= to && to < n.dlock.held()) {
                add(M::Release);
            }
            if quiet && b.shrink > 0 && n.using == Mode::Unlocked && n.dlock.held() > n.using {
                add(M::Shrink);
            }
            if n.goal > Mode::Unlocked && b.unwant > 0 {
                add(M::Unwant);
            }
            if let Some(io) = &n.issued {
                add(M::Land);
                if b.unknown > 0 {
                    add(M::FailNever);
                    if matches!(io, Action::CompareAndWrite { .. }) {
                        add(M::FailLanded);
                        add(M::FailLate);
                    }
                }
            }
            if n.answer.is_some() {
                add(M::Deliver);
            }
            if n.dlock.timer().is_some() {
                add(M::Timer);
            }
            let others_wait =
                self.nodes.iter().enumerate().any(|(j, o)| j != i && o.goal > Mode::Unlocked);
            if quiet && others_wait && n.demote.is_none() {
                // Anybody may be named in the record without knowing (a late write): all look.
                add(M::Wish);
            }
            if b.spurious > 0 {
                add(M::Spurious);
            }
            if b.forged > 0 {
                (0..self.nodes.len())
                    .filter(|from| *from != i)
                    .for_each(|from| add(M::Forged(from)));
            }
            if b.crashes > 0 {
                add(M::Crash);
            }
        }
        out
    }

    fn land(&mut self, i: usize, io: &Action) -> Result<Event, String> {
        match io {
            Action::Read => Ok(Event::Read(self.seen())),
            Action::CompareAndWrite { expected, new } => {
                if self.disk == *expected {
                    self.check_change(self.nodes[i].life, &new.clone())?;
                    self.disk = new.clone();
                    Ok(Event::Written)
                } else {
                    Ok(Event::Mismatch(self.seen()))
                }
            }
            other => Err(format!("not an I/O: {other:?}")),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm per kind of move")]
    fn apply(&mut self, i: usize, m: Move) -> Result<(), String> {
        use Move as M;
        match m {
            M::Want(mode) => {
                self.nodes[i].wants -= 1;
                self.want(i, mode);
            }
            M::Open => {
                self.budget.opens -= 1;
                self.nodes[i].open = true;
            }
            M::Close => {
                let n = &mut self.nodes[i];
                n.open = false;
                if std::mem::take(&mut n.recorded) {
                    n.leaving = true;
                    self.want(i, Mode::Exclusive);
                }
            }
            M::EndUse => self.nodes[i].using = Mode::Unlocked,
            M::Release | M::Shrink => {
                let n = &mut self.nodes[i];
                let to = n.demote.take().unwrap_or(Mode::Unlocked);
                let goal = n.goal;
                if m == M::Shrink {
                    self.budget.shrink -= 1;
                }
                let opened = to == Mode::Unlocked && n.open;
                if to == Mode::Unlocked {
                    n.recorded = opened;
                }
                self.step(i, Event::Released { to, opened, written: None });
                if !self.nodes[i].dlock.held().covers(goal) {
                    self.step(i, Event::Want(goal));
                }
            }
            M::Unwant => {
                self.budget.unwant -= 1;
                let n = &mut self.nodes[i];
                n.goal = Mode::Unlocked;
                n.recorded |= std::mem::take(&mut n.leaving);
                self.step(i, Event::Unwant);
            }
            M::Land | M::FailLanded => {
                let io = self.nodes[i].issued.take().ok_or("nothing issued")?;
                let is_read = io == Action::Read;
                let answer = self.land(i, &io)?;
                if m == M::FailLanded {
                    self.budget.unknown -= 1;
                    self.step(i, Event::Failed);
                } else if is_read {
                    self.step(i, answer);
                } else {
                    self.nodes[i].answer = Some(answer);
                }
            }
            M::Deliver => {
                let answer = self.nodes[i].answer.take().ok_or("no answer")?;
                self.step(i, answer);
            }
            M::FailNever => {
                self.budget.unknown -= 1;
                self.nodes[i].issued = None;
                self.step(i, Event::Failed);
            }
            M::FailLate => {
                self.budget.unknown -= 1;
                self.go_late(i);
                self.step(i, Event::Failed);
            }
            M::LateLand(k) => {
                let (i, expected, new) = self.late.remove(k);
                if self.disk == expected {
                    self.check_change(self.nodes[i].life, &new)?;
                    self.disk = new;
                }
            }
            M::Arrive(k) => {
                let message = self.messages.remove(k);
                self.arrives(i, message);
            }
            M::Doubled(k) => {
                self.budget.doubled -= 1;
                let message = self.messages[k].clone();
                self.arrives(i, message);
            }
            M::Lost(k) => drop(self.messages.remove(k)),
            M::Forged(from) => {
                self.budget.forged -= 1;
                let hint = Hint::Ask { mode: Mode::Exclusive, ticket: 0 };
                self.arrives(i, (self.nodes[from].life, self.nodes[i].life, hint));
            }
            M::Timer => self.step(i, Event::Timer),
            M::Wish => self.step(i, Event::Look),
            M::Spurious => {
                self.budget.spurious -= 1;
                self.step(i, Event::Look);
            }
            M::Crash => {
                self.budget.crashes -= 1;
                self.go_late(i);
                let n = &mut self.nodes[i];
                (n.fate, n.answer, n.goal) = (Fate::Crashed, None, Mode::Unlocked);
            }
            M::Recover => {
                // After the fence: nothing of it lands any more.
                self.late.retain(|l| l.0 != i);
                self.nodes[i].fate = Fate::Recovered;
                self.nodes[i].using = Mode::Unlocked;
                self.nodes[i].dlock = Dlock::new(LOCK);
                self.nodes[i].demote = None;
            }
            M::Rejoin => {
                self.budget.rejoins -= 1;
                let n = &mut self.nodes[i];
                n.life.incarnation.0 += 1;
                (n.fate, n.wants) = (Fate::Alive, 1);
                (n.open, n.recorded, n.leaving) = (false, false, false);
            }
        }
        self.check()
    }

    /// A message arrives at a node, if it is the one that is meant.
    fn arrives(&mut self, i: usize, (from, to, hint): (Life, Life, Hint)) {
        let node = &self.nodes[i];
        if node.life != to || node.fate != Fate::Alive {
            return;
        }
        let dead = |l: &Life| {
            let of = &self.nodes[usize::from(l.slot.0)];
            of.life != *l || of.fate == Fate::Recovered
        };
        match hint {
            Hint::Ask { mode, ticket } if !dead(&from) => {
                self.step(i, Event::Asked { from, mode, ticket });
            }
            Hint::Give { ticket, record } => {
                let named = record.holders.iter().chain(record.waiters.iter().map(|w| &w.life));
                let dead = named.chain(&record.openers).copied().filter(dead).collect();
                self.step(i, Event::Given { ticket, seen: Seen { record, dead } });
            }
            _ => {}
        }
    }

    fn want(&mut self, i: usize, mode: Mode) {
        let guess = self.guess;
        let n = &mut self.nodes[i];
        let blocked = n.demote.is_some_and(|to| !to.covers(mode));
        if n.dlock.held().covers(mode) && !blocked {
            n.using = mode;
            n.leaving = false;
            return;
        }
        n.goal = mode;
        if !n.dlock.held().covers(mode) {
            if let Some(nonce) = guess {
                n.dlock.guess(LockRecord::unlocked(LOCK, nonce));
            }
            self.step(i, Event::Want(mode));
        }
    }

    fn go_late(&mut self, i: usize) {
        if let Some(Action::CompareAndWrite { expected, new }) = self.nodes[i].issued.take() {
            self.late.push((i, expected, new));
        }
    }

    /// The invariants of every state.
    fn check(&self) -> Result<(), String> {
        self.disk.check().map_err(|f| format!("record: {f}"))?;
        let living = || self.nodes.iter().filter(|n| n.fate != Fate::Recovered);
        for (n, other) in living().flat_map(|n| living().map(move |other| (n, other))) {
            if n.life != other.life && !n.dlock.held().beside().covers(other.dlock.held()) {
                return Err(format!("{:?} beside {:?}", n.dlock.held(), other.dlock.held()));
            }
        }
        for n in living() {
            if !self.disk.mode_of(n.life).covers(n.dlock.held()) {
                return Err(format!("{:?} believes in more than the record gives", n.life));
            }
            if !n.dlock.held().covers(n.using) {
                return Err(format!("{:?} uses more than it holds", n.life));
            }
        }
        self.nodes.iter().filter(|n| n.fate == Fate::Alive).try_for_each(|n| self.check_opener(n))
    }

    /// Whoever has the file open holds the lock or is named as opener, so that nobody deletes it; who
    /// has closed it, and is done with that, is not.
    fn check_opener(&self, n: &Node) -> Result<(), String> {
        let named = self.disk.openers.contains(&n.life);
        if n.open && !named && self.disk.mode_of(n.life) == Mode::Unlocked {
            return Err(format!("{:?} has it open and nobody knows", n.life));
        }
        let at_rest = n.goal == Mode::Unlocked
            && n.dlock.want() == Mode::Unlocked
            && !n.dlock.is_giving()
            && !n.dlock.is_busy();
        let gone = self.disk.mode_of(n.life) == Mode::Unlocked;
        if named && at_rest && gone && !n.open && !n.recorded {
            return Err(format!("{:?} stays an opener for ever", n.life));
        }
        Ok(())
    }

    /// First come, first served; the version counts exclusive releases; the dead alone are dropped.
    fn check_change(&self, writer: Life, new: &LockRecord) -> Result<(), String> {
        let (old, dead) = (&*self.disk, self.seen().dead);
        let gone = |l: &Life| dead.contains(l);
        let mut queue: Vec<Life> = old.waiters.iter().map(|w| w.life).collect();
        let stays = |l: &Life| new.waiters.iter().any(|w| w.life == *l);
        let newly = |l: &Life| !old.holders.contains(l) || old.mode < new.mode;
        let granted = |l: &Life| new.holders.contains(l) && newly(l) && !stays(l);
        if !queue.contains(&writer) && (stays(&writer) || granted(&writer)) {
            queue.push(writer);
        }
        // Those who asked the writer come last.
        let asked = |l: &Life| !queue.contains(l) && *l != writer;
        let given = new.holders.iter().filter(|l| asked(l) && granted(l));
        let wait = new.waiters.iter().map(|w| &w.life).filter(|l| asked(l));
        let asked: Vec<Life> = given.chain(wait).copied().collect();
        queue.extend(asked);
        // The dead may be dropped, by whoever has heard of it.
        queue.retain(|l| !gone(l) || stays(l) || granted(l));
        queue.retain(|l| *l != writer || stays(l) || granted(l));
        let served = queue.iter().take_while(|l| granted(l)).count();
        if !queue.iter().skip(served).all(stays) {
            return Err(format!("not first come first served: {old:?} -> {new:?}"));
        }
        let left: Vec<Life> = new.waiters.iter().map(|w| w.life).collect();
        if left.as_slice() != queue.get(served..).unwrap_or(&[]) {
            return Err(format!("the queue was reordered: {old:?} -> {new:?}"));
        }
        for l in &old.holders {
            if *l != writer && !gone(l) && !new.holders.contains(l) {
                return Err(format!("a living holder was dropped: {old:?} -> {new:?}"));
            }
        }
        let left = old.holders.iter().any(|l| !new.holders.contains(l));
        let given_up = old.mode.changes() && (left || new.mode < old.mode);
        // A concurrent holder that leaves may drop a dead one beside it, which counts too, or come back
        // exclusive by the same write.
        let most = u64::from(given_up) + u64::from(old.mode == Mode::Concurrent);
        if !(u64::from(given_up)..=most).contains(&(new.version - old.version)) {
            return Err(format!("version: {old:?} -> {new:?}"));
        }
        Ok(())
    }

    /// Somebody alive waits to be served.
    fn waiting(&self) -> bool {
        self.nodes.iter().any(|n| n.fate == Fate::Alive && n.goal > Mode::Unlocked)
    }

    /// The same for states that differ only in the names of nodes and in nonces and versions.
    fn fingerprint(&self, permutations: &[Vec<usize>]) -> u64 {
        permutations.iter().map(|p| self.fingerprint_as(p)).min().unwrap_or(0)
    }

    fn fingerprint_as(&self, order: &[usize]) -> u64 {
        let (nonces, tickets) = (Vec::new(), Vec::new());
        let mut c = Canon { nonces, tickets, place: [0; 4], hasher: Mix(0) };
        for (at, i) in order.iter().enumerate() {
            c.place[*i] = at;
        }
        c.record(&self.disk);
        self.budget.hash(&mut c.hasher);
        for i in order {
            c.node(&self.nodes[*i]);
        }
        for at in 0..order.len() {
            for (i, expected, new) in &self.late {
                if c.place[*i] == at {
                    at.hash(&mut c.hasher);
                    c.record(expected);
                    c.record(new);
                }
            }
            for (from, to, hint) in &self.messages {
                if c.place[usize::from(to.slot.0)] == at {
                    c.message(*from, *to, hint);
                }
            }
        }
        c.hasher.finish()
    }
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(n - 1);
    shorter
        .iter()
        .flat_map(|p| {
            (0..n).map(move |at| {
                let mut q = p.clone();
                q.insert(at, n - 1);
                q
            })
        })
        .collect()
}

struct Search {
    /// How each state was first reached.
    parents: Vec<(u32, usize, Move)>,
    /// Fair moves, from -> to, with loops left out.
    fair: Vec<(u32, u32)>,
    waiting: Vec<bool>,
    transitions: u64,
}

impl Search {
    fn run(start: &World) -> Self {
        let perms = permutations(start.nodes.len());
        let mut index: HashMap<u64, u32> = HashMap::new();
        let mut this = Self {
            parents: vec![(0, 0, Move::EndUse)],
            fair: vec![],
            waiting: vec![],
            transitions: 0,
        };
        index.insert(start.fingerprint(&perms), 0);
        this.waiting.push(start.waiting());
        let mut frontier = VecDeque::from([(0_u32, start.clone())]);
        while let Some((from, world)) = frontier.pop_front() {
            for (i, m) in world.moves() {
                this.transitions += 1;
                let mut next = world.clone();
                if let Err(what) = next.apply(i, m) {
                    this.trace(start, from, i, m);
                    panic!("{what}");
                }
                let fresh = u32::try_from(this.parents.len()).unwrap();
                let to = match index.entry(next.fingerprint(&perms)) {
                    Entry::Occupied(e) => *e.get(),
                    Entry::Vacant(e) => {
                        e.insert(fresh);
                        this.parents.push((from, i, m));
                        this.waiting.push(next.waiting());
                        frontier.push_back((fresh, next));
                        fresh
                    }
                };
                if m.fair() && to != from {
                    this.fair.push((from, to));
                }
            }
        }
        this.check_progress(start);
        this
    }

    /// From every state, fair moves alone lead to one where nobody waits.
    fn check_progress(&self, start: &World) {
        let n = self.parents.len();
        let mut first = vec![0_u32; n + 1];
        for (_, to) in &self.fair {
            first[*to as usize + 1] += 1;
        }
        for i in 0..n {
            first[i + 1] += first[i];
        }
        let mut fill = first.clone();
        let mut back = vec![0_u32; self.fair.len()];
        for (from, to) in &self.fair {
            back[fill[*to as usize] as usize] = *from;
            fill[*to as usize] += 1;
        }
        let mut good: Vec<bool> = self.waiting.iter().map(|w| !w).collect();
        let mut todo: Vec<usize> = (0..n).filter(|s| good[*s]).collect();
        while let Some(s) = todo.pop() {
            for from in &back[first[s] as usize..first[s + 1] as usize] {
                let from = *from as usize;
                if !good[from] {
                    good[from] = true;
                    todo.push(from);
                }
            }
        }
        if let Some(stuck) = good.iter().position(|g| !g) {
            let (parent, i, m) = self.parents[stuck];
            self.trace(start, parent, i, m);
            panic!("somebody waits for ever");
        }
    }

    /// Prints the moves that lead to `from` and then `m`. States are found again by fingerprint,
    /// so node names are those of the first path.
    fn trace(&self, start: &World, mut from: u32, i: usize, m: Move) {
        let mut path = vec![(i, m)];
        while from != 0 {
            let (parent, i, m) = self.parents[from as usize];
            path.push((i, m));
            from = parent;
        }
        let mut world = start.clone();
        for (i, m) in path.into_iter().rev() {
            let done = world.apply(i, m);
            println!("node {i} {m:?}: {done:?}\n    disk {:?}", world.disk);
            println!("    {:?}", world.nodes[i].dlock);
        }
    }
}

mod canon;
mod runs;

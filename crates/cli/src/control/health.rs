//! How a pool is, in one line: the worst that is known of it, what that means, and what to do.

use std::time::Duration;

use braid_format::MemberIndex;
use braid_format::label::MemberState;
use braid_format::node::SlotState;
use braid_fs::Fs;
use braid_fs::lock::{FenceMethod, MessageWay, NodeView, TcpHints};
use braid_pool::layout::Facts;
use serde::{Deserialize, Serialize};

use crate::control::nodes::{is_silent, see_that_it_has_ended};
use crate::pools::topology;
use crate::terminal::size;

/// What repairs a dead node's private metadata, and damage that a node has met.
pub const REPAIR: &str = "run `braid check --repair` after unmounting all nodes";

/// Less free space than this part of all is soon none.
const SOON_PERCENT: u64 = 10;
/// The same, when it is time that somebody acts.
const FULL_PERCENT: u64 = 1;

/// How a pool is, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing is wrong, as far as is known.
    Ok,
    /// Little space is left.
    FullSoon,
    /// A member is slow beside its peers, or messages do not reach a node.
    Slow,
    /// A member has failed, is offline or missing, or is being filled.
    Degraded,
    /// Something has returned garbage.
    Damaged,
    /// Less than 1 % of the space is left.
    Full,
    /// A node has frozen it: what programs write waits.
    Frozen,
    /// A node shows no life.
    NodeSilent,
    /// A member answers nothing, or is asked nothing any more.
    MemberSilent,
    /// The node that was asked does not serve any more.
    Withdrawn,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::FullSoon,
        Self::Slow,
        Self::Degraded,
        Self::Damaged,
        Self::Full,
        Self::Frozen,
        Self::NodeSilent,
        Self::MemberSilent,
        Self::Withdrawn,
    ];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::FullSoon => "FULL SOON",
            Self::Slow => "SLOW",
            Self::Degraded => "DEGRADED",
            Self::Damaged => "DAMAGED",
            Self::Full => "FULL",
            Self::Frozen => "FROZEN",
            Self::NodeSilent => "NODE SILENT",
            Self::MemberSilent => "MEMBER SILENT",
            Self::Withdrawn => "WITHDRAWN",
        }
    }
}

/// One thing that is to be said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How the pool is because of it.
    pub state: State,
    /// What it is, and what it means.
    pub meaning: String,
    /// What to do; empty: nothing.
    pub action: String,
}

/// What is known of a member.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts, each with its own meaning")]
pub struct MemberFacts {
    /// Its place.
    pub index: u16,
    /// Its device.
    pub path: String,
    /// It has failed, or is not there.
    pub lost: Lost,
    /// Something of the pool is on it.
    pub used: bool,
    /// It is being filled,
    pub filling: bool,
    /// so many percent are done, if that is known.
    pub percent: Option<u64>,
    /// It is slow beside its peers.
    pub slow: bool,
    /// It is suspected to return garbage,
    pub suspected: bool,
    /// and the node that was asked has met so many places where it did.
    pub damaged: usize,
    /// Other members are suspected, too.
    pub others_suspected: bool,
    /// It answers nothing, for so many seconds (0: not known); and the node has given it up.
    pub silent: Option<(u64, bool)>,
    /// Why the node has given it up, if its sessions have ended for good.
    pub given_up: Option<String>,
}

/// Whether a member is lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lost {
    /// It is not.
    #[default]
    No,
    /// The pool goes on without it.
    Failed,
    /// An operator has taken it out for a while.
    Offline,
    /// It was not found.
    Missing,
}

/// What is known of a pool.
#[derive(Debug, Clone, Default)]
pub struct PoolFacts {
    /// Its name.
    pub name: String,
    /// What more may be lost, in words; `None`: the pool has no redundancy.
    pub survives: Option<String>,
    /// Its members.
    pub members: Vec<MemberFacts>,
    /// Its nodes.
    pub nodes: Vec<NodeView>,
    /// Bytes for file data, and free ones.
    pub space: Option<(u64, u64)>,
    /// Blocks of damaged metadata that were met.
    pub damaged: usize,
    /// Bytes that copies disagree on, of which nothing says which are right.
    pub undecided: u64,
    /// Files with such bytes: how many are known, and the path of one, quoted.
    pub undecided_files: Option<(usize, String)>,
    /// The node that has frozen it.
    pub frozen_by: Option<u16>,
    /// Where nodes of this host have it mounted that do not answer, and their processes.
    pub unanswering: Vec<(String, u32)>,
    /// Why the node that was asked has withdrawn, and where it is mounted.
    pub withdrawn: Option<(String, String)>,
}

/// What a node knows of its pool. Asks no device.
pub fn facts(fs: &Fs) -> PoolFacts {
    let (pool, status, maintenance) = (fs.pool(), fs.status(), fs.maintenance());
    let (info, label) = (pool.info(), pool.label());
    let (slow, silent, suspects) = (pool.slow(), pool.silent(), pool.suspects());
    let given_up = pool.given_up();
    let members = (0..).map(MemberIndex).zip(label.members.iter().zip(pool.devices()));
    let members = members.map(|(index, (member, device))| {
        let progress = maintenance.rebuilding.as_ref().filter(|(m, _)| *m == index);
        let percent = progress.map(|(_, p)| p.done.get() * 100 / p.total.get().max(1));
        MemberFacts {
            index: index.get(),
            path: device.info().name.clone(),
            lost: match member.state {
                MemberState::Failed if member.offline => Lost::Offline,
                MemberState::Failed => Lost::Failed,
                _ => Lost::No,
            },
            used: label.bytes_on(index).get() > 0,
            filling: member.state == MemberState::Rebuilding,
            percent,
            slow: slow.contains(&index),
            suspected: suspects.iter().any(|(m, _)| *m == index),
            damaged: suspects.iter().find(|(m, _)| *m == index).map_or(0, |(_, places)| *places),
            others_suspected: suspects.iter().any(|(m, _)| *m != index),
            silent: silent
                .iter()
                .find(|s| s.member == index)
                .map(|s| (s.time.as_secs(), s.given_up)),
            given_up: given_up.iter().find(|(m, _)| *m == index).map(|(_, why)| why.to_string()),
        }
    });
    let space = fs.space();
    let block = u64::from(space.block_size);
    let there = |n: &NodeView| n.state != SlotState::Free || n.unreadable.is_some();
    let dir = status.mount_point.display().to_string();
    let survives = || topology::survives(Facts::of(&label).tolerates);
    let undecided = maintenance.scrubbed.as_ref().map_or(0, |found| found.undecided.get());
    let named = &maintenance.files.files;
    PoolFacts {
        name: info.name.clone(),
        survives: info.redundant.then(survives),
        members: members.collect(),
        space: Some((space.blocks * block, space.available * block)),
        damaged: status.damaged.len(),
        undecided,
        undecided_files: named.first().map(|f| (named.len(), f.quoted())),
        frozen_by: fs.frozen_by().map(|node| node.0),
        withdrawn: fs.withdrawn().map(|why| (why, dir)),
        unanswering: Vec::new(),
        nodes: status.nodes.into_iter().filter(there).collect(),
    }
}

/// How a pool is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Told", into = "Told")]
pub struct Health {
    /// The worst first; never empty.
    findings: Vec<Finding>,
}

/// The same for programs.
#[derive(Serialize, Deserialize)]
struct Told {
    /// That of the first.
    state: State,
    findings: Vec<Finding>,
}

impl From<Health> for Told {
    fn from(health: Health) -> Self {
        Self { state: health.state(), findings: health.findings }
    }
}

impl From<Told> for Health {
    fn from(told: Told) -> Self {
        Self { findings: told.findings }
    }
}

impl Health {
    /// From what is known.
    pub fn of(pool: &PoolFacts) -> Self {
        let mut findings = Vec::new();
        findings.extend(withdrawn(pool));
        findings.extend(frozen(pool));
        findings.extend(pool.unanswering.iter().map(unanswering));
        pool.members.iter().for_each(|member| findings.extend(of_member(pool, member)));
        pool.nodes.iter().for_each(|node| findings.extend(of_node(pool, node)));
        findings.extend(damage(pool));
        findings.extend(fullness(pool));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.state));
        if findings.is_empty() {
            findings.push(well(pool));
        }
        Self { findings }
    }
    /// With what is known besides.
    #[must_use]
    pub fn and(mut self, besides: &PoolFacts) -> Self {
        let more = Self::of(besides).findings.into_iter().filter(|f| f.state != State::Ok);
        let more: Vec<Finding> = more.collect();
        if !more.is_empty() {
            self.findings.retain(|f| f.state != State::Ok);
            self.findings.extend(more);
            self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.state));
        }
        self
    }
    /// The worst.
    pub fn state(&self) -> State {
        self.findings.first().map_or(State::Ok, |finding| finding.state)
    }
    /// All that is to be said, the worst first.
    #[cfg(test)]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
    /// For people: one line for the worst, and one for each other thing.
    pub fn lines(&self) -> Vec<String> {
        let line = |(n, f): (usize, &Finding)| {
            let head = if n == 0 { "health: " } else { "   and: " };
            let action =
                if f.action.is_empty() { String::new() } else { format!("; {}", f.action) };
            format!("{head}{}: {}{action}", f.state.name(), f.meaning)
        };
        self.findings.iter().enumerate().map(line).collect()
    }
}

fn well(pool: &PoolFacts) -> Finding {
    let alive = pool.nodes.len();
    let nodes = match alive {
        0 => "no node has it mounted".to_owned(),
        1 => "1 node has it mounted".to_owned(),
        n => format!("{n} nodes have it mounted"),
    };
    let survives = pool.survives.as_deref().unwrap_or("no redundancy, as it was made");
    Finding { state: State::Ok, meaning: format!("{survives}; {nodes}"), action: String::new() }
}

fn withdrawn(pool: &PoolFacts) -> Option<Finding> {
    let (why, dir) = pool.withdrawn.as_ref()?;
    Some(Finding {
        state: State::Withdrawn,
        meaning: format!("the node on {dir} has withdrawn, and every call there fails ({why})"),
        action: "unmount it and mount it again".into(),
    })
}

fn frozen(pool: &PoolFacts) -> Option<Finding> {
    let node = pool.frozen_by?;
    Some(Finding {
        state: State::Frozen,
        meaning: format!("node {node} has frozen it: what programs write waits, on all nodes"),
        action: format!("`braid thaw {}` on that node's host ends it", pool.name),
    })
}

/// Where it did, as far as one node knows.
fn places_met(damaged: usize) -> String {
    match damaged {
        0 => String::new(),
        n => format!(": this node has met {n} places that are sound on others"),
    }
}

/// What to do about a member that is suspected to return garbage.
fn what_about_garbage(pool: &str, m: &MemberFacts) -> String {
    let i = m.index;
    if m.others_suspected {
        return format!(
            "other members are suspected, too, and each may hold the only good copy: first let `braid scrub {pool}` finish, then run `braid fail {pool} {i} --force`, which takes it out; a scrub that finds nothing wrong ends the suspicion"
        );
    }
    format!(
        "`braid scrub {pool}`, which mends the others by what it may still hold, then `braid fail {pool} {i}` takes it out; a scrub that finds nothing wrong ends the suspicion"
    )
}

/// What to do about a member that is not asked any more.
fn without_it(pool: &PoolFacts, m: &MemberFacts) -> String {
    let (name, i) = (&pool.name, m.index);
    match pool.survives {
        _ if m.others_suspected && m.lost == Lost::No => {
            "see to the device: others are suspected to return garbage, and may lack what it holds; then unmount the pool and mount it again".to_owned()
        }
        Some(_) => format!("`braid replace {name} {i} DEVICE`"),
        None => "see to the device, then unmount the pool and mount it again".to_owned(),
    }
}

fn of_member(pool: &PoolFacts, m: &MemberFacts) -> Vec<Finding> {
    let (name, i, path) = (&pool.name, m.index, &m.path);
    let who = format!("member {i} ({path})");
    let rest = pool.survives.as_deref().unwrap_or("the pool has no redundancy");
    let mut all = Vec::new();
    let mut say = |state, meaning: String, action: String| {
        all.push(Finding { state, meaning, action });
    };
    if let Some((seconds, given_up)) = m.silent {
        let time = if seconds == 0 { String::new() } else { format!(" for {seconds} s") };
        let (means, action) = if given_up {
            ("nothing is asked of it any more", without_it(pool, m))
        } else {
            let action =
                "see to the device; a node mounted with -o io_timeout= gives such members up";
            ("what needs it waits until it answers", action.to_owned())
        };
        say(State::MemberSilent, format!("{who} has not answered{time}: {means}"), action);
    }
    if let (Some(why), Lost::No) = (&m.given_up, m.lost) {
        let action = without_it(pool, m);
        let means = format!("{who} was given up, and nothing is asked of it any more ({why})");
        say(State::MemberSilent, means, action);
    }
    let because = m.given_up.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
    match m.lost {
        _ if m.silent.is_some() => {}
        Lost::Failed if m.used => say(
            State::Degraded,
            format!("{who} has failed{because}; {rest}"),
            format!("`braid replace {name} {i} DEVICE` puts another device in its place"),
        ),
        Lost::Offline => say(
            State::Degraded,
            format!("{who} is offline; {rest}"),
            format!(
                "`braid online {name} {i}` brings it back; if it does not come back: `braid replace {name} {i} DEVICE`"
            ),
        ),
        Lost::Missing => say(
            State::Degraded,
            format!("{who} is not there; {rest}"),
            format!(
                "attach it (if it is there and its labels are lost: `braid label restore {name} --member {i}=DEVICE`), \
                 or go on without it: `braid mount -o degraded`, then `braid replace {name} {i} DEVICE`"
            ),
        ),
        Lost::Failed | Lost::No => {}
    }
    if m.filling {
        let percent = m.percent.map_or_else(String::new, |percent| format!(", {percent} %"));
        let means = format!("{who} is being filled{percent}; until then {rest}");
        say(State::Degraded, means, String::new());
    }
    if m.suspected {
        let meaning = format!("{who} is suspected to return garbage{}", places_met(m.damaged));
        say(State::Damaged, meaning, what_about_garbage(name, m));
    }
    if m.slow && m.given_up.is_none() {
        say(
            State::Slow,
            format!("{who} takes more than four times as long as its peers, and holds them up"),
            // What a member of garbage returns is not copied.
            if m.suspected {
                String::new()
            } else {
                format!("if it stays so, `braid evacuate {name} {i} --to DEVICE`")
            },
        );
    }
    all
}

fn of_node(pool: &PoolFacts, n: &NodeView) -> Option<Finding> {
    let who = format!("node {} on {}", n.life.slot, n.host);
    if n.unreadable.is_some() || n.damage.is_some() {
        let meaning = if n.unreadable.is_some() {
            format!(
                "the slot of node {} cannot be read: no node can join with this slot, and locks held by its last node stay held",
                n.life.slot
            )
        } else {
            format!("{who} is dead and cannot be recovered; what it held gives EIO")
        };
        return Some(Finding { state: State::Damaged, meaning, action: REPAIR.into() });
    }
    let silent = is_silent(n);
    if !silent && n.state != SlotState::Recovering {
        return (n.messages == Some(MessageWay::TcpFails)).then(|| out_of_reach(&who));
    }
    let since = match n.last_beat {
        Some(time) if time > Duration::ZERO => format!(" for {:.0} s", time.as_secs_f64()),
        _ => String::new(),
    };
    let locked = "what it holds stays locked until it is recovered";
    let (meaning, action) = if n.state == SlotState::Recovering {
        (format!("{who} is dead and is being recovered; {locked}"), String::new())
    } else if n.fence == FenceMethod::Operator {
        let slot = n.life.slot;
        let first = if n.of_this_host {
            see_that_it_has_ended(&n.pid.to_string())
        } else {
            "turn its host off".to_owned()
        };
        let action = format!("{first}, then `braid fence {} {slot} --confirm`", pool.name);
        (format!("{who} has shown no life{since}, and nothing here can fence it; {locked}"), action)
    } else {
        let fenced = n.timing.fence_after().as_secs_f64();
        let meaning = format!(
            "{who} has shown no life{since}; after {fenced:.1} s it is fenced by {}; {locked}",
            n.fence.name()
        );
        (meaning, String::new())
    };
    Some(Finding { state: State::NodeSilent, meaning, action })
}

/// A node of this host does not say how it is.
fn unanswering((dir, process): &(String, u32)) -> Finding {
    Finding {
        state: State::NodeSilent,
        meaning: format!(
            "the node on {dir} (process {process}) does not answer: programs that use {dir} may wait, and this is what the devices show"
        ),
        action: format!(
            "look again in a while, it may be busy; if it was stopped, `kill -CONT {process}`; if it never answers, `kill -KILL {process}` ends it, and another node, or the next mount, recovers it"
        ),
    }
}

/// The node lives, and messages do not reach it.
fn out_of_reach(who: &str) -> Finding {
    let (first, last) = (TcpHints::PORTS.start(), TcpHints::PORTS.end());
    Finding {
        state: State::Slow,
        meaning: format!(
            "{who} is not reached over TCP, and learns of wanted locks from the devices, which is slower"
        ),
        action: format!(
            "let TCP ports {first} to {last} through between the hosts, or mount with -o hints=tcp:ADDRESS:PORT"
        ),
    }
}

fn damage(pool: &PoolFacts) -> Vec<Finding> {
    let mut all = Vec::new();
    if pool.damaged > 0 {
        let meaning = format!(
            "damaged metadata was found ({} blocks), and what needs it gives EIO",
            pool.damaged
        );
        all.push(Finding { state: State::Damaged, meaning, action: REPAIR.into() });
    }
    if pool.undecided > 0 {
        let bytes = size::show(pool.undecided);
        let meaning = format!(
            "the last scrub found {bytes} of which copies differ, and nothing says which are right"
        );
        let action = match &pool.undecided_files {
            Some((1, path)) => format!("compare {path} with a backup"),
            Some((n, path)) => format!(
                "compare {n} files, such as {path}, with a backup; `braid scrub` names them"
            ),
            None => "`braid scrub` names the places, and the files there".into(),
        };
        all.push(Finding { state: State::Damaged, meaning, action });
    }
    all
}

fn fullness(pool: &PoolFacts) -> Option<Finding> {
    let (all, free) = pool.space.filter(|(all, _)| *all > 0)?;
    let percent = u128::from(free) * 100 / u128::from(all);
    let state = match u64::try_from(percent).unwrap_or(100) {
        p if p < FULL_PERCENT => State::Full,
        p if p < SOON_PERCENT => State::FullSoon,
        _ => return None,
    };
    let (free, all) = (size::show(free), size::show(all));
    Some(Finding {
        state,
        meaning: format!("{free} of {all} are free"),
        action: format!("delete files, or `braid add {} DEVICE...`", pool.name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> PoolFacts {
        let member = |index| MemberFacts {
            index,
            path: format!("/dev/sd{index}"),
            used: true,
            ..MemberFacts::default()
        };
        PoolFacts {
            name: "p".into(),
            survives: Some("any one member may be lost".into()),
            members: vec![member(0), member(1)],
            space: Some((100 << 30, 50 << 30)),
            ..PoolFacts::default()
        }
    }
    fn said(pool: &PoolFacts) -> (State, String) {
        let health = Health::of(pool);
        (health.state(), health.lines().join("\n"))
    }

    #[test]
    fn a_pool_of_which_nothing_bad_is_known_is_well() {
        let (state, said) = said(&pool());
        assert_eq!(state, State::Ok);
        assert_eq!(said, "health: OK: any one member may be lost; no node has it mounted");
    }

    #[test]
    #[expect(clippy::too_many_lines, clippy::type_complexity, reason = "a table of all states")]
    fn each_state_says_what_it_means_and_what_to_do() {
        let with = |change: &dyn Fn(&mut PoolFacts)| {
            let mut pool = pool();
            change(&mut pool);
            said(&pool)
        };
        let cases: [(&dyn Fn(&mut PoolFacts), State, &str, &str); 10] = [
            (
                &|p| p.members[1].lost = Lost::Failed,
                State::Degraded,
                "member 1 (/dev/sd1) has failed",
                "braid replace p 1",
            ),
            (
                &|p| p.members[0].lost = Lost::Missing,
                State::Degraded,
                "is not there",
                "attach it (if it is there and its labels are lost: `braid label restore p --member 0=DEVICE`), or",
            ),
            (
                &|p| (p.members[0].filling, p.members[0].percent) = (true, Some(40)),
                State::Degraded,
                "being filled, 40 %",
                "",
            ),
            (&|p| p.members[0].slow = true, State::Slow, "four times", "evacuate p 0"),
            (
                &|p| (p.members[0].suspected, p.members[0].damaged) = (true, 9),
                State::Damaged,
                "has met 9 places",
                "braid fail p 0",
            ),
            (
                &|p| p.members[0].suspected = true,
                State::Damaged,
                "(/dev/sd0) is suspected to return garbage; ",
                "braid scrub p",
            ),
            (
                &|p| p.members[0].silent = Some((12, false)),
                State::MemberSilent,
                "has not answered for 12 s: what needs it waits",
                "io_timeout",
            ),
            (
                &|p| p.space = Some((100, 5)),
                State::FullSoon,
                "5 B of 100 B are free",
                "braid add p",
            ),
            (&|p| p.space = Some((1000, 9)), State::Full, "9 B", "delete"),
            (
                &|p| p.withdrawn = Some(("lost lease".into(), "/mnt".into())),
                State::Withdrawn,
                "/mnt has withdrawn",
                "mount it again",
            ),
        ];
        for (change, state, meaning, action) in cases {
            let (found, said) = with(change);
            assert_eq!(found, state, "{said}");
            assert!(said.contains(meaning) && said.contains(action), "{said}");
            assert!(said.starts_with(&format!("health: {}: ", state.name())), "{said}");
        }
        // One that is given up is not called slow, whatever its last commands took.
        let gone = |p: &mut PoolFacts, lost| {
            let member = &mut p.members[0];
            (member.given_up, member.slow, member.lost) = (Some("cache lost".into()), true, lost);
        };
        let (state, said) = with(&|p| gone(p, Lost::No));
        assert!(state == State::MemberSilent && said.contains("given up"), "{said}");
        assert!(said.contains("(cache lost)") && said.contains("braid replace p 0"), "{said}");
        assert!(!said.contains("SLOW") && !said.contains("evacuate"), "{said}");
        let (state, said) = with(&|p| gone(p, Lost::Failed));
        assert!(
            state == State::Degraded && said.contains("has failed (cache lost); any"),
            "{said}"
        );
        let (_, said) = with(&|p| {
            gone(p, Lost::No);
            p.survives = None;
        });
        assert!(said.contains("mount it again") && !said.contains("replace"), "{said}");
        // A failed member that holds nothing harms nobody.
        let idle =
            |p: &mut PoolFacts| (p.members[1].lost, p.members[1].used) = (Lost::Failed, false);
        assert_eq!(with(&idle).0, State::Ok);
    }

    #[test]
    fn the_words_for_people_are_those_of_the_guide() {
        let names = State::ALL.map(State::name).join(", ");
        assert_eq!(
            names,
            "OK, FULL SOON, SLOW, DEGRADED, DAMAGED, FULL, FROZEN, NODE SILENT, MEMBER SILENT, WITHDRAWN"
        );
        let guide = include_str!("../../../../docs/GUIDE.md");
        for state in State::ALL {
            assert!(guide.contains(&format!("\n| {} | ", state.name())), "{}", state.name());
        }
    }

    #[test]
    fn the_worst_comes_first_and_nothing_is_left_out() {
        let mut pool = pool();
        pool.space = Some((100, 5));
        pool.members[0].slow = true;
        pool.members[1].silent = Some((30, true));
        pool.members[1].lost = Lost::Failed;
        let health = Health::of(&pool);
        let states: Vec<State> = health.findings().iter().map(|f| f.state).collect();
        assert_eq!(states, [State::MemberSilent, State::Slow, State::FullSoon]);
        let json = serde_json::to_value(&health).unwrap();
        assert_eq!(
            (&json["state"], &json["findings"][2]["state"]),
            (&"member_silent".into(), &"full_soon".into())
        );
        assert_eq!(serde_json::from_value::<Health>(json).unwrap(), health);
        let well = Health::of(&PoolFacts::default());
        let slow = PoolFacts { members: vec![pool.members[0].clone()], ..PoolFacts::default() };
        assert_eq!(well.clone().and(&PoolFacts::default()), well);
        assert_eq!(well.and(&slow).findings().len(), 1);
        assert!(health.lines()[0].contains("nothing is asked of it any more; `braid replace p 1"));
        // Not by others that may lack what it holds.
        (pool.members[1].lost, pool.members[1].others_suspected) = (Lost::No, true);
        let health = Health::of(&pool);
        assert!(health.lines()[0].contains("see to the device: others are suspected"));
    }
}

//! What portals and units of iSCSI targets have for `braid scan`. Each is asked by a thread, which may hang: who waits
//! goes on without it when the time is over that all of them have together.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use braid_format::label::Label;
use braid_pool::FoundPool;
use braid_pool::PoolError;
use braid_pool::device::{self, DeviceError, OpenOptions, Portal, UnitName, UnitNumber};
use braid_pool::labels::Found;
use serde_json::json;

use crate::pools::sources;
use crate::terminal::answer::say;
use crate::terminal::size;

/// What was named, and what was found there.
#[derive(Debug)]
pub struct Look {
    /// As it is shown.
    pub name: String,
    is_portal: bool,
    targets: Vec<Target>,
    units: Vec<Unit>,
    /// Why not all of it is known.
    pub failure: Option<String>,
}

#[derive(Debug)]
struct Target {
    name: String,
    failure: Option<String>,
}

#[derive(Debug)]
struct Unit {
    path: PathBuf,
    /// Of which target: its place among those of the portal.
    target: usize,
    /// What it is, or why it cannot be opened.
    seen: Result<Seen, String>,
}

#[derive(Debug)]
struct Seen {
    bytes: u64,
    label: Result<Labelled, NoLabel>,
}

/// Why a unit is a member of nothing.
#[derive(Debug)]
struct NoLabel {
    /// With the unit's name, and what to do.
    whole: String,
    short: String,
}

/// Which member a label says that it is.
#[derive(Debug)]
struct Labelled {
    pool: String,
    uuid: String,
    member: u16,
}

/// What a thread has to say.
enum Said {
    Target(Target),
    Unit(Unit),
    Failed(String),
}

/// Whether a word means a portal or a unit.
pub fn is_meant(path: &Path) -> bool {
    path.to_str().is_some_and(UnitName::is_meant)
}

/// The time in which all that was named is to answer, however many there are and however much they have.
#[derive(Debug, Clone, Copy)]
struct Bound {
    begun: Instant,
    within: Duration,
}

impl Bound {
    fn left(self) -> Duration {
        self.within.saturating_sub(self.begun.elapsed())
    }
}

/// Asks all portals and units at once; what they have not said `within` that time is passed over.
pub fn look(paths: &[PathBuf], within: Duration) -> Vec<Look> {
    let words = paths.iter().filter_map(|path| path.to_str()).filter(|w| UnitName::is_meant(w));
    let bound = Bound { begun: Instant::now(), within };
    let asked: Vec<_> = words.map(|word| begin(word, bound)).collect();
    asked.into_iter().map(|(look, answers)| finish(look, &answers, bound)).collect()
}

/// The pools on `paths`, some of which are units: they have answered, and may answer no more, so they have that time
/// once more. `None`: it was not enough.
pub fn discover(paths: Vec<PathBuf>, within: Duration) -> Option<Vec<FoundPool>> {
    let (said, answer) = channel();
    let work = move || drop(said.send(sources::discover(Some(&paths))));
    std::thread::Builder::new().name("scan".into()).spawn(work).ok()?;
    answer.recv_timeout(within).ok()
}

fn begin(word: &str, bound: Bound) -> (Look, Receiver<Said>) {
    let (said, answers) = channel();
    let portal = Portal::parse(word);
    let name = match (&portal, UnitName::parse(word)) {
        (Some(portal), _) => portal.to_string(),
        (None, Some(unit)) => unit.to_string(),
        (None, None) => device::redacted(word),
    };
    let is_portal = portal.is_some();
    let mut look = Look {
        name: name.clone(),
        is_portal,
        targets: Vec::new(),
        units: Vec::new(),
        failure: None,
    };
    let work = move || match portal {
        Some(portal) => ask(&portal, bound, &said),
        None => drop(said.send(Said::Unit(open(&name, 0)))),
    };
    if let Err(e) = std::thread::Builder::new().name("scan".into()).spawn(work) {
        look.failure = Some(format!("no thread: {e}"));
    }
    (look, answers)
}

/// When the time is over who waits has given up, and says so.
fn ask(portal: &Portal, bound: Bound, said: &Sender<Said>) {
    const AFTER: Duration = Duration::from_secs(1);
    let left = || bound.left() + AFTER;
    let targets = match portal.targets(left()) {
        Ok(targets) => targets,
        Err(why) => return drop(said.send(Said::Failed(why))),
    };
    for (at, name) in targets.into_iter().enumerate() {
        let units = portal.units(&name, left());
        let failure = match &units {
            Err(why) => Some(why.clone()),
            Ok(list) if list.unlisted > 0 => Some(format!(
                "it says that it has {} units more, and does not list them",
                list.unlisted
            )),
            Ok(_) => None,
        };
        if said.send(Said::Target(Target { name: name.clone(), failure })).is_err() {
            return;
        }
        for number in units.unwrap_or_default().numbers {
            if bound.left().is_zero() {
                return;
            }
            let unit = match number {
                UnitNumber::Known(number) => open(&portal.name_of(&name, number), at),
                UnitNumber::Beyond(bytes) => Unit {
                    path: format!("{portal}/{name}/0x{bytes:016x}").into(),
                    target: at,
                    seen: Err("numbers of units above 255 have no name here".into()),
                },
            };
            if said.send(Said::Unit(unit)).is_err() {
                return;
            }
        }
    }
}

fn open(name: &str, target: usize) -> Unit {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let path = PathBuf::from(name);
    let seen = match device::open(&path, options) {
        Ok(device) => Ok(seen(&Found::read(device))),
        // The name stands before it.
        Err(DeviceError::NoSession { why, .. }) => Err(format!("cannot log in: {why}")),
        Err(DeviceError::Io { operation, source, .. }) => Err(format!("{operation}: {source}")),
        Err(e) => Err(e.to_string()),
    };
    Unit { path, target, seen }
}

fn seen(found: &Found) -> Seen {
    let labelled = |label: &Label| Labelled {
        pool: label.name.clone(),
        uuid: label.pool.to_string(),
        member: label.member.get(),
    };
    let label = found.newest().map(labelled).ok_or_else(|| NoLabel::of(&found.refusal()));
    Seen { bytes: found.device.info().size.get(), label }
}

impl NoLabel {
    fn of(refusal: &PoolError) -> Self {
        let short = match refusal {
            PoolError::NotAMember { found: None, .. } => "no member of a pool".to_owned(),
            PoolError::NotAMember { found: Some(what), .. } => {
                format!("no member of a pool: it holds {what}")
            }
            PoolError::OtherLabel { fault, .. } => format!("of another version: {fault}"),
            _ => "both labels are damaged".to_owned(),
        };
        Self { whole: refusal.to_string(), short }
    }
}

/// What was said in time.
fn finish(mut look: Look, answers: &Receiver<Said>, bound: Bound) -> Look {
    loop {
        match answers.recv_timeout(bound.left()) {
            Ok(Said::Target(target)) => look.targets.push(target),
            Ok(Said::Unit(unit)) => look.units.push(unit),
            Ok(Said::Failed(why)) => look.failure = Some(why),
            Err(RecvTimeoutError::Disconnected) => return look,
            Err(RecvTimeoutError::Timeout) => {
                let within = bound.within;
                look.failure = Some(if look.targets.is_empty() {
                    format!("did not answer within {within:?}")
                } else {
                    format!(
                        "did not say all within {within:?} (--timeout): it may have more than that"
                    )
                });
                return look;
            }
        }
    }
}

impl Look {
    /// The units that can be opened.
    pub fn good(&self) -> impl Iterator<Item = PathBuf> {
        self.units.iter().filter(|u| u.seen.is_ok()).map(|u| u.path.clone())
    }
    /// Says what a portal has, or why a unit is a member of nothing.
    pub fn say(&self) {
        if !self.is_portal {
            if let Some(why) = self.units.iter().find_map(Unit::why_not) {
                say!("{why}");
            }
            return;
        }
        if self.targets.is_empty() && self.failure.is_some() {
            return;
        }
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let (targets, units) = (self.targets.len(), self.units.len());
        say!("{}: {}, {}", self.name, count(targets, "target"), count(units, "unit"));
        for (at, target) in self.targets.iter().enumerate() {
            match &target.failure {
                Some(why) => say!("  {}", one_line(&format!("{}: {why}", target.name))),
                None => say!("  {}", one_line(&target.name)),
            }
            for unit in self.units.iter().filter(|unit| unit.target == at) {
                say!("    {}", one_line(&unit.line()));
            }
        }
    }
    /// The same for programs; `None`: a unit, which its pool shows.
    pub fn as_json(&self) -> Option<serde_json::Value> {
        self.is_portal.then(|| {
            let of = |at| self.units.iter().filter(move |unit| unit.target == at);
            json!({
                "portal": self.name,
                "error": self.failure,
                "targets": self.targets.iter().enumerate().map(|(at, target)| json!({
                    "name": target.name,
                    "error": target.failure,
                    "units": of(at).map(Unit::as_json).collect::<Vec<_>>(),
                })).collect::<Vec<_>>(),
            })
        })
    }
}

/// A target says its name itself: it stays in its line.
fn one_line(text: &str) -> String {
    text.replace('\n', "\\n")
}

impl Unit {
    /// Why it is a member of nothing, with its name.
    fn why_not(&self) -> Option<String> {
        match &self.seen {
            Err(why) => Some(format!("{}: {why}", self.path.display())),
            Ok(seen) => seen.label.as_ref().err().map(|why| why.whole.clone()),
        }
    }
    fn line(&self) -> String {
        let path = self.path.display();
        match &self.seen {
            Err(why) => format!("{path}  {why}"),
            Ok(Seen { bytes, label: Ok(label) }) => {
                let Labelled { pool, member, .. } = label;
                format!("{path}  {}  member {member} of '{pool}'", size::show(*bytes))
            }
            Ok(Seen { bytes, label: Err(why) }) => {
                format!("{path}  {}  {}", size::show(*bytes), why.short)
            }
        }
    }
    fn as_json(&self) -> serde_json::Value {
        let seen = self.seen.as_ref().ok();
        let label = seen.and_then(|seen| seen.label.as_ref().ok());
        json!({
            "path": self.path,
            "bytes": seen.map(|seen| seen.bytes),
            "pool": label.map(|label| &label.pool),
            "uuid": label.map(|label| &label.uuid),
            "member": label.map(|label| label.member),
            "error": self.why_not(),
        })
    }
}

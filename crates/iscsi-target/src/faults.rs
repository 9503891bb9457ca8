//! Faults on purpose: commands that take long, are lost, are answered wrongly, or land late.
//!
//! A fault is said in words, `WHAT ACTION [lun=N] [from=NAME] [times=N] [every=N]`:
//!
//! | WHAT | commands |
//! |---|---|
//! | `any` | all |
//! | `read`, `write` | those that move data; `write` also UNMAP, WRITE SAME, ORWRITE |
//! | `caw` | COMPARE AND WRITE |
//! | `flush` | SYNCHRONIZE CACHE |
//! | `reserve` | PERSISTENT RESERVE OUT |
//! | `ready` | TEST UNIT READY |
//!
//! | ACTION | what happens |
//! |---|---|
//! | `delay=MS` | runs that much later |
//! | `drop` | is lost: does not run, is not answered |
//! | `mute` | runs, but is not answered |
//! | `fail` | does not run; a hardware error is answered |
//! | `late=MS` | is not answered, and runs that much later, even if its session ends meanwhile |
//! | `late-fail=MS` | a hardware error is answered at once, and it runs that much later |
//! | `refuse-fua` | does not run if it has FUA: an invalid field is answered; without FUA it runs |
//! | `cut` | its session's connection is cut; it does not run |
//! | `cut-after` | runs; then the connection is cut instead of an answer |
//!
//! `from=` names a part of the initiator's name, `times=` how often it happens, `every=` that only
//! each n-th command meets it. What runs late is still ended by whatever aborts it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::TargetError;

/// Most faults at a time.
const FAULTS_MAX: usize = 64;
/// Longest delay.
const DELAY_MAX: Duration = Duration::from_mins(10);

/// What happens to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Runs later.
    Delay(Duration),
    /// Neither runs nor is answered.
    Drop,
    /// Runs; is not answered.
    Mute,
    /// An error is answered; it does not run.
    Fail,
    /// Not answered; runs later.
    Late(Duration),
    /// An error is answered; runs later.
    LateFail(Duration),
    /// Refused if it has FUA; else it runs.
    RefuseFua,
    /// The connection is cut.
    Cut,
    /// Runs; then the connection is cut.
    CutAfter,
}

/// Which commands a fault is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All of them.
    Any,
    /// Those that read data.
    Read,
    /// Those that change data.
    Write,
    /// Compare-and-write.
    CompareAndWrite,
    /// Those that make data durable.
    Flush,
    /// Changes of reservations.
    Reserve,
    /// Whether the unit is ready.
    Ready,
    /// None of these.
    Other,
}

#[derive(Debug, Clone)]
struct Fault {
    spec: String,
    kind: Kind,
    action: Action,
    lun: Option<u16>,
    from: Option<String>,
    left: Option<u64>,
    every: u64,
    met: u64,
}

/// The faults in force.
#[derive(Debug, Default)]
pub struct Faults {
    any: AtomicBool,
    list: Mutex<Vec<Fault>>,
}

fn kind_of(word: &str) -> Option<Kind> {
    Some(match word {
        "any" => Kind::Any,
        "read" => Kind::Read,
        "write" => Kind::Write,
        "caw" => Kind::CompareAndWrite,
        "flush" => Kind::Flush,
        "reserve" => Kind::Reserve,
        "ready" => Kind::Ready,
        _ => return None,
    })
}

fn action_of(word: &str) -> Option<Action> {
    let (name, value) = word.split_once('=').map_or((word, None), |(n, v)| (n, Some(v)));
    let time = || {
        let time = Duration::from_millis(value?.parse().ok()?);
        (time <= DELAY_MAX).then_some(time)
    };
    Some(match name {
        "delay" => Action::Delay(time()?),
        "late" => Action::Late(time()?),
        "late-fail" => Action::LateFail(time()?),
        _ if value.is_some() => return None,
        "drop" => Action::Drop,
        "mute" => Action::Mute,
        "fail" => Action::Fail,
        "refuse-fua" => Action::RefuseFua,
        "cut" => Action::Cut,
        "cut-after" => Action::CutAfter,
        _ => return None,
    })
}

fn parse(spec: &str) -> Result<Fault, TargetError> {
    let bad = |why| TargetError::BadFault { spec: spec.to_owned(), why };
    let mut words = spec.split_whitespace();
    let kind = words.next().and_then(kind_of);
    let kind = kind.ok_or_else(|| bad("any, read, write, caw, flush, reserve, ready"))?;
    let action = words.next().and_then(action_of);
    let action = action.ok_or_else(|| {
        bad("delay=MS, drop, mute, fail, late=MS, late-fail=MS, refuse-fua, cut, cut-after; at most 600000 ms")
    })?;
    let spec = spec.to_owned();
    let mut fault =
        Fault { spec, kind, action, lun: None, from: None, left: None, every: 1, met: 0 };
    for word in words {
        let (key, value) =
            word.split_once('=').ok_or_else(|| bad("lun=, from=, times=, every="))?;
        let number = || value.parse::<u64>().map_err(|_| bad("not a number"));
        match key {
            "lun" => fault.lun = Some(value.parse().map_err(|_| bad("not a unit's number"))?),
            "from" => fault.from = Some(value.to_owned()),
            "times" => fault.left = Some(number()?),
            "every" => fault.every = number()?.max(1),
            _ => return Err(bad("lun=, from=, times=, every=")),
        }
    }
    Ok(fault)
}

impl Faults {
    /// One more fault, or several separated by `;`, from now on: all of them at once, or none.
    ///
    /// # Errors
    /// [`TargetError::BadFault`] for what is no fault, or one too many.
    pub fn add(&self, specs: &str) -> Result<(), TargetError> {
        let faults =
            specs.split(';').map(|spec| parse(spec.trim())).collect::<Result<Vec<_>, _>>()?;
        let mut list = self.list.lock();
        if list.len() + faults.len() > FAULTS_MAX {
            return Err(TargetError::BadFault { spec: specs.to_owned(), why: "too many of them" });
        }
        list.extend(faults);
        self.any.store(true, Ordering::Release);
        Ok(())
    }
    /// No more faults.
    pub fn clear(&self) {
        self.list.lock().clear();
        self.any.store(false, Ordering::Release);
    }
    /// The faults in force, and how many commands each was looked at for.
    pub fn list(&self) -> Vec<String> {
        let list = self.list.lock();
        list.iter().map(|f| format!("{} ({} commands met it)", f.spec, f.met)).collect()
    }
    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }
    /// What is to happen to a command: the first fault that is for it.
    pub(crate) fn meet(&self, kind: Kind, lun: Option<u16>, from: &str) -> Option<Action> {
        if !self.any() {
            return None;
        }
        let mut list = self.list.lock();
        for fault in list.iter_mut() {
            let named = fault.from.as_ref().is_none_or(|f| from.contains(f.as_str()));
            let there = fault.lun.is_none() || fault.lun == lun;
            if !(named && there && (fault.kind == Kind::Any || fault.kind == kind)) {
                continue;
            }
            if fault.left == Some(0) {
                continue;
            }
            fault.met += 1;
            if !fault.met.is_multiple_of(fault.every) {
                continue;
            }
            fault.left = fault.left.map(|left| left - 1);
            return Some(fault.action);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_meet_whom_they_name_as_often_as_they_say() {
        let faults = Faults::default();
        faults.add("write late=200 lun=1 from=host-a times=2").unwrap();
        faults.add("caw drop every=3").unwrap();
        let late = Some(Action::Late(Duration::from_millis(200)));
        assert_eq!(faults.meet(Kind::Write, Some(0), "iqn.host-a"), None);
        assert_eq!(faults.meet(Kind::Write, Some(1), "iqn.host-b"), None);
        let met: Vec<_> = (0..3).map(|_| faults.meet(Kind::Write, Some(1), "host-a")).collect();
        assert_eq!(met, [late, late, None]);
        let met: Vec<_> = (0..6)
            .map(|_| faults.meet(Kind::CompareAndWrite, Some(0), "x") == Some(Action::Drop))
            .collect();
        assert_eq!(met, [false, false, true, false, false, true]);
        faults.clear();
        assert_eq!(faults.meet(Kind::CompareAndWrite, Some(0), "x"), None);
    }

    #[test]
    fn what_is_no_fault_is_refused() {
        for bad in [
            "",
            "write",
            "write now",
            "write delay",
            "write delay=x",
            "all drop",
            "write drop=1",
            "write drop lun",
            "write drop lun=x",
            "any delay=99999999",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
    #[test]
    fn several_faults_begin_together_or_not_at_all() {
        let faults = Faults::default();
        faults.add("write drop; read fail lun=1").unwrap();
        assert_eq!(faults.list().len(), 2);
        faults.add("flush drop; nonsense").unwrap_err();
        assert_eq!(faults.list().len(), 2);
    }
}

//! Persistent reservations of one unit (SPC-4, section 5.13), without I/O but for the file that
//! keeps them.
//!
//! Every method that changes something returns what must be told to others, and whose commands are
//! to end. The file is written, and durable, before the change is answered.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use braid_device::ReservationKind as Kind;

use crate::TargetError;
use crate::nexus::{Nexus, UnitAttention};
use crate::outcome::Refusal;
use crate::sense::Sense;

/// Most registrations of one unit.
pub const REGISTRATIONS_MAX: usize = 1024;

/// Whether somebody else's reservation forbids a command (SPC-4, table 66; SBC-3, table 13).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Never.
    Free,
    /// If it is exclusive of readers.
    Reads,
    /// Always.
    Writes,
}

/// Whether everybody registered holds it.
fn for_all(kind: Kind) -> bool {
    matches!(kind, Kind::WriteExclusiveAll | Kind::ExclusiveAccessAll)
}
/// Whether it lets everybody registered do what it keeps from others.
fn for_registrants(kind: Kind) -> bool {
    !matches!(kind, Kind::WriteExclusive | Kind::ExclusiveAccess)
}
/// Whether it keeps others from reading, too.
fn readers_too(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ExclusiveAccess | Kind::ExclusiveAccessRegistrants | Kind::ExclusiveAccessAll
    )
}

/// A reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Its type.
    pub kind: Kind,
    /// Who made it; of the types for all, everybody registered holds it.
    pub holder: Nexus,
}

/// What a change means for others.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// What to tell whom.
    pub attentions: Vec<(Nexus, UnitAttention)>,
    /// Who lost its registration to a preemption: with an abort, its commands end.
    pub preempted: Vec<Nexus>,
}

/// Who is registered, and what is reserved.
#[derive(Debug, Default)]
pub struct Reservations {
    generation: u32,
    registered: Vec<(Nexus, u64)>,
    held: Option<Reservation>,
    /// Kept over a restart.
    persistent: bool,
    file: Option<PathBuf>,
}

type Change = Result<Effects, Refusal>;

impl Reservations {
    /// As the file says, if there is one.
    ///
    /// # Errors
    /// [`TargetError::Io`], [`TargetError::BadReservations`].
    pub fn load(file: Option<PathBuf>) -> Result<Self, TargetError> {
        let mut all = Self { file, ..Self::default() };
        let Some(path) = all.file.clone() else { return Ok(all) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(all),
            Err(e) => return Err(TargetError::io(path.display().to_string(), e)),
        };
        for (n, line) in text.lines().enumerate() {
            all.parse(line)
                .ok_or(TargetError::BadReservations { path: path.clone(), line: n + 1 })?;
        }
        all.persistent = !text.is_empty();
        Ok(all)
    }
    /// `registered KEY ISID NAME`, `reserved TYPE ISID NAME`
    fn parse(&mut self, line: &str) -> Option<()> {
        let mut words = line.splitn(4, ' ');
        let (what, value) = (words.next()?, words.next()?);
        let isid = u64::from_str_radix(words.next()?, 16).ok()?.to_be_bytes();
        let nexus = Nexus::new(words.next()?, isid[2..].try_into().ok()?);
        match what {
            "registered" => {
                let key = u64::from_str_radix(value, 16).ok()?;
                self.registered.push((nexus, key));
            }
            "reserved" => {
                let kind = Kind::of(value.parse().ok()?)?;
                self.held = Some(Reservation { kind, holder: nexus });
            }
            _ => return None,
        }
        Some(())
    }
    /// Writes the file as things now stand.
    ///
    /// # Errors
    /// [`Refusal`]: a change that cannot be kept is not answered as done.
    pub fn keep(&self) -> Result<(), Refusal> {
        let Some(path) = &self.file else { return Ok(()) };
        let mut text = String::new();
        let isid = |n: &Nexus| n.isid().iter().fold(0, |all, b| all << 8 | u64::from(*b));
        if self.persistent {
            for (nexus, key) in &self.registered {
                let (isid, name) = (isid(nexus), nexus.name());
                let _ = writeln!(text, "registered {key:x} {isid:x} {name}");
            }
            if let Some(Reservation { kind, holder }) = &self.held {
                let (isid, name) = (isid(holder), holder.name());
                let _ = writeln!(text, "reserved {} {isid:x} {name}", *kind as u8);
            }
        }
        replace(path, &text).map_err(|error| {
            tracing::error!(%error, path = %path.display(), "reservations are not kept");
            Sense::INTERNAL.into()
        })
    }
    /// How often anything was changed.
    pub fn generation(&self) -> u32 {
        self.generation
    }
    /// Who is registered with which key.
    pub fn registered(&self) -> &[(Nexus, u64)] {
        &self.registered
    }
    /// What is reserved, and the key that is shown for it.
    pub fn held(&self) -> Option<(&Reservation, u64)> {
        let held = self.held.as_ref()?;
        let key = if for_all(held.kind) { 0 } else { self.key(&held.holder)? };
        Some((held, key))
    }
    /// Whether things are kept over a restart, and could be.
    pub fn persistence(&self) -> (bool, bool) {
        (self.persistent, self.file.is_some())
    }
    fn key(&self, nexus: &Nexus) -> Option<u64> {
        self.registered.iter().find(|(n, _)| n == nexus).map(|(_, key)| *key)
    }
    /// Whether a registrant holds the reservation.
    pub fn holds(&self, nexus: &Nexus) -> bool {
        let mine = |h: &Reservation| {
            if for_all(h.kind) { self.key(nexus).is_some() } else { h.holder == *nexus }
        };
        self.held.as_ref().is_some_and(mine)
    }
    /// Whether the reservation stands in somebody's way.
    pub fn conflicts(&self, nexus: &Nexus, access: Access) -> bool {
        let Some(held) = &self.held else { return false };
        if self.holds(nexus) || for_registrants(held.kind) && self.key(nexus).is_some() {
            return false;
        }
        access == Access::Writes || access == Access::Reads && readers_too(held.kind)
    }
    /// The registrant with that key, or a conflict.
    fn must_be(&self, nexus: &Nexus, key: u64) -> Result<(), Refusal> {
        if self.key(nexus) == Some(key) { Ok(()) } else { Err(Refusal::Conflict) }
    }
    fn others<'a>(&'a self, nexus: &'a Nexus) -> impl Iterator<Item = Nexus> + 'a {
        self.registered.iter().map(|(n, _)| n).filter(move |n| *n != nexus).cloned()
    }
    fn tell(&self, but: &Nexus, what: UnitAttention) -> Vec<(Nexus, UnitAttention)> {
        self.others(but).map(|n| (n, what)).collect()
    }
    /// REGISTER, and with `anyhow` REGISTER AND IGNORE EXISTING KEY.
    pub fn register(
        &mut self,
        nexus: &Nexus,
        (key, new): (u64, u64),
        anyhow: bool,
        persistent: bool,
    ) -> Change {
        if persistent && self.file.is_none() {
            return Err(Sense::LIST_FIELD.into());
        }
        let old = self.key(nexus);
        if !anyhow && key != old.unwrap_or(0) {
            return Err(Refusal::Conflict);
        }
        let mut effects = Effects::default();
        match (old, new) {
            (None, 0) => return Ok(effects),
            (None, _) if self.registered.len() >= REGISTRATIONS_MAX => {
                return Err(Sense::REGISTRATIONS.into());
            }
            (None, _) => self.registered.push((nexus.clone(), new)),
            (Some(_), 0) => effects.attentions = self.unregister(nexus),
            (Some(_), _) => {
                let mine = self.registered.iter_mut().find(|(n, _)| n == nexus);
                if let Some((_, key)) = mine {
                    *key = new;
                }
            }
        }
        self.generation = self.generation.wrapping_add(1);
        self.persistent = persistent;
        Ok(effects)
    }
    /// A registrant leaves; what it alone held is released.
    fn unregister(&mut self, nexus: &Nexus) -> Vec<(Nexus, UnitAttention)> {
        let held = self.holds(nexus).then(|| self.held.clone()).flatten();
        self.registered.retain(|(n, _)| n != nexus);
        let Some(held) = held else { return Vec::new() };
        if for_all(held.kind) && !self.registered.is_empty() {
            return Vec::new();
        }
        self.held = None;
        if for_registrants(held.kind) {
            return self.tell(nexus, UnitAttention::RESERVATIONS_RELEASED);
        }
        Vec::new()
    }
    /// RESERVE.
    pub fn reserve(&mut self, nexus: &Nexus, key: u64, kind: Kind) -> Change {
        self.must_be(nexus, key)?;
        match &self.held {
            Some(held) if !self.holds(nexus) || held.kind != kind => Err(Refusal::Conflict),
            Some(_) => Ok(Effects::default()),
            None => {
                self.held = Some(Reservation { kind, holder: nexus.clone() });
                Ok(Effects::default())
            }
        }
    }
    /// RELEASE.
    pub fn release(&mut self, nexus: &Nexus, key: u64, kind: Kind) -> Change {
        self.must_be(nexus, key)?;
        let mut effects = Effects::default();
        let Some(held) = &self.held else { return Ok(effects) };
        if !self.holds(nexus) {
            return Ok(effects);
        }
        if held.kind != kind {
            return Err(Sense::INVALID_RELEASE.into());
        }
        if for_registrants(kind) {
            effects.attentions = self.tell(nexus, UnitAttention::RESERVATIONS_RELEASED);
        }
        self.held = None;
        Ok(effects)
    }
    /// CLEAR.
    pub fn clear(&mut self, nexus: &Nexus, key: u64) -> Change {
        self.must_be(nexus, key)?;
        let attentions = self.tell(nexus, UnitAttention::RESERVATIONS_PREEMPTED);
        self.registered.clear();
        self.held = None;
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects { attentions, preempted: Vec::new() })
    }
    /// PREEMPT, and PREEMPT AND ABORT (whose caller ends the commands of those it names).
    pub fn preempt(
        &mut self,
        nexus: &Nexus,
        (key, victim): (u64, u64),
        kind: Option<Kind>,
    ) -> Change {
        self.must_be(nexus, key)?;
        let all = self.held.as_ref().is_some_and(|h| for_all(h.kind));
        // The key of a reservation for all is 0: everybody else is meant.
        let takes = match &self.held {
            Some(_) if all => victim == 0,
            Some(held) => self.key(&held.holder) == Some(victim),
            None => false,
        };
        if victim == 0 && !takes {
            return Err(Sense::LIST_FIELD.into());
        }
        if takes && kind.is_none() {
            return Err(Sense::field(2).into());
        }
        let meant = |n: &Nexus, k: u64| n != nexus && (all && takes || k == victim);
        let known = |k: u64| k == victim;
        if !takes && !self.registered.iter().any(|(_, k)| known(*k)) {
            return Err(Refusal::Conflict);
        }
        let gone = self.registered.iter().filter(|(n, k)| meant(n, *k));
        let preempted: Vec<Nexus> = gone.map(|(n, _)| n.clone()).collect();
        self.registered.retain(|(n, _)| !preempted.contains(n));
        let tell = |n: &Nexus| (n.clone(), UnitAttention::REGISTRATIONS_PREEMPTED);
        let mut attentions: Vec<_> = preempted.iter().map(tell).collect();
        if let (true, Some(kind)) = (takes, kind) {
            let before = self.held.replace(Reservation { kind, holder: nexus.clone() });
            if before.is_some_and(|h| h.kind != kind && for_registrants(h.kind)) {
                attentions.extend(self.tell(nexus, UnitAttention::RESERVATIONS_RELEASED));
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects { attentions, preempted })
    }
    /// REGISTER AND MOVE: another port of the same kind of initiator gets registration and
    /// reservation.
    pub fn register_and_move(
        &mut self,
        nexus: &Nexus,
        (key, new): (u64, u64),
        to: Nexus,
        leave: bool,
    ) -> Change {
        self.must_be(nexus, key)?;
        if new == 0 || to == *nexus {
            return Err(Sense::LIST_FIELD.into());
        }
        let Some(held) = &mut self.held else { return Err(Refusal::Conflict) };
        if for_all(held.kind) || held.holder != *nexus {
            return Err(Refusal::Conflict);
        }
        // With whoever leaves there is one more for a moment only.
        let known = self.registered.iter().any(|(n, _)| *n == to);
        if !known && !leave && self.registered.len() >= REGISTRATIONS_MAX {
            return Err(Sense::REGISTRATIONS.into());
        }
        held.holder = to.clone();
        match self.registered.iter_mut().find(|(n, _)| *n == to) {
            Some((_, key)) => *key = new,
            None => self.registered.push((to, new)),
        }
        if leave {
            self.registered.retain(|(n, _)| n != nexus);
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects::default())
    }
}

/// The file has either text, whole, whatever happens meanwhile.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut file = std::fs::File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty());
    std::fs::File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> (Reservations, [Nexus; 3]) {
        let who = ["a", "b", "c"].map(|n| Nexus::new(n, [0, 1, 2, 3, 4, 5]));
        let mut all = Reservations::default();
        for (n, nexus) in (1..).zip(&who[..2]) {
            all.register(nexus, (0, n), false, false).unwrap();
        }
        (all, who)
    }
    fn access(all: &Reservations, who: &[Nexus; 3]) -> [(bool, bool); 3] {
        let may = |n: &Nexus, a| !all.conflicts(n, a);
        [0, 1, 2].map(|n| (may(&who[n], Access::Reads), may(&who[n], Access::Writes)))
    }

    #[test]
    fn each_type_admits_whom_it_says() {
        let (yes, no, reads) = ((true, true), (false, false), (true, false));
        // The holder, a registrant, a stranger.
        let table = [
            (Kind::WriteExclusive, [yes, reads, reads]),
            (Kind::ExclusiveAccess, [yes, no, no]),
            (Kind::WriteExclusiveRegistrants, [yes, yes, reads]),
            (Kind::ExclusiveAccessRegistrants, [yes, yes, no]),
            (Kind::WriteExclusiveAll, [yes, yes, reads]),
            (Kind::ExclusiveAccessAll, [yes, yes, no]),
        ];
        for (kind, expected) in table {
            let (mut all, who) = three();
            assert_eq!(access(&all, &who), [yes; 3]);
            all.reserve(&who[0], 1, kind).unwrap();
            assert_eq!(access(&all, &who), expected, "{kind:?}");
            assert_eq!(all.holds(&who[1]), for_all(kind), "{kind:?}");
            assert_eq!(all.reserve(&who[2], 0, kind), Err(Refusal::Conflict), "{kind:?}");
            all.release(&who[0], 1, kind).unwrap();
            assert_eq!(access(&all, &who), [yes; 3], "{kind:?}");
        }
    }

    #[test]
    fn a_preempted_holder_is_a_stranger_and_is_told() {
        let (mut all, who) = three();
        all.reserve(&who[0], 1, Kind::WriteExclusiveRegistrants).unwrap();
        let kind = Some(Kind::WriteExclusiveRegistrants);
        assert_eq!(all.preempt(&who[2], (0, 1), kind), Err(Refusal::Conflict), "a stranger");
        assert_eq!(all.preempt(&who[1], (2, 9), kind), Err(Refusal::Conflict), "no such key");
        let effects = all.preempt(&who[1], (2, 1), kind).unwrap();
        assert_eq!(effects.preempted, [who[0].clone()]);
        let told = [(who[0].clone(), UnitAttention::REGISTRATIONS_PREEMPTED)];
        assert_eq!(effects.attentions, told);
        assert!(all.conflicts(&who[0], Access::Writes) && !all.conflicts(&who[0], Access::Reads));
        assert_eq!(all.held().map(|(h, k)| (h.holder.clone(), k)), Some((who[1].clone(), 2)));
        assert_eq!(all.register(&who[0], (1, 5), false, false), Err(Refusal::Conflict));
        assert_eq!(all.generation(), 3);
    }

    #[test]
    fn a_reservation_for_all_ends_with_its_last_registrant() {
        let (mut all, who) = three();
        all.reserve(&who[0], 1, Kind::ExclusiveAccessAll).unwrap();
        all.register(&who[0], (1, 0), false, false).unwrap();
        assert!(all.conflicts(&who[0], Access::Reads) && all.held().is_some());
        let effects = all.preempt(&who[1], (2, 0), Some(Kind::ExclusiveAccess)).unwrap();
        assert!(effects.preempted.is_empty());
        all.register(&who[1], (2, 0), false, false).unwrap();
        assert!(all.held().is_none() && all.registered().is_empty());
    }

    #[test]
    fn what_is_to_be_kept_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = Some(dir.path().join("keys"));
        let who = ["iqn.a b", "c"].map(|n| Nexus::new(n, [0x80, 0, 0, 0, 0xff, 1]));
        let mut all = Reservations::load(file.clone()).unwrap();
        all.register(&who[0], (0, u64::MAX), false, true).unwrap();
        all.register(&who[1], (0, 7), false, true).unwrap();
        all.reserve(&who[0], u64::MAX, Kind::WriteExclusive).unwrap();
        all.keep().unwrap();
        let again = Reservations::load(file.clone()).unwrap();
        assert_eq!(again.registered(), all.registered());
        assert_eq!(again.held(), all.held());
        all.register(&who[1], (7, 8), false, false).unwrap();
        all.keep().unwrap();
        assert!(Reservations::load(file).unwrap().registered().is_empty());
        std::fs::write(dir.path().join("keys"), "registered x y z").unwrap();
        assert!(Reservations::load(Some(dir.path().join("keys"))).is_err());
        let mut none = Reservations::default();
        assert!(none.register(&who[0], (0, 1), false, true).is_err());
    }

    #[test]
    fn a_reservation_moves_with_its_registration() {
        let (mut all, who) = three();
        all.reserve(&who[0], 1, Kind::WriteExclusive).unwrap();
        all.register_and_move(&who[0], (1, 9), who[2].clone(), true).unwrap();
        assert!(all.holds(&who[2]) && all.conflicts(&who[0], Access::Writes));
        assert_eq!(all.registered().len(), 2);
    }

    #[test]
    fn a_move_to_one_port_too_many_changes_nothing() {
        let (mut all, who) = three();
        all.reserve(&who[0], 1, Kind::WriteExclusive).unwrap();
        for n in 0..REGISTRATIONS_MAX - 2 {
            all.register(&Nexus::new(&format!("n{n}"), [0; 6]), (0, 7), false, false).unwrap();
        }
        let refused = all.register_and_move(&who[0], (1, 9), who[2].clone(), false);
        assert_eq!(refused, Err(Sense::REGISTRATIONS.into()));
        assert!(all.holds(&who[0]) && all.registered().len() == REGISTRATIONS_MAX);
        all.register_and_move(&who[0], (1, 9), who[1].clone(), false).unwrap();
        all.register_and_move(&who[1], (9, 9), who[2].clone(), true).unwrap();
        assert!(all.holds(&who[2]) && all.registered().len() == REGISTRATIONS_MAX);
    }
}

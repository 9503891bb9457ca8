//! Restoring the labels of a member: both labels are destroyed, and are written again from the
//! label in force on the other members, or from a dump.
//!
//! Without a label nothing on the device says which member it was, so the operator says it, and
//! [`Restore::plan`] refuses what contradicts that: a wrong size, something else on the device, a
//! label of another member, a member that another device carries, or contents that belong to
//! another member ([`crate::assembly::member_verify`]).
//!
//! The label in force is written, byte for byte as it was: there is no new epoch.

use std::sync::Arc;

use braid_device::{ByteLockGuard, Device};
use braid_format::label::{Label, Member};
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex};
use thiserror::Error;
use uuid::Uuid;

use super::member_verify::{SampleReport, verify_members};
use crate::error::PoolError;
use crate::labels::{
    Found, LABEL_LOCK_BYTE, counts, id, on_all, own_uuid, same_device, second, write_boot_sector,
    write_copies,
};

/// Which member of a pool, as the operator says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// By its place in the member table.
    Index(MemberIndex),
    /// By its identity.
    Uuid(Uuid),
}
impl core::str::FromStr for Which {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(index) = text.parse::<u16>() {
            return Ok(Self::Index(MemberIndex(index)));
        }
        let what = "name a member by its number or its UUID";
        Uuid::try_parse(text).map(Self::Uuid).map_err(|_| format!("{text:?}: {what}"))
    }
}
impl core::fmt::Display for Which {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(uuid) => write!(f, "{uuid}"),
        }
    }
}

/// A device, and the member that the operator says it is.
#[derive(Debug, Clone)]
pub struct Target {
    /// The member.
    pub which: Which,
    /// The device.
    pub device: Arc<dyn Device>,
}

/// Where the label comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// The label in force on the other members.
    Members,
    /// A label that was saved elsewhere. No member on the host may have a later one.
    Kept(Box<Label>),
}

/// Why labels are not restored.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The others are no pool, or a device fails.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Nothing that says what the label was.
    #[error(
        "no other member of the pool with a good label was found: name the others, or give a dump (`--from FILE`, made by `braid label dump`)"
    )]
    NoSource,
    /// No device was named.
    #[error("name the member and its device: --member INDEX=DEVICE")]
    NoTarget,
    /// No such member.
    #[error("pool {pool:?} has no member {which}: {members} are its members")]
    NoMember {
        /// The pool.
        pool: String,
        /// Who was asked for.
        which: Which,
        /// Who there is.
        members: String,
    },
    /// Two devices for one member.
    #[error("{path} and {other} cannot both be member {index}: give each member one device")]
    MemberTwice {
        /// The one.
        path: String,
        /// The other.
        other: String,
        /// The member.
        index: MemberIndex,
    },
    /// A member that is there.
    #[error(
        "member {index} of pool {pool:?} is not missing: {path} carries its label; {given} is not it, or a copy of it"
    )]
    NotMissing {
        /// The member.
        index: MemberIndex,
        /// The pool.
        pool: String,
        /// Who carries its label.
        path: String,
        /// What was given.
        given: String,
    },
    /// Nothing to be restored.
    #[error(
        "{path} has a good label of member {index} of pool {pool:?}: nothing to restore (one damaged copy is written anew when the pool is next opened)"
    )]
    HasLabel {
        /// The device.
        path: String,
        /// Who it is.
        index: MemberIndex,
        /// The pool.
        pool: String,
    },
    /// A member that is out of use for a while, or catches up after that. Its own label said what it holds.
    #[error(
        "member {index} of pool {pool:?} is offline, or catches up after that, and has lost the label by which it would: `braid replace {pool} {index} {path} --force` fills all of it (if the pool is not mounted, mount it first with `-o degraded`, without this device)"
    )]
    Offline {
        /// The device.
        path: String,
        /// The member.
        index: MemberIndex,
        /// The pool.
        pool: String,
    },
    /// Another member of the pool.
    #[error(
        "{path} is member {is} of pool {pool:?}, not member {index}: refused, even with --force"
    )]
    OtherMember {
        /// The device.
        path: String,
        /// Who it is.
        is: MemberIndex,
        /// The pool.
        pool: String,
        /// Who it was said to be.
        index: MemberIndex,
    },
    /// A device of another size.
    #[error(
        "{path} has {size} bytes, member {index} had {expected} when it joined: another device? --force if it has grown"
    )]
    Larger {
        /// The device.
        path: String,
        /// Its size.
        size: Bytes,
        /// The member.
        index: MemberIndex,
        /// The size it had.
        expected: Bytes,
    },
    /// Labels on the host are newer than the one that was kept.
    #[error(
        "the dump is of epoch {kept} of pool {pool:?}, {path} knows epoch {epoch}: the pool was changed after the dump; restore from its members instead (without --from)"
    )]
    Outdated {
        /// The dump's epoch.
        kept: Epoch,
        /// The pool.
        pool: String,
        /// Who knows better.
        path: String,
        /// What it knows.
        epoch: Epoch,
    },
    /// What stands on the device is not that member's.
    #[error(
        "{path} is not member {index} of pool {pool:?}: {against} of {looked} sampled places contradict it{likeness}. {advice}"
    )]
    Contradicted {
        /// The device.
        path: String,
        /// Who it was said to be.
        index: MemberIndex,
        /// The pool.
        pool: String,
        /// Places that contradict it.
        against: u32,
        /// Places that say something.
        looked: u32,
        /// Who it seems to be.
        likeness: String,
        /// What to do.
        advice: &'static str,
    },
    /// The labels changed while they were looked at.
    #[error("{path} has changed meanwhile: look again")]
    Changed {
        /// The device.
        path: String,
    },
}

/// One member whose labels will be written.
#[derive(Debug, Clone)]
pub struct Step {
    /// Who it is.
    pub index: MemberIndex,
    /// What the label says of it.
    pub member: Member,
    /// Its device, as it was found.
    pub found: Found,
    /// Where its two labels go.
    pub at: [ByteOffset; 2],
    /// What is on the device now and will be overwritten (by force).
    pub overwrites: Option<String>,
    /// What its contents say.
    pub samples: SampleReport,
}

/// What would be written: look at it, then [`Restore::write`].
#[derive(Debug)]
pub struct Restore {
    /// The label in force.
    pub label: Label,
    /// The members to be restored.
    pub steps: Vec<Step>,
    others: Vec<Found>,
}

impl Restore {
    /// Checks everything and writes nothing. `others`: every device that may have labels of this
    /// pool. Devices without one are passed over, and so are those of other pools if the label was
    /// saved elsewhere.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn plan(
        source: Source,
        others: Vec<Arc<dyn Device>>,
        targets: &[Target],
        force: bool,
    ) -> Result<Self, RestoreError> {
        if targets.is_empty() {
            return Err(RestoreError::NoTarget);
        }
        let is_target = |d: &Arc<dyn Device>| targets.iter().any(|t| same_device(&t.device, d));
        let mut distinct: Vec<Arc<dyn Device>> = Vec::new();
        for device in others.into_iter().filter(|d| !is_target(d)) {
            if !distinct.iter().any(|d| same_device(d, &device)) {
                distinct.push(device);
            }
        }
        let others = distinct.into_iter().map(Found::read);
        let others: Vec<Found> = others.filter(|f| f.newest().is_some()).collect();
        let (label, others) = match source {
            Source::Members => (in_force(&others, targets)?, others),
            Source::Kept(label) => (*label.clone(), of_kept(&label, others)?),
        };
        let steps = targets.iter().map(|t| step(&label, t, &others, force));
        let mut steps = steps.collect::<Result<Vec<_>, _>>()?;
        for (i, a) in steps.iter().enumerate() {
            for b in steps.iter().take(i) {
                let (path, other) = (a.found.path().to_owned(), b.found.path().to_owned());
                if same_device(&a.found.device, &b.found.device) {
                    return Err(PoolError::GivenTwice { path, other }.into());
                }
                if a.index == b.index {
                    return Err(RestoreError::MemberTwice { path, other, index: a.index });
                }
            }
        }
        compare_contents(&label, &mut steps, &others, force)?;
        Ok(Self { label, steps, others })
    }

    /// Writes both labels of every member in the plan, each durable before the next. Other writers
    /// of labels are kept out.
    ///
    /// # Errors
    /// [`RestoreError::Changed`], with nothing written, when the devices are not as they were when
    /// the plan was made; [`PoolError::InUse`], [`PoolError::Device`].
    pub fn write(&self) -> Result<(), RestoreError> {
        let _claimed = self.claim()?;
        let all = self.others.iter().chain(self.steps.iter().map(|s| &s.found));
        for before in all {
            let now = Found::read(before.device.clone());
            if !now.labels().eq(before.labels()) {
                return Err(RestoreError::Changed { path: now.path().to_owned() });
            }
        }
        for step in &self.steps {
            // Only the place of this member is used.
            let devices = vec![step.found.device.clone(); self.label.members.len()];
            write_boot_sector(&*step.found.device).map_err(PoolError::from)?;
            for copy in [0, 1] {
                write_copies(&devices, &self.label, copy, &[usize::from(step.index.0)])?;
            }
        }
        Ok(())
    }

    /// The lock that a writer of labels holds, on every device concerned.
    fn claim(&self) -> Result<Vec<ByteLockGuard>, RestoreError> {
        let all = self.others.iter().chain(self.steps.iter().map(|s| &s.found));
        let claim = |f: &Found| {
            let how = "somebody else is changing labels".to_owned();
            let busy = || PoolError::InUse { path: f.path().to_owned(), how };
            f.device
                .abilities()
                .locks
                .lock_byte(LABEL_LOCK_BYTE)
                .map_err(PoolError::from)?
                .ok_or_else(busy)
        };
        all.map(|f| Ok(claim(f)?)).collect()
    }
}

fn find(label: &Label, which: Which) -> Option<(MemberIndex, &Member)> {
    (0_u16..).map(MemberIndex).zip(&label.members).find(|(i, m)| match which {
        Which::Index(index) => *i == index,
        Which::Uuid(uuid) => m.uuid == uuid,
    })
}

/// The highest committed epoch that stands on a majority of its active members, those to be
/// restored counted with it.
fn in_force(others: &[Found], targets: &[Target]) -> Result<Label, RestoreError> {
    let Some((first, other)) = others.first().and_then(|f| Some((f.newest()?, f.path()))) else {
        return Err(RestoreError::NoSource);
    };
    for f in others {
        if let Some(label) = f.newest().filter(|l| l.pool != first.pool) {
            return Err(RestoreError::Pool(PoolError::OtherPool {
                path: f.path().to_owned(),
                found: Box::new(label.into()),
                other: other.to_owned(),
                expected: Box::new(first.into()),
            }));
        }
    }
    let mut labels: Vec<&Label> = others.iter().flat_map(Found::labels).collect();
    labels.sort_by_key(|l| core::cmp::Reverse(l.epoch));
    let stands = |label: &&&Label| {
        let lost =
            |uuid| targets.iter().any(|t| find(label, t.which).map(|f| f.1.uuid) == Some(uuid));
        let active = || label.members.iter().filter(|m| counts(m));
        let carried = |m: &&Member| {
            let here = |f: &&Found| f.newest().and_then(own_uuid) == Some(m.uuid);
            lost(m.uuid) || others.iter().find(here).is_some_and(|f| f.carries(id(label)))
        };
        let carriers = active().filter(carried).count();
        let committed = on_all(label, carried) || others.iter().any(|f| second(f, label));
        committed && carriers * 2 > active().count()
    };
    let label = labels.iter().find(stands).map(|l| (*l).clone());
    let newest = labels.first().map_or(first, |l| *l);
    label.ok_or_else(|| {
        // A member that was named wrongly is missing in the count, so that is reported.
        if let Some(wrong) = targets.iter().find_map(|t| resolve_member(newest, t, others).err()) {
            return wrong;
        }
        let (name, highest) = (newest.name.clone(), newest.epoch);
        PoolError::NoMajority { name, highest, path: other.to_owned() }.into()
    })
}

/// The others of the pool of a kept label; none may know a later epoch than it.
fn of_kept(kept: &Label, others: Vec<Found>) -> Result<Vec<Found>, RestoreError> {
    let own = |f: &Found| f.labels().any(|l| l.pool == kept.pool);
    let others: Vec<Found> = others.into_iter().filter(own).collect();
    for f in &others {
        let later =
            |l: &&Label| l.epoch > kept.epoch || (l.epoch == kept.epoch && id(l) != id(kept));
        if let Some(l) = f.labels().find(later) {
            return Err(RestoreError::Outdated {
                kept: kept.epoch,
                pool: kept.name.clone(),
                path: f.path().to_owned(),
                epoch: l.epoch,
            });
        }
    }
    Ok(others)
}

/// The member that is meant, if there is one, and it is missing.
fn resolve_member<'a>(
    label: &'a Label,
    target: &Target,
    others: &[Found],
) -> Result<(MemberIndex, &'a Member), RestoreError> {
    let pool = label.name.clone();
    let Some((index, member)) = find(label, target.which) else {
        let members = (0_u16..).zip(&label.members).map(|(i, m)| format!("{i} ({})", m.uuid));
        let members = members.collect::<Vec<_>>().join(", ");
        return Err(RestoreError::NoMember { pool, which: target.which, members });
    };
    if let Some(other) = others.iter().find(|f| f.newest().and_then(own_uuid) == Some(member.uuid))
    {
        let (path, given) = (other.path().to_owned(), target.device.info().name.clone());
        return Err(RestoreError::NotMissing { index, pool, path, given });
    }
    Ok((index, member))
}

/// Checks one device.
fn step(
    label: &Label,
    target: &Target,
    others: &[Found],
    force: bool,
) -> Result<Step, RestoreError> {
    let (index, member) = resolve_member(label, target, others)?;
    let found = Found::read(target.device.clone());
    let path = found.path().to_owned();
    // Of one that catches up only a part is filled: what else stands there must be the member's own.
    if member.offline {
        return Err(RestoreError::Offline { path, index, pool: label.name.clone() });
    }
    check_device(&target.device, label, index, member, force)?;
    let overwrites = check_contents(&found, label, index, force)?;
    let too_small = || PoolError::TooSmall {
        path: path.clone(),
        size: member.device_size,
        needed: Bytes(Label::DATA_AT.0 + Label::ALIGN.0 + Label::TAIL.0),
    };
    let second = Label::copy1_at(member.device_size).ok_or_else(too_small)?;
    let at = [Label::COPY0_AT, second];
    let samples = SampleReport::default();
    Ok(Step { index, member: member.clone(), found, at, overwrites, samples })
}

/// Looks at what stands on the devices. Force goes over what contradicts, but where it is known
/// whose it is.
fn compare_contents(
    label: &Label,
    steps: &mut [Step],
    others: &[Found],
    force: bool,
) -> Result<(), RestoreError> {
    let current = others.iter().filter(|f| f.carries(id(label)));
    let known = current.filter_map(|f| {
        let (index, _) = find(label, Which::Uuid(own_uuid(f.newest()?)?))?;
        Some((index, f.device.clone()))
    });
    let known: Vec<_> = known.collect();
    let claims: Vec<_> = steps.iter().map(|s| (s.index, s.found.device.clone())).collect();
    for (step, samples) in steps.iter_mut().zip(verify_members(label, &known, &claims)) {
        step.samples = samples;
    }
    let wrong = |s: &&Step| s.samples.contradicts() && !(force && s.samples.looks_like.is_empty());
    // The device that this is reported for may be the right one, and another one wrong. So a device
    // that looks like another member is named first.
    let mut wrongs: Vec<&Step> = steps.iter().filter(wrong).collect();
    wrongs.sort_by_key(|s| s.samples.looks_like.is_empty());
    let Some(step) = wrongs.first() else { return Ok(()) };
    let e = &step.samples;
    let advice = if e.looks_like.is_empty() {
        "Use a device that never was a member with `braid replace`; --force writes the label nevertheless"
    } else {
        "Name the devices again; --force does not help"
    };
    Err(RestoreError::Contradicted {
        path: step.found.path().to_owned(),
        index: step.index,
        pool: label.name.clone(),
        against: e.against,
        looked: e.agree + e.against,
        likeness: e.likeness(),
        advice,
    })
}

/// Whether the device can be that member at all.
fn check_device(
    device: &Arc<dyn Device>,
    label: &Label,
    index: MemberIndex,
    member: &Member,
    force: bool,
) -> Result<(), RestoreError> {
    let info = device.info();
    let (path, size, expected) = (info.name.clone(), info.size, member.device_size);
    if info.read_only {
        return Err(PoolError::ReadOnly { path }.into());
    }
    if info.sector > label.lock_sector {
        let (sector, lock_sector) = (info.sector, label.lock_sector);
        let name = label.name.clone();
        return Err(PoolError::LargeSectors { path, name, sector, lock_sector }.into());
    }
    // Another device has no path that somebody else could use.
    if info.is_path
        && let Some(how) =
            braid_device::in_use(std::path::Path::new(&path)).map_err(PoolError::from)?
    {
        return Err(PoolError::InUse { path, how: how.to_string() }.into());
    }
    if size < expected {
        return Err(PoolError::Truncated { path, name: label.name.clone(), size, expected }.into());
    }
    if size > expected && !force {
        return Err(RestoreError::Larger { path, size, index, expected });
    }
    Ok(())
}

/// What is on the device that would be lost; an error unless that was forced.
fn check_contents(
    found: &Found,
    label: &Label,
    index: MemberIndex,
    force: bool,
) -> Result<Option<String>, RestoreError> {
    let (path, pool) = (found.path().to_owned(), label.name.clone());
    if let Some(own) = found.newest() {
        let uuid = own_uuid(own);
        if own.pool == label.pool && label.members.iter().any(|m| Some(m.uuid) == uuid) {
            let is = label.members.iter().position(|m| Some(m.uuid) == uuid);
            let is = MemberIndex(is.and_then(|i| u16::try_from(i).ok()).unwrap_or(u16::MAX));
            return Err(if is != index {
                RestoreError::OtherMember { path, is, pool, index }
            } else if own.epoch < label.epoch {
                let (epoch, current) = (own.epoch, label.epoch);
                PoolError::Stale { path, name: pool, epoch, current }.into()
            } else {
                RestoreError::HasLabel { path, index, pool }
            });
        }
        if !force {
            let (name, pool) = (own.name.clone(), own.pool);
            return Err(PoolError::BelongsToPool { path, name, pool }.into());
        }
        return Ok(Some(format!("a label of pool {:?} ({})", own.name, own.pool)));
    }
    let what = braid_device::probe(&*found.device).map(|f| f.to_string());
    match what {
        Some(what) if !force => Err(PoolError::Foreign { path, what }.into()),
        what => Ok(what),
    }
}

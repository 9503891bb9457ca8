//! Putting a pool together from its members, in whatever order and under whatever names.

use std::sync::Arc;

use braid_device::Device;
use braid_format::label::{Label, MemberState};

use crate::Pool;
use crate::error::PoolError;
use crate::members::{Found, Judgement, Verdict, judge, write_copies};

/// Byte of member 0's liveness locks that a writer of labels holds.
pub const LABEL_LOCK_BYTE: u64 = 0;

impl Pool {
    /// Opens the pool whose members are `devices`: all of them, in any order. Damaged copies of
    /// labels, and those of an unfinished change, are written anew unless a device is read-only
    /// or another process is changing labels just now.
    ///
    /// # Errors
    /// One of [`PoolError`]'s variants for each thing that can be wrong with a member: not one,
    /// both labels damaged, another pool's, a copy of another, removed, truncated, stale, missing.
    pub fn assemble(devices: Vec<Arc<dyn Device>>) -> Result<Self, PoolError> {
        let found: Vec<Found> = devices.into_iter().map(Found::read).collect();
        one_pool(&found)?;
        let judgement = judge(&found)?;
        for (f, verdict) in found.iter().zip(&judgement.verdicts) {
            refuse(f, verdict, &judgement.label)?;
        }
        let Judgement { label, verdicts, missing } = judgement;
        let name = label.name.clone();
        if !missing.is_empty() {
            return Err(PoolError::Missing { name, missing });
        }
        let mut members: Vec<Option<Found>> = vec![None; label.members.len()];
        for (f, verdict) in found.into_iter().zip(verdicts) {
            if let Verdict::Current(index) = verdict
                && let Some(place) = members.get_mut(usize::from(index.0))
            {
                *place = Some(f);
            }
        }
        in_use(&label, &members)?;
        let members: Vec<Found> = members.into_iter().flatten().collect();
        let pool = Self::open(members.iter().map(|f| f.device.clone()).collect(), label)?;
        heal(&members, &pool.label());
        Ok(pool)
    }
}

/// All devices carry labels of one pool.
fn one_pool(found: &[Found]) -> Result<(), PoolError> {
    let mut first: Option<(&Label, &str)> = None;
    for f in found {
        let label = f.newest().ok_or_else(|| f.refusal())?;
        let (expected, other) = *first.get_or_insert((label, f.path()));
        if label.pool != expected.pool {
            return Err(PoolError::OtherPool {
                path: f.path().to_owned(),
                found: Box::new(label.into()),
                other: other.to_owned(),
                expected: Box::new(expected.into()),
            });
        }
    }
    Ok(())
}

fn refuse(found: &Found, verdict: &Verdict, label: &Label) -> Result<(), PoolError> {
    let (path, name, current) = (found.path().to_owned(), label.name.clone(), label.epoch);
    Err(match verdict {
        Verdict::Current(_) => return Ok(()),
        Verdict::Stale(epoch) => PoolError::Stale { path, name, epoch: *epoch, current },
        Verdict::Ahead(epoch) => PoolError::Ahead { path, name, epoch: *epoch, current },
        Verdict::Removed => PoolError::Removed { path, name, current },
        Verdict::Truncated(expected) => {
            PoolError::Truncated { path, name, size: found.device.info().size, expected: *expected }
        }
        Verdict::Duplicate(other, index) => {
            PoolError::Duplicate { path, other: other.clone(), name, index: *index }
        }
    })
}

/// Every member is active and its device's sectors fit.
fn in_use(label: &Label, members: &[Option<Found>]) -> Result<(), PoolError> {
    for (member, found) in label.members.iter().zip(members) {
        if member.state != MemberState::Active || found.is_none() {
            let what = "member that is failed, spare, rebuilding or leaving";
            return Err(crate::map::MapError::Unsupported { what }.into());
        }
        let device = found.as_ref().map(|f| f.device.info());
        if let Some(info) = device.filter(|i| i.sector > label.lock_sector) {
            let (path, lock_sector) = (info.name.clone(), label.lock_sector);
            return Err(PoolError::BadLockSector { path, sector: info.sector, lock_sector });
        }
    }
    Ok(())
}

/// Writes anew every copy that is not the label in force. A failure is only worth a warning: each
/// member has one good copy, or it would not have come this far.
fn heal(members: &[Found], label: &Label) {
    let wrong = |copy: usize| -> Vec<usize> {
        let good = |f: &Found| {
            f.copies.get(copy).is_some_and(|c| {
                c.as_ref().is_ok_and(|l| (l.epoch, l.change_id) == (label.epoch, label.change_id))
            })
        };
        members.iter().enumerate().filter(|(_, f)| !good(f)).map(|(i, _)| i).collect()
    };
    let (first, second) = (wrong(0), wrong(1));
    let read_only = members.iter().any(|f| f.device.info().read_only);
    let Some(lowest) = members.first() else { return };
    if (first.is_empty() && second.is_empty()) || read_only {
        return;
    }
    let Ok(Some(_guard)) = lowest.device.lock_byte(LABEL_LOCK_BYTE) else { return };
    let unchanged = members.iter().all(|f| Found::read(f.device.clone()).labels().eq(f.labels()));
    if !unchanged {
        return;
    }
    let devices: Vec<Arc<dyn Device>> = members.iter().map(|f| f.device.clone()).collect();
    for (copy, which) in [(0, first), (1, second)] {
        for i in &which {
            let path = members.get(*i).map_or("", |f| f.path());
            match write_copies(&devices, label, copy, &[*i]) {
                Ok(()) => tracing::warn!(path, copy, "label was damaged or out of date; healed"),
                Err(error) => tracing::warn!(path, copy, %error, "label could not be healed"),
            }
        }
    }
}

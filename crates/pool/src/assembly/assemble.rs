//! Putting a pool together from its members, in whatever order and under whatever names they are
//! found.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use braid_device::{Device, ScratchDevice};
use braid_format::label::{Label, Member, MemberState};
use braid_format::{Epoch, MemberIndex};

use super::lost_labels::lost_labels;
use crate::devices::absent::AbsentDevice;
use crate::error::{MissingMember, PoolError};
use crate::labels::{
    Found, LabelAssessment, Verdict, assess_labels, ended, next_epoch, out_of_date, settle,
    settle_move,
};
use crate::pool::Pool;

/// What is done about members that are missing, or out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnDefect {
    /// The pool is not opened.
    Refuse,
    /// It is opened without them, if it can be.
    GoWithout,
    /// Those out of date are used; the missing are refused.
    Accept,
}

impl Pool {
    /// Opens the pool whose members are `devices`: all of them, in any order. Nothing is written:
    /// see [`Pool::heal_labels`].
    ///
    /// # Errors
    /// One of [`PoolError`]'s variants for each thing that can be wrong with a member: not one,
    /// both labels damaged, another pool's, a copy of another, removed, truncated, stale, missing.
    pub fn assemble(devices: Vec<Arc<dyn Device>>) -> Result<Self, PoolError> {
        Self::assemble_from(devices, OnDefect::Refuse).map(|(pool, _)| pool)
    }

    /// Opens the pool although members are missing, if the others hold every byte: the operator
    /// says that those are lost. Nothing may be written before [`Pool::commit_degraded`].
    ///
    /// # Errors
    /// As [`Pool::assemble`]; [`PoolError::TooManyLost`].
    pub fn assemble_degraded(devices: Vec<Arc<dyn Device>>) -> Result<Self, PoolError> {
        let (pool, out_of_date) = Self::assemble_from(devices, OnDefect::GoWithout)?;
        for member in out_of_date {
            tracing::warn!("{member} was put back from an old image and is not used");
        }
        Ok(pool)
    }

    /// As [`Pool::assemble`], though members may have been put back from an old image: the operator takes
    /// them as they are. For [`Pool::accept_members`].
    ///
    /// # Errors
    /// As [`Pool::assemble`].
    pub fn assemble_as_they_are(devices: Vec<Arc<dyn Device>>) -> Result<Self, PoolError> {
        Self::assemble_from(devices, OnDefect::Accept).map(|(pool, _)| pool)
    }

    /// The pool, and the members that are not used because they are out of date.
    fn assemble_from(
        devices: Vec<Arc<dyn Device>>,
        on_defect: OnDefect,
    ) -> Result<(Self, Vec<String>), PoolError> {
        let degraded = on_defect == OnDefect::GoWithout;
        let found = devices.into_iter().map(Found::read).collect();
        let (found, assessment) = settle(found, |found| assess_members(found, degraded));
        let assessment = assessment?;
        let highest = found.iter().filter_map(|f| Some(f.newest()?.epoch.0)).max().unwrap_or(0);
        let LabelAssessment { mut label, verdicts, mut missing } = assessment;
        let name = label.name.clone();
        if !missing.is_empty() && !degraded {
            return Err(PoolError::Missing { name, missing });
        }
        let old =
            if on_defect == OnDefect::Accept { Vec::new() } else { out_of_date(&found, &label) };
        let old_names: Vec<String> = old.iter().map(|(i, m)| old_name(&found, *i, *m)).collect();
        if !old.is_empty() && !degraded {
            let devices = found.iter().map(|f| f.device.clone()).collect();
            let spared = Self::assemble_from(devices, OnDefect::GoWithout).is_ok();
            return Err(PoolError::OutOfDate { name, members: old_names, spared });
        }
        missing.extend(old.iter().filter_map(|(_, index)| as_missing(&label, *index)));
        let mut members: Vec<Option<Found>> = vec![None; label.members.len()];
        for (f, verdict) in found.into_iter().zip(verdicts) {
            if let Verdict::Current(index) = verdict
                && !old.iter().any(|(_, o)| *o == index)
                && let Some(place) = members.get_mut(usize::from(index.0))
            {
                *place = Some(f);
            }
        }
        sectors_fit(&label, &members)?;
        for lost in &missing {
            if let Some(m) = label.members.get_mut(usize::from(lost.index.0)) {
                m.state = MemberState::Failed;
                // That of the change that will say so.
                m.state_epoch = Epoch(label.epoch.0.saturating_add(1));
                m.offline = false;
            }
        }
        // A move that has lost one side has ended, as it would have with the pool in use.
        settle_move(&mut label);
        let device = |(found, member): (&Option<Found>, &Member)| {
            found.as_ref().map_or_else(|| AbsentDevice::of(member), |f| f.device.clone())
        };
        let devices: Vec<Arc<dyn Device>> =
            members.iter().zip(&label.members).map(device).collect();
        let pool = Self::open(devices, label).map_err(|error| match error {
            PoolError::TooManyLost { .. } if !old_names.is_empty() => {
                PoolError::OutOfDate { name, members: old_names.clone(), spared: false }
            }
            error => error,
        })?;
        pool.0.epochs.attempted.store(highest, Ordering::Release);
        {
            let mut topology = pool.0.epochs.write();
            topology.provisional = !missing.is_empty();
            pool.0.epochs.replace_snapshot(&topology);
        }
        Ok((pool, old_names))
    }

    /// The same pool apart from this one: nothing that is changed there reaches a device, and it ends
    /// with the last handle. What is said of members that fail there holds there only.
    ///
    /// # Errors
    /// As [`Pool::assemble`], of the label in force.
    pub fn on_scratch(&self) -> Result<Self, PoolError> {
        let (label, devices, provisional) = {
            let topology = self.0.epochs.read();
            (topology.label.clone(), topology.devices.clone(), topology.provisional)
        };
        let pool = Self::open(devices.into_iter().map(ScratchDevice::over).collect(), label)?;
        let attempted = self.0.epochs.attempted.load(Ordering::Acquire);
        pool.0.epochs.attempted.store(attempted, Ordering::Release);
        {
            let mut topology = pool.0.epochs.write();
            topology.provisional = provisional;
            pool.0.epochs.replace_snapshot(&topology);
        }
        Ok(pool)
    }

    /// Whether members are missing of which no label says so yet.
    pub fn is_provisional(&self) -> bool {
        self.0.epochs.read().provisional
    }

    /// Takes the members that [`Pool::assemble_degraded`] did not find out of the pool, durably.
    /// The caller knows that nobody else uses the pool with them.
    ///
    /// # Errors
    /// [`PoolError::Device`], [`PoolError::Label`]: nothing has changed.
    pub fn commit_degraded(&self) -> Result<(), PoolError> {
        self.0.changing(|| {
            let topology = self.0.epochs.write();
            if !topology.provisional {
                return Ok(());
            }
            let next = next_epoch(&topology.label);
            let devices = topology.devices.clone();
            self.0.change(topology, next, devices)
        })
    }
}

/// What the labels say together, if each device is a current member or is not used any more.
fn assess_members(found: &[Found], degraded: bool) -> Result<LabelAssessment, PoolError> {
    if let Some(label) = ended(found) {
        let carries = |f: &&Found| f.labels().any(|l| l.ended);
        let path = found.iter().find(carries).map_or("", Found::path).to_owned();
        return Err(PoolError::Ended { name: label.name.clone(), path });
    }
    if found.iter().any(|f| f.newest().is_none())
        && let Some(lost) = lost_labels(found)
    {
        return Err(lost);
    }
    one_pool(found)?;
    let assessment = assess_labels(found, degraded)?;
    for (f, verdict) in found.iter().zip(&assessment.verdicts) {
        refuse(f, verdict, &assessment.label)?;
    }
    Ok(assessment)
}

fn old_name(found: &[Found], i: usize, member: MemberIndex) -> String {
    format!("member {member} ({})", found.get(i).map_or("", |f| f.path()))
}

fn as_missing(label: &Label, index: MemberIndex) -> Option<MissingMember> {
    Some(MissingMember::of(index, label.members.get(usize::from(index.0))?))
}

/// All devices carry labels of one pool.
pub(crate) fn one_pool(found: &[Found]) -> Result<(), PoolError> {
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
        // A member that failed is not used any more, so its label is of an earlier epoch. If it is
        // not, the member was used alone since.
        Verdict::Stale(_) if found.has_failed(label) => return Ok(()),
        Verdict::Stale(epoch) if found.failed_at(label).is_some() => {
            PoolError::Diverged { path, name, epoch: *epoch, current }
        }
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

/// No device's sectors are larger than what locks are changed by.
fn sectors_fit(label: &Label, members: &[Option<Found>]) -> Result<(), PoolError> {
    for found in members.iter().flatten() {
        let info = found.device.info();
        if info.sector > label.lock_sector {
            return Err(PoolError::LargeSectors {
                path: info.name.clone(),
                name: label.name.clone(),
                sector: info.sector,
                lock_sector: label.lock_sector,
            });
        }
    }
    Ok(())
}

//! Members that answer nothing.
//!
//! A device that waits without a bound (a disk of the kernel, a file) is only watched: it may answer yet,
//! and nothing can be done about what it was asked. One that gives up what it is asked
//! ([`braid_device::BoundedDevice`]) is done without, or the node has to end. So is a unit of a target
//! whose sessions have ended for good.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use braid_device::{AnswerBound, Device, DeviceError, Route, Silent};
use braid_format::MemberIndex;
use braid_format::label::MemberState;
use uuid::Uuid;

use crate::error::PoolError;
use crate::health::silent::{NoticedSilence, SilentMember};
use crate::layout::group::Group;
use crate::pool::Pool;
use crate::topology::Topology;

/// The members in use whose transfers are counted at both ends, each with its device.
fn watched(topology: &Topology) -> impl Iterator<Item = (MemberIndex, Uuid, &dyn Device)> {
    let of_kernel =
        |device: &dyn Device| device.info().is_path && !matches!(device.route(), Route::Timed(..));
    topology.members().zip(&topology.devices).filter_map(move |(member, device)| {
        let in_use = topology.state(member) != MemberState::Failed;
        let device = Some(&**device).filter(|device| in_use && of_kernel(*device))?;
        Some((member, topology.uuid(member)?, device))
    })
}

impl Pool {
    /// Looks which members answer nothing, at a time from any beginning: those that have become silent, or
    /// answer again. A node that waits for one member takes no answers of others in, so `is_silent` says,
    /// of a device's name, whether it really is. Never waits for a member.
    pub fn watch_silent(
        &self,
        now: Duration,
        is_silent: &dyn Fn(&Path) -> bool,
    ) -> Vec<NoticedSilence> {
        let topology = self.0.epochs.snapshot();
        let of = |(_, uuid, device): (_, _, &dyn Device)| {
            Some((uuid, device.abilities().counters?.now()))
        };
        let noticed = self.0.health.silence.lock().look(now, watched(&topology).filter_map(of));
        let told = |(uuid, silent)| {
            let member = topology.index_of(uuid)?;
            let path = topology.devices.get(usize::from(member.0))?.info().name.clone();
            Some((uuid, path, NoticedSilence { member: topology.name(member), silent }))
        };
        let told: Vec<_> = noticed.into_iter().filter_map(told).collect();
        // A change of the epoch waits for all that have the one before.
        drop(topology);
        let confirmed = |(uuid, path, noticed): (_, String, NoticedSilence)| {
            if noticed.silent && !is_silent(path.as_ref()) {
                self.0.health.silence.lock().clear(uuid);
                return None;
            }
            Some(noticed)
        };
        told.into_iter().filter_map(confirmed).collect()
    }

    /// The members that answer nothing, as of the last look ([`Pool::watch_silent`]).
    pub fn silent(&self) -> Vec<SilentMember> {
        let topology = self.0.epochs.snapshot();
        let silence = self.0.health.silence.lock();
        let of = |(member, uuid, device): (_, _, &dyn Device)| {
            let given_up = device.abilities().bound.and_then(AnswerBound::given_up);
            let time = given_up.or_else(|| silence.time(uuid))?;
            Some(SilentMember { member, time, given_up: given_up.is_some() })
        };
        watched(&topology).filter_map(of).collect()
    }

    /// The members, failed ones too, whose devices are reached by sessions that have ended for good, other
    /// than by a fence; and why. Waits for no member.
    pub fn given_up(&self) -> Vec<(MemberIndex, Arc<str>)> {
        let topology = self.0.epochs.snapshot();
        let of = |(member, device): (_, &Arc<dyn Device>)| {
            Some((member, device.abilities().session?.given_up()?))
        };
        topology.members().zip(&topology.devices).filter_map(of).collect()
    }

    /// The members in use that nothing is asked of any more, each with the error that says so.
    fn unasked(&self) -> Vec<(MemberIndex, DeviceError)> {
        let silent = self.silent().into_iter().filter(|s| s.given_up);
        let topology = self.0.epochs.snapshot();
        let silent = silent.map(|s| {
            let (device, silent) = (topology.name(s.member).into(), Silent(s.time));
            (s.member, DeviceError::Silent { device, silent })
        });
        let in_use = |(m, _): &(_, _)| topology.state(*m) != MemberState::Failed;
        let given_up = self.given_up().into_iter().filter(in_use);
        let given_up = given_up.map(|(m, why)| {
            let device = topology.name(m).into();
            (m, DeviceError::GivenUp { device, why })
        });
        silent.chain(given_up).collect()
    }

    /// Called before this node lets others write what it alone could write until now: nothing that it has asked of
    /// a device and given up may be done there later. A member that was given up, and that others have the bytes of, is
    /// failed: on return no node uses it. What may still be done on a device of a member that is out of use
    /// harms nobody: it is no member again before that has ended.
    ///
    /// # Errors
    /// Those of [`Pool::fail_silent`]. The node must withdraw: what it gave up may be done until it is fenced.
    pub fn check_given_up(&self) -> Result<(), PoolError> {
        while self.has_given_up() {
            if self.fail_silent()?.is_empty() && !self.0.follow()? {
                let needed = self.0.epochs.snapshot().needed_of(self.unasked());
                return needed.map_or(Ok(()), Err);
            }
            self.0.await_settled()?;
        }
        Ok(())
    }

    /// Whether this node has given up a member that is in use. Waits for nothing.
    fn has_given_up(&self) -> bool {
        let topology = self.0.epochs.snapshot();
        let given_up = |device: &Arc<dyn Device>| {
            let of = device.abilities();
            of.bound.and_then(AnswerBound::given_up).is_some()
                || of.session.is_some_and(|session| session.given_up().is_some())
        };
        let mut members = topology.members().zip(&topology.devices);
        members.any(|(m, device)| topology.state(m) != MemberState::Failed && given_up(device))
    }

    /// Goes on without the members that have been given up; those that it has failed.
    ///
    /// # Errors
    /// [`PoolError::SilentMember`], [`PoolError::GivenUpMember`]: the pool cannot do without all of these;
    /// nothing was changed. As [`Pool::fail_member`].
    pub fn fail_silent(&self) -> Result<Vec<MemberIndex>, PoolError> {
        let unasked = self.unasked();
        let members: Vec<MemberIndex> = unasked.iter().map(|(member, _)| *member).collect();
        if !self.0.epochs.snapshot().can_lose_all(&members) {
            if self.0.has_newer_epoch() {
                // The next look goes by that.
                return Ok(Vec::new());
            }
            return match self.0.epochs.snapshot().needed_of(unasked) {
                Some(error) => Err(error),
                None => Ok(Vec::new()),
            };
        }
        for (member, error) in unasked {
            let _pass = self.1.pass()?;
            let lost = self.0.epochs.snapshot().named(&vec![(member, error)]);
            self.0.fail_members(&lost)?;
        }
        Ok(members)
    }
}

impl Topology {
    /// What is to be said of the members that nothing is asked of, and without which together the pool
    /// cannot go on: the first of them, why, and the others.
    fn needed_of(&self, unasked: Vec<(MemberIndex, DeviceError)>) -> Option<PoolError> {
        let all: Vec<MemberIndex> = unasked.iter().map(|(member, _)| *member).collect();
        let is_needed = |member: MemberIndex| {
            let out =
                |m: &MemberIndex| all.contains(m) || !self.readable(*m) || self.is_suspected(*m);
            let lacks = |g: &Group| {
                g.members().any(|m| m == member) && g.members().filter(out).count() > g.tolerance()
            };
            self.bare.contains(&member) || self.map.groups().iter().any(lacks)
        };
        let mut needed = unasked.into_iter().filter(|(member, _)| is_needed(*member));
        let (_, error) = needed.next()?;
        let others: Vec<String> = needed.map(|(member, _)| self.name(member)).collect();
        let besides = match &others[..] {
            [] => String::new(),
            others => format!("; neither answers {}", others.join(", nor ")),
        };
        Some(match error {
            DeviceError::Silent { device, silent } => {
                PoolError::SilentMember { name: device.to_string(), silent, besides }
            }
            DeviceError::GivenUp { device, why } => {
                PoolError::GivenUpMember { name: device.to_string(), why, besides }
            }
            other => other.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use braid_device::FaultPlan;

    use super::*;
    use crate::redundancy::tests::{Layout, devices, pool};

    #[test]
    fn of_members_that_are_given_up_those_that_are_needed_are_named() {
        let all = devices(6, |_| FaultPlan::default());
        let pool = pool(&all, Layout::StripedMirrors);
        let topology = pool.0.epochs.snapshot();
        let said = |members: &[u16]| {
            let given_up = |m: &u16| {
                let (device, why) = (topology.name(MemberIndex(*m)).into(), Arc::from("gone"));
                (MemberIndex(*m), DeviceError::GivenUp { device, why })
            };
            let said = topology.needed_of(members.iter().map(given_up).collect());
            said.map(|error| error.to_string())
        };
        assert_eq!(said(&[0, 2, 4]), None);
        // Mirrors are of 0 and 1, 2 and 3, 4 and 5.
        let told = said(&[0, 2, 3]).unwrap();
        assert!(told.starts_with("member 2 (m2) was given up (gone)"), "{told}");
        assert!(told.ends_with("; neither answers member 3 (m3)"), "{told}");
    }
}

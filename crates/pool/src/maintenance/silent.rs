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
            let first = unasked.into_iter().next();
            return first.map_or(Ok(Vec::new()), |(_, error)| Err(needed(error)));
        }
        for (member, error) in unasked {
            let _pass = self.1.pass()?;
            let lost = self.0.epochs.snapshot().named(&vec![(member, error)]);
            self.0.fail_members(&lost)?;
        }
        Ok(members)
    }
}

/// What becomes of a member that has been given up, and that the pool cannot do without.
fn needed(error: DeviceError) -> PoolError {
    match error {
        DeviceError::Silent { device, silent } => {
            PoolError::SilentMember { name: device.to_string(), silent }
        }
        DeviceError::GivenUp { device, why } => {
            PoolError::GivenUpMember { name: device.to_string(), why }
        }
        other => other.into(),
    }
}

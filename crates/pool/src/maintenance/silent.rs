//! Members that answer nothing.
//!
//! A device that waits without a bound (a disk of the kernel, a file) is only watched: it may answer yet,
//! and nothing can be done about what it was asked. One that gives up what it is asked
//! ([`braid_device::BoundedDevice`]) is done without, or the node has to end.

use std::path::Path;
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

    /// Goes on without the members that have been given up; those that it has failed.
    ///
    /// # Errors
    /// [`PoolError::SilentMember`]: the pool cannot do without one. As [`Pool::fail_member`].
    pub fn fail_silent(&self) -> Result<Vec<MemberIndex>, PoolError> {
        let mut failed = Vec::new();
        for SilentMember { member, time, .. } in self.silent().into_iter().filter(|s| s.given_up) {
            let _pass = self.1.pass()?;
            let topology = self.0.epochs.snapshot();
            let (name, silent) = (topology.name(member), Silent(time));
            if !topology.can_lose(member) {
                drop(topology);
                if self.0.has_newer_epoch() {
                    // The next look goes by that.
                    return Ok(failed);
                }
                return Err(PoolError::SilentMember { name, silent });
            }
            let error = DeviceError::Silent { device: name.into(), silent };
            let lost = topology.named(&vec![(member, error)]);
            // A change of the epoch waits for all that have the one before.
            drop(topology);
            self.0.fail_members(&lost)?;
            failed.push(member);
        }
        Ok(failed)
    }
}

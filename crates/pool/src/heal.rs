//! Labels that are damaged, or of a change that was broken off, are written anew.
//!
//! Not when a pool is opened: another node may just be changing it, and what looks like the rest of a
//! broken change is the beginning of that one. So it is done by who may change the pool, under the
//! same claim.

use std::sync::Arc;

use braid_device::{AlignedBuf, Device};
use braid_format::label::Label;

use crate::assemble::LABEL_LOCK_BYTE;
use crate::epoch::Claims;
use crate::error::PoolError;
use crate::members::{Found, id, own_uuid, write_copies};
use crate::redundancy::carriers;
use crate::topology::Topology;
use crate::{Inner, Pool};

/// What is wrong with the labels of a pool.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wrong {
    /// Members whose copy 0, or copy 1, is not the label in force.
    copies: [Vec<usize>; 2],
    /// Members with an old label behind their end, left by a growth that was broken off.
    behind: Vec<usize>,
}

/// Where a device that has more than the pool knows of would have its second label.
fn behind(topology: &Topology, i: usize) -> Option<braid_format::ByteOffset> {
    let (member, device) = (topology.label.members.get(i)?, topology.devices.get(i)?);
    let at = Label::copy1_at(device.info().size)?;
    (Some(at) != Label::copy1_at(member.device_size)).then_some(at)
}

impl Wrong {
    fn of(topology: &Topology) -> Self {
        let mut wrong = Self::default();
        for i in carriers(&topology.label) {
            let Some(device) = topology.devices.get(i) else { continue };
            let found = Found::read(device.clone());
            for (copy, wrong) in found.copies.iter().zip(&mut wrong.copies) {
                if !copy.as_ref().is_ok_and(|l| id(l) == id(&topology.label)) {
                    wrong.push(i);
                }
            }
            let mut room = AlignedBuf::zeroed(Label::LEN_MAX);
            let ours = |l: &Label| topology.label.pool == l.pool && own_uuid(l).is_some();
            if let Some(at) = behind(topology, i)
                && device.read(at, &mut room).is_ok()
                && Label::decode(&room, at).is_ok_and(|(l, _)| ours(&l))
            {
                wrong.behind.push(i);
            }
        }
        wrong
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Zeroes a label that stands behind the end of a member.
pub(crate) fn wipe_behind(device: &dyn Device, at: braid_format::ByteOffset) {
    let zeros = AlignedBuf::zeroed(Label::LEN_MAX);
    let path = &device.info().name;
    match device.write(at, &zeros).and_then(|()| device.flush()) {
        Ok(()) => tracing::warn!(path, "an old label behind the end was wiped"),
        Err(error) => tracing::warn!(path, %error, "an old label stays behind the end"),
    }
}

impl Inner {
    fn try_heal_labels(&self) -> Result<(), PoolError> {
        let topology = self.topology.write();
        let read_only = topology.devices.iter().any(|d| d.info().read_only);
        if topology.provisional || read_only {
            return Ok(());
        }
        let _claims = match self.claim(&topology) {
            Ok(claims) => claims,
            Err(moved @ PoolError::EpochMoved { .. }) => return Err(moved),
            Err(error) => {
                tracing::warn!(%error, "labels are not healed");
                return Ok(());
            }
        };
        // Who writes labels of a pool that no node has.
        let lowest = carriers(&topology.label).into_iter().next();
        let lowest: Option<&Arc<dyn Device>> = lowest.and_then(|i| topology.devices.get(i));
        let Some(lowest) = lowest else { return Ok(()) };
        let Ok(Some(_guard)) = lowest.lock_byte(LABEL_LOCK_BYTE) else { return Ok(()) };
        let wrong = Wrong::of(&topology);
        for (copy, which) in (0_u32..).zip(&wrong.copies) {
            for i in which {
                let path = topology.devices.get(*i).map_or("", |d| &d.info().name);
                match write_copies(&topology.devices, &topology.label, copy, &[*i]) {
                    Ok(()) => {
                        tracing::warn!(path, copy, "label was damaged or out of date; healed");
                    }
                    Err(error) => tracing::warn!(path, copy, %error, "label could not be healed"),
                }
            }
        }
        for i in &wrong.behind {
            if let (Some(device), Some(at)) = (topology.devices.get(*i), behind(&topology, *i)) {
                wipe_behind(&**device, at);
            }
        }
        Ok(())
    }

    /// Claims the labels as they are, where other nodes may change them.
    fn claim(&self, topology: &Topology) -> Result<Option<Claims>, PoolError> {
        let Some(shared) = self.shared() else { return Ok(None) };
        let gone = self.gone.lock().clone();
        Claims::take(&shared, (topology, topology), &gone).map(Some).map_err(|e| e.1)
    }
}

impl Pool {
    /// Writes anew what is damaged of the labels, or of a change that was broken off. The caller
    /// has joined those who use the pool ([`Pool::share`]), or knows that there are none.
    ///
    /// A failure to write is only worth a warning: each member has one good label, or the pool
    /// would not be open.
    ///
    /// # Errors
    /// This node has withdrawn, or cannot follow a change.
    pub fn heal_labels(&self) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        if Wrong::of(&self.0.topology.read()).is_nothing() {
            return Ok(());
        }
        // Not when the epoch is settled: others may wait for these very labels, to use it too.
        loop {
            match self.0.try_heal_labels() {
                Err(PoolError::EpochMoved { by, .. }) => self.0.give_way(by)?,
                done => return done,
            }
        }
    }
}

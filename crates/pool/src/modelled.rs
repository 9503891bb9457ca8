//! Pools of modelled disks, and streams over them in virtual time: what the founding documents' experiments
//! and those of this project run on where a disk's mechanism counts. Addresses go through the pool's real
//! mapping; nothing depends on the machine.

use std::sync::Arc;

use braid_device::model::{Bus, DiskModel, ModelClock, ModelError, Rate};
use braid_device::modelled::{Client, ModelDevice, Outcome, Touch, drive};
use braid_device::{Device, DeviceError, MemoryDevice};
use braid_format::{ByteOffset, Bytes};
use thiserror::Error;

use crate::assembly::create::CreateOptions;
use crate::error::PoolError;
use crate::layout::map::{Piece, Place};
use crate::pool::Pool;

/// Why nothing can be modelled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ModelledError {
    /// A disk's numbers make no sense.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The pool cannot be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A request went wrong.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A bus that is not there.
    #[error("member {member} hangs on bus {bus}; there are {buses}")]
    NoBus {
        /// Which member.
        member: usize,
        /// On which bus.
        bus: usize,
        /// How many there are.
        buses: usize,
    },
    /// The job has no requests.
    #[error("a job without requests")]
    NoRequests,
}

/// How to stream: sequentially from the pool's beginning.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// Written, or read.
    pub write: bool,
    /// Bytes of a request.
    pub request: u64,
    /// Requests at a time.
    pub depth: usize,
    /// Bytes of all.
    pub total: u64,
}
impl Job {
    /// `total` bytes read in requests of so many, `depth` at a time.
    pub fn read(request: u64, depth: usize, total: u64) -> Self {
        Self { write: false, request, depth, total }
    }
    /// The same, written.
    pub fn write(request: u64, depth: usize, total: u64) -> Self {
        Self { write: true, request, depth, total }
    }
}

/// A pool of modelled disks, a plain stripe. Nothing is stored but its labels.
#[derive(Debug)]
pub struct ModelledPool {
    /// The sum of all disks.
    pub clock: ModelClock,
    /// By member.
    pub disks: Vec<Arc<ModelDevice>>,
    /// Over them.
    pub pool: Pool,
}

impl ModelledPool {
    /// Bytes of a disk where all are equal.
    pub const SIZE: u64 = 400 << 20;

    /// Members in this order: model, bytes, and the place of their bus in `buses`.
    ///
    /// # Errors
    /// [`ModelledError`].
    pub fn new(
        members: &[(DiskModel, u64, Option<usize>)],
        buses: &[Bus],
        unit: u64,
    ) -> Result<Self, ModelledError> {
        let clock = ModelClock::virtual_time();
        let buses: Vec<_> = buses.iter().map(|b| clock.bus(*b)).collect();
        let disk = |(member, (model, size, bus)): (usize, &(DiskModel, u64, Option<usize>))| {
            let inner = MemoryDevice::new(&format!("disk{member}"), Bytes(*size), Bytes(512));
            let bus = match *bus {
                None => None,
                Some(bus) => Some(buses.get(bus).ok_or(ModelledError::NoBus {
                    member,
                    bus,
                    buses: buses.len(),
                })?),
            };
            Ok::<_, ModelledError>(ModelDevice::new(&clock, inner, *model, bus)?)
        };
        let disks = members.iter().enumerate().map(disk).collect::<Result<Vec<_>, _>>()?;
        let devices = disks.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let options = CreateOptions::new("model").stripe_unit(Bytes(unit))?;
        let pool = Pool::create(devices, &options)?;
        Ok(Self { clock, disks, pool })
    }

    /// `n` equal members, each on its own.
    ///
    /// # Errors
    /// [`ModelledError`].
    pub fn equal(n: usize, model: DiskModel, unit: u64) -> Result<Self, ModelledError> {
        Self::new(&vec![(model, Self::SIZE, None); n], &[], unit)
    }

    /// Where a range of the pool lies.
    pub fn touches(&self, write: bool, at: u64, len: u64) -> Vec<Touch<'_>> {
        let map = self.pool.map();
        let touch = |p: Piece| {
            let Place::Member(member) = p.place else { return None };
            let device = &**self.disks.get(usize::from(member.0))?;
            Some(Touch { device, write, at: p.at, len: p.len })
        };
        map.pieces(ByteOffset(at), Bytes(len)).filter_map(touch).collect()
    }

    /// Bytes per microsecond, that is MB/s, of one stream.
    ///
    /// # Errors
    /// [`ModelledError`].
    pub fn stream(&self, job: Job) -> Result<f64, ModelledError> {
        let touch = |i: u64| {
            let at = i * job.request;
            self.touches(job.write, at, job.request.min(job.total - at))
        };
        let requests = job.total.div_ceil(job.request.max(1));
        self.rate(Client::new(job.depth, (0..requests).map(touch))).map(Rate::megabytes)
    }

    /// What one client gets.
    ///
    /// # Errors
    /// [`ModelledError`].
    pub fn rate(&self, client: Client<'_>) -> Result<Rate, ModelledError> {
        let outcomes = drive(&self.clock, vec![client])?;
        outcomes.first().map(Outcome::rate).ok_or(ModelledError::NoRequests)
    }
}

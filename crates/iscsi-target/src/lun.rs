//! A logical unit: a device, and what initiators have agreed on about it.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use braid_device::Device;
use parking_lot::Mutex;

use crate::TargetError;
use crate::nexus::{Nexus, UnitAttention};
use crate::ranges::Ranges;
use crate::reservations::Reservations;

/// Most unit attentions that one initiator has pending on one unit.
const ATTENTIONS_MAX: usize = 8;

/// A device to serve.
#[derive(Debug, Clone)]
pub struct LunOptions {
    /// The device.
    pub device: Arc<dyn Device>,
    /// What its serial number and world-wide name are made of, together with the target's name: the
    /// same again for the same device. Without it they are new each time.
    pub identity: Option<String>,
    /// Where reservations are kept that are to outlive the target (APTPL). Without it, a request
    /// to keep them is refused.
    pub reservations: Option<PathBuf>,
}

/// A logical unit.
#[derive(Debug)]
pub struct Lun {
    /// Its number.
    pub number: u16,
    /// What stands behind it.
    pub device: Arc<dyn Device>,
    /// Its serial number.
    pub serial: String,
    /// Its world-wide name (NAA 3: locally assigned).
    pub naa: [u8; 8],
    /// Writes that completed may be lost by a power cut until a flush.
    pub write_cache: bool,
    /// What keeps completed writes; another, once they may be lost.
    cache: Mutex<String>,
    /// It answers from memory: nothing is gained by having a worker wait for it.
    pub fast: bool,
    /// Ranges in use.
    pub ranges: Ranges,
    /// Persistent reservations.
    pub reservations: Mutex<Reservations>,
    /// What is pending for each port that has a session, and for no other: a new session is told
    /// that it is one, which covers whatever was before.
    attentions: Mutex<HashMap<Nexus, VecDeque<UnitAttention>>>,
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// What keeps the completed writes of a device: of files and disks of this host its kernel, until the
/// host is started anew; of others not even that is known once this process has ended.
fn cache_of(device: &dyn Device) -> String {
    let boot = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let kept = device.info().is_path.then(boot).flatten();
    kept.map_or_else(|| uuid::Uuid::new_v4().to_string(), |boot| boot.trim().to_owned())
}

impl Lun {
    /// Unit `number` of the target called `target`.
    pub fn new(target: &str, number: u16, options: LunOptions) -> Result<Self, TargetError> {
        let seed = options.identity.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        let id = hash(format!("{target} {seed}").as_bytes()) & (u64::MAX >> 4);
        let reservations = Reservations::load(options.reservations)?;
        Ok(Self {
            number,
            write_cache: options.device.info().engine != "memory",
            cache: Mutex::new(cache_of(&*options.device)),
            fast: !options.device.info().is_block && options.device.info().engine != "io_uring",
            device: options.device,
            serial: format!("{id:015x}"),
            naa: (id | 3 << 60).to_be_bytes(),
            ranges: Ranges::default(),
            reservations: Mutex::new(reservations),
            attentions: Mutex::default(),
        })
    }
    /// Bytes of a logical block.
    pub fn sector(&self) -> u64 {
        self.device.info().sector.get()
    }
    /// Logical blocks.
    pub fn blocks(&self) -> u64 {
        self.device.info().size.get() / self.sector()
    }
    /// An initiator that has a session is told of something at its next command.
    pub fn establish_attention(&self, nexus: &Nexus, what: UnitAttention) {
        let mut all = self.attentions.lock();
        let Some(pending) = all.get_mut(nexus) else { return };
        if !pending.contains(&what) && pending.len() < ATTENTIONS_MAX {
            pending.push_back(what);
        }
    }
    /// A session begins: all that was pending is covered by this.
    pub fn session_begins(&self, nexus: &Nexus) {
        self.attentions.lock().insert(nexus.clone(), [UnitAttention::POWER_ON].into());
    }
    /// What an initiator must be told first.
    pub fn take_attention(&self, nexus: &Nexus) -> Option<UnitAttention> {
        self.attentions.lock().get_mut(nexus)?.pop_front()
    }
    /// What keeps completed writes, as page C0 of INQUIRY has it.
    pub fn cache(&self) -> String {
        self.cache.lock().clone()
    }
    /// It was switched off and on: completed writes that were not flushed may be lost. All sessions stay,
    /// and each is told at its next command.
    pub fn lose_power(&self) {
        *self.cache.lock() = uuid::Uuid::new_v4().to_string();
        for pending in self.attentions.lock().values_mut() {
            *pending = [UnitAttention::POWER_ON].into();
        }
    }
    /// A session has ended.
    pub fn session_ended(&self, nexus: &Nexus) {
        self.attentions.lock().remove(nexus);
    }
    /// Ports that it would tell something.
    #[cfg(test)]
    pub fn ports(&self) -> usize {
        self.attentions.lock().len()
    }
}

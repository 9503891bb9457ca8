//! A pool ends: its devices are nobody's.

use crate::error::PoolError;
use crate::labels::wipe_labels;
use crate::pool::Pool;

/// What became of the devices of a pool that was destroyed, for people.
#[derive(Debug, Clone, Default)]
pub struct Destroyed {
    /// They have no labels any more.
    pub wiped: Vec<String>,
    /// Members whose labels could not be wiped, and why.
    pub left: Vec<(String, String)>,
}

impl Pool {
    /// Wipes the labels of all members, spares too; their contents stay. The caller sees to it that no
    /// node uses the pool, and nobody uses it afterwards. A power failure in the middle leaves a pool
    /// whose wiped members are missing.
    ///
    /// # Errors
    /// The pool is closed. What goes wrong with one member is in the answer, and the others are wiped.
    pub fn destroy(&self) -> Result<Destroyed, PoolError> {
        let _pass = self.1.pass()?;
        let topology = self.0.epochs.snapshot();
        let mut done = Destroyed::default();
        for (device, member) in topology.devices.iter().zip(&topology.label.members) {
            let path = device.info().name.clone();
            match wipe_labels(&**device, member.device_size) {
                Ok(()) => done.wiped.push(path),
                Err(error) => done.left.push((path, error.to_string())),
            }
        }
        Ok(done)
    }
}

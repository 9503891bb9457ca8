//! A pool gets another name.

use crate::assembly::check_name;
use crate::error::PoolError;
use crate::labels::next_epoch;
use crate::pool::Pool;

impl Pool {
    /// Gives the pool another name: a new epoch, durable on all members on return. After a power failure
    /// in the middle it has one of the two names. The caller sees to it that no node uses the pool, because
    /// nodes go by the name under which they found it.
    ///
    /// # Errors
    /// [`PoolError::BadName`]; [`PoolError::Device`] when the labels cannot be written.
    pub fn rename(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)?;
        let _pass = self.1.pass()?;
        self.0.changing(|| {
            let topology = self.0.epochs.write();
            let mut next = next_epoch(&topology.label);
            name.clone_into(&mut next.name);
            let devices = topology.devices.clone();
            self.0.change(topology, next, devices)
        })
    }

    /// What [`Pool::rename`] would refuse; nothing is changed.
    ///
    /// # Errors
    /// [`PoolError::BadName`].
    pub fn plan_rename(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Redundancy;
    use crate::reshape::tests::{disks, made};

    #[test]
    fn the_name_is_another_one_for_who_opens_it_next() {
        let all = disks("d", &[14; 3]);
        let pool = made(all.clone(), Redundancy::Mirror(2));
        let (uuid, before) = (pool.info().uuid, pool.info().name.clone());
        for bad in ["", "a/b", "a\nb", &"x".repeat(64)] {
            assert!(matches!(pool.rename(bad), Err(PoolError::BadName { .. })), "{bad:?}");
        }
        assert_eq!(pool.info().name, before);
        pool.rename("other").unwrap();
        assert_eq!(pool.info().name, "other");
        drop(pool);
        let info = Pool::assemble(all).unwrap().info();
        assert_eq!((info.name.as_str(), info.uuid), ("other", uuid));
    }
}

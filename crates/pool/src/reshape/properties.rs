//! Settings that stay with the pool are changed.

use braid_format::label::properties::{self, Properties};

use crate::error::PoolError;
use crate::labels::next_epoch;
use crate::pool::Pool;
use crate::topology::Topology;

/// A property and its new value; none: it is taken away.
pub type PropertyChange = (String, Option<String>);

impl Pool {
    /// Changes properties: one new epoch, durable on all members and in use by all nodes on return. The others stay
    /// as they are, also those that another node changes meanwhile.
    ///
    /// # Errors
    /// [`PoolError::BadProperties`], and nothing was changed; [`PoolError::Device`] when the labels cannot be written.
    pub fn set_properties(&self, changes: &[PropertyChange]) -> Result<(), PoolError> {
        let _pass = self.1.pass()?;
        self.0.changing(|| {
            let topology = self.0.epochs.write();
            let mut next = next_epoch(&topology.label);
            next.properties = changed(&topology, changes)?;
            if next.properties == topology.label.properties {
                return Ok(());
            }
            let devices = topology.devices.clone();
            self.0.change(topology, next, devices)
        })
    }

    /// What [`Pool::set_properties`] would refuse; nothing is changed. The properties that the pool would have.
    ///
    /// # Errors
    /// [`PoolError::BadProperties`].
    pub fn plan_properties(&self, changes: &[PropertyChange]) -> Result<Properties, PoolError> {
        changed(&self.0.epochs.read(), changes)
    }
}

/// The properties of the next label.
fn changed(topology: &Topology, changes: &[PropertyChange]) -> Result<Properties, PoolError> {
    let mut all = topology.label.properties.clone();
    for (key, value) in changes {
        match value {
            Some(value) => drop(all.insert(key.clone(), value.clone())),
            None => drop(all.remove(key)),
        }
    }
    if properties::fit(&all) { Ok(all) } else { Err(PoolError::BadProperties) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Redundancy;
    use crate::reshape::tests::{disks, made};

    #[test]
    fn properties_stay_with_the_pool_until_they_are_taken_away() {
        let all = disks("d", &[14; 3]);
        let pool = made(all.clone(), Redundancy::Mirror(2));
        let set = |key: &str, value: &str| (key.to_owned(), Some(value.to_owned()));
        pool.set_properties(&[set("comment", "ours"), set("scrub.every", "7")]).unwrap();
        let epoch = pool.info().epoch;
        // Nothing changes, so there is no epoch of that.
        pool.set_properties(&[set("comment", "ours"), ("none".into(), None)]).unwrap();
        for bad in [set("comment", "a\nb"), set("Comment", "a"), set("comment", &"x".repeat(1025))]
        {
            let refused = pool.set_properties(&[set("scrub.every", "9"), bad]);
            assert!(matches!(refused, Err(PoolError::BadProperties)), "{refused:?}");
        }
        assert_eq!(pool.info().epoch, epoch);
        drop(pool);
        let pool = Pool::assemble(all).unwrap();
        let held: Vec<_> = pool.label().properties.into_iter().collect();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(held, [pair("comment", "ours"), pair("scrub.every", "7")]);
        // The label changes in other ways, and keeps them.
        pool.fail_member(braid_format::MemberIndex(2)).unwrap();
        pool.set_properties(&[("comment".into(), None)]).unwrap();
        let held: Vec<_> = pool.label().properties.into_iter().collect();
        assert_eq!(held, [pair("scrub.every", "7")]);
    }
}

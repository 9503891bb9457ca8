//! Every feature bit that this version knows, by name. docs/FORMAT.md, sections 1.1 and 4.

use crate::label::features as label;
use crate::superblock::RawSuperblock as Superblock;

/// In which structure a bit stands. All bits so far are incompatible ones: who does not know one refuses the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureIn {
    /// The labels of members.
    Label,
    /// The superblock.
    Superblock,
}

impl FeatureIn {
    /// The word for people.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Superblock => "superblock",
        }
    }
}

/// A feature.
#[derive(Debug)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// Where its bit stands.
    pub place: FeatureIn,
    /// Its bit.
    pub bit: u64,
    /// What a pool has that has it.
    pub meaning: &'static str,
}

const fn of(place: FeatureIn, name: &'static str, bit: u64, meaning: &'static str) -> Feature {
    Feature { name, place, bit, meaning }
}

use FeatureIn::{Label, Superblock as Fs};

/// Bits of both places: what a node knows, or what a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// Those of the labels.
    pub label: u64,
    /// Those of the superblock.
    pub superblock: u64,
}

impl Features {
    /// What this version knows.
    pub const KNOWN: Self = Self { label: label::KNOWN, superblock: Superblock::KNOWN };

    /// What a node knows that does not say it: what there was before nodes said it. It never grows. A feature
    /// that comes later is asked for where a pool gets it: those of labels with each epoch, one of the superblock by
    /// whoever sets it (there is none yet).
    pub const UNSAID: Self = Self {
        label: label::MIRROR
            | label::PARITY
            | label::WEIGHTS
            | label::SUBPOOLS
            | label::RESHAPE
            | label::SUCCESSION
            | label::HOLES
            | label::ENDED
            | label::SUSPECTED
            | label::OFFLINE
            | label::PROPERTIES,
        superblock: Superblock::SUBPOOLS
            | Superblock::REGIONS
            | Superblock::LOCK_STORE
            | Superblock::LEAVING,
    };

    /// Those of a label alone.
    pub const fn of_label(label: u64) -> Self {
        Self { label, superblock: 0 }
    }

    /// Those that `other` has not.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self { label: self.label & !other.label, superblock: self.superblock & !other.superblock }
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.label | self.superblock == 0
    }

    /// Whether there is this one.
    pub const fn has(self, feature: &Feature) -> bool {
        let bits = match feature.place {
            FeatureIn::Label => self.label,
            FeatureIn::Superblock => self.superblock,
        };
        bits & feature.bit != 0
    }

    /// The names of those that this version knows.
    pub fn names(self) -> Vec<&'static str> {
        FEATURES.iter().filter(|f| self.has(f)).map(|f| f.name).collect()
    }
}

/// All of them.
pub const FEATURES: [Feature; 15] = [
    of(Label, "mirror", label::MIRROR, "mirrors"),
    of(Label, "parity", label::PARITY, "parity groups"),
    of(Label, "weights", label::WEIGHTS, "a stripe with unequal shares"),
    of(Label, "subpools", label::SUBPOOLS, "more than one subpool"),
    of(Label, "reshape", label::RESHAPE, "a change of shape under way"),
    of(Label, "succession", label::SUCCESSION, "a member whose contents move to another one"),
    of(Label, "holes", label::HOLES, "address space of devices that have left"),
    of(Label, "ended", label::ENDED, "being destroyed"),
    of(Label, "suspected", label::SUSPECTED, "a member that may return garbage"),
    of(Label, "offline", label::OFFLINE, "a member that is offline or catches up"),
    of(Label, "properties", label::PROPERTIES, "properties (braid set)"),
    of(Fs, "fs-subpools", Superblock::SUBPOOLS, "metadata and file data apart"),
    of(Fs, "regions", Superblock::REGIONS, "space that was added later"),
    of(Fs, "lock-store", Superblock::LOCK_STORE, "locks in a store of their own (etcd)"),
    of(Fs, "leaving", Superblock::LEAVING, "space that leaves, or has left"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_bit_has_a_name_of_its_own() {
        for (place, known) in [(Label, label::KNOWN), (Fs, Superblock::KNOWN)] {
            let bits = FEATURES.iter().filter(|f| f.place == place).map(|f| f.bit);
            assert!(bits.clone().all(u64::is_power_of_two));
            assert_eq!(bits.sum::<u64>(), known);
        }
        let mut names: Vec<_> = FEATURES.iter().map(|f| f.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FEATURES.len());
        assert_eq!(Features::KNOWN.names().len(), FEATURES.len());
    }

    #[test]
    fn what_one_has_and_the_other_lacks() {
        let (few, more) = (Features::of_label(label::MIRROR), Features::KNOWN);
        assert!(few.without(more).is_empty() && !more.without(few).is_empty());
        assert_eq!(few.names(), ["mirror"]);
        let lacks = Features { label: 0, superblock: Superblock::REGIONS }.without(few);
        assert_eq!(lacks.names(), ["regions"]);
    }
}

//! Devices of their own for metadata and journals: which, and the layout that follows.

use braid_format::label::{Member, SubpoolKind};

use super::resolve::resolve;
use super::usual::{Redundancy, over};
use super::{Layout, LayoutError, LayoutFault, Part, Subpool, Tree, Which, parse};

/// Which devices hold what, by their places in the list. Those that stand nowhere hold data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Classes {
    /// Metadata, and journals unless these have devices of their own.
    pub metadata: Vec<u16>,
    /// Journals.
    pub journal: Vec<u16>,
}

impl Classes {
    /// Reads `metadata=DEVICE,...[; journal=DEVICE,...]`; devices are named as in a layout.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn told(text: &str, members: &[Member]) -> Result<Self, LayoutError> {
        let mut subpools = parse::classes(text)?;
        let rest_is_data = !subpools.iter().any(|s| s.kind == SubpoolKind::Data);
        if rest_is_data {
            let rest = Tree::new(Part::Devices { which: Which::Rest, size: None });
            let tree = Tree::new(Part::Concat { of: vec![rest] });
            subpools.push(Subpool { kind: SubpoolKind::Data, tree });
        }
        let resolved = resolve(&Layout { subpools }, members).map_err(|e| match *e.fault {
            // `rest` was not written by the user.
            LayoutFault::NothingLeft if rest_is_data => LayoutFault::NoneForData.into(),
            _ => e,
        })?;
        let mut classes = Self::default();
        let mut taken = vec![false; members.len()];
        for s in &resolved.subpools {
            let mut twice = None;
            s.tree.each_device(&mut |place, _| {
                let taken = taken.get_mut(usize::from(place));
                if taken.is_some_and(|t| std::mem::replace(t, true)) {
                    twice = Some(place);
                }
                match s.kind {
                    SubpoolKind::Metadata => classes.metadata.push(place),
                    SubpoolKind::Journal => classes.journal.push(place),
                    SubpoolKind::Data | SubpoolKind::General | SubpoolKind::Hole => {}
                }
            });
            if let Some(member) = twice.and_then(|place| members.get(usize::from(place))) {
                let path = member.path.clone();
                return Err(LayoutError::at(&s.tree.place, LayoutFault::TwoClasses { path }));
            }
        }
        Ok(classes)
    }

    /// The layout in which each class is as safe as `redundancy` says: what is not on parity has
    /// one copy more than there are parities.
    ///
    /// # Errors
    /// [`LayoutError`]: too few members of a class.
    pub fn layout(
        &self,
        members: &[Member],
        redundancy: Redundancy,
        keep_order: bool,
    ) -> Result<Layout, LayoutError> {
        if self.metadata.is_empty() {
            return Err(LayoutFault::SubpoolMissing { missing: "metadata" }.into());
        }
        let mirrored = match redundancy {
            Redundancy::Parity(parity) => Redundancy::Mirror(parity.saturating_add(1)),
            other => other,
        };
        let other = |place: &u16| !self.metadata.contains(place) && !self.journal.contains(place);
        let data: Vec<u16> = (0_u16..).zip(members).map(|(place, _)| place).filter(other).collect();
        let mut subpools = Vec::new();
        for (kind, places, redundancy) in [
            (SubpoolKind::Metadata, &self.metadata, mirrored),
            (SubpoolKind::Journal, &self.journal, mirrored),
            (SubpoolKind::Data, &data, redundancy),
        ] {
            if kind == SubpoolKind::Journal && places.is_empty() {
                continue;
            }
            let of = places.iter().map(|place| Tree::device(*place)).collect();
            let places = places.iter().map(|place| usize::from(*place)).collect();
            let tree = Tree::new(over(members, (of, places), redundancy, keep_order)?);
            subpools.push(Subpool { kind, tree });
        }
        Ok(Layout { subpools })
    }
}

#[cfg(test)]
mod tests {
    use braid_format::StripeUnit;

    use super::super::build::BuildOptions;
    use super::super::build::build;
    use super::super::tests::members;
    use super::super::weights::Weights;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn told(text: &str, count: usize) -> Result<Classes, String> {
        Classes::told(text, &members(&vec![4 * GIB; count])).map_err(|e| e.to_string())
    }

    #[test]
    fn classes_are_read_as_devices_in_layouts_are() {
        let classes = |metadata: &[u16], journal: &[u16]| {
            Ok(Classes { metadata: metadata.to_vec(), journal: journal.to_vec() })
        };
        assert_eq!(told("metadata=sdb", 4), classes(&[1], &[]));
        assert_eq!(told("metadata = /dev/sdb, 3; journal=0", 5), classes(&[1, 3], &[0]));
        assert_eq!(told("journal=0-1;metadata=2;data=rest", 5), classes(&[2], &[0, 1]));
        for (text, why) in [
            ("", "is not a kind of subpool"),
            ("sdb", "is not a kind of subpool"),
            ("fast=sdb", "is not a kind of subpool"),
            ("metadata=sdx", "no device 'sdx' was given"),
            ("metadata=0,0", "two kinds of things"),
            ("metadata=0;journal=sda", "two kinds of things"),
            ("metadata=mirror(0,1)", "expected devices between commas"),
            ("metadata=0[1G]", "expected devices between commas"),
            ("metadata=0*2", "expected devices between commas"),
            ("metadata=all", "two kinds of things"),
            ("metadata=0-3", "no device is left for data"),
            ("metadata=0; journal=1-3", "no device is left for data"),
            ("metadata=0;data=1", "not used in the layout"),
            ("metadata=0;metadata=1", "is there twice"),
        ] {
            let said = told(text, 4).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn each_class_is_as_safe_as_was_asked_for() {
        let members = members(&[8 * GIB; 8]);
        let layout = |text, redundancy| {
            let classes = Classes::told(text, &members).unwrap();
            classes.layout(&members, redundancy, true).map_err(|e| e.to_string())
        };
        let (two, one) = ("metadata=0,1", "metadata=0-1; journal=2-3");
        for (text, redundancy, expected) in [
            (two, Redundancy::None, "metadata = stripe(0, 1); data = stripe(2, 3, 4, 5, 6, 7)"),
            (
                one,
                Redundancy::Mirror(2),
                "metadata = mirror+1(0, 1); journal = mirror+1(2, 3); data = mirror+1(4, 5, 6, 7)",
            ),
            (
                two,
                Redundancy::Parity(1),
                "metadata = mirror+1(0, 1); data = parity+1(2, 3, 4, 5, 6, 7)",
            ),
        ] {
            let layout = layout(text, redundancy).unwrap();
            assert_eq!(layout.to_string(), expected);
            let options = BuildOptions {
                unit: StripeUnit::DEFAULT,
                keep_order: true,
                weights: Weights::None,
            };
            let built = build(&layout, &members, &options).unwrap();
            assert!(built.unused.iter().all(|u| u.0 < 1 << 20), "{text}: {built:?}");
        }
        assert!(layout(two, Redundancy::Parity(2)).unwrap_err().contains("2 devices make no 3"));
        assert!(layout("metadata=0-5", Redundancy::Mirror(3)).unwrap_err().contains("no 3 copies"));
        assert!(layout("journal=0", Redundancy::None).unwrap_err().contains("for metadata"));
    }
}

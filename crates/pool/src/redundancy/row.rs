//! What a write to a parity row must read first: a pure function.
//!
//! A write touches bytes `lo..hi` of some units of the row; the parity of exactly those bytes
//! changes. There are four ways to the new parity:
//! * *covered*: the write gives `lo..hi` of every data unit: nothing is read;
//! * *delta*: read the old bytes of the touched units and the old parity, and add the change. Every
//!   touched unit must be readable; lost units that are not touched do not matter. Used only if as
//!   many columns are lost as the group can spare: see below;
//! * *rest*: read the data that the write does not give, and compute the parity anew;
//! * *decode*: read everything that can be read, compute what is lost, then as *rest*.
//!
//! A parity column that is being filled has no old bytes to change, and must get new ones: no
//! delta.
//!
//! The cheapest possible way is taken. If no parity column is left, nothing is read at all.
//!
//! The parity of bytes that nobody has written is whatever was on the devices before: nothing makes
//! data and parity agree when a pool is made or grows. Computing the parity from all data makes it
//! right whatever it was. Adding a change to a wrong parity would leave it wrong, and the new data
//! would be lost with its device. If as many columns are lost as the group can spare, nothing is
//! left to disagree: the lost bytes *are* what the rest of the row says. Then a change keeps
//! everything that can be recovered.

/// How much of `lo..hi` of a data unit a write gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cover {
    /// Nothing.
    None,
    /// Some of it.
    Part,
    /// All of it.
    Whole,
}

/// The way to the new parity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// No parity to write.
    Plain,
    /// From the write alone.
    Covered,
    /// From the change.
    Delta,
    /// From the write and the rest of the data.
    Rest,
    /// From the write and what is recovered of the rest.
    Decode,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The way.
    pub way: Way,
    /// Places to read `lo..hi` of, first.
    pub reads: Vec<usize>,
}

/// Plans a write of a row whose places are data (as many as `cover`), then parity. `readable` says
/// for each place whether its old bytes can be read, `writable` whether it gets new ones. `None`:
/// too much is lost.
pub(crate) fn plan(cover: &[Cover], readable: &[bool], writable: &[bool]) -> Option<Plan> {
    let data = cover.len();
    let can = |place: usize| readable.get(place).copied().unwrap_or(false);
    let parities: Vec<usize> = (data..readable.len()).filter(|p| can(*p)).collect();
    let filling = (data..readable.len()).any(|p| !can(p) && writable.get(p) == Some(&true));
    let lost = readable.iter().filter(|r| !**r).count();
    if lost > readable.len() - data {
        return None;
    }
    let places = |wanted: fn(Cover) -> bool| {
        let wanted = cover.iter().enumerate().filter(move |(_, c)| wanted(**c));
        wanted.map(|(place, _)| place).collect::<Vec<_>>()
    };
    let missing = places(|c| c != Cover::Whole);
    let touched = places(|c| c != Cover::None);
    if missing.is_empty() {
        return Some(Plan { way: Way::Covered, reads: Vec::new() });
    }
    let agrees = lost == readable.len() - data;
    let delta = (agrees && !filling && touched.iter().all(|p| can(*p))).then(|| {
        if parities.is_empty() {
            return Plan { way: Way::Plain, reads: Vec::new() };
        }
        let reads = touched.iter().copied().chain(parities).collect();
        Plan { way: Way::Delta, reads }
    });
    let rest =
        missing.iter().all(|p| can(*p)).then(|| Plan { way: Way::Rest, reads: missing.clone() });
    rest.into_iter().chain(delta).min_by_key(|p| p.reads.len()).or_else(|| {
        let reads = (0..readable.len()).filter(|p| can(*p)).collect();
        Some(Plan { way: Way::Decode, reads })
    })
}

#[cfg(test)]
mod tests {
    use super::Cover::None as No;
    use super::Cover::Part;
    use super::Cover::Whole;
    use super::*;

    fn way(cover: &[Cover], lost: &[usize], parity: usize) -> Option<(Way, Vec<usize>)> {
        let readable: Vec<bool> = (0..cover.len() + parity).map(|p| !lost.contains(&p)).collect();
        plan(cover, &readable, &readable).map(|p| (p.way, p.reads))
    }

    #[test]
    fn parity_that_is_being_filled_is_computed_whole() {
        let plan = |cover: &[Cover], lost: usize| {
            let readable: Vec<bool> = (0..=cover.len()).map(|p| p != lost).collect();
            plan(cover, &readable, &vec![true; cover.len() + 1]).map(|p| p.way)
        };
        assert_eq!(plan(&[Part, No, No], 3), Some(Way::Rest));
        assert_eq!(plan(&[Part, No, No], 2), Some(Way::Delta));
        assert_eq!(plan(&[Part, No, No], 0), Some(Way::Decode));
    }

    #[test]
    fn the_cheapest_way_is_taken() {
        assert_eq!(way(&[Whole; 4], &[], 1), Some((Way::Covered, vec![])));
        assert_eq!(way(&[Part, No, No, No], &[1], 1), Some((Way::Delta, vec![0, 4])));
        assert_eq!(way(&[Whole, Whole, Whole, No], &[], 1), Some((Way::Rest, vec![3])));
        assert_eq!(way(&[No, Whole, No, No], &[], 2), Some((Way::Rest, vec![0, 2, 3])));
        assert_eq!(way(&[No, Part, No, No, No, No], &[0, 7], 2), Some((Way::Delta, vec![1, 6])));
    }

    #[test]
    fn parity_that_may_be_wrong_is_not_changed_but_computed() {
        assert_eq!(way(&[Part, No, No, No], &[], 1), Some((Way::Rest, vec![0, 1, 2, 3])));
        // If a unit is lost and two parities are left, one of them gives the unit, and the other
        // may disagree.
        assert_eq!(way(&[Part, No, No], &[2], 2), Some((Way::Decode, vec![0, 1, 3, 4])));
        assert_eq!(way(&[Part, No, No], &[3], 2), Some((Way::Rest, vec![0, 1, 2])));
    }

    #[test]
    fn lost_columns_are_gone_around() {
        // Untouched and lost: the change is enough.
        assert_eq!(way(&[Part, No, No, No], &[2], 1), Some((Way::Delta, vec![0, 4])));
        // Touched whole and lost: the rest is read.
        assert_eq!(way(&[Whole, No, No], &[0], 1), Some((Way::Rest, vec![1, 2])));
        // Touched in part and lost: everything is read.
        assert_eq!(way(&[Part, No, No], &[0], 1), Some((Way::Decode, vec![1, 2, 3])));
        // No parity left: only the data is written.
        assert_eq!(way(&[Part, No, No], &[3], 1), Some((Way::Plain, vec![])));
        assert_eq!(way(&[Part, No, No], &[0, 1], 1), None);
        assert_eq!(way(&[Part, No, No], &[0, 1], 2), Some((Way::Decode, vec![2, 3, 4])));
        assert_eq!(way(&[Part, No, No], &[0, 4], 2), Some((Way::Decode, vec![1, 2, 3])));
    }
}

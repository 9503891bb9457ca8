//! Which of many places a test looks at.

use std::time::{SystemTime, UNIX_EPOCH};

/// Set to anything: tests look at all places.
pub const ALL_PLACES: &str = "BRAID_ALL_PLACES";

/// 0, and of the numbers after it one in `every`; which ones is another choice in each run, said on standard
/// output. For places where power is cut, or combinations of damage, that are alike: together, the runs look at all.
/// With [`ALL_PLACES`] each run does.
pub fn places(every: u64) -> impl Iterator<Item = u64> + Clone {
    let every = if std::env::var_os(ALL_PLACES).is_some() { 1 } else { every.max(1) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    let second = 1 + u64::from(now / 1000) % every;
    println!("the first place, and one in {every} from {second} on; {ALL_PLACES}=1 looks at all");
    std::iter::once(0).chain((second..).step_by(usize::try_from(every).unwrap_or(usize::MAX)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_place_and_every_so_many_from_one_of_the_next() {
        let places: Vec<u64> = super::places(7).take(4).collect();
        assert_eq!(places[0], 0);
        assert!((1..=7).contains(&places[1]), "{places:?}");
        assert_eq!(places[2..], [places[1] + 7, places[1] + 14]);
    }
}

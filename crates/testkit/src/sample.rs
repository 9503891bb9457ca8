//! Which of many places a test looks at.

use std::time::{SystemTime, UNIX_EPOCH};

/// Set to anything: tests look at all places.
pub const ALL_PLACES: &str = "BRAID_ALL_PLACES";

/// Of the numbers from 0 on, one in `every`; which ones is another choice in each run, said on standard output.
/// For places where power is cut, or combinations of damage, that are alike: together, the runs look at all.
/// With [`ALL_PLACES`] each run does.
pub fn places(every: u64) -> impl Iterator<Item = u64> + Clone {
    let every = if std::env::var_os(ALL_PLACES).is_some() { 1 } else { every.max(1) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    let first = u64::from(now / 1000) % every;
    println!("one place in {every}, from {first} on; {ALL_PLACES}=1 looks at all");
    (first..).step_by(usize::try_from(every).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_so_many_places_from_one_of_the_first() {
        let places: Vec<u64> = super::places(7).take(3).collect();
        assert!(places[0] < 7 && places[1] == places[0] + 7 && places[2] == places[0] + 14);
    }
}

//! The searches: how many nodes, what they want, which faults.

use std::time::Instant;

use super::*;

/// The nonce of the record that stands at first, and one that no record ever had.
const GUESSES: [u64; 2] = [0, u64::MAX];

fn search(name: &str, nodes: usize, wants: u8, budget: Budget, at_least: usize) {
    search_by(name, &World::new(nodes, wants, None, budget), at_least);
}

fn search_by(name: &str, start: &World, at_least: usize) {
    let began = Instant::now();
    let budget = start.budget;
    let found = Search::run(start);
    println!(
        "{name}: {} states, {} transitions, {:.1} s, {budget:?}",
        found.parents.len(),
        found.transitions,
        began.elapsed().as_secs_f64()
    );
    assert!(found.parents.len() >= at_least, "the search has become shallow");
}

const NO_FAULTS: Budget = Budget {
    crashes: 0,
    rejoins: 0,
    unknown: 0,
    unwant: 0,
    spurious: 0,
    shrink: 0,
    opens: 0,
    asks: 0,
    doubled: 0,
    forged: 0,
};

#[test]
fn two_nodes_crash_rejoin_unknown() {
    let budget = Budget { crashes: 1, rejoins: 1, unknown: 1, ..NO_FAULTS };
    search("2 nodes, 2 wants each", 2, 2, budget, 100_000);
}

#[test]
fn two_nodes_unknown_twice() {
    let budget = Budget { unknown: 2, ..NO_FAULTS };
    search("2 nodes, 2 wants each", 2, 2, budget, 100_000);
}

#[test]
fn two_nodes_second_thoughts() {
    let budget = Budget { unknown: 1, unwant: 1, shrink: 1, ..NO_FAULTS };
    search("2 nodes, 2 wants each", 2, 2, budget, 100_000);
}

#[test]
fn three_nodes_without_faults() {
    search("3 nodes, 1 want each", 3, 1, NO_FAULTS, 10_000);
}

#[test]
fn three_nodes_crash() {
    let budget = Budget { crashes: 1, ..NO_FAULTS };
    search("3 nodes, 1 want each", 3, 1, budget, 50_000);
}

#[test]
fn three_nodes_unknown() {
    let budget = Budget { unknown: 1, ..NO_FAULTS };
    search("3 nodes, 1 want each", 3, 1, budget, 50_000);
}

/// Files that are open while their lock goes to and fro, and closed at any moment: `check_opener`.
#[test]
fn openers_are_known_as_long_as_they_are() {
    for budget in [
        Budget { opens: 1, unknown: 1, ..NO_FAULTS },
        Budget { opens: 1, crashes: 1, rejoins: 1, ..NO_FAULTS },
        Budget { opens: 1, unwant: 1, shrink: 1, ..NO_FAULTS },
    ] {
        search("2 nodes, 2 wants each, open files", 2, 2, budget, 20_000);
    }
    let budget = Budget { opens: 1, ..NO_FAULTS };
    search("3 nodes, 1 want each, open files", 3, 1, budget, 20_000);
}

fn two_nodes_concurrent_with(budgets: &[Budget]) {
    for budget in budgets {
        let start = World::new(2, 2, None, *budget).with_concurrent();
        search_by("2 nodes, 2 wants each, concurrent too", &start, 50_000);
    }
}

/// Concurrent holds beside the others, with the faults above one after the other.
#[test]
fn two_nodes_concurrent() {
    two_nodes_concurrent_with(&[
        Budget { crashes: 1, rejoins: 1, ..NO_FAULTS },
        Budget { unknown: 1, ..NO_FAULTS },
        Budget { unwant: 1, shrink: 1, ..NO_FAULTS },
    ]);
}

/// The same with the faults together.
#[test]
#[ignore = "some minutes"]
fn two_nodes_concurrent_at_length() {
    two_nodes_concurrent_with(&[
        Budget { crashes: 1, rejoins: 1, unknown: 1, ..NO_FAULTS },
        Budget { unknown: 1, unwant: 1, shrink: 1, ..NO_FAULTS },
    ]);
}

#[test]
fn three_nodes_concurrent() {
    for budget in [NO_FAULTS, Budget { crashes: 1, ..NO_FAULTS }] {
        let start = World::new(3, 1, None, budget).with_concurrent();
        search_by("3 nodes, 1 want each, concurrent too", &start, 20_000);
    }
}

/// The same when nobody reads a lock before the first write: by a guess that is true at first, and by
/// one that never is.
#[test]
fn two_nodes_guess() {
    for guess in GUESSES {
        let budget = Budget { crashes: 1, rejoins: 1, unknown: 1, ..NO_FAULTS };
        let start = World::new(2, 2, Some(guess), budget);
        search_by("2 nodes, 2 wants each, guessing", &start, 100_000);
        let budget = Budget { unknown: 1, unwant: 1, shrink: 1, ..NO_FAULTS };
        let start = World::new(2, 2, Some(guess), budget);
        search_by("2 nodes, 2 wants each, guessing", &start, 100_000);
    }
}

#[test]
fn three_nodes_guess() {
    for guess in GUESSES {
        let budget = Budget { unknown: 1, ..NO_FAULTS };
        let start = World::new(3, 1, Some(guess), budget);
        search_by("3 nodes, 1 want each, guessing", &start, 50_000);
    }
}

/// Nodes that ask each other: with the faults of messages, and the others beside them.
fn two_nodes_ask_with(budgets: &[Budget]) {
    for budget in budgets {
        search("2 nodes, 2 wants each, asking", 2, 2, *budget, 20_000);
    }
}

#[test]
fn two_nodes_ask() {
    two_nodes_ask_with(&[
        Budget { asks: 2, doubled: 1, ..NO_FAULTS },
        Budget { asks: 1, unknown: 1, ..NO_FAULTS },
        Budget { asks: 1, crashes: 1, rejoins: 1, ..NO_FAULTS },
        Budget { asks: 1, unwant: 1, shrink: 1, ..NO_FAULTS },
        Budget { asks: 1, forged: 1, ..NO_FAULTS },
    ]);
}

/// The same with more of them together.
#[test]
#[ignore = "some minutes"]
fn two_nodes_ask_at_length() {
    two_nodes_ask_with(&[
        Budget { asks: 3, doubled: 1, ..NO_FAULTS },
        Budget { asks: 2, unknown: 1, ..NO_FAULTS },
        Budget { asks: 2, crashes: 1, rejoins: 1, ..NO_FAULTS },
        Budget { asks: 2, unwant: 1, shrink: 1, ..NO_FAULTS },
        Budget { asks: 2, forged: 1, crashes: 1, ..NO_FAULTS },
    ]);
    for budget in
        [Budget { asks: 2, doubled: 1, ..NO_FAULTS }, Budget { asks: 2, unknown: 1, ..NO_FAULTS }]
    {
        let start = World::new(2, 2, None, budget).with_concurrent();
        search_by("2 nodes, 2 wants each, asking, concurrent too", &start, 20_000);
    }
}

#[test]
fn two_nodes_ask_for_concurrent_holds() {
    let budget = Budget { asks: 1, doubled: 1, ..NO_FAULTS };
    let start = World::new(2, 2, None, budget).with_concurrent();
    search_by("2 nodes, 2 wants each, asking, concurrent too", &start, 20_000);
}

#[test]
fn nodes_ask_before_they_have_read() {
    for budget in [
        Budget { asks: 2, ..NO_FAULTS },
        Budget { asks: 1, unknown: 1, ..NO_FAULTS },
        Budget { asks: 1, crashes: 1, rejoins: 1, ..NO_FAULTS },
        Budget { asks: 1, unwant: 1, shrink: 1, ..NO_FAULTS },
    ] {
        let start = World::new(2, 2, None, budget).presuming();
        search_by("2 nodes, 2 wants each, asking before they read", &start, 20_000);
        let start = World::new(2, 2, None, budget).presuming().born();
        search_by("the same, of a lock that one made", &start, 20_000);
    }
    let start = World::new(3, 1, None, Budget { asks: 2, ..NO_FAULTS }).presuming();
    search_by("3 nodes, 1 want each, asking before they read", &start, 10_000);
}

/// The same with more of them together, and concurrent holds.
#[test]
#[ignore = "some minutes"]
fn nodes_ask_before_they_have_read_at_length() {
    for budget in [
        Budget { asks: 3, doubled: 1, ..NO_FAULTS },
        Budget { asks: 2, unknown: 1, ..NO_FAULTS },
        Budget { asks: 2, crashes: 1, rejoins: 1, ..NO_FAULTS },
    ] {
        let start = World::new(2, 2, None, budget).presuming().with_concurrent();
        search_by("2 nodes, asking before they read, concurrent too", &start, 20_000);
    }
    let start = World::new(3, 1, None, Budget { asks: 2, crashes: 1, ..NO_FAULTS }).presuming();
    search_by("3 nodes, asking before they read", &start, 10_000);
}

fn three_nodes_ask_with(budgets: &[Budget]) {
    for budget in budgets {
        search("3 nodes, 1 want each, asking", 3, 1, *budget, 10_000);
    }
}

#[test]
fn three_nodes_ask() {
    three_nodes_ask_with(&[Budget { asks: 1, ..NO_FAULTS }, Budget { asks: 2, ..NO_FAULTS }]);
}

/// The same with faults.
#[test]
#[ignore = "some minutes"]
fn three_nodes_ask_at_length() {
    three_nodes_ask_with(&[
        Budget { asks: 2, crashes: 1, ..NO_FAULTS },
        Budget { asks: 1, unknown: 1, ..NO_FAULTS },
        Budget { asks: 1, forged: 1, ..NO_FAULTS },
        Budget { asks: 2, doubled: 1, ..NO_FAULTS },
    ]);
}

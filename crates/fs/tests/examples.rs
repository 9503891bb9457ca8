//! What newcomers copy: the examples of the native API run.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../examples/files.rs"]
mod files;
#[path = "../examples/ranges.rs"]
mod ranges;
#[path = "../examples/two_nodes.rs"]
mod two_nodes;

#[test]
fn files_are_written_read_and_listed() {
    files::main().unwrap();
}

#[test]
fn many_ranges_are_read_at_once() {
    ranges::main().unwrap();
}

#[test]
fn two_nodes_of_one_process_see_what_the_other_writes() {
    two_nodes::main().unwrap();
}

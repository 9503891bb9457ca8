//! Advice from measurement: devices are only read, and a pool's layout is judged.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use common::{Disks, fails, ok};
use serde_json::Value;

#[test]
fn devices_and_pools_are_measured_without_being_written() {
    let d = Disks::new(2, 256);
    let read = || d.paths.iter().map(|p| fs::read(p).unwrap()).collect::<Vec<_>>();
    let blank = read();
    let said = ok(&d.with(&["advise", "--seconds", "1"], &[]));
    for part in ["stripe unit", "width", "BDSpro", "all members together", d.names()[1]] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("as it is:") && read() == blank);

    ok(&d.with(&["create", "p", "--stripe-unit", "4K"], &[]));
    let made = read();
    let said = ok(&d.with(&["advise", "--seconds", "1"], &[]));
    assert!(said.contains("pool p as it is:"), "{said}");
    let json: Value =
        serde_json::from_str(&ok(&d.with(&["advise", "--json", "--seconds", "1"], &[]))).unwrap();
    assert_eq!(json["members"].as_array().unwrap().len(), 2);
    assert!(json["advice"]["unit"].as_u64().unwrap().is_power_of_two(), "{json}");
    assert!(json["findings"].is_array() && json["members"][0]["alone"].as_u64().unwrap() > 0);
    assert!(read() == made);

    let small = Disks::new(1, 4);
    assert!(fails(&small.with(&["advise"], &[])).contains("too small"));
}

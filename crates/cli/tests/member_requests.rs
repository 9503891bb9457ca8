//! What a mounted node issues to its members is shown while it runs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;

use common::{Cluster, can_mount, fails, ok};
use serde_json::Value;

#[test]
fn requests_of_a_mounted_node_are_shown_by_size() {
    if !can_mount() {
        return;
    }
    let c = Cluster::new(2, 512, 1);
    let dir = c.node(0).to_str().unwrap();
    let io = || -> Value { serde_json::from_str(&ok(&["status", "--io", "--json", dir])).unwrap() };
    let of = |v: &Value, member: usize, key: &str| -> u64 {
        v["io"][0]["members"][member]["writes"][key].as_u64().unwrap()
    };
    let before = io();
    let mount = before["io"].as_array().unwrap();
    assert!(mount.len() == 1 && mount[0]["mount_point"] == dir && mount[0]["pool"] == "test");
    let file = std::fs::File::create(c.node(0).join("f")).unwrap();
    let data = vec![7; 64 << 20];
    file.write_all_at(&data, 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let after = io();
    // Both members took their half.
    for member in [0, 1] {
        let bytes = of(&after, member, "bytes") - of(&before, member, "bytes");
        assert!(bytes >= 31 << 20, "{after}");
        // In large requests: stripe units, those that follow one another joined up to 1 MiB.
        let requests = of(&after, member, "requests") - of(&before, member, "requests");
        assert!(bytes / requests >= 16 << 10, "{bytes} in {requests}: {after}");
        let sizes = after["io"][0]["members"][member]["writes"]["sizes"].as_array().unwrap();
        assert!(sizes.iter().all(|s| s["from"].as_u64().unwrap() <= 1 << 20), "{after}");
        assert!(after["io"][0]["members"][member]["flushes"].as_u64().unwrap() > 0);
    }
    let said = ok(&["status", "--io", dir]);
    assert!(said.contains("KiB: ") && said.contains("flush") && said.contains(dir), "{said}");
    let said = fails(&["status", "--io", "no-such-pool"]);
    assert!(said.contains("nothing of that name is mounted"), "{said}");
    c.finish();
    assert!(fails(&["status", "--io", &said]).contains("nothing of that name"));
}

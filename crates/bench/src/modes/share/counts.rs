//! What operations of several nodes cost: requests to the devices and messages, as the nodes count them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::report::Row;
use crate::statistics::float;
use crate::testbed::{braid, text};

/// What is counted, and how a row names it.
const NAMES: [&str; 5] = ["reads", "writes", "flushes", "compare-and-writes", "messages"];

/// Of all nodes together, heartbeats included; nothing if they are no nodes of Braid, or do not answer.
pub(super) struct Counts {
    dirs: Vec<PathBuf>,
    sum: Option<[u64; NAMES.len()]>,
}

impl Counts {
    /// Until now, of the nodes whose mounts these are.
    pub fn of(dirs: Vec<PathBuf>) -> Self {
        let of_nodes: Option<Vec<[u64; NAMES.len()]>> =
            dirs.iter().map(|dir| of_node(dir)).collect();
        let plus = |mut sum: [u64; NAMES.len()], node| {
            sum.iter_mut().zip(node).for_each(|(all, of_one)| *all += of_one);
            sum
        };
        let sum =
            of_nodes.map(|nodes| nodes.into_iter().fold(<[u64; NAMES.len()]>::default(), plus));
        Self { dirs, sum }
    }
    /// Adds to `row` what each of `operations` has cost since then.
    pub fn show(self, operations: u64, row: &mut Row) {
        let after = Self::of(self.dirs).sum;
        let (Some(before), Some(after), 1..) = (self.sum, after, operations) else { return };
        let mut said = Vec::new();
        for ((name, before), after) in NAMES.iter().zip(before).zip(after) {
            let each = float(after.saturating_sub(before)) / float(operations);
            row.add(&format!("{name} each"), each);
            said.push(format!("{each:.2} {name}"));
        }
        row.issued = Some(format!("each operation: {}", said.join(", ")));
    }
}

/// The mount's root: the highest directory of the same file system.
fn mount_point(dir: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let device = |dir: &Path| dir.metadata().map(|m| m.dev()).ok();
    let mut found = dir.canonicalize().ok()?;
    while let Some(parent) = found.parent()
        && device(parent) == device(&found)
    {
        found = parent.to_owned();
    }
    Some(found)
}

fn of_node(dir: &Path) -> Option<[u64; NAMES.len()]> {
    let dir = mount_point(dir)?;
    let asked = |words: &[&str]| -> Option<Value> {
        let said = braid(&[words, &["--json", text(&dir).ok()?]].concat());
        serde_json::from_str(&said.ok()?).ok()
    };
    let (io, locks) = (asked(&["status", "--io"])?, asked(&["locks"])?);
    let members = io["io"][0]["members"].as_array()?;
    let sum = |what: &str| members.iter().filter_map(|m| m.pointer(what)?.as_u64()).sum();
    let messages = locks.pointer("/counts/hints_sent")?.as_u64()?;
    Some([
        sum("/reads/requests"),
        sum("/writes/requests"),
        sum("/flushes"),
        sum("/compare_and_writes"),
        messages,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_other_file_systems() {
        let dir = tempfile::tempdir().unwrap();
        let mut row = Row::default();
        let counts = Counts::of(vec![dir.path().to_owned()]);
        assert_eq!(counts.sum, None);
        counts.show(3, &mut row);
        assert!(row.more.is_empty() && row.issued.is_none());
    }
}

//! The pool's history: what this process tells of it, and how it is shown.

use std::time::Duration;

use anyhow::Result;
use braid_format::history::{Event, EventKind};
use braid_pool::Pool;
use serde_json::{Value, json};

use crate::control::{self, Order};
use crate::pools::sources;
use crate::process::users;
use crate::terminal::answer;

/// A command that is done waits so long for the history, at most.
const PATIENCE: Duration = Duration::from_secs(2);

/// From now on what happens to the pool in this process is told.
pub fn keep(pool: &Pool) {
    pool.keep_history(&rustix::system::uname().nodename().to_string_lossy());
}

/// Tells that this process has carried out a command by itself, and waits until it is written.
pub fn command(pool: &Pool, text: impl Into<String>) {
    keep(pool);
    pool.record(EventKind::Command, Some(rustix::process::getuid().as_raw()), text);
    pool.settle_history(PATIENCE);
}

/// Tells that a node has carried out an order of `user`, if it changes the pool.
pub fn order(pool: &Pool, order: &Order, user: u32) {
    if let Some(text) = told(order) {
        pool.record(EventKind::Command, Some(user), text);
    }
}

/// An order that changes the pool, as a command.
pub(super) fn told(order: &Order) -> Option<String> {
    Some(match order {
        Order::Fence { node } => format!("fence --confirm: node {node}"),
        Order::Fail { member, .. } => format!("fail: member {member}"),
        Order::Offline { member, dry_run: false } => format!("offline: member {member}"),
        Order::Online { member, device, dry_run: false } => {
            format!("online: member {member}, {}", device.display())
        }
        Order::Replace { member, device, .. } => {
            format!("replace: member {member} by {}", device.display())
        }
        Order::Spare { device, .. } => format!("spare: {}", device.display()),
        Order::Evacuate { member, .. } => format!("evacuate: member {member}"),
        Order::Stay { member } => format!("evacuate --cancel: member {member}"),
        Order::Add { devices, dry_run: false, .. } => {
            let devices: Vec<String> = devices.iter().map(|d| d.display().to_string()).collect();
            format!("add: {}", devices.join(" "))
        }
        Order::Grow { dry_run: false } => "grow".to_owned(),
        Order::Rebalance { run } => format!("rebalance{}", stop(*run)),
        Order::Remove { member } | Order::Leave { member, dry_run: false } => {
            format!("remove: member {member}")
        }
        Order::LeaveEnd => "remove --cancel".to_owned(),
        Order::Trim { run } => format!("trim{}", stop(*run)),
        Order::Freeze { seconds, .. } => format!("freeze: for {seconds} s at most"),
        Order::Thaw => "thaw".to_owned(),
        Order::Set { properties } => {
            let word = |(key, value): &(String, Option<String>)| {
                format!(" {key}={}", value.as_deref().unwrap_or_default())
            };
            format!("set:{}", properties.iter().map(word).collect::<String>())
        }
        Order::Clear { member: Some(member) } => format!("clear: member {member}"),
        Order::Clear { member: None } => "clear".to_owned(),
        Order::Scrub { run } => format!("scrub{}", stop(*run)),
        _ => return None,
    })
}

const fn stop(run: bool) -> &'static str {
    if run { "" } else { " --stop" }
}

/// What is known of a pool, the oldest first: by a node of this host that has it mounted and answers, or else by the
/// devices.
///
/// # Errors
/// There is no such pool, or it cannot be read.
pub fn events(name: &str) -> Result<Vec<Value>> {
    let mut devices = vec![name.to_owned()];
    if let Some(mount) = control::look(name)? {
        let said = control::values(std::slice::from_ref(&mount), &Order::History).pop();
        if let Some((_, said)) = said {
            return Ok(said.as_array().cloned().unwrap_or_default());
        }
        devices = mount.sources;
    }
    let pool = sources::open_to_read(&devices, true)?;
    Ok(answered(&pool))
}

/// The same as an answer of a node.
pub fn answered(pool: &Pool) -> Vec<Value> {
    let users = users::all();
    pool.history().iter().map(|event| as_json(event, &users)).collect()
}

fn as_json(event: &Event, users: &str) -> Value {
    json!({
        "id": format!("{:016x}", event.id),
        "time": utc(event.time),
        "time_ms": event.time,
        "kind": event.kind.word(),
        "node": event.slot.map(braid_format::NodeId::get),
        "host": event.host,
        "user": event.user.map(|user| users::named(user, users)),
        "text": event.text,
    })
}

/// An event on one line, for people.
pub fn line(event: &Value) -> String {
    // Bytes from the devices: none begins a line of its own.
    let word =
        |name: &str| answer::printable(event[name].as_str().unwrap_or("-")).replace('\n', "\\n");
    let node = event["node"].as_u64().map_or_else(|| "-".to_owned(), |node| node.to_string());
    let (time, host, user) = (word("time"), word("host"), word("user"));
    format!("{time}  {host}  node {node:>3}  {user:<8} {:<9}  {}", word("kind"), word("text"))
}

/// Milliseconds since 1970 as a date and a time of day, UTC. What no calendar has is shown as the number.
pub fn utc(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| format!("{ms} ms"), |time| format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_dates() {
        for (ms, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (1_767_225_599_000, "2025-12-31T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(ms), shown);
        }
        assert_eq!(utc(u64::MAX), "18446744073709551615 ms");
    }
}

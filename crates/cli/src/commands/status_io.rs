//! Requests that mounted nodes issued to each member: `braid status --io`.

use std::path::Path;

use anyhow::{Result, bail};
use braid_format::Bytes;
use serde_json::{Value, json};

use crate::control::{self, Order};
use crate::process::mounts::{self, Mount};
use crate::process::others;
use crate::terminal::{
    answer::{self, say},
    size, ui,
};

/// Asks the mounted nodes that `sources` names: a pool, or a directory; all when it names none.
///
/// # Errors
/// No such mount. A node that does not answer is named on standard error.
pub fn show(sources: &[String]) -> Result<()> {
    let nodes = mounts::mounts().into_iter().chain(mounts::services());
    let mounts: Vec<Mount> = nodes.filter(|m| named(m, sources)).collect();
    if mounts.is_empty() {
        others::refuse(sources)?;
        bail!(
            "nothing of that name is mounted on this host{}: `braid status` lists what is",
            others::besides()
        );
    }
    let mut all = Vec::new();
    for (mount, mut io) in control::values(&mounts, &Order::Io) {
        io["pid"] = json!(mount.pid);
        io["mount_point"] = json!(mount.mount_point);
        all.push(io);
    }
    if answer::is_json() {
        answer::add("io", all);
    } else {
        all.iter().for_each(print);
    }
    Ok(())
}

fn named(mount: &Mount, sources: &[String]) -> bool {
    let is = |source: &String| *source == mount.pool || is_on(mount, source);
    sources.is_empty() || sources.iter().any(is)
}

/// Whether a mount's directory is meant, or the place where a server serves.
pub fn is_on(mount: &Mount, dir: &str) -> bool {
    if mount.is_service {
        return mount.mount_point == Path::new(dir);
    }
    let same = |p: std::path::PathBuf| p == mount.mount_point;
    // Nothing is asked of a mount, also not of one of another user.
    let dir = Path::new(dir);
    std::path::absolute(dir).is_ok_and(same)
        || others::at(dir).is_none() && mounts::resolved(dir).is_ok_and(same)
}

fn print(io: &Value) {
    say!(
        "pool {} on {} (process {}): requests issued since it was mounted",
        io["pool"].as_str().unwrap_or_default(),
        io["mount_point"].as_str().unwrap_or_default(),
        io["pid"]
    );
    let mut table =
        ui::table(&["member", "device", "", "requests", "bytes", "mean", "time", "sizes from"]);
    for member in io["members"].as_array().into_iter().flatten() {
        let who = [member["index"].to_string(), member["path"].as_str().unwrap_or("").to_owned()];
        for (key, what) in [("reads", "read"), ("writes", "write")] {
            let t = &member[key];
            let number = |v: &Value| v.as_u64().unwrap_or(0);
            let (requests, bytes) = (number(&t["requests"]), number(&t["bytes"]));
            let sizes = t["sizes"].as_array().into_iter().flatten();
            let sizes = sizes
                .map(|s| format!("{}: {}", size::show(number(&s["from"])), s["requests"]))
                .collect::<Vec<_>>();
            table.add_row([
                who[0].clone(),
                who[1].clone(),
                what.to_owned(),
                requests.to_string(),
                size::show(bytes),
                size::show(Bytes(bytes.checked_div(requests).unwrap_or(0)).get()),
                t["mean_ms"].as_f64().map_or_else(String::new, |ms| format!("{ms:.2} ms")),
                sizes.join(", "),
            ]);
        }
        let rest = [
            ("flushes", "flush"),
            ("compare_and_writes", "compare-and-write"),
            ("discards", "discard"),
            ("zeroes", "zero"),
        ];
        for (key, what) in rest {
            if member[key] != 0 {
                let count = member[key].to_string();
                table.add_row([&who[0], &who[1], what, &count, "", "", "", ""]);
            }
        }
    }
    say!("{table}");
    print_slow_members(io);
}

fn print_slow_members(io: &Value) {
    for member in io["members"].as_array().into_iter().flatten() {
        if member["slow"] == true {
            let path = member["path"].as_str().unwrap_or_default();
            say!("member {} ({path}) is slow beside its peers", member["index"]);
        }
    }
}

/// Names the members that this host's mounts of `pool` find slow.
pub fn print_slow(pool: &str, mounts: &[Mount]) {
    let mounts: Vec<Mount> = mounts.iter().filter(|m| m.pool == pool).cloned().collect();
    for (_, io) in control::values(&mounts, &Order::Io) {
        print_slow_members(&io);
    }
}

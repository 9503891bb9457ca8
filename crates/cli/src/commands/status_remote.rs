//! `braid status` of mounts from a server.

use braid_bulk::error::moment;
use serde_json::{Value, json};

use super::status_io::is_on;
use crate::control::remote::{self, RemoteView};
use crate::process::mounts::Mount;
use crate::terminal::{answer, answer::say, size};

/// Where the server has it.
fn url(mount: &Mount) -> &str {
    mount.sources.first().map_or("a server", String::as_str)
}

/// In a few words.
fn said(mount: &Mount, view: Option<&RemoteView>) -> String {
    match view {
        None => "its process does not answer".to_owned(),
        Some(view) if view.connected && view.servers > 1 => {
            format!("from {}, by {}", url(mount), view.server)
        }
        Some(view) if view.connected => format!("from {}", url(mount)),
        Some(_) => format!("NO ANSWER from {}: programs wait for it", url(mount)),
    }
}

/// A line of the table of mounts.
pub fn row(mount: &Mount) -> [String; 4] {
    let state = said(mount, remote::look(mount).as_ref());
    let dir = mount.mount_point.display().to_string();
    [mount.pool.clone(), state, dir, mount.pid.to_string()]
}

/// Shows one of `mounts`, if that is what the words name.
pub fn is_shown(words: &[String], mounts: &[Mount]) -> bool {
    let [one] = words else { return false };
    let found = mounts.iter().find(|mount| is_on(mount, one));
    found.map(show).is_some()
}

/// For programs.
pub fn json(mount: &Mount) -> Value {
    let view = remote::look(mount);
    json!({
        "pid": mount.pid,
        "pool": mount.pool,
        "mount_point": mount.mount_point,
        "url": url(mount),
        "connected": view.as_ref().map(|view| view.connected),
        "server": view.as_ref().map(|view| view.server.clone()),
        "server_since": view.as_ref().map(|view| view.since),
        "server_moves": view.as_ref().map(|view| view.moves),
        "open_files": view.as_ref().map(|view| view.open_files),
        "not_durable": view.as_ref().map(|view| view.not_durable),
        "leases": view.as_ref().map(|view| view.leases),
        "requests": view.as_ref().map(|view| view.requests),
    })
}

/// All there is to say of one.
fn show(mount: &Mount) {
    if answer::is_json() {
        answer::add("remote_mounts", [json(mount)]);
        return;
    }
    let view = remote::look(mount);
    let dir = mount.mount_point.display();
    say!("{dir}: pool {}, mounted {}", mount.pool, said(mount, view.as_ref()));
    if let Some(view) = view {
        let bytes = u64::try_from(view.not_durable).unwrap_or(u64::MAX);
        if view.servers > 1 {
            let times = match view.moves {
                0 => "no server died before".to_owned(),
                1 => "once a server had died".to_owned(),
                n => format!("{n} times a server had died"),
            };
            let since = moment(view.since);
            say!("{} is used since {since}, one of {}; {times}", view.server, view.servers);
        }
        say!("{} open files; {} written and not durable yet", view.open_files, size::show(bytes));
        say!("{} inodes kept under leases; {} requests sent", view.leases, view.requests);
    }
    say!("this host is no node of the pool: ask the server about its members and nodes");
}

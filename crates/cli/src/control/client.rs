//! Finds a mount of this host and gives its node an order.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::control::{
    orders::{Answer, Named, Order},
    views::{MemberView, View},
};
use crate::process::mounts::{self, Mount};

/// A node that has not answered a quick order for so long is stopped, or hangs.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// Who only looks waits for so long, then does without what the node knows.
pub const LOOK_TIME: Duration = Duration::from_millis(1500);

/// The mount that a user names: by its pool, its directory, or one of its devices.
///
/// # Errors
/// There is none on this host, or several.
pub fn find(name: &str) -> Result<Mount> {
    look(name)?.with_context(|| {
        format!(
            "{name} is not mounted on this host: that is done by a node that has the pool mounted"
        )
    })
}

/// As [`find`]; `None`: it is not mounted on this host.
///
/// # Errors
/// There are several.
pub fn look(name: &str) -> Result<Option<Mount>> {
    let path = std::fs::canonicalize(name).ok();
    let named = |m: &Mount| {
        m.pool == name
            || path
                .as_ref()
                .is_some_and(|p| *p == m.mount_point || m.sources.iter().any(|s| Path::new(s) == p))
    };
    let mut found: Vec<Mount> = mounts::mounts().into_iter().filter(named).collect();
    if found.len() > 1
        && let Some(keeper) = keeper(&found)
    {
        return Ok(Some(keeper));
    }
    match (found.pop(), found.len()) {
        (mount, 0) => Ok(mount),
        (None, _) => Ok(None),
        (Some(_), n) => bail!("{name} names {} mounts: give the directory of one", n + 1),
    }
}

/// Of several nodes that have one pool mounted, the one that fills members, or else any: a pool is
/// changed for all of them. `None`: they are of different pools, or one does not say.
fn keeper(mounts: &[Mount]) -> Option<Mount> {
    let views: Vec<View> =
        mounts.iter().map(|m| order(m, &Order::Members).ok()).collect::<Option<_>>()?;
    let first = views.first()?;
    if views.iter().any(|v| v.uuid != first.uuid) {
        return None;
    }
    mounts.get(views.iter().position(|v| v.keeper).unwrap_or(0)).cloned()
}

/// Gives an order to a mounted node.
///
/// # Errors
/// The node does not answer, or refuses.
pub fn order(mount: &Mount, order: &Order) -> Result<View> {
    view_of(call(mount, order, ANSWER_TIME)?)
}

/// As [`order`], one that is answered at once, with `time` for the answer.
///
/// # Errors
/// As [`order`].
pub fn order_within(mount: &Mount, order: &Order, time: Duration) -> Result<View> {
    view_of(call(mount, order, time)?)
}

fn view_of(answer: Answer) -> Result<View> {
    match answer {
        Answer::Done(view) => Ok(*view),
        Answer::Refused(why) => bail!("{why}"),
        Answer::Value(_) => bail!("the node gave another answer than was asked for"),
    }
}

/// Gives an order that is not about members, and is answered otherwise.
///
/// # Errors
/// The node does not answer, or refuses.
pub fn value(mount: &Mount, order: &Order) -> Result<serde_json::Value> {
    match call(mount, order, ANSWER_TIME)? {
        Answer::Value(value) => Ok(value),
        Answer::Refused(why) => bail!("{why}"),
        Answer::Done(_) => bail!("the node gave another answer than was asked for"),
    }
}

/// `time`: for the answer to an order that is quick.
fn call(mount: &Mount, order: &Order, time: Duration) -> Result<Answer> {
    let silent = || format!("the node that serves {} does not answer", mount.mount_point.display());
    let path = mounts::control_socket(mount.pid)?;
    let mut stream = UnixStream::connect(&path).with_context(silent)?;
    if order.is_quick() {
        // The kernel takes a call for a process that is stopped, too.
        stream.set_read_timeout(Some(time))?;
    }
    writeln!(stream, "{}", serde_json::to_string(order)?)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).with_context(silent)?;
    serde_json::from_str(&line).with_context(silent)
}

/// The member that a user names: by its place in the pool, or its device.
///
/// # Errors
/// There is none.
pub fn member(view: &View, name: &str) -> Result<Named> {
    let path = std::fs::canonicalize(name).ok();
    let is = |m: &&MemberView| {
        name.parse() == Ok(m.index)
            || m.path == name
            || path
                .as_ref()
                .is_some_and(|p| std::fs::canonicalize(&m.path).ok().as_ref() == Some(p))
    };
    let found = view.members.iter().find(is).with_context(|| {
        let all: Vec<String> =
            view.members.iter().map(|m| format!("{} ({})", m.index, m.path)).collect();
        format!("no member {name}; the members are {}", all.join(", "))
    })?;
    Ok(Named { place: found.index, uuid: found.uuid.clone() })
}

//! The nodes of a pool as JSON: the answer to [`Order::Nodes`](crate::control::Order::Nodes).

use std::time::Duration;

use braid_format::node::SlotState;
use braid_fs::lock::{FenceMethod, MessageWay, NodeView};
use serde_json::{Value, json};

/// The answer to `Order::Nodes`.
pub fn answer(fs: &braid_fs::Fs) -> Value {
    let nodes: Vec<Value> = seen(fs).iter().map(|(node, state)| as_json(node, state)).collect();
    json!({
        "self": fs.life().slot.get(),
        "nodes": nodes,
        "waits": fs.waits().iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// The nodes as this one sees them, each with the word for what it is.
pub fn seen(fs: &braid_fs::Fs) -> Vec<(NodeView, &'static str)> {
    let withdrawn = fs.withdrawn().is_some();
    let own = fs.life().slot;
    let word = |n: NodeView| {
        let word = if withdrawn && n.life.slot == own { WITHDRAWN } else { state(&n) };
        (n, word)
    };
    fs.status().nodes.into_iter().map(word).collect()
}

/// One node, and the word for what it is.
pub fn as_json(n: &NodeView, state: &str) -> Value {
    let seconds = |d: Duration| d.as_secs_f64();
    // A process of this host is seen to be dead at two looks; others are silent for long before.
    let here = n.fence == FenceMethod::Kernel;
    let bound = if here { n.timing.beat() * 2 } else { n.timing.fence_after() };
    json!({
        "slot": n.life.slot.get(),
        "incarnation": n.life.incarnation.get(),
        "state": state,
        "host": n.host,
        "pid": n.pid,
        "mount_point": n.mount_point,
        "of_this_host": n.of_this_host,
        "since": n.since,
        "recovered_by": n.recoverer.map(|by| by.slot.get()),
        "last_beat_s": n.last_beat.map(seconds),
        "epoch": n.epoch,
        "fence": n.fence.name(),
        "messages": n.messages.map(MessageWay::name),
        "asked": n.asks.asks,
        "given": n.asks.given,
        "hand_over_s": n.asks.mean.map(seconds),
        "key": (n.key != 0).then(|| format!("{:#018x}", n.key)),
        "io_timeout_s": seconds(n.timing.io_timeout()),
        "suspect_after_s": seconds(n.timing.suspect_after()),
        "fenced_after_s": (n.fence != FenceMethod::Operator).then(|| seconds(bound)),
    })
}

/// What is to be done about a silent node of this host, whose lock these devices do not show.
pub fn see_that_it_has_ended(pid: &str) -> String {
    format!(
        "it is of this host and used other devices than these (is one a copy of the other?); see that its process {pid} has ended"
    )
}

/// Whether a node that has the pool mounted shows no life.
pub fn is_silent(n: &NodeView) -> bool {
    state(n) == SILENT
}

/// All words for what a node is.
pub const STATES: [&str; 7] = [ALIVE, SILENT, WITHDRAWN, RECOVERED, DAMAGED, UNREADABLE, FREE];
const ALIVE: &str = "alive";
const SILENT: &str = "silent";
/// A node that serves nothing any more, and waits to be unmounted. It alone knows.
pub const WITHDRAWN: &str = "withdrawn";
const RECOVERED: &str = "being recovered";
const DAMAGED: &str = "damaged";
const UNREADABLE: &str = "unreadable";
const FREE: &str = "free";

/// The word for what a node is.
pub fn state(node: &NodeView) -> &'static str {
    match (node.state, node.beating) {
        _ if node.unreadable.is_some() => UNREADABLE,
        (SlotState::Active, true) => ALIVE,
        (SlotState::Active, false) => SILENT,
        (SlotState::Recovering, _) if node.damage.is_some() => DAMAGED,
        (SlotState::Recovering, _) => RECOVERED,
        (SlotState::Free, _) => FREE,
    }
}

//! The nodes of a pool as JSON: the answer to [`Order::Nodes`](crate::control::Order::Nodes).

use std::time::Duration;

use braid_format::node::SlotState;
use braid_fs::lock::{FenceMethod, NodeView};
use serde_json::{Value, json};

/// The answer to [`Order::Nodes`].
pub fn answer(fs: &braid_fs::Fs) -> Value {
    let status = fs.status();
    json!({
        "self": status.slot.get(),
        "nodes": status.nodes.iter().map(as_json).collect::<Vec<_>>(),
        "waits": fs.waits().iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// One node.
pub fn as_json(n: &NodeView) -> Value {
    let seconds = |d: Duration| d.as_secs_f64();
    // A process of this host is seen to be dead at two looks; others are silent for long before.
    let here = n.fence == FenceMethod::Kernel;
    let bound = if here { n.timing.beat() * 2 } else { n.timing.fenced() };
    json!({
        "slot": n.life.slot.get(),
        "incarnation": n.life.incarnation.get(),
        "state": state(n),
        "host": n.host,
        "pid": n.pid,
        "mount_point": n.mount_point,
        "since": n.since,
        "recovered_by": n.recoverer.map(|by| by.slot.get()),
        "last_beat_s": n.last_beat.map(seconds),
        "epoch": n.epoch,
        "fence": n.fence.name(),
        "key": (n.key != 0).then(|| format!("{:#018x}", n.key)),
        "io_timeout_s": seconds(n.timing.io_timeout()),
        "suspect_after_s": seconds(n.timing.suspect()),
        "fenced_after_s": (n.fence != FenceMethod::Operator).then(|| seconds(bound)),
    })
}

/// The word for what a node is.
pub fn state(node: &NodeView) -> &'static str {
    match (node.state, node.beating) {
        _ if node.unreadable.is_some() => "unreadable",
        (SlotState::Active, true) => "alive",
        (SlotState::Active, false) => "silent",
        (SlotState::Recovering, _) if node.damage.is_some() => "damaged",
        (SlotState::Recovering, _) => "being recovered",
        (SlotState::Free, _) => "free",
    }
}

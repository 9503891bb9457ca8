//! `braid nodes`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use braid_format::node::SlotState;
use braid_fs::lock::{FenceMethod, NodeView};
use serde_json::{Value, json};

use crate::control::{self, Order};
use crate::{sources, ui};

/// Show the nodes of a pool: who lives, who is silent, how each would be fenced, and how long that takes.
///
/// Asks a node of this host that has the pool mounted; where there is none, or with devices, only what the
/// slots on the devices say is shown.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, its directory, or all of its devices
    #[arg(required = true, value_name = "NAME|DIR|DEVICE")]
    sources: Vec<String>,
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mount = match args.sources.as_slice() {
        [one] => control::look(one)?,
        _ => None,
    };
    let nodes = if let Some(mount) = mount {
        control::value(&mount, &Order::Nodes)?
    } else {
        let cluster = braid_fs::inspect(sources::open_degraded(&args.sources, true)?)?;
        json!({"nodes": cluster.nodes.iter().map(as_json).collect::<Vec<_>>()})
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&nodes)?);
    } else {
        show(&nodes);
    }
    Ok(ExitCode::SUCCESS)
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

/// The answer to [`Order::Nodes`].
pub fn answer(fs: &braid_fs::Fs) -> Value {
    let status = fs.status();
    json!({
        "self": status.slot.get(),
        "nodes": status.nodes.iter().map(as_json).collect::<Vec<_>>(),
        "waits": fs.waits().iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn as_json(n: &NodeView) -> Value {
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

fn show(nodes: &Value) {
    let text = |v: &Value| match v {
        Value::Null => "-".to_owned(),
        Value::String(s) => s.clone(),
        v => v.to_string(),
    };
    let time = |v: &Value| v.as_f64().map_or_else(|| "-".to_owned(), |s| format!("{s:.1} s"));
    let mut table = ui::table(&[
        "node",
        "state",
        "host",
        "life",
        "last beat",
        "epoch",
        "fence by",
        "fenced within",
        "key",
        "process",
        "mounted on",
    ]);
    let all = nodes["nodes"].as_array().into_iter().flatten();
    for n in all.clone() {
        let own = n["slot"] == nodes["self"];
        table.add_row([
            format!("{}{}", n["slot"], if own { " (this)" } else { "" }),
            text(&n["state"]),
            text(&n["host"]),
            text(&n["incarnation"]),
            time(&n["last_beat_s"]),
            text(&n["epoch"]),
            text(&n["fence"]),
            time(&n["fenced_after_s"]),
            text(&n["key"]),
            text(&n["pid"]),
            text(&n["mount_point"]),
        ]);
    }
    if all.clone().next().is_none() {
        println!("no node has it mounted");
        return;
    }
    println!("{table}");
    for wait in nodes["waits"].as_array().into_iter().flatten() {
        println!("{}", text(wait));
    }
    for n in all.filter(|n| n["state"] == "silent" && n["fence"] == "operator") {
        println!(
            "node {slot} on {host} is silent and nothing here can fence it: turn its host off, then `braid fence POOL {slot} --confirm`",
            slot = n["slot"],
            host = text(&n["host"]),
        );
    }
}

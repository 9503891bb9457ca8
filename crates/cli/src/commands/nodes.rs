//! `braid nodes`

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use crate::control::{self, Order, View, history, nodes};
use crate::pools::sources;
use crate::process::asker::Patience;
use crate::terminal::{
    answer::{self, say},
    ui,
};

/// Show the nodes of a pool: which are alive, which are silent, how each would be fenced, how long
/// that takes, by which way this node tells each which locks it wants, and how long a hand-over takes that this
/// node asks for by a message (the mean of the last ones). A member that a node of this host gets no answer from is
/// named, and since when.
///
/// Asks a node of this host that has the pool mounted; where none answers, or with devices, only what the
/// slots on the devices say is shown.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, its directory, or all of its devices
    #[arg(required = true, value_name = "NAME|DIR|DEVICE")]
    sources: Vec<String>,
    #[command(flatten)]
    patience: Patience,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.patience.begin();
    let mounts = match args.sources.as_slice() {
        [one] => control::named(one),
        _ => Vec::new(),
    };
    let silent = silent_members(&control::views(&mounts));
    let answering = control::answering(&mounts, control::LOOK_TIME)?;
    let said = answering.and_then(|(mount, _)| control::values(&[mount], &Order::Nodes).pop());
    let mut nodes = if let Some((_, nodes)) = said {
        nodes
    } else {
        // A node that is stopped says nothing, and its devices do.
        let sources = mounts.first().map_or(&args.sources, |mount| &mount.sources);
        let cluster = braid_fs::inspect(sources::open_degraded(sources, true)?)?;
        let one = |n| nodes::as_json(n, nodes::state(n));
        json!({"nodes": cluster.nodes.iter().map(one).collect::<Vec<_>>()})
    };
    nodes["silent_members"] = silent.into();
    if answer::is_json() {
        answer::add_all(nodes);
    } else {
        show(&nodes);
    }
    Ok(ExitCode::SUCCESS)
}

/// Members that nodes of this host get no answer from, as these say.
fn silent_members(views: &[Option<View>]) -> Vec<Value> {
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    let of = |view: &View, (member, seconds, given_up): (u16, u64, bool)| {
        let path = view.members.iter().find(|m| m.index == member).map(|m| m.path.clone());
        let since = history::utc(now.saturating_sub(seconds.saturating_mul(1000)));
        json!({
            "node": view.node, "member": member, "path": path, "seconds": seconds, "since": since,
            "given_up": given_up,
        })
    };
    let views = views.iter().flatten();
    views.flat_map(|view| view.silent.iter().map(|silent| of(view, *silent))).collect()
}

/// One of them, for people.
fn silent_line(silent: &Value) -> String {
    let text = |name: &str| silent[name].as_str().unwrap_or("-").to_owned();
    let what = if silent["given_up"] == true { ", and is given up" } else { "" };
    format!(
        "node {} gets no answer from member {} ({}): for {} s, since {}{what}",
        silent["node"],
        silent["member"],
        text("path"),
        silent["seconds"],
        text("since"),
    )
}

fn show(nodes: &Value) {
    let text = |v: &Value| match v {
        Value::Null => "-".to_owned(),
        Value::String(s) => s.clone(),
        v => v.to_string(),
    };
    let time = |v: &Value| v.as_f64().map_or_else(|| "-".to_owned(), |s| format!("{s:.1} s"));
    let milliseconds =
        |v: &Value| v.as_f64().map_or_else(|| "-".to_owned(), |s| format!("{:.2} ms", s * 1e3));
    let mut table = ui::table(&[
        "node",
        "state",
        "host",
        "life",
        "last beat",
        "epoch",
        "fence by",
        "fenced within",
        "messages by",
        "hand-over",
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
            text(&n["messages"]),
            milliseconds(&n["hand_over_s"]),
            text(&n["key"]),
            text(&n["pid"]),
            text(&n["mount_point"]),
        ]);
    }
    if all.clone().next().is_none() {
        say!("no node has it mounted");
        return;
    }
    say!("{table}");
    let silent = nodes["silent_members"].as_array().into_iter().flatten().map(silent_line);
    let waits = nodes["waits"].as_array().into_iter().flatten().map(text);
    silent.chain(waits).for_each(|line| say!("{line}"));
    for n in all.clone().filter(|n| n["state"] == nodes::WITHDRAWN) {
        say!(
            "node {} (this) has withdrawn, and every call there fails: unmount it and mount it again",
            n["slot"]
        );
    }
    for n in all.filter(|n| n["state"] == "silent" && n["fence"] == "operator") {
        let first = if n["of_this_host"] == true {
            nodes::see_that_it_has_ended(&text(&n["pid"]))
        } else {
            "turn its host off".to_owned()
        };
        say!(
            "node {slot} on {host} is silent and nothing here can fence it: {first}, then `braid fence POOL {slot} --confirm`",
            slot = n["slot"],
            host = text(&n["host"]),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::MemberView;

    #[test]
    fn a_member_that_is_silent_for_a_node_is_named_with_the_time() {
        let member = MemberView { index: 2, path: "/dev/sdc".into(), ..MemberView::default() };
        let view = View {
            node: Some(1),
            members: vec![member],
            silent: vec![(2, 12, false)],
            ..View::default()
        };
        let silent = silent_members(&[None, Some(view.clone())]);
        let line = silent_line(&silent[0]);
        let wanted = "node 1 gets no answer from member 2 (/dev/sdc): for 12 s, since 20";
        assert!(line.starts_with(wanted) && line.ends_with('Z'), "{line}");
        let given_up = View { silent: vec![(2, 12, true)], ..view };
        let line = silent_line(&silent_members(&[Some(given_up)])[0]);
        assert!(line.ends_with(", and is given up"), "{line}");
    }
}

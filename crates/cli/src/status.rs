//! `braid status`

use std::process::ExitCode;

use anyhow::{Result, bail};
use braid_format::NodeId;
use braid_format::label::Label;
use braid_format::node::SlotDamage;
use braid_fs::ClusterView;
use serde_json::json;

use crate::nodes::state;
use crate::runtime::Mount;
use crate::{issued, runtime, size, sources, topology, ui};

/// Show mounts of this host, or a pool: members, space, nodes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, the directory where it is mounted, or all of its devices (default: what is
    /// mounted on this host)
    #[arg(value_name = "NAME|DEVICE|DIR")]
    sources: Vec<String>,
    /// Show the pool's topology: how its members are put together
    #[arg(long)]
    topology: bool,
    /// Show what nodes mounted on this host (of a pool, on a directory, or all) have asked of each
    /// member: counts, bytes and sizes of requests as they were issued
    #[arg(long, conflicts_with = "topology")]
    io: bool,
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

/// What mends a dead node's private metadata.
const ADVICE: &str = "run `braid check --repair` after unmounting all nodes";

/// Runs it. Looking changes nothing, and needs no mount.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.io {
        issued::show(&args.sources, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mounts = runtime::mounts();
    let sources = meant(args, &mounts)?;
    let view = if sources.is_empty() {
        None
    } else {
        let pool = sources::open_degraded(&sources, true)?;
        let (info, label) = (pool.info().clone(), pool.label());
        let paths: Vec<String> = info.members.iter().map(|m| m.path.clone()).collect();
        if args.topology && !args.json {
            topology::print(&label, &paths);
            issued::print_slow(&info.name, &mounts);
            return Ok(ExitCode::SUCCESS);
        }
        Some((info, braid_fs::inspect(pool)?, topology::as_json(&label, &paths)))
    };
    if args.json {
        let mounts: Vec<_> = mounts
            .iter()
            .map(|m| json!({"pid": m.pid, "pool": m.pool, "mount_point": m.mount_point}))
            .collect();
        let pool = view.as_ref().map(|(info, cluster, topology)| {
            let mut pool = as_json(info, cluster);
            pool["topology"] = topology.clone();
            pool
        });
        println!("{}", serde_json::to_string_pretty(&json!({"mounts": mounts, "pool": pool}))?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some((info, cluster, _)) = &view {
        show(info, cluster);
    } else if mounts.is_empty() {
        println!("nothing is mounted on this host; name a pool to see it");
    } else {
        let mut table = ui::table(&["pool", "mounted on", "process"]);
        for m in &mounts {
            table.add_row([m.pool.clone(), m.mount_point.display().to_string(), m.pid.to_string()]);
        }
        println!("{table}");
    }
    Ok(ExitCode::SUCCESS)
}

/// What to open: a directory stands for what is mounted there, and nothing, where a topology is asked
/// for, for the one pool that is mounted.
fn meant(args: &Args, mounts: &[Mount]) -> Result<Vec<String>> {
    match (args.sources.as_slice(), mounts) {
        ([], [first, rest @ ..]) if args.topology => {
            if let Some(other) = rest.iter().find(|m| m.pool != first.pool) {
                bail!("pools {} and {} are mounted on this host: name one", first.pool, other.pool);
            }
            Ok(first.sources.clone())
        }
        ([one], _) => {
            let at = mounts.iter().find(|m| issued::is_on(m, one));
            Ok(at.map_or_else(|| args.sources.clone(), |m| m.sources.clone()))
        }
        _ => Ok(args.sources.clone()),
    }
}

fn show(info: &braid_pool::PoolInfo, cluster: &ClusterView) {
    println!(
        "pool {} ({}), epoch {}: {}, stripe unit {}, block size {}",
        info.name,
        info.uuid,
        info.epoch,
        size::show(info.size.get() - info.holes.get()),
        size::show(info.stripe_unit.get()),
        size::show(cluster.block_size.get()),
    );
    println!(
        "space: {} free of {}; {} inodes",
        size::show(cluster.free.get()),
        size::show(cluster.size.get()),
        cluster.inodes
    );
    if let Some(locks) = &cluster.locks {
        println!("locks: {locks}");
    }
    let mut members = ui::table(&["member", "device", "size", "used for data"]);
    for m in &info.members {
        members.add_row([
            m.index.to_string(),
            m.path.clone(),
            size::show(m.size.get()),
            size::show(m.data_len.get()),
        ]);
    }
    println!("{members}");
    for m in info.members.iter().filter(|m| m.size.get() >= m.known.get() + Label::ALIGN.get()) {
        println!(
            "member {} ({}) has {} more than when it joined: `braid grow` lets the pool use it",
            m.index,
            m.path,
            size::show(m.size.get() - m.known.get())
        );
    }
    if cluster.nodes.is_empty() {
        println!("no node has it mounted ({} may at once)", cluster.node_slots);
        return;
    }
    let mut nodes = ui::table(&["node", "state", "host", "process", "mounted on"]);
    for n in &cluster.nodes {
        nodes.add_row([
            n.life.slot.to_string(),
            state(n).to_owned(),
            n.host.clone(),
            n.pid.to_string(),
            n.mount_point.clone(),
        ]);
    }
    println!("{nodes}");
    for n in &cluster.nodes {
        if let Some(damage) = n.damage {
            println!("{}", damaged(n.life.slot, damage));
        }
    }
}

/// What keeps a dead node from being recovered, and what to do about it.
fn damaged(slot: NodeId, damage: SlotDamage) -> String {
    let lost = if damage.replayed {
        "space that it was using is not given out"
    } else {
        "what it held locked gives EIO"
    };
    format!(
        "node {slot} is dead and cannot be recovered: its {} is damaged (block {}); {lost}; {ADVICE}",
        damage.part.name(),
        damage.block
    )
}

fn as_json(info: &braid_pool::PoolInfo, cluster: &ClusterView) -> serde_json::Value {
    json!({
        "name": info.name,
        "uuid": info.uuid.to_string(),
        "epoch": info.epoch.get(),
        "size": info.size.get() - info.holes.get(),
        "stripe_unit": info.stripe_unit.get(),
        "stripe_width": info.stripe_width.get(),
        "block_size": cluster.block_size.get(),
        "fs_size": cluster.size.get(),
        "fs_free": cluster.free.get(),
        "inodes": cluster.inodes,
        "node_slots": cluster.node_slots,
        "locks": cluster.locks,
        "members": info.members.iter().map(|m| json!({
            "index": m.index.get(), "path": m.path, "size": m.size.get(), "data": m.data_len.get(),
        })).collect::<Vec<_>>(),
        "nodes": cluster.nodes.iter().map(|n| json!({
            "slot": n.life.slot.get(), "incarnation": n.life.incarnation.get(), "state": state(n),
            "host": n.host, "pid": n.pid, "mount_point": n.mount_point, "since": n.since,
            "damage": n.damage.map(|d| json!({
                "structure": d.part.name(), "block": d.block.get(), "replayed": d.replayed,
                "advice": ADVICE,
            })),
        })).collect::<Vec<_>>(),
    })
}

//! `braid fence`

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use braid_format::NodeId;
use braid_pool::PoolError;

use crate::control::{self, Order};
use crate::pools::sources;
use crate::terminal::answer::{self, say};

/// Say that the host of a silent node is off, so that it is recovered.
///
/// This is needed only if nothing else can prove that the node is dead: for nodes of this host the
/// kernel does, others are fenced by reservation or by the program of the mount option
/// fence_command. If the host is not off, what it still writes damages the file system. A node of
/// this host whose disk has another device node since (a loop device attached under another number)
/// is not known by the kernel either: see that its process has ended. Nor is one whose process has
/// ended while a target of its units cannot be reached any more: see that the target is off, or was
/// started anew since. A node whose process lives is never taken for dead.
///
/// Where no node of this host has the pool mounted, the word is written into the node's slot: every node takes
/// it for a fence, `braid check` too, and the next to mount recovers it. That takes 5/4 of the node's
/// io_timeout, during which it must show no heartbeat.
#[derive(Debug, clap::Args)]
#[command(override_usage = "braid fence --confirm [--degraded] <NAME|DIR|DEVICE>... <NODE>")]
pub struct Args {
    /// The pool's name, its directory, or all of its devices; then the node's number in `braid nodes`
    #[arg(required = true, num_args = 2.., value_name = "NAME|DIR|DEVICE... NODE")]
    words: Vec<String>,
    /// You have seen to it that the host is off, or cut off from all devices
    #[arg(long)]
    confirm: bool,
    /// Do without members that are missing
    #[arg(long)]
    degraded: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (node, named) = args.words.split_last().context("name a pool, then a node")?;
    let node: u16 =
        node.parse().with_context(|| format!("{node}: not a node's number (see `braid nodes`)"))?;
    if !args.confirm {
        bail!(
            "turn the host of node {node} off, or cut it off from all devices, then give --confirm: what it writes later damages the file system"
        );
    }
    answer::add("node", node);
    let mount = match named {
        [one] => control::look(one)?,
        _ => None,
    };
    if let Some(mount) = mount {
        control::value(&mount, &Order::Fence { node })?;
        say!("node {node} counts as dead and is recovered; `braid nodes` shows when it is done");
    } else {
        let pool = if args.degraded {
            sources::open_degraded(named, false)?
        } else {
            sources::open(named, false).map_err(|e| match e.downcast_ref() {
                Some(PoolError::Missing { .. }) => {
                    e.context("`--degraded` does without members that are missing")
                }
                _ => e,
            })?
        };
        braid_fs::vouch_dead(pool, NodeId(node))?;
        say!(
            "node {node} counts as dead from now on: the next mount recovers it, and `braid check` can run"
        );
    }
    Ok(ExitCode::SUCCESS)
}

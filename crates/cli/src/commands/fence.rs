//! `braid fence`

use std::process::ExitCode;
use std::thread::ScopedJoinHandle;

use anyhow::{Context, Result, bail};
use braid_format::NodeId;
use braid_format::node::SlotState;
use braid_pool::PoolError;

use crate::control::{
    self, Order,
    session::{NOTHING_CHANGED, Session},
};
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
/// io_timeout, during which it must show no heartbeat. `all` instead of a number gives the word for all nodes: of
/// images (snapshots, copies) of a pool's disks, which no node uses.
#[derive(Debug, clap::Args)]
#[command(override_usage = "braid fence --confirm [--degraded] <NAME|DIR|DEVICE>... <NODE|all>")]
pub struct Args {
    /// The pool's name, its directory, or all of its devices; then the node's number in `braid nodes`, or `all`
    #[arg(required = true, num_args = 2.., value_name = "NAME|DIR|DEVICE... NODE")]
    words: Vec<String>,
    /// You have seen to it that the host is off, or cut off from all devices
    #[arg(long, visible_alias = "yes")]
    confirm: bool,
    /// Do without members that are missing
    #[arg(long)]
    degraded: bool,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (node, named) = args.words.split_last().context("name a pool, then a node")?;
    let node: Option<u16> =
        match &**node {
            "all" => None,
            one => Some(one.parse().with_context(|| {
                format!("{one}: not a node's number (see `braid nodes`), nor all")
            })?),
        };
    if !args.confirm && !args.dry_run {
        let whose = node.map_or_else(|| "all nodes".to_owned(), |node| format!("node {node}"));
        bail!(
            "turn the host of {whose} off, or cut it off from all devices, then give --confirm: what it writes later damages the file system"
        );
    }
    let mount = match named {
        [one] => control::look(one)?,
        _ => None,
    };
    match (mount, node) {
        (Some(mount), Some(node)) => {
            answer::add("node", node);
            if args.dry_run {
                return Session::of(mount).plan(Order::Fence { node });
            }
            control::value(&mount, &Order::Fence { node })?;
            say!(
                "node {node} counts as dead and is recovered; `braid nodes` shows when it is done"
            );
        }
        (Some(_), None) => {
            bail!("a node of this host has the pool mounted: name one node that is dead")
        }
        (None, node) => note(args, named, node)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the word into the slot of `node`, or of all that have one.
fn note(args: &Args, named: &[String], node: Option<u16>) -> Result<()> {
    let pool = match (args.dry_run, args.degraded) {
        (true, degraded) => sources::open_to_read(named, degraded),
        (false, true) => sources::open_degraded(named, false),
        (false, false) => sources::open(named, false),
    };
    let pool = pool.map_err(|e| match e.downcast_ref() {
        Some(PoolError::Missing { .. }) if !args.degraded => {
            e.context("`--degraded` does without members that are missing")
        }
        _ => e,
    })?;
    let all = if let Some(node) = node {
        vec![NodeId(node)]
    } else {
        let taken = braid_fs::inspect(pool.clone())?.nodes.into_iter();
        taken.filter(|n| n.state != SlotState::Free).map(|n| n.life.slot).collect()
    };
    // Each is watched for a while, all at once.
    let said = std::thread::scope(|scope| {
        let word = |slot| {
            if args.dry_run {
                braid_fs::plan_vouch_dead(pool.clone(), slot)
            } else {
                braid_fs::vouch_dead(pool.clone(), slot).map(drop)
            }
        };
        let watches = all.iter().map(|slot| scope.spawn(move || word(*slot)));
        let watches: Vec<_> = watches.collect();
        watches.into_iter().map(ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    for (slot, said) in all.iter().zip(said) {
        said.map_err(|_| anyhow::anyhow!("a thread died"))??;
        if args.dry_run {
            say!("node {slot} shows no life; it would count as dead from now on");
            continue;
        }
        say!(
            "node {slot} counts as dead from now on: the next mount recovers it, and `braid check` can run"
        );
    }
    if args.dry_run {
        say!("{NOTHING_CHANGED}");
    }
    if all.is_empty() {
        say!("no node has the pool mounted: nothing is to be said");
    }
    match node {
        Some(node) => answer::add("node", node),
        None => answer::add("nodes", all.iter().map(|slot| slot.0).collect::<Vec<_>>()),
    }
    Ok(())
}

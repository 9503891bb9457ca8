//! `braid thaw`

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::control::{self, Order, View, session::NOTHING_CHANGED};
use crate::process::mounts::Mount;
use crate::process::others;
use crate::terminal::answer::{self, say};

/// Let the nodes change a pool again that was frozen by `braid freeze` on this host.
///
/// If a node may not have waited all the time (the time of the freeze was over, a node did not hear of it), the pool is
/// thawed all the same, and the exit status is 1: images of the disks that were made meanwhile may not fit together.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory or one of its devices
    pool: String,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mount = frozen(&args.pool)?;
    answer::add("pool", &mount.pool);
    if args.dry_run {
        say!("{} is frozen by this host's node, and would be thawed", mount.pool);
        say!("{NOTHING_CHANGED}");
        return Ok(ExitCode::SUCCESS);
    }
    thaw(&mount)?;
    say!("{} is thawed: it was frozen until now", mount.pool);
    Ok(ExitCode::SUCCESS)
}

/// The mount whose node has frozen the pool.
fn frozen(name: &str) -> Result<Mount> {
    let mounts = control::named(name);
    if mounts.is_empty() {
        bail!("{name} is not mounted on this host{}", others::besides());
    }
    let views = mounts.iter().zip(control::views(&mounts));
    let mut said: Vec<(&Mount, View)> = Vec::new();
    let mut silent = None;
    for (mount, view) in views {
        match view {
            Some(view) => said.push((mount, view)),
            None => silent = Some(mount),
        }
    }
    let own = |(_, view): &&(&Mount, View)| view.frozen_by.is_some() && view.frozen_by == view.node;
    if let Some((mount, _)) = said.iter().find(own) {
        return Ok((*mount).clone());
    }
    match (said.iter().find_map(|(_, view)| view.frozen_by), silent) {
        (Some(node), _) => bail!(
            "{name} is frozen by node {node}: run `braid thaw` on the host of that node (`braid nodes {name}`)"
        ),
        (None, Some(mount)) => {
            let dir = mount.mount_point.display();
            bail!("the node that serves {dir} does not answer: try again")
        }
        (None, None) => bail!(
            "{name} is not frozen: if it was, its time was over, or the node that froze it has ended"
        ),
    }
}

/// Ends the freeze of the node that serves `mount`.
///
/// # Errors
/// It has frozen nothing any more, or the pool did not stay frozen all the time.
pub fn thaw(mount: &Mount) -> Result<()> {
    control::order(mount, &Order::Thaw).map(drop)
}

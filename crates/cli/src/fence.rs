//! `braid fence`

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::control::{self, Order};

/// Say that the host of a silent node is off, so that it is recovered.
///
/// Needed only where nothing else can tell: nodes of this host are known by its kernel, others are fenced by
/// reservation or by the program of the mount option fence_command. If the host is not off, what it still
/// writes damages the file system.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, or its directory, mounted on this host
    pool: String,
    /// The node: its number in `braid nodes`
    node: u16,
    /// You have seen to it that the host is off, or cut off from all devices
    #[arg(long)]
    confirm: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.confirm {
        bail!(
            "turn the host of node {} off, or cut it off from all devices, and say --confirm: what it writes later damages the file system",
            args.node
        );
    }
    let mount = control::find(&args.pool)?;
    control::value(&mount, &Order::Fence { node: args.node })?;
    println!(
        "node {} counts as dead and is recovered; `braid nodes` shows when it is done",
        args.node
    );
    Ok(ExitCode::SUCCESS)
}

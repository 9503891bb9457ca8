//! `braid trim`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::{Order, session::TaskArgs};

/// Give the space of deleted files back to the devices.
///
/// What is free in the pool is discarded: thin units of a SAN, solid-state disks and sparse files
/// take its space back. Copies and parity stay right: if one member of a mirror or parity group
/// cannot make zeros of what it gives back, that group is left alone. Files may be in use. What
/// other nodes have set aside for themselves is left. `fstrim DIR` does the same. If the pool is
/// mounted, the trim goes on when this command is interrupted; `--stop` ends it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    task: TaskArgs,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.task.run(|run| Order::Trim { run })
}

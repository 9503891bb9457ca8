//! `braid rebalance`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::{Order, session::TaskArgs};

/// Move file data until all parts of a pool are equally full.
///
/// After `braid add` or `braid grow`. Only as much moves as must, and half of the time is left to others; files may be
/// in use. Metadata stays where it is. It goes on if this command is interrupted; `--stop` ends it, and what
/// has moved stays moved.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    task: TaskArgs,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.task.run(|run| Order::Rebalance { run })
}

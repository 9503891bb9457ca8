//! `braid label`: saves the labels of a pool in a file, writes them again if they are lost, and
//! accepts members as they are.

mod accept;
mod dump;
mod file;
mod restore;

use std::process::ExitCode;

use anyhow::Result;

/// Keep a pool's labels in a file, write labels again that are lost, or take members as they are.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Accept(accept::Args),
    Dump(dump::Args),
    Restore(restore::Args),
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Accept(a) => accept::run(a),
        Command::Dump(a) => dump::run(a),
        Command::Restore(a) => restore::run(a),
    }
}

//! `braid grow`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::{
    Order,
    session::{Missing, Session},
};

/// Use what the devices of a pool have more than when they joined, while it is in use.
///
/// For LUNs that were extended and files that were made longer. What all of them have more becomes space of its
/// own, as safe as the newest of what is there: with mirrors or parity enough of them must have grown.
/// `braid status` says which have.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// Only show what would be, or why it cannot be; write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let dry_run = args.dry_run;
    Session::with(&args.pool, Missing::Refused, |session| {
        session.grow(&Order::Grow { dry_run }, dry_run, ("the pool could grow so", ""))
    })
}

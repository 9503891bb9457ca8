//! `braid rebalance`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::Order;
use crate::session::{Missing, Session};

/// Move file data until all parts of a pool are equally full.
///
/// After `braid add` or `braid grow`. Only as much moves as must, and half of the time is left to others; files may be
/// in use. Metadata stays where it is. It goes on if this command is interrupted; `--stop` ends it, and what
/// has moved stays moved.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// End the one that is under way
    #[arg(long)]
    stop: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let view = Session::with(&args.pool, Missing::Refused, |session| {
        if args.stop {
            return session.order(&STOP);
        }
        session.long_order(&Order::Rebalance { run: true }, &STOP, || ())
    })?;
    print!("{}", view.said.as_deref().unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}

const STOP: Order = Order::Rebalance { run: false };

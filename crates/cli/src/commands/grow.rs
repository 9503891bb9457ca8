//! `braid grow`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::{
    self, Order,
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
    #[arg(long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, Missing::Refused, |session| carry_out(args, session))
}

fn carry_out(args: &Args, session: &Session) -> Result<ExitCode> {
    let before = session.view()?;
    let view = session.order(&Order::Grow { dry_run: args.dry_run })?;
    print!("{}", view.said.as_deref().unwrap_or_default());
    if args.dry_run {
        println!("the pool could grow so; nothing was written");
        return Ok(ExitCode::SUCCESS);
    }
    control::show_growth(&before, &view, "");
    Ok(ExitCode::SUCCESS)
}

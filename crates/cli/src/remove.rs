//! `braid remove`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::{self, Order};
use crate::session::Session;

/// Take a member on which nothing stands out of a pool.
///
/// A spare, one that was evacuated, one that failed and was replaced. Its labels are wiped, so that the device can be
/// used for something else. The numbers of the members after it go down by one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// The member: its number in `braid status`, or its device
    member: String,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, |session| carry_out(args, session))
}

fn carry_out(args: &Args, session: &Session) -> Result<ExitCode> {
    let before = session.view()?;
    let member = control::member(&before, &args.member)?;
    let path = before.members.iter().find(|m| m.index == member.place).map(|m| m.path.clone());
    let view = session.order(&Order::Remove { member })?;
    println!("{} is out of the pool; its members are now:", path.unwrap_or_default());
    control::show(&view);
    Ok(ExitCode::SUCCESS)
}

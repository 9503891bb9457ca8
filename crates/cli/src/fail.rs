//! `braid fail`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::{self, Order};

/// Take a member out of a mounted pool, as if it had failed.
///
/// The pool must have mirrors or parity that can spare it; otherwise nothing happens. A spare, if
/// there is one, steps in at once.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or one of its devices
    pool: String,
    /// The member: its number in `braid status`, or its device
    member: String,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mount = control::find(&args.pool)?;
    let member = control::member(&control::order(&mount, &Order::Members)?, &args.member)?;
    let view = control::order(&mount, &Order::Fail { member: member.clone() })?;
    println!("member {member} of pool '{}' is out of use:", mount.pool);
    control::show(&view);
    Ok(ExitCode::SUCCESS)
}

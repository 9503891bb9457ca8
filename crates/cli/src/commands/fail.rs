//! `braid fail`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::{
    self, Order, resync,
    session::{Missing, Session},
};
use crate::terminal::answer::say;

/// Take a member out of a pool, as if it had failed.
///
/// The pool must have mirrors or parity that can spare it; otherwise nothing happens. A spare, if
/// there is one, steps in at once. If nobody has the pool mounted, this command joins it until the
/// spare is filled (Ctrl-C leaves it; the next node begins again).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// The member: its number in `braid status`, or its device
    member: String,
    /// Also if those that would stand in for it are suspected to return garbage: what only this one holds
    /// undamaged is lost
    #[arg(long)]
    force: bool,
    /// If the pool is not mounted: do without members that are missing, if the others hold
    /// everything. They count as failed from then on
    #[arg(long, conflicts_with = "dry_run")]
    degraded: bool,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, Missing::by(args.degraded), |session| {
        let member = control::member(&session.view()?, &args.member)?;
        if args.dry_run {
            return session.plan(Order::Fail { member, force: args.force });
        }
        let view = session.order(&Order::Fail { member: member.clone(), force: args.force })?;
        say!("member {member} is out of use:");
        control::show(&view);
        resync::wait_for_spares(session, &view)?;
        Ok(ExitCode::SUCCESS)
    })
}

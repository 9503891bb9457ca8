//! `braid clear`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::{
    self, Order,
    session::{Missing, Session},
};
use crate::terminal::answer;

/// Forget what was wrong with a pool, or with one member, when its cause is gone.
///
/// After a cable, a controller or a disk's firmware was changed. A member that was suspected to return garbage is read
/// like any other again, and damage is counted from zero on. Without a member, what the last scrub of this node could
/// not decide, damaged metadata that it has met, and its last error are forgotten as well. What is still wrong is found
/// again: run `braid scrub` next.
///
/// No member comes back by this, and nothing that is missing is hidden: while a member is out, a suspected one stays
/// suspected. Metrics go on counting. If nobody has the pool mounted, this command joins it meanwhile.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// The member: its number in `braid status`, or its device
    member: Option<String>,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, Missing::Refused, |session| {
        let named = args.member.as_ref();
        let member = named.map(|member| control::member(&session.view()?, member)).transpose()?;
        let order = Order::Clear { member };
        if args.dry_run {
            return session.plan(order);
        }
        let view = session.order(&order)?;
        answer::say_lines(view.said.as_deref().unwrap_or_default());
        Ok(ExitCode::SUCCESS)
    })
}

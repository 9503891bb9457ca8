//! `braid offline`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::{
    self, Order,
    session::{Missing, Session},
};
use crate::terminal::answer;

/// Take a member of a pool out of use for a while.
///
/// For work on a disk, its shelf or its cable. The pool must have mirrors or parity that can spare the member;
/// otherwise nothing happens. When this command returns, no node uses the member, all that was written to it is
/// durable, and the disk can be taken out. The pool goes on without it, and all nodes note what it misses, so that
/// `braid online` fills only that. No spare steps in: `braid fail` takes a member out for good.
///
/// The note goes by regions of 16 MiB (more in pools above 7 TiB). It ends when another member is filled, moved or
/// added meanwhile: then all of this one is filled when it is back. So of several members that are offline only the
/// first that is back catches up. While this one is out, the pool can lose one member less. If another member fails
/// that the pool cannot do without, the pool stops until that one is back: the member that is offline lacks the newest
/// data and is not used instead.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// The member: its number in `braid status`, or its device
    member: String,
    /// Only say whether the pool can spare it
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, Missing::Refused, |session| {
        let member = control::member(&session.view()?, &args.member)?;
        let view = session.order(&Order::Offline { member, dry_run: args.dry_run })?;
        answer::say_lines(view.said.as_deref().unwrap_or_default());
        if !args.dry_run {
            control::show(&view);
        }
        Ok(ExitCode::SUCCESS)
    })
}

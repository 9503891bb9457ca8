//! `braid online`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::status::MISSING;
use crate::control::{
    self, MemberView, Order, resync,
    session::{Missing, Session},
};
use crate::terminal::answer;

/// Bring a member back that is offline, on its own device.
///
/// Only what it missed while it was away is filled; the command says how much that is. All of it is filled if it was put
/// back from an image, if it is suspected to return garbage, or if another member was filled, moved or added meanwhile
/// (also one that was offline): then the record of what it missed may not be complete. A member that failed by itself
/// does not come back so: `braid replace` fills it, its own device too (--force).
///
/// The pool stays in use. If nobody has it mounted, this command joins it until the member is up to date (Ctrl-C leaves
/// it; the next node goes on).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// The member: its number in `braid status`, or its device
    member: String,
    /// Its device, if it has another path now
    device: Option<PathBuf>,
    /// Only say how much would be filled
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not wait until it is filled (if the pool is mounted)
    #[arg(long)]
    background: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, Missing::Refused, |session| {
        let before = session.view()?;
        let member = control::member(&before, &args.member)?;
        let known = before.members.iter().find(|m| m.index == member.place);
        // If the pool was opened while it was away, its device is not open, though it may be there again.
        let path = |m: &MemberView| m.path.strip_suffix(MISSING).unwrap_or(&m.path).into();
        let known = known.map(path);
        let device = args.device.clone().or(known).context("which device?")?;
        let device = session.new_device(&device)?;
        let place = member.place;
        let view = session.order(&Order::Online { member, device, dry_run: args.dry_run })?;
        answer::say_lines(view.said.as_deref().unwrap_or_default());
        if args.dry_run {
            return Ok(ExitCode::SUCCESS);
        }
        if args.background && session.stays() {
            control::show(&view);
            return Ok(ExitCode::SUCCESS);
        }
        resync::wait(session, place)?;
        Ok(ExitCode::SUCCESS)
    })
}

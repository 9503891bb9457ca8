//! `braid remove`

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::commands::member_moves::{follow, leave, succeed};
use crate::control::{
    self, MemberId, Order, View,
    session::{Missing, Session},
};
use crate::terminal::answer::{self, say};

/// Take a member out of a pool. If the member holds data, the pool becomes smaller.
///
/// What came with `braid add` or `braid grow` can leave again while the pool is in use: file data
/// on it moves to the rest of the pool, which must have room for it (half of the time is left to
/// others); then all that came together leaves the pool, and this member is taken out. The other
/// members that came with it are spares then. Metadata does not move: if there is some, the command
/// names its files, and changes nothing. It goes on if this command is interrupted; `--cancel` ends
/// it, and all of the pool is in use again.
///
/// What the pool was made with never leaves; another member takes the place of one that holds some of it: one on which
/// nothing stands, or one that came with a part that can leave. It must be as large.
///
/// Members on which nothing stands are taken out at once: a spare, one that was evacuated, one that failed and was
/// replaced. The labels are wiped, so that the device can be used for something else. The numbers of the members after
/// it go down by one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// The member: its number in `braid status`, or its device
    #[arg(required_unless_present = "cancel", conflicts_with = "cancel")]
    member: Option<String>,
    /// Only say what would move, and where there is room for it
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not wait until it is empty (if the pool is mounted): `braid status` shows how far that is, and `braid history`
    /// how it ended
    #[arg(long, conflicts_with = "cancel")]
    background: bool,
    /// End a removal that is under way: what has moved stays where it is now
    #[arg(long, visible_alias = "stop")]
    cancel: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, Missing::Refused, |session| carry_out(args, session))
}

fn carry_out(args: &Args, session: &Session) -> Result<ExitCode> {
    if args.cancel && args.dry_run {
        return session.plan(Order::LeaveEnd);
    }
    if args.cancel {
        session.order(&Order::LeaveEnd)?;
        say!("no part of the pool is emptied any more");
        return Ok(ExitCode::SUCCESS);
    }
    let before = session.view()?;
    let member = args.member.as_deref().context("which member?")?;
    let member = control::member(&before, member)?;
    let seen = before.members.iter().find(|m| m.index == member.place);
    let (path, used) = seen.map_or_else(Default::default, |m| (m.path.clone(), m.used));
    if used > 0 && args.background && session.stays() && !args.dry_run {
        not_twice(&before, &member)?;
        let view = session.begin(Order::Leave { member, dry_run: false }, true)?;
        answer::say_lines(view.said.as_deref().unwrap_or_default());
        return Ok(ExitCode::SUCCESS);
    }
    if used > 0 || args.dry_run {
        if before.moving.is_some_and(|m| m.0 == member.place) && !args.dry_run {
            follow(session, &member, true)?;
            return Ok(ExitCode::SUCCESS);
        }
        not_twice(&before, &member)?;
        let view = leave(session, &member, args.dry_run)?;
        answer::say_lines(view.said.as_deref().unwrap_or_default());
        if args.dry_run {
            // That nothing would move is not all: it may be kept for another reason.
            return if used > 0 {
                Ok(ExitCode::SUCCESS)
            } else {
                session.plan(Order::Remove { member })
            };
        }
        if let Some(successor) = view.successor {
            succeed(session, &member, successor, true)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let view = session.order(&Order::Remove { member })?;
    say!("{path} is out of the pool; its members are now:");
    control::show(&view);
    Ok(ExitCode::SUCCESS)
}

/// A member that took another's place got its number. So a user who removes that number again means
/// the member that left.
fn not_twice(view: &View, member: &MemberId) -> Result<()> {
    let left = view.members.iter().find(|m| m.state == "leaving" && m.used == 0);
    let Some(left) = left.filter(|m| m.index != member.place) else { return Ok(()) };
    let now = view.members.iter().find(|m| m.index == member.place);
    bail!(
        "member {} ({}) has given its place to another one and holds nothing any more: remove it first (`braid remove POOL {}`); member {member} is {} now; nothing was changed",
        left.index,
        left.path,
        left.index,
        now.map_or("", |m| &m.path),
    )
}

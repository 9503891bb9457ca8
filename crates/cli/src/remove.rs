//! `braid remove`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::control::{self, Named, Order, View};
use crate::session::Session;
use crate::ui;

/// Take a member out of a pool, which becomes smaller if something stands on it.
///
/// What came with `braid add` or `braid grow` can leave again while the pool is in use: file data on it moves to the
/// rest of the pool, which must have room for it (half of the time is left to others); then all that came together
/// leaves the pool, and this member is taken out. The other members that came with it are spares then. Metadata does
/// not move: if there is some, the command says of which files, and changes nothing. It goes on if this command is
/// interrupted; `--cancel` ends it, and all of the pool is in use again.
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
    #[arg(long, conflicts_with = "cancel")]
    dry_run: bool,
    /// End a removal that is under way: what has moved stays where it is now
    #[arg(long, visible_alias = "stop")]
    cancel: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, |session| carry_out(args, session))
}

fn carry_out(args: &Args, session: &Session) -> Result<ExitCode> {
    if args.cancel {
        session.order(&Order::LeaveEnd)?;
        println!("no part of the pool is emptied any more");
        return Ok(ExitCode::SUCCESS);
    }
    let before = session.view()?;
    let member = args.member.as_deref().context("which member?")?;
    let member = control::member(&before, member)?;
    let seen = before.members.iter().find(|m| m.index == member.place);
    let (path, used) = seen.map_or_else(Default::default, |m| (m.path.clone(), m.used));
    if used > 0 || args.dry_run {
        let view = leave(session, &member, args.dry_run)?;
        print!("{}", view.said.as_deref().unwrap_or_default());
        if args.dry_run {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let view = session.order(&Order::Remove { member })?;
    println!("{path} is out of the pool; its members are now:");
    control::show(&view);
    Ok(ExitCode::SUCCESS)
}

/// Lets the rest of the pool have what stands on a member, and shows how far it is.
///
/// # Errors
/// It cannot be, or was ended.
pub fn leave(session: &Session, member: &Named, dry_run: bool) -> Result<View> {
    let order = Order::Leave { member: member.clone(), dry_run };
    if dry_run {
        return session.order(&order);
    }
    let bar = ui::bar("moving");
    let done = std::thread::scope(|scope| {
        let work = scope.spawn(|| session.order(&order));
        let mut advance = ui::progress(&bar);
        while !work.is_finished() {
            if let Some((done, total)) = session.view().ok().and_then(|v| v.leaving) {
                advance(done, total);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        work.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the removal ended unexpectedly")))
    });
    bar.finish_and_clear();
    done
}

//! `braid evacuate`

use std::process::ExitCode;

use anyhow::Result;

use crate::commands::member_moves::{follow, leave, path, succeed};
use crate::control::{
    self, MemberId, Order, Target, View,
    session::{Missing, Session},
};
use crate::terminal::answer::{self, say};

/// Move everything on a member of a pool to another device.
///
/// The pool stays in use, and keeps all its redundancy: until all is copied every write goes to both
/// devices. Pools without redundancy can do it too. If the node ends in the middle, the next mount begins again. In
/// the end the new device has the old one's place; the old one stays in the pool, with nothing on it: `braid remove`
/// takes it out, `--remove` does so at once.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// The member: its number in `braid status`, or its device
    member: String,
    /// The device to move to, or the number of a spare or unused member; left out: any spare, or where there is none
    /// the rest of the pool, as `braid remove` does
    #[arg(long, value_name = "DEVICE|MEMBER")]
    to: Option<String>,
    /// Use the device although it carries a file system or belonged to a pool
    #[arg(long)]
    force: bool,
    /// Take the old device out of the pool when it holds nothing any more
    #[arg(long, conflicts_with = "cancel")]
    remove: bool,
    /// Do not wait until it is done (if the pool is mounted)
    #[arg(long)]
    background: bool,
    /// End a move that is under way: the new device becomes a spare
    #[arg(long, visible_alias = "stop", conflicts_with_all = ["to", "background"])]
    cancel: bool,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, Missing::Refused, |session| carry_out(args, session))
}

fn carry_out(args: &Args, session: &Session) -> Result<ExitCode> {
    let before = session.view()?;
    let member = control::member(&before, &args.member)?;
    if args.cancel && args.dry_run {
        return session.plan(Order::Stay { member });
    }
    if args.cancel {
        let view = session.order(&Order::Stay { member: member.clone() })?;
        say!("member {member} stays:");
        control::show(&view);
        return Ok(ExitCode::SUCCESS);
    }
    // There is no device to move it to: the rest of the pool gets it, if it has room.
    if args.to.is_none() && !before.members.iter().any(|m| m.state == "spare") {
        return shrink(args, session, &before, &member);
    }
    let to = args.to.as_ref().map(|to| target(session, &before, to)).transpose()?;
    let order = Order::Evacuate { member: member.clone(), to, force: args.force };
    if args.dry_run {
        return session.plan(order);
    }
    if args.background && args.remove && session.stays() {
        session.begin(order, true)?;
        return Ok(ExitCode::SUCCESS);
    }
    let view = session.order(&order)?;
    if args.background && session.stays() {
        control::show(&view);
        return Ok(ExitCode::SUCCESS);
    }
    follow(session, &member, args.remove)?;
    Ok(ExitCode::SUCCESS)
}

/// Moves what is on a member to the rest of the pool, which becomes smaller.
fn shrink(args: &Args, session: &Session, before: &View, member: &MemberId) -> Result<ExitCode> {
    if args.background && session.stays() && !args.dry_run {
        let order = Order::Leave { member: member.clone(), dry_run: false };
        let view = session.begin(order, args.remove)?;
        answer::say_lines(view.said.as_deref().unwrap_or_default());
        return Ok(ExitCode::SUCCESS);
    }
    let view = leave(session, member, args.dry_run)?;
    answer::say_lines(view.said.as_deref().unwrap_or_default());
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(successor) = view.successor {
        succeed(session, member, successor, args.remove)?;
        return Ok(ExitCode::SUCCESS);
    }
    let was = path(before, member.place);
    if args.remove {
        session.order(&Order::Remove { member: member.clone() })?;
        say!("{was} is out of the pool");
    } else {
        say!("{was} is a spare now: `braid remove POOL {member}` takes it out of the pool");
    }
    Ok(ExitCode::SUCCESS)
}

/// A device, or a member that is there already.
pub fn target(session: &Session, view: &View, name: &str) -> Result<Target> {
    match control::member(view, name) {
        Ok(member) => Ok(Target::Member(member)),
        Err(_) => Ok(Target::Device(session.new_device(name.as_ref())?)),
    }
}

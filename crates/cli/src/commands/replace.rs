//! `braid replace`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use braid_pool::labels::Found;

use crate::commands::member_moves::follow;
use crate::control::{
    self, MemberId, Order, Target, View, resync,
    session::{Missing, Session},
};
use crate::pools::sources;
use crate::terminal::answer::say;

/// Put another device in the place of a member of a pool, and fill it.
///
/// With mirrors or parity, the member is first taken out of use, and the new device is filled from
/// the others. (`braid evacuate` fills it from the old one instead, and the pool stays as safe as
/// before meanwhile.) Without them, everything is moved off the old device, which must still be
/// readable; then it is taken out of the pool. Everything that was on the new device is lost. The
/// pool stays in use. If nobody has it mounted, this command joins it until the new device is
/// filled (Ctrl-C leaves it; the next node begins again).
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// The member: its number in `braid status`, or its device
    member: String,
    /// The new device
    #[arg(required_unless_present = "stop", conflicts_with = "stop")]
    device: Option<PathBuf>,
    /// Use the device although it carries a file system or belonged to a pool
    #[arg(long)]
    force: bool,
    /// Do not wait until it is filled (if the pool is mounted)
    #[arg(long)]
    background: bool,
    /// End the move of a member without redundancy that is under way: it stays, and the new device becomes a spare
    #[arg(long, visible_alias = "cancel", conflicts_with_all = ["background", "force"])]
    stop: bool,
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
    if let (true, false, Some(device)) = (args.degraded, args.force, &args.device) {
        is_nobodys(device)?;
    }
    Session::with(&args.pool, Missing::by(args.degraded), |session| carry_out(args, session))
}

/// Before members that are missing count as failed: the new device may be one of those, which is being
/// filled.
fn is_nobodys(device: &Path) -> Result<()> {
    let opened = sources::open_devices(&[device.to_owned()], true)?;
    let Some(label) = opened.into_iter().find_map(|d| Found::read(d).newest().cloned()) else {
        return Ok(());
    };
    bail!(
        "{} is member {} of pool {:?}: if it is of this pool, name it among its devices (`braid scrub` goes on filling it), else use --force; nothing was changed",
        device.display(),
        label.member,
        label.name,
    )
}

fn carry_out(args: &Args, session: &Session) -> Result<ExitCode> {
    let before = session.view()?;
    let member = control::member(&before, &args.member)?;
    if args.stop {
        return stop(args, session, &before, &member);
    }
    let named = args.device.as_deref().context("which device?")?;
    let device = session.new_device(named)?;
    let whole = resync::state(&before, member.place) == "active";
    let moved = whole && !before.redundant;
    let force = args.force;
    let order = if moved {
        let to = Some(Target::Device(device));
        Order::Evacuate { member: member.clone(), to, force }
    } else {
        Order::Replace { member: member.clone(), device, force }
    };
    if args.dry_run {
        return session.plan(order);
    }
    if moved && args.background && session.stays() {
        session.begin(order, true)?;
        return Ok(ExitCode::SUCCESS);
    }
    let view = session.order(&order)?;
    say!("{} takes the place of member {member}", named.display());
    if args.background && session.stays() {
        control::show(&view);
        return Ok(ExitCode::SUCCESS);
    }
    if moved {
        follow(session, &member, true)?;
        return Ok(ExitCode::SUCCESS);
    }
    resync::wait(session, member.place)?;
    Ok(ExitCode::SUCCESS)
}

/// Ends a move. A member that is filled has nothing to go back to: what it replaces is out of use.
fn stop(args: &Args, session: &Session, before: &View, member: &MemberId) -> Result<ExitCode> {
    if resync::state(before, member.place) == "rebuilding" {
        let pool = &args.pool;
        bail!(
            "member {member} is being filled, and what it replaces is out of use: that goes on. To take another device \
             instead: `braid fail {pool} {member}`, then `braid replace {pool} {member} DEVICE`"
        );
    }
    let order = Order::Stay { member: member.clone() };
    if args.dry_run {
        return session.plan(order);
    }
    let view = session.order(&order)?;
    say!("member {member} stays:");
    control::show(&view);
    Ok(ExitCode::SUCCESS)
}

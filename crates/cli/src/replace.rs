//! `braid replace`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::control::{self, Order, Target, View};
use crate::evacuate;
use crate::session::Session;
use crate::{sources, ui};

/// Put another device in the place of a member of a pool, and fill it.
///
/// Where there are mirrors or parity the member is taken out of use first, if it is not yet, and the new
/// device is filled from the others (`braid evacuate` fills it from the old one, and the pool is as safe as
/// before meanwhile). Where there are none, everything is moved off the old device, which must still be readable;
/// then it is taken out of the pool. Everything that was on the new device is lost. The pool stays in use.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// The member: its number in `braid status`, or its device
    member: String,
    /// The new device
    device: PathBuf,
    /// Use the device although it carries a file system or belonged to a pool
    #[arg(long)]
    force: bool,
    /// Do not wait until it is filled
    #[arg(long)]
    background: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, |session| carry_out(args, session))
}

fn carry_out(args: &Args, session: &Session) -> Result<ExitCode> {
    let before = session.view()?;
    let member = control::member(&before, &args.member)?;
    let device = sources::absolute(&args.device)?;
    let whole = state(&before, member.place) == "active";
    let moved = whole && !before.redundant;
    let force = args.force;
    let order = if moved {
        let to = Some(Target::Device(device));
        Order::Evacuate { member: member.clone(), to, force }
    } else {
        Order::Replace { member: member.clone(), device, force }
    };
    let view = session.order(&order)?;
    println!("{} takes the place of member {member}", args.device.display());
    if args.background && session.stays() {
        control::show(&view);
        return Ok(ExitCode::SUCCESS);
    }
    if moved {
        evacuate::follow(session, &member, true)?;
        return Ok(ExitCode::SUCCESS);
    }
    wait(session, member.place)
}

/// Follows the filling of a member to its end.
fn wait(session: &Session, member: u16) -> Result<ExitCode> {
    let bar = ui::bar("filling");
    let mut advance = ui::progress(&bar);
    loop {
        let view = session.view()?;
        if let Some((_, done, total)) = view.rebuilding.filter(|r| r.0 == member) {
            advance(done, total);
        }
        match state(&view, member) {
            "active" => {
                bar.finish_and_clear();
                println!("member {member} is filled and in use");
                return Ok(ExitCode::SUCCESS);
            }
            "rebuilding" => {
                if let Some((_, who)) = view.stuck.iter().find(|s| s.0 == member) {
                    bail!("member {member} is not filled yet: {who}; it tries again now and then");
                }
                if let Some(why) = view.error {
                    bail!(
                        "member {member} is not filled yet: {why}; the node tries again now and then"
                    );
                }
            }
            other => {
                let why = view.error.as_deref().unwrap_or_default();
                bail!("member {member} is {other} and was not filled: {why}");
            }
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

fn state(view: &View, member: u16) -> &str {
    view.members.iter().find(|m| m.index == member).map_or("gone", |m| &m.state)
}

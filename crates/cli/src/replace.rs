//! `braid replace`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::control::{self, Order, View};
use crate::runtime::Mount;
use crate::ui;

/// Put another device in the place of a member of a mounted pool, and fill it.
///
/// The member is taken out of use first if it is not yet. Everything that was on the new device is
/// lost. The pool stays in use while the device is filled; the filling goes on if this command is
/// interrupted.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or one of its devices
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
    let mount = control::find(&args.pool)?;
    let member = control::member(&control::order(&mount, &Order::Members)?, &args.member)?;
    let device = std::path::absolute(&args.device)?;
    let order = Order::Replace { member, device, force: args.force };
    let view = control::order(&mount, &order)?;
    println!("{} takes the place of member {member}", args.device.display());
    if args.background {
        control::show(&view);
        return Ok(ExitCode::SUCCESS);
    }
    wait(&mount, member)
}

/// Follows the filling of a member to its end.
fn wait(mount: &Mount, member: u16) -> Result<ExitCode> {
    let bar = ui::bar("filling");
    let mut advance = ui::progress(&bar);
    loop {
        let view = control::order(mount, &Order::Members)?;
        if let Some((_, done, total)) = view.rebuilding.filter(|r| r.0 == member) {
            advance(done, total);
        }
        match state(&view, member) {
            "active" => {
                bar.finish_and_clear();
                println!("member {member} is filled and in use");
                return Ok(ExitCode::SUCCESS);
            }
            "rebuilding" => {}
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

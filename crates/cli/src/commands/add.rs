//! `braid add`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::control::{
    Order,
    session::{Missing, Session},
};
use crate::pools::shape;

/// Add devices to a pool, and their space to its file system, while it is in use.
///
/// The new devices get a shape of their own, as safe as the newest of what is there unless another is asked for: a
/// stripe, a stripe of mirrors, parity groups. Where metadata has a subpool it gets a part of each of them.
/// Nothing that is there moves; `braid rebalance` moves file data onto the new devices. Everything that was on the
/// devices is lost.
#[derive(Debug, clap::Args)]
#[command(after_help = shape::HELP)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// Block devices, or files of a fixed size
    #[arg(required_unless_present = "layout", value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    #[command(flatten)]
    shape: shape::ShapeArgs,
    /// Use devices although they carry a file system or belonged to a pool
    #[arg(long)]
    force: bool,
    /// Only show what would be, or why it cannot be; write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, Missing::Refused, |session| carry_out(args, session))
}

fn carry_out(args: &Args, session: &Session) -> Result<ExitCode> {
    let devices = args.devices.iter().map(|d| session.new_device(d)).collect::<Result<Vec<_>>>()?;
    let order = Order::Add {
        devices,
        shape: Box::new(args.shape.clone().absolute()?),
        force: args.force,
        dry_run: args.dry_run,
    };
    let advice = "; `braid rebalance POOL` moves file data onto the new devices";
    session.grow(&order, args.dry_run, ("these devices could be added", advice))
}

//! `braid spare`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::control::{
    self, Order, resync,
    session::{Missing, Session},
};

/// Give a pool devices that step in, by themselves, for members that fail.
///
/// Everything that was on them is lost. If nobody has the pool mounted, this command joins it, and
/// stays until a spare that is needed at once is filled (Ctrl-C leaves it; the next node begins
/// again).
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// Devices at least as large as the members they may replace
    #[arg(required_unless_present = "list", value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Only list the members and what is done for them
    #[arg(long)]
    list: bool,
    /// Use the devices although they carry a file system or belonged to a pool
    #[arg(long)]
    force: bool,
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
    Session::with(&args.pool, Missing::by(args.degraded), |session| {
        if args.dry_run {
            let order = |device: &PathBuf| -> Result<Order> {
                Ok(Order::Spare { device: session.new_device(device)?, force: args.force })
            };
            return session.plan_all(args.devices.iter().map(order).collect::<Result<_>>()?);
        }
        let before = session.view()?;
        for device in &args.devices {
            let device = session.new_device(device)?;
            session.order(&Order::Spare { device, force: args.force })?;
        }
        control::show(&session.view()?);
        if !args.list {
            resync::wait_for_spares(session, &before)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

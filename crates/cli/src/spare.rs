//! `braid spare`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::control::{self, Order};
use crate::sources;

/// Give a mounted pool devices that step in, by themselves, for members that fail.
///
/// Everything that was on them is lost.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or one of its devices
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
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mount = control::find(&args.pool)?;
    for device in &args.devices {
        let device = sources::absolute(device)?;
        control::order(&mount, &Order::Spare { device, force: args.force })?;
    }
    control::show(&control::order(&mount, &Order::Members)?);
    Ok(ExitCode::SUCCESS)
}

//! `braid dump-label`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use braid_pool::labels::Found;

use crate::pools::sources;
use crate::terminal::answer::say;

/// Show the labels on devices: both copies, field by field.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Devices or files
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
}

/// Runs it. Exit status 1 when a device has no usable label.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut bad = false;
    for device in sources::open_devices(&args.devices, true)? {
        let found = Found::read(device);
        say!("{}", found.path());
        for (n, copy) in found.copies.iter().enumerate() {
            match copy {
                Ok(label) => say!("  copy {n}: {label:#?}"),
                Err(fault) => say!("  copy {n}: none: {fault}"),
            }
        }
        if found.newest().is_none() {
            bad = true;
            say!("  {}", found.refusal());
        }
    }
    Ok(ExitCode::from(u8::from(bad)))
}

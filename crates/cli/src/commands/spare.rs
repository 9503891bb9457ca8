//! `braid spare`

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

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

/// The second would be refused: it is a member by then.
fn refuse_twice(devices: &[PathBuf]) -> Result<()> {
    // A device by its number, a file by its own, another name as it is.
    let identity = |device: &PathBuf| {
        let meta = std::fs::metadata(device).ok();
        meta.map(|meta| match meta.rdev() {
            0 => (meta.dev(), meta.ino()),
            number => (0, number),
        })
    };
    for (before, device) in devices.iter().enumerate() {
        let twice = |other: &&PathBuf| {
            *other == device || identity(device).is_some_and(|id| identity(other) == Some(id))
        };
        if let Some(other) = devices.iter().take(before).find(twice) {
            bail!("{} is the same device as {}", device.display(), other.display());
        }
    }
    Ok(())
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    Session::with(&args.pool, Missing::by(args.degraded), |session| {
        if args.dry_run {
            let order = |device: &PathBuf| -> Result<Order> {
                Ok(Order::Spare { device: session.new_device(device)?, force: args.force })
            };
            refuse_twice(&args.devices)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_device_twice_is_refused_by_whatever_name() {
        let dir = tempfile::tempdir().unwrap();
        let [one, link, other] = ["one", "link", "other"].map(|name| dir.path().join(name));
        std::fs::write(&one, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&one, &link).unwrap();
        refuse_twice(&[one.clone(), other.clone()]).unwrap();
        let said = refuse_twice(&[one, other, link]).unwrap_err().to_string();
        assert!(said.contains("link is the same device as"), "{said}");
        let remote = PathBuf::from("iscsi://host/disk/0");
        refuse_twice(&[remote.clone(), remote]).unwrap_err();
    }
}

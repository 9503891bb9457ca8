//! `braid destroy`

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use braid_pool::device::Device;
use braid_pool::{Destroyed, PoolError};

use crate::control::{self, session::NOTHING_CHANGED};
use crate::pools::sources;
use crate::terminal::{
    answer::{self, say, warning},
    size,
};

/// End a pool: its devices can be used for something else.
///
/// No node may have it mounted. The labels of all members and spares are wiped, so the pool is not found any
/// more. A power cut in the middle leaves a pool that nobody can use: the same command finishes it. What stands on the devices is not overwritten: with a label that was kept before (`braid label
/// dump -o FILE POOL`) `braid label restore --from FILE --member 0=DEVICE ...` brings the pool back, as long as nothing else was
/// written to the devices. Locks in etcd are not removed.
///
/// Exit status: 0 all members are wiped, 1 nothing was changed, 4 some members could not be wiped.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, or all of its devices
    #[arg(required = true, value_name = "NAME|DEVICE")]
    sources: Vec<String>,
    /// Do it: without this, the devices are shown and nothing is written
    #[arg(long)]
    yes: bool,
    /// Do without members that are missing: they keep their labels
    #[arg(long)]
    degraded: bool,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Some members could not be wiped.
const LEFT: u8 = 4;

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let [one] = &args.sources[..]
        && let Some(mount) = control::look(one)?
    {
        bail!("{one} is {}", mount.in_the_way());
    }
    if let Some(devices) = left_of_it(&args.sources) {
        return end(args, devices, braid_pool::finish_destroy);
    }
    let pool = match (args.yes && !args.dry_run, args.degraded) {
        (false, degraded) => sources::open_to_read(&args.sources, degraded),
        (true, false) => sources::open(&args.sources, false),
        (true, true) => sources::open_degraded(&args.sources, false),
    };
    let pool = pool.map_err(|e| match e.downcast_ref() {
        Some(PoolError::Missing { .. }) if !args.degraded => {
            e.context("`--degraded` does without members that are missing")
        }
        _ => e,
    })?;
    if args.dry_run {
        braid_fs::check_unused(pool.clone())?;
    }
    end(args, pool.devices(), |_| braid_fs::destroy(pool))
}

/// The devices of a pool whose destruction was broken off.
fn left_of_it(names: &[String]) -> Option<Vec<Arc<dyn Device>>> {
    let (devices, _) = sources::open_as_can_be(&sources::members(names).ok()?).ok()?;
    braid_pool::is_being_destroyed(&devices).then_some(devices)
}

/// Shows `devices`, or wipes them by way of `destroy`.
fn end<E: std::error::Error + Send + Sync + 'static>(
    args: &Args,
    devices: Vec<Arc<dyn Device>>,
    destroy: impl FnOnce(Vec<Arc<dyn Device>>) -> Result<Destroyed, E>,
) -> Result<ExitCode> {
    if !args.yes || args.dry_run {
        for device in devices {
            say!("{}  {}", device.info().name, size::show(device.info().size.0));
        }
        if args.dry_run {
            say!("the labels of these devices would be wiped, and the pool would be no more");
            say!("{NOTHING_CHANGED}");
            return Ok(ExitCode::SUCCESS);
        }
        bail!(
            "nothing was changed: give --yes to end this pool and wipe the labels of these devices"
        );
    }
    let done = destroy(devices)?;
    let name = &done.name;
    answer::add("pool", name);
    answer::add("wiped", &done.wiped);
    answer::add("left", done.left.iter().map(|(path, _)| path).collect::<Vec<_>>());
    say!("pool {name:?} is no more: {} devices can be used for something else", done.wiped.len());
    for (path, why) in &done.left {
        warning!("{path} keeps its labels: {why}");
    }
    Ok(if done.left.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(LEFT) })
}

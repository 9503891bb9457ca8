//! `braid label accept`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use braid_pool::{Pool, PoolError};

use crate::control::session::NOTHING_CHANGED;
use crate::pools::sources;
use crate::terminal::answer::say;

/// Take all members as they are, although some were put back from an old image.
///
/// What was written since the image was made is then lost, in part: files may hold old and new bytes.
/// Only for a pool that cannot do without these members. `braid check --repair` afterwards.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, or all of its devices
    #[arg(required = true, value_name = "NAME|DEVICE")]
    pub sources: Vec<String>,
    /// Do it: what the old image does not have is lost
    #[arg(long)]
    pub yes: bool,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let paths = sources::resolve(&args.sources)?;
    let devices = if args.dry_run {
        // Whether a node uses them is seen by locks that only a writer can take.
        sources::open_as_can_be(&paths)?.0
    } else {
        sources::open_devices(&paths, !args.yes)?
    };
    let refused = Pool::assemble(devices.clone()).err();
    if let Some(spared @ PoolError::OutOfDate { spared: true, .. }) = &refused {
        bail!("{spared}");
    }
    let pool = Pool::assemble_as_they_are(devices)?;
    let Some(refused) = refused else {
        say!("no member is out of date");
        return Ok(ExitCode::SUCCESS);
    };
    if args.dry_run {
        braid_fs::check_unused(pool)?;
        say!("{refused}; all members would be taken as they are");
        say!("{NOTHING_CHANGED}");
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes {
        bail!("{refused}; nothing was changed: give --yes to take all members as they are");
    }
    let name = pool.info().name.clone();
    braid_fs::accept_members(pool)?;
    say!("pool {name:?} takes all members as they are; next: `braid check --repair`");
    Ok(ExitCode::SUCCESS)
}

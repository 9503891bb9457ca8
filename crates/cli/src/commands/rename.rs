//! `braid rename`

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::control::{self, history, session::NOTHING_CHANGED};
use crate::pools::sources;
use crate::terminal::answer::{self, say};

/// Give a pool another name.
///
/// No node may have it mounted. Its UUID and everything in it stay. What names the pool elsewhere is to be changed
/// by hand: /etc/fstab, units, exports, and the folder of its certificates (`braid serve init --help`).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, or its devices, separated by colons
    pool: String,
    /// Its new name: at most 63 bytes, no '/' and no control characters
    name: String,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(mount) = control::look(&args.pool)? {
        bail!("{} is {}", args.pool, mount.in_the_way());
    }
    let named = std::slice::from_ref(&args.pool);
    let pool = if args.dry_run {
        sources::open_to_read(named, false)?
    } else {
        sources::open(named, false)?
    };
    let (before, uuid) = (pool.info().name.clone(), pool.info().uuid);
    let namesakes = sources::discover(None);
    if namesakes.iter().any(|other| other.name == args.name && other.uuid != uuid) {
        bail!("there is a pool called '{}' on this host's devices already", args.name);
    }
    if args.dry_run {
        pool.plan_rename(&args.name)?;
        braid_fs::check_unused(pool)?;
        say!("pool '{before}' would be called '{}'", args.name);
        say!("{NOTHING_CHANGED}");
        return Ok(ExitCode::SUCCESS);
    }
    history::keep(&pool);
    braid_fs::rename(pool.clone(), &args.name)?;
    history::command(&pool, format!("rename: {before:?} to {:?}", args.name));
    answer::add("pool", &args.name);
    answer::add("before", &before);
    say!("pool '{before}' is called '{}' now", args.name);
    Ok(ExitCode::SUCCESS)
}

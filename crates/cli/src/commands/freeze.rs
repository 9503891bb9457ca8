//! `braid freeze`

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::thaw;
use crate::control::{self, Order, session::Session};
use crate::process::signals;
use crate::terminal::answer::{self, say};

/// Between two looks at whether the command has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Keep all nodes from changing a pool, so that images of its disks fit together.
///
/// When this command is done, everything that programs on any node had written before is on the disks, and writes wait
/// until `braid thaw`, or until the time given by --for is over. Reads go on. Images of the disks (snapshots of an
/// array, of a volume manager, of virtual machines) that are made meanwhile, one after the other, are together what one
/// moment was: after `braid fence --confirm IMAGES all`, which says that no node uses them, and `braid mount` all is
/// there that was written before, and no check is needed. A node that mounts the pool waits for the thaw.
///
/// With a command after `--` the pool is frozen while that runs, and thawed when it has ended, whatever came of it:
///
///     braid freeze safe -- ./make-images.sh
///
/// The exit status is then that of the command; 1, with a word, if the pool did not stay frozen until it had ended.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The pool, its directory or one of its devices; a node of this host has it mounted
    pool: String,
    /// After so many seconds the pool is thawed by itself
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 600)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    time: u32,
    /// The nodes have so many seconds to write what they have; then the pool is not frozen
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3_600))]
    timeout: u32,
    /// What is to run while the pool is frozen
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mount = control::find(&args.pool)?;
    let order = Order::Freeze { seconds: args.time, timeout: args.timeout };
    if args.dry_run {
        return Session::of(mount).plan(order);
    }
    let asked = catch()?;
    if control::order_unless(&mount, &order, &asked)?.is_none() {
        bail!(
            "interrupted: {} will not be frozen; its node gives up what it has begun",
            mount.pool
        );
    }
    if asked.load(Ordering::Relaxed) {
        thaw::thaw(&mount)?;
        bail!("interrupted: {} is thawed again", mount.pool);
    }
    answer::add("pool", &mount.pool);
    answer::add("seconds", args.time);
    let Some((program, words)) = args.command.split_first() else {
        say!(
            "{} is frozen: writes wait until `braid thaw {}`, for {} s at most",
            mount.pool,
            args.pool,
            args.time
        );
        return Ok(ExitCode::SUCCESS);
    };
    let ended = run_frozen(Command::new(program).args(words), &asked);
    let thawed = thaw::thaw(&mount);
    let status = ended.with_context(|| program.display().to_string())?;
    thawed?;
    Ok(exit_of(status))
}

/// Signals that ask this process to end are noted: the pool is not to stay frozen.
fn catch() -> Result<Arc<AtomicBool>> {
    let asked = Arc::<AtomicBool>::default();
    for signal in signals::that_end() {
        signal_hook::flag::register(signal, asked.clone()).context("cannot catch signals")?;
    }
    Ok(asked)
}

/// Waits until the command has ended; asks it to once this process is asked to.
fn run_frozen(command: &mut Command, asked: &AtomicBool) -> std::io::Result<ExitStatus> {
    let mut child = command.spawn()?;
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if !told && asked.load(Ordering::Relaxed) {
            told = true;
            let id = i32::try_from(child.id()).map(Pid::from_raw);
            id.ok().and_then(|id| kill(id, Signal::SIGTERM).ok());
        }
        std::thread::sleep(LOOK);
    }
}

/// As a shell says it.
fn exit_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

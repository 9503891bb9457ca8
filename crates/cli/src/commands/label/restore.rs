//! `braid label restore`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use braid_pool::device::Device;
use braid_pool::labels::Found;
use braid_pool::member_verify::SampleReport;
use braid_pool::restore::{Restore, Source, Step, Target, Which};
use uuid::Uuid;

use super::file;
use crate::pools::sources;
use crate::terminal::{answer::say, size};

/// Write both labels of members again that have lost them.
///
/// They are taken from the pool's other members, or from a file that `braid label dump` has made.
/// No label on such a device says which member it was: you say it, and what contradicts it, on the
/// device too, is refused. Without --yes it is only shown what would be written, and the exit status is 1. Data is not touched.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, or its other devices
    #[arg(value_name = "POOL|DEVICE", required_unless_present = "from")]
    sources: Vec<String>,
    /// A member that has lost its labels, and its device, as in 2=/dev/sdd; several times for several
    #[arg(long = "member", required = true, value_name = "INDEX|UUID=DEVICE")]
    members: Vec<String>,
    /// Take the label from this file, when no member has a good one
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Write although something else is on the device, it has grown, or its contents do not fit (but not if
    /// they are another member's)
    #[arg(long)]
    force: bool,
    /// Write, and not only show
    #[arg(long)]
    yes: bool,
    /// Only say what would be written; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let writes = args.yes && !args.dry_run;
    let mut targets = Vec::new();
    for member in &args.members {
        targets.push(target(member)?);
    }
    let mut others = match args.sources.as_slice() {
        [] => Vec::new(),
        some => sources::open_devices(&sources::resolve(some)?, !writes)?,
    };
    let source = if let Some(path) = &args.from {
        let (label, taken) = file::read(path)?;
        say!(
            "{}: pool '{}', epoch {}, as it was {} ago; if members were changed since, this label \
             is wrong",
            path.display(),
            label.name,
            label.epoch,
            age(taken)
        );
        others.extend(seen(label.pool, !writes)?);
        Source::Kept(Box::new(label))
    } else {
        let pool = others.iter().find_map(|d| Some(Found::read(d.clone()).newest()?.pool));
        others.extend(pool.map(|p| seen(p, !writes)).transpose()?.unwrap_or_default());
        Source::Members
    };
    let plan = Restore::plan(source, others, &targets, args.force)?;
    say!("pool '{}' ({}), epoch {}:", plan.label.name, plan.label.pool, plan.label.epoch);
    for step in &plan.steps {
        show(step);
    }
    if args.dry_run {
        say!("nothing was written; --yes writes it");
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes {
        bail!("nothing was written: give --yes to write these labels");
    }
    plan.write()?;
    say!("written; `braid scan` shows the pool");
    Ok(ExitCode::SUCCESS)
}

fn show(step: &Step) {
    let [first, second] = step.at;
    say!(
        "  member {} ({}): {}, {}; labels at {first} and {second}",
        step.index,
        step.member.uuid,
        step.found.path(),
        size::show(step.member.device_size.get()),
    );
    say!("    last seen at {}", step.member.path);
    for (n, copy) in step.found.copies.iter().enumerate() {
        match copy {
            Ok(label) => say!("    copy {n} now: of pool '{}'", label.name),
            Err(fault) => say!("    copy {n} now: {fault}"),
        }
    }
    if let Some(what) = &step.overwrites {
        say!("    --force: {what} is overwritten");
    }
    say!("    {}", contents(&step.samples));
}

/// What a device's contents say, in a line.
fn contents(e: &SampleReport) -> String {
    let looked = e.agree + e.against;
    if e.unused {
        return "its contents were not compared: the pool does not use this member".to_owned();
    }
    if e.contradicts() {
        let likeness = e.likeness();
        return format!(
            "--force: {} of {looked} sampled places contradict that it is this member{likeness}",
            e.against
        );
    }
    if !e.says_nothing() {
        return format!("its contents agree: {} of {looked} sampled places", e.agree);
    }
    if e.blank > 0 {
        return format!(
            "WARNING: nothing but zeros in {} places where this member had something: compare serial numbers",
            e.blank
        );
    }
    "its contents say nothing (never written?): compare serial numbers".to_owned()
}

fn target(text: &str) -> Result<Target> {
    let Some((which, path)) = text.split_once('=') else {
        bail!("--member {text}: say which member and which device, as in 2=/dev/sdd");
    };
    let which: Which = which.parse().map_err(|e| anyhow::anyhow!("--member {text}: {e}"))?;
    let mut device = sources::open_devices(&[PathBuf::from(path)], false)?;
    let device = device.pop().ok_or_else(|| anyhow::anyhow!("--member {text}: no device"))?;
    Ok(Target { which, device })
}

/// What the host sees of a pool, whatever was named.
fn seen(pool: Uuid, read_only: bool) -> Result<Vec<Arc<dyn Device>>> {
    let pools = sources::discover(None);
    let members = pools.iter().filter(|p| p.uuid == pool).flat_map(|p| &p.members);
    let paths: Vec<PathBuf> = members.map(|m| m.path.clone()).collect();
    sources::open_devices(&paths, read_only)
}

fn age(taken: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = now.map_or(0, |n| n.as_secs()).saturating_sub(taken);
    match seconds {
        0..120 => format!("{seconds} seconds"),
        120..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

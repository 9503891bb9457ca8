//! `braid scan`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use braid_pool::labels::Found;
use braid_pool::{FoundPool, MemberCondition};
use serde_json::json;

use super::scan_units::{self, Look};
use crate::pools::sources;
use crate::process::asker::Patience;
use crate::terminal::answer::{self, say};

/// List the pools on this host's devices, found by their labels.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Look only at these devices, files, directories or iSCSI portals, whose targets and units are
    /// listed (iscsi://HOST[:PORT]) (default: all block devices, and those in BRAID_DEVICES)
    #[arg(value_name = "DEVICE")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    patience: Patience,
}

/// Runs it.
///
/// # Errors
/// A portal that was named could not be asked for all that it has.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.patience.begin();
    let looks = scan_units::look(&args.paths, args.patience.time());
    let mut paths: Vec<PathBuf> =
        args.paths.iter().filter(|path| !scan_units::is_meant(path)).cloned().collect();
    paths.extend(looks.iter().flat_map(Look::good));
    let within = args.patience.time();
    let pools = match args.paths.as_slice() {
        [] => Some(sources::discover(None)),
        _ if looks.is_empty() => Some(sources::discover(Some(&paths))),
        _ => scan_units::discover(paths, within),
    };
    let late = pools.is_none().then(|| {
        format!("the labels of what was found were not read within {within:?} (--timeout): no pool is shown")
    });
    let pools = pools.unwrap_or_default();
    if answer::is_json() {
        answer::add("pools", pools.iter().map(as_json).collect::<Vec<_>>());
        let portals: Vec<_> = looks.iter().filter_map(Look::as_json).collect();
        if !portals.is_empty() {
            answer::add("portals", portals);
        }
    } else {
        say_all(args, &looks, &pools);
    }
    let failed = looks.iter().filter_map(|l| Some(format!("{}: {}", l.name, l.failure.as_ref()?)));
    let failed: Vec<_> = failed.chain(late).collect();
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    Ok(ExitCode::SUCCESS)
}

fn say_all(args: &Args, looks: &[Look], pools: &[FoundPool]) {
    if pools.is_empty() {
        say!("no pools found");
    }
    looks.iter().for_each(Look::say);
    for path in args.paths.iter().filter(|p| !p.is_dir() && !scan_units::is_meant(p)) {
        if !pools.iter().any(|pool| pool.members.iter().any(|m| m.path == *path)) {
            say!("{}", why_not(path));
        }
    }
    for pool in pools {
        let state = state(pool);
        say!("{}  {}  epoch {}  {state}", pool.name, pool.uuid, pool.epoch);
        for member in &pool.members {
            let index = member.index.map_or_else(|| "-".to_owned(), |i| i.to_string());
            match &member.state {
                MemberCondition::Good => say!("  {index:>3}  {}", answer::shown(&member.path)),
                other => say!("  {index:>3}  {}  ({other})", answer::shown(&member.path)),
            }
        }
        for missing in &pool.missing {
            say!("       missing: {missing}");
        }
    }
}

/// In a word, whether the pool can be used.
fn state(pool: &FoundPool) -> &'static str {
    let copy = |state: &MemberCondition| matches!(state, MemberCondition::Duplicate(_));
    let others = FoundPool {
        members: pool.members.iter().filter(|m| !copy(&m.state)).cloned().collect(),
        ..pool.clone()
    };
    match (pool.complete(), others.complete()) {
        (true, _) => "complete",
        // One of two is the member: nothing says which.
        (false, true) => "complete, with COPIES of members: detach them",
        (false, false) => "INCOMPLETE",
    }
}

/// Why a device that was named is a member of nothing.
fn why_not(path: &Path) -> String {
    match sources::open_devices(&[path.to_owned()], true) {
        Err(e) => format!("{e}"),
        Ok(mut devices) => match devices.pop().map(Found::read) {
            Some(found) if found.newest().is_none() => found.refusal().to_string(),
            _ => format!("{}: its pool was not found", answer::shown(path)),
        },
    }
}

fn as_json(pool: &FoundPool) -> serde_json::Value {
    json!({
        "name": pool.name,
        "uuid": pool.uuid.to_string(),
        "epoch": pool.epoch.get(),
        "complete": pool.complete(),
        "members": pool.members.iter().map(|m| json!({
            "path": m.path,
            "index": m.index.map(braid_format::MemberIndex::get),
            "state": m.state.to_string(),
        })).collect::<Vec<_>>(),
        "missing": pool.missing.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

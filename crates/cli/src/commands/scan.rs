//! `braid scan`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use braid_pool::labels::Found;
use braid_pool::{FoundPool, MemberCondition};
use serde_json::json;

use crate::pools::sources;
use crate::process::asker::Patience;
use crate::terminal::answer::{self, say};

/// List the pools on this host's devices, found by their labels.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Look only at these devices, files or directories (default: all block devices, and those in
    /// BRAID_DEVICES)
    #[arg(value_name = "DEVICE")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    patience: Patience,
}

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    args.patience.begin();
    let pools = sources::discover((!args.paths.is_empty()).then_some(args.paths.as_slice()));
    if answer::is_json() {
        answer::add("pools", pools.iter().map(as_json).collect::<Vec<_>>());
        return ExitCode::SUCCESS;
    }
    if pools.is_empty() {
        say!("no pools found");
    }
    for path in args.paths.iter().filter(|p| !p.is_dir()) {
        if !pools.iter().any(|pool| pool.members.iter().any(|m| m.path == *path)) {
            say!("{}", why_not(path));
        }
    }
    for pool in &pools {
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
    ExitCode::SUCCESS
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

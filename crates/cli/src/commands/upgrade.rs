//! `braid upgrade`

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use braid_format::features::{FEATURES, Features};
use braid_format::superblock::RawSuperblock;
use serde_json::json;

use crate::control;
use crate::pools::sources;
use crate::terminal::{
    answer::{self, say},
    ui,
};

/// Show which features of the format this version knows, and which of them a pool uses.
///
/// A version that does not know a feature which a pool uses refuses the pool. So look here before an older version of
/// Braid is installed on one of its hosts. The set changes with what is done to the pool: mirrors are a feature, and an
/// offline member is one while it is offline. Nothing is converted: copy the files off a pool of another version of the
/// format.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// List the features
    #[arg(long)]
    list: bool,
    /// The pool, or its devices, separated by colons (default: only what this version knows)
    pool: Option<String>,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.list {
        bail!(
            "nothing is converted: this version reads and writes format {} alone; `braid upgrade --list [POOL]` shows its features",
            RawSuperblock::VERSION
        );
    }
    let pool = args.pool.as_deref();
    let used =
        pool.map(|pool| used(pool).with_context(|| format!("what {pool} uses is not known")));
    // What this version knows is worth seeing all the same.
    let shown = used.as_ref().and_then(|used| used.as_ref().ok());
    say!("format version {}", RawSuperblock::VERSION);
    let mut table = ui::table(&["feature", "in", "bit", "used", "a pool that has it has"]);
    for f in &FEATURES {
        let used = shown.map_or("-", |used| if used.has(f) { "yes" } else { "no" });
        table.add_row([f.name, f.place.word(), &f.bit.to_string(), used, f.meaning]);
    }
    say!("{table}");
    answer::add("format", RawSuperblock::VERSION);
    let features = FEATURES.iter().map(|f| {
        let used = shown.map(|used| used.has(f));
        json!({"name": f.name, "in": f.place.word(), "bit": f.bit, "used": used})
    });
    answer::add("features", features.collect::<Vec<_>>());
    used.transpose()?;
    Ok(ExitCode::SUCCESS)
}

/// # Errors
/// There is no such pool; it has features that this version does not know.
fn used(name: &str) -> Result<Features> {
    let mounted = control::look(name)?;
    let devices = mounted.map_or_else(|| vec![name.to_owned()], |mount| mount.sources);
    let pool = sources::open_to_read(&devices, true)?;
    let label = pool.label().features_incompat();
    Ok(Features { label, superblock: braid_fs::inspect(pool)?.features_incompat })
}

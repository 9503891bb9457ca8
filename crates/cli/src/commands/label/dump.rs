//! `braid label dump`

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use braid_format::label::Label;
use braid_pool::Pool;
use braid_pool::labels::Found;

use super::file;
use crate::pools::sources;
use crate::terminal::answer::{self, say, warning};

/// Write a pool's label to a file (or to standard output), from which every label of the pool can be
/// restored.
///
/// It says which devices there are, how they are put together, and holds the label's bytes; no data.
/// Make one after each change of the pool's members, and keep it elsewhere.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, or its devices
    #[arg(required = true, value_name = "POOL|DEVICE")]
    sources: Vec<String>,
    /// Write it here
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let label = label_of(&args.sources)?;
    let text = file::text(&label, std::time::SystemTime::now())?;
    match &args.output {
        None if answer::is_json() => {
            answer::add("label", serde_json::from_str::<serde_json::Value>(&text)?);
        }
        None => print!("{}", answer::printable_json(&text)),
        Some(path) => {
            keep(path, &text).with_context(|| path.display().to_string())?;
            say!(
                "label of pool '{}', epoch {}, {} members: {}",
                label.name,
                label.epoch,
                label.members.len(),
                path.display()
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The dump is durable before the command says so. An earlier dump of that name stays until then.
fn keep(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    let mut out = File::create(&part)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    std::fs::rename(&part, path)
}

/// The label in force. If the pool is not complete: the newest label, with a note on what is wrong.
fn label_of(sources: &[String]) -> Result<Label> {
    let devices = sources::open_devices(&sources::resolve(sources)?, true)?;
    let error = match Pool::assemble(devices.clone()) {
        Ok(pool) => return Ok(pool.label()),
        Err(error) => error,
    };
    let found: Vec<Found> = devices.into_iter().map(Found::read).collect();
    let labels = || found.iter().filter_map(|f| Some((f.newest()?, f.path())));
    let Some((label, path)) = labels().max_by_key(|(l, _)| l.epoch) else {
        return Err(error.into());
    };
    if labels().any(|(l, _)| l.pool != label.pool) {
        bail!("a dump is of one pool: {error}");
    }
    warning!("{error}; the label is {path}'s, of epoch {}", label.epoch);
    Ok(label.clone())
}

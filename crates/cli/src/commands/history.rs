//! `braid history`

use std::process::ExitCode;

use anyhow::Result;

use crate::control::history;
use crate::terminal::answer::{self, say};

/// Show what was done to a pool, and what happened to it.
///
/// Commands that changed it and by whom, nodes that came, left, died and were recovered, members that failed,
/// joined and were filled, scrubs and what they found. The oldest comes first. Each line has the time (UTC, by the
/// clock of the host that wrote it), the host, its node and the user.
///
/// It is kept on the first three members in use, in a ring of 60 KiB on each: the last 400 events or more. It can be read
/// while the pool is mounted and while it is not. It is for people: an event is lost if no member takes it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// Only the last so many
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut events = history::events(&args.pool)?;
    let passed = events.len().saturating_sub(args.lines.unwrap_or(usize::MAX));
    events.drain(..passed);
    for event in &events {
        say!("{}", history::line(event));
    }
    answer::add("events", &events);
    Ok(ExitCode::SUCCESS)
}

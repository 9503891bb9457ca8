//! `braid events`

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::control::history;
use crate::terminal::answer::{self, say};

/// Between two looks at the history.
const LOOK: Duration = Duration::from_millis(500);

/// Show what happens to a pool, an event on each line: `braid history` as a stream.
///
/// With --json each line is one JSON object. With --follow it goes on until it is ended (Ctrl-C), and shows each new
/// event within a second.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// Go on with what happens from now on, after the last ten events
    #[arg(short, long)]
    follow: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut events = history::events(&args.pool)?;
    let mut shown: HashSet<String> = HashSet::new();
    let id = |event: &serde_json::Value| event["id"].as_str().unwrap_or_default().to_owned();
    if args.follow {
        let old = events.len().saturating_sub(10);
        shown.extend(events.drain(..old).map(|event| id(&event)));
    }
    loop {
        for event in events {
            if !shown.insert(id(&event)) {
                continue;
            }
            if answer::is_json() {
                answer::line(event);
            } else {
                say!("{}", history::line(&event));
            }
        }
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(LOOK);
        // A node that is unmounted meanwhile, or does not answer, may be back.
        events = history::events(&args.pool).unwrap_or_default();
    }
}

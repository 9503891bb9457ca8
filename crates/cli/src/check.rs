//! `braid check`

use std::process::ExitCode;

use anyhow::Result;
use braid_fs::check::{CheckOptions, check};

use crate::{sources, ui};

/// Verify a file system that no node has mounted, and repair it when asked.
///
/// Exit status: 0 clean, 1 problems were found and repaired, 4 problems are left.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, or all of its devices
    #[arg(required = true, value_name = "NAME|DEVICE")]
    sources: Vec<String>,
    /// Mend what can be mended
    #[arg(long)]
    repair: bool,
    /// Do without members that are missing, if the others hold everything; they count as failed
    /// from then on
    #[arg(long)]
    degraded: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let open = if args.degraded { sources::open_degraded } else { sources::open };
    let pool = open(&args.sources, false)?;
    let bar = ui::bar("checking");
    let report = check(pool, CheckOptions { repair: args.repair }, &mut ui::progress(&bar))?;
    bar.finish_and_clear();
    for problem in &report.problems {
        println!("{problem}");
    }
    println!(
        "{} inodes, {} directories, {} data blocks, {} journals replayed: {}",
        report.inodes,
        report.directories,
        report.data_blocks,
        report.replayed,
        match (report.problems.len(), report.repaired) {
            (0, _) => "clean".to_owned(),
            (n, 0) => format!(
                "{n} problems{}",
                if args.repair { "" } else { "; --repair mends what it can" }
            ),
            (n, r) => format!("{n} problems, {r} repaired"),
        }
    );
    Ok(match (report.problems.len() as u64, report.repaired) {
        (0, _) => ExitCode::SUCCESS,
        (n, r) if r >= n => ExitCode::from(1),
        _ => ExitCode::from(4),
    })
}

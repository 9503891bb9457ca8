//! `braid check`

use std::process::ExitCode;

use anyhow::Result;
use braid_fs::check::{CheckOptions, Report, check};
use serde_json::{Value, json};

use crate::pools::sources;
use crate::process::asker::Patience;
use crate::terminal::{
    answer::{self, say},
    size, ui,
};

/// Verify a file system that no node has mounted, and repair it when asked.
///
/// Exit status, as of fsck(8): 0 clean, 1 problems were found and repaired, 4 problems are left, 8 it could not
/// be checked (a node has it mounted, or a device is missing), 16 the command line is wrong.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool's name, or all of its devices
    #[arg(required = true, value_name = "NAME|DEVICE")]
    sources: Vec<String>,
    /// Repair what can be repaired; cut off and name what cannot. Files that lost contents, and
    /// files that lost their names, are put into /lost+found
    #[arg(long)]
    pub repair: bool,
    /// Do without members that are missing, if the others hold everything; they count as failed
    /// from then on
    #[arg(long)]
    degraded: bool,
    /// Only say what --repair would find; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    patience: Patience,
}

/// Exit status of fsck(8): it could not be checked.
pub const FAILED: u8 = 8;
/// Exit status of fsck(8): the command line is wrong.
pub const MISUSED: u8 = 16;

impl Args {
    /// Of the pool or the devices in one word, as in /etc/fstab.
    pub(super) fn of(source: String, repair: bool) -> Self {
        Self {
            sources: vec![source],
            repair,
            degraded: false,
            dry_run: false,
            patience: Patience::default(),
        }
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.patience.begin();
    let repair = args.repair && !args.dry_run;
    let pool = match (repair, args.degraded) {
        (false, degraded) => sources::open_to_read(&args.sources, degraded)?,
        (true, false) => sources::open(&args.sources, false)?,
        (true, true) => sources::open_degraded(&args.sources, false)?,
    };
    let bar = ui::bar("checking");
    let report = check(pool, CheckOptions { repair }, &mut ui::progress(&bar))?;
    bar.finish_and_clear();
    answer::add_all(as_json(&report, repair));
    for problem in &report.problems {
        say!("{problem}");
    }
    for line in &report.cut {
        say!("{line}");
    }
    for line in report.left.iter().filter(|_| repair) {
        say!("NOT MENDED: {line}");
    }
    if report.given_back > 0 {
        let bytes = size::show(report.given_back);
        say!("{bytes} of unused metadata are space for data again");
    }
    say!(
        "{} inodes, {} directories, {} data blocks, {} journals replayed: {}",
        report.inodes,
        report.directories,
        report.data_blocks,
        report.replayed,
        match (report.problems.len(), report.left.len()) {
            (0, _) => "clean".to_owned(),
            (n, _) if !repair =>
                format!("{n} problems; --repair repairs or cuts off what is damaged"),
            (n, 0) => format!("{n} problems, all repaired"),
            (n, left) => format!("{n} problems, {left} of them are left"),
        }
    );
    Ok(match (report.problems.len(), report.left.len()) {
        (0, _) => ExitCode::SUCCESS,
        (_, 0) => ExitCode::from(1),
        _ => ExitCode::from(4),
    })
}

fn as_json(report: &Report, repair: bool) -> Value {
    json!({
        "clean": report.problems.is_empty(),
        "problems": report.problems,
        "left": report.left,
        "cut_off": report.cut,
        "repair": repair,
        "given_back": report.given_back,
        "inodes": report.inodes,
        "directories": report.directories,
        "data_blocks": report.data_blocks,
        "journals_replayed": report.replayed,
    })
}

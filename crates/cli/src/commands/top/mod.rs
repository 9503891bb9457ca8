//! `braid top`

mod draw;
mod look;
mod order;
mod screen;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use self::look::{Look, Shown};
use self::order::{Order, Sort};
use crate::control;
use crate::terminal::{
    answer::{self, say},
    ui,
};

/// Show what a mounted node of this host does now: nodes, members, locks, programs.
///
/// Keys: s sorts programs by the next column, r turns the order around, q ends. Where standard output is no
/// terminal, or with --plain, each report is printed instead, one behind the other. What the kernel answers from
/// its caches is not seen.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, or its directory, mounted on this host
    pool: String,
    /// Seconds between two reports
    #[arg(short = 'd', long, default_value_t = 1.0, value_name = "SECONDS")]
    interval: f64,
    /// End after so many reports
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Sort programs by this
    #[arg(short, long, value_enum, default_value_t)]
    sort: Sort,
    /// No screen of its own
    #[arg(long)]
    plain: bool,
}

const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_hours(24);

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let interval = Duration::try_from_secs_f64(args.interval).ok();
    let Some(interval) = interval.filter(|i| (INTERVAL_MIN..=INTERVAL_MAX).contains(i)) else {
        bail!("interval {}: not a number of seconds from 0.1 to 86400", args.interval);
    };
    let mount = control::find(&args.pool)?;
    let order = Order { by: args.sort, reversed: false };
    // Programs are counted from the first look on.
    let first = Look::at(&mount)?;
    if !args.plain && !answer::is_json() && std::io::stdout().is_terminal() {
        screen::run(&mount, first, (interval, args.count), order)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (mut before, mut reports) = (first, 0);
    while args.count.is_none_or(|count| reports < count) {
        std::thread::sleep(interval);
        let now = Look::at(&mount)?;
        if answer::is_json() {
            answer::line(serde_json::to_value(&now)?);
        } else {
            print(&Shown::of(&now, &before, order));
        }
        before = now;
        reports += 1;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(shown: &Shown) {
    say!("{}", shown.title);
    shown.health.iter().for_each(|line| say!("{line}"));
    for part in &shown.parts {
        let mut table = ui::table(&part.header);
        part.rows.iter().for_each(|row| {
            table.add_row(row);
        });
        for (n, column) in table.column_iter_mut().enumerate() {
            if part.is_number(n) {
                column.set_cell_alignment(comfy_table::CellAlignment::Right);
            }
        }
        say!("\n{}\n{table}", part.title);
    }
    say!("");
}

//! `braid locks`

use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use crate::control::{self, Order};
use crate::terminal::{
    answer::{self, say},
    ui,
};

/// Show the locks of a mounted node: who holds and waits, since when, how often they change hands.
///
/// Without --hot those come first that are waited for, or being given up.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, or its directory, mounted on this host
    pool: String,
    /// The locks that other nodes took from this one most often
    #[arg(long)]
    hot: bool,
    /// Show so many
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    lines: usize,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mount = control::find(&args.pool)?;
    let locks = control::value(&mount, &Order::Locks { hot: args.hot, lines: args.lines })?;
    if answer::is_json() {
        answer::add_all(locks);
    } else {
        show(&locks);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(all: &Value) {
    let c = &all["counts"];
    say!(
        "node {}: {} locks in memory; {} acquired, {} of them without waiting; {} compare-and-writes, {} given up",
        all["node"],
        all["in_memory"],
        c["acquired"],
        c["cached"],
        c["compare_and_writes"],
        c["given_up"]
    );
    let waited = &c["waited"];
    if waited["count"] != 0 {
        say!(
            "waited {} times: half of them up to {} us, 99 % up to {} us, all up to {} us",
            waited["count"],
            waited["p50_us"],
            waited["p99_us"],
            waited["max_us"]
        );
        for class in waited["classes"].as_array().into_iter().flatten() {
            say!("  up to {:>10} us: {}", class["up_to_us"], class["count"]);
        }
    }
    let mut table = ui::table(&[
        "lock of",
        "held",
        "for",
        "users",
        "waiting",
        "handed over",
        "nodes that hold",
        "nodes that wait",
    ]);
    let list = |v: &Value, name: &dyn Fn(&Value) -> String| {
        v.as_array().into_iter().flatten().map(name).collect::<Vec<_>>().join(", ")
    };
    for lock in all["locks"].as_array().into_iter().flatten() {
        let held = lock["held"].as_str().unwrap_or_default();
        let held = match lock["giving_up_to"].as_str() {
            Some(to) => format!("{held}, going to {to}"),
            None => held.to_owned(),
        };
        table.add_row([
            lock["of"].as_str().unwrap_or_default().to_owned(),
            held,
            lock["held_for_s"].as_f64().map_or_else(|| "-".to_owned(), |s| format!("{s:.1} s")),
            lock["users"].to_string(),
            lock["waiting"].to_string(),
            lock["hand_overs"].to_string(),
            list(&lock["holders"], &ToString::to_string),
            list(&lock["waiters"], &|w| {
                format!("{} ({})", w["node"], w["mode"].as_str().unwrap_or_default())
            }),
        ]);
    }
    say!("{table}");
}

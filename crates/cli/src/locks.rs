//! `braid locks`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use braid_fs::lock::{LockStats, Mode};
use braid_fs::{Fs, NamedLock};
use serde_json::{Value, json};

use crate::control::{self, Order};
use crate::ui;

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
    /// Machine-readable
    #[arg(long)]
    json: bool,
}

/// Most locks in an answer.
const LINES_MAX: usize = 10_000;

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mount = control::find(&args.pool)?;
    let locks = control::value(&mount, &Order::Locks { hot: args.hot, lines: args.lines })?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&locks)?);
    } else {
        show(&locks);
    }
    Ok(ExitCode::SUCCESS)
}

/// The answer to [`Order::Locks`].
pub fn answer(fs: &Fs, hot: bool, lines: usize) -> Value {
    let status = fs.status();
    let locks = fs.locks(hot, lines.min(LINES_MAX));
    json!({
        "node": status.slot.get(),
        "in_memory": status.locks_held,
        "counts": counts(&status.locks),
        "locks": locks.iter().map(as_json).collect::<Vec<_>>(),
    })
}

fn counts(s: &LockStats) -> Value {
    let micros = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    let mut classes = Vec::new();
    for (n, count) in (0_u32..).zip(s.waited.classes).filter(|c| c.1 > 0) {
        classes.push(json!({"up_to_us": 1_u64 << n, "count": count}));
    }
    json!({
        "acquired": s.acquires,
        "cached": s.cached,
        "compare_and_writes": s.caws,
        "reads": s.reads,
        "given_up": s.demotions,
        "hints_sent": s.hints_sent,
        "hints_received": s.hints_received,
        "polls": s.polls,
        "waited": {
            "count": s.waited.count(),
            "p50_us": s.waited.per_mille(500).map(micros),
            "p99_us": s.waited.per_mille(990).map(micros),
            "max_us": s.waited.per_mille(1000).map(micros),
            "classes": classes,
        },
    })
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Unlocked => "-",
        Mode::Shared => "shared",
        Mode::Exclusive => "exclusive",
        Mode::Concurrent => "concurrent",
    }
}

fn as_json(lock: &NamedLock) -> Value {
    let v = &lock.view;
    json!({
        "lock": v.lock.get(),
        "of": lock.of,
        "held": mode(v.held),
        "wanted": mode(v.wanted),
        "users": v.users,
        "waiting": v.waiting,
        "giving_up_to": v.demoting.map(mode),
        "held_for_s": v.held_for.map(|d| d.as_secs_f64()),
        "hand_overs": v.hand_overs,
        "holders": v.holders.iter().map(|h| h.slot.get()).collect::<Vec<_>>(),
        "waiters": v.waiters.iter().map(|(w, m)| json!({"node": w.slot.get(), "mode": mode(*m)}))
            .collect::<Vec<_>>(),
    })
}

fn show(all: &Value) {
    let c = &all["counts"];
    println!(
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
        println!(
            "waited {} times: half of them up to {} us, 99 % up to {} us, all up to {} us",
            waited["count"], waited["p50_us"], waited["p99_us"], waited["max_us"]
        );
        for class in waited["classes"].as_array().into_iter().flatten() {
            println!("  up to {:>10} us: {}", class["up_to_us"], class["count"]);
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
    println!("{table}");
}

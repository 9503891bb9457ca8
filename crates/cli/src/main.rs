//! The `braid` command: one binary, one file per subcommand.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  terminal   what the user sees: sizes, tables, progress
//!  process    signals, secrets on the command line, notes of this host's mounts, the end of a node's process
//!  pools      from a name, devices and options to a pool and its shape
//!  control    orders to a mounted node, and who carries them out
//!  commands   the subcommands
//! ```
//!
//! Called as `mount.braid` (from mount(8) and /etc/fstab) it is `braid mount`, as `umount.braid`
//! `braid unmount`; as `lmdd` or `xdd` it takes their command lines.

#![forbid(unsafe_code)]

mod commands;
mod control;
mod pools;
mod process;
mod terminal;

use std::io::IsTerminal;

use braid_pool::device::redacted;
use clap::{Parser, Subcommand};

use commands::helper::{self, Helper};
use commands::{
    add, advise, check, create, dump_label, evacuate, fail, fence, grow, label, locks, mount,
    nodes, rebalance, remove, replace, scan, scrub, spare, status, target, trim, unmount, version,
};
use process::{guard, secrets};
use terminal::broken_pipe;

/// One POSIX file system striped over many disks and shared, coherently, by many machines.
#[derive(Debug, Parser)]
#[command(name = "braid", version, disable_help_subcommand = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(create::Args),
    Mount(mount::Args),
    Unmount(unmount::Args),
    Status(status::Args),
    Nodes(nodes::Args),
    Locks(locks::Args),
    Fence(fence::Args),
    Scan(scan::Args),
    Check(check::Args),
    Advise(advise::Args),
    Label(label::Args),
    DumpLabel(dump_label::Args),
    Fail(fail::Args),
    Replace(replace::Args),
    Spare(spare::Args),
    Add(add::Args),
    Grow(grow::Args),
    Rebalance(rebalance::Args),
    Evacuate(evacuate::Args),
    Remove(remove::Args),
    Scrub(scrub::Args),
    Trim(trim::Args),
    Target(target::Args),
    Bench(braid_bench::cli::Args),
    /// lmbench's lmdd: `braid lmdd of=F bs=4m move=500m direct=1`
    Lmdd(braid_bench::compat::Words),
    /// xdd: `braid xdd -op read -target F -mbytes 256 -queuedepth 4`
    Xdd(braid_bench::compat::Words),
    Version(version::Args),
    #[command(hide = true)]
    Guard(guard::Args),
}

fn main() -> std::process::ExitCode {
    secrets::hide();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("BRAID_LOG")
                .unwrap_or_else(|_| "warn".into()),
        )
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // It would say them where it could not write.
        .log_internal_errors(false)
        .init();
    broken_pipe::ended_by(ended)
}

/// Does what the command line says.
fn ended() -> std::process::ExitCode {
    let args: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if let Some(ended) = braid_bench::compat::from_name(&args) {
        return ended.unwrap_or_else(|e| {
            eprintln!("{}", said(&e));
            std::process::ExitCode::FAILURE
        });
    }
    let command = match helper::from_name(&args) {
        Ok(Some(Helper::Mount(args))) => Ok(Command::Mount(args)),
        Ok(Some(Helper::Unmount(args))) => Ok(Command::Unmount(args)),
        Ok(None) => Ok(Cli::try_parse_from(args).unwrap_or_else(|e| refused(&e)).command),
        Err(e) => Err(e),
    };
    match command.and_then(run) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("braid: {}", said(&e));
            std::process::ExitCode::FAILURE
        }
    }
}

/// Says what is wrong with the command line, and ends.
fn refused(e: &clap::Error) -> ! {
    let text = e.to_string();
    let shown = redacted(&text);
    if shown == text {
        e.exit();
    }
    eprint!("{shown}");
    std::process::exit(e.exit_code());
}

/// An error and its causes, but for what has been said already, and for secrets.
fn said(e: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in e.chain().map(ToString::to_string).filter(|c| !c.is_empty()) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    redacted(&text)
}

fn run(command: Command) -> anyhow::Result<std::process::ExitCode> {
    match command {
        Command::Create(a) => create::run(&a),
        Command::Mount(a) => mount::run(&a),
        Command::Unmount(a) => unmount::run(&a),
        Command::Status(a) => status::run(&a),
        Command::Nodes(a) => nodes::run(&a),
        Command::Locks(a) => locks::run(&a),
        Command::Fence(a) => fence::run(&a),
        Command::Scan(a) => scan::run(&a),
        Command::Check(a) => check::run(&a),
        Command::Advise(a) => advise::run(&a),
        Command::Label(a) => label::run(&a),
        Command::DumpLabel(a) => dump_label::run(&a),
        Command::Fail(a) => fail::run(&a),
        Command::Replace(a) => replace::run(&a),
        Command::Spare(a) => spare::run(&a),
        Command::Add(a) => add::run(&a),
        Command::Grow(a) => grow::run(&a),
        Command::Rebalance(a) => rebalance::run(&a),
        Command::Evacuate(a) => evacuate::run(&a),
        Command::Remove(a) => remove::run(&a),
        Command::Scrub(a) => scrub::run(&a),
        Command::Trim(a) => trim::run(&a),
        Command::Target(a) => target::run(&a),
        Command::Bench(a) => braid_bench::cli::run(&a).map(|()| std::process::ExitCode::SUCCESS),
        Command::Lmdd(words) => braid_bench::compat::lmdd(&words),
        Command::Xdd(words) => braid_bench::compat::xdd(&words),
        Command::Guard(args) => guard::run(&args),
        Command::Version(_) => {
            version::run();
            Ok(std::process::ExitCode::SUCCESS)
        }
    }
}

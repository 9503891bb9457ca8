//! The `braid` command: one binary, one file per subcommand.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  terminal   what the user sees: answers for people and for programs, sizes, tables, progress
//!  process    limits, signals, secrets on the command line, notes of this host's mounts, the end of a node's process
//!  pools      from a name, devices and options to a pool and its shape
//!  control    orders to a mounted node, and who carries them out
//!  metrics    what a node counts, for Prometheus
//!  nfs        exports of a mount by NFS-Ganesha, and their supervisor
//!  commands   the subcommands
//! ```
//!
//! Called as `mount.braid` (from mount(8) and /etc/fstab) it is `braid mount`, as `umount.braid`
//! `braid unmount`, as `fsck.braid` `braid check`, as `mkfs.braid` `braid create`; as `lmdd` or `xdd` it takes
//! their command lines.

#![forbid(unsafe_code)]
#![allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_rust_codeblocks,
    reason = "comments on arguments are the help texts: brackets say there what may be left out"
)]

mod commands;
mod control;
mod metrics;
mod nfs;
mod pools;
mod process;
mod terminal;

use std::ffi::OsString;
use std::process::ExitCode;

use braid_pool::device::{answers, redacted};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use commands::helper::{self, Helper};
use commands::{
    add, advise, check, clear, completion, cp, create, destroy, dump_label, evacuate, events,
    export, fail, fence, freeze, generate, get, grow, history, iostat, label, locks, mount, nodes,
    offline, online, probe, rebalance, remove, rename, replace, scan, scrub, serve, set, spare,
    status, target, thaw, top, trim, unmount, upgrade, version, why,
};
use process::{asker, guard, limits, log, secrets};
use terminal::{answer, lost_output};

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
    Why(why::Args),
    Iostat(iostat::Args),
    Top(top::Args),
    Fence(fence::Args),
    Scan(scan::Args),
    History(history::Args),
    Events(events::Args),
    Check(check::Args),
    Advise(advise::Args),
    Label(label::Args),
    DumpLabel(dump_label::Args),
    Fail(fail::Args),
    Offline(offline::Args),
    Online(online::Args),
    Replace(replace::Args),
    Spare(spare::Args),
    Add(add::Args),
    Grow(grow::Args),
    Rebalance(rebalance::Args),
    Evacuate(evacuate::Args),
    Remove(remove::Args),
    Rename(rename::Args),
    Set(set::Args),
    Get(get::Args),
    Destroy(destroy::Args),
    Scrub(scrub::Args),
    Clear(clear::Args),
    Trim(trim::Args),
    Freeze(freeze::Args),
    Thaw(thaw::Args),
    Target(target::Args),
    Export(export::Args),
    Serve(serve::Args),
    Cp(cp::Args),
    Bench(braid_bench::cli::Args),
    /// lmbench's lmdd: `braid lmdd of=F bs=4m move=500m direct=1`
    Lmdd(braid_bench::compat::Words),
    /// xdd: `braid xdd -op read -target F -mbytes 256 -queuedepth 4`
    Xdd(braid_bench::compat::Words),
    Upgrade(upgrade::Args),
    Version(version::Args),
    #[command(hide = true)]
    Guard(guard::Args),
    #[command(hide = true)]
    Generate(generate::Args),
    #[command(hide = true)]
    Asker(asker::Args),
    #[command(hide = true)]
    Probe(probe::Args),
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == "guard") {
        guard::block_end();
    }
    limits::lifted(program)
}

/// What the command line may say.
fn command_line() -> clap::Command {
    answer::add_option(Cli::command())
}

/// All of it, in a thread of its own.
fn program() -> ExitCode {
    completion::answer(command_line);
    secrets::hide();
    log::start(std::env::args_os().nth(1).is_some_and(|word| word == "mount" || word == "serve"));
    answers::ask_by(asker::program);
    lost_output::ended_by(ended)
}

/// Does what the command line says.
fn ended() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(ended) = braid_bench::compat::from_name(&args) {
        return ended.unwrap_or_else(|e| {
            eprintln!("{}", said(&e));
            ExitCode::FAILURE
        });
    }
    let command = match asked_for(&args) {
        Ok(Some(command)) => command,
        Ok(None) => return ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("braid: {}", said(&e));
            return if helper::is_check(&args) { check::MISUSED.into() } else { ExitCode::FAILURE };
        }
    };
    let failure = match command {
        Command::Check(_) => check::FAILED.into(),
        _ => ExitCode::FAILURE,
    };
    let result = run(command);
    let error = result.as_ref().err().map(said);
    // First, since nobody may read the answer.
    if let Some(error) = &error {
        lost_output::print_error(format_args!("braid: {error}\n"));
    }
    answer::end(error.as_deref());
    result.unwrap_or(failure)
}

/// The command that the words mean; `None`: there is nothing to do.
fn asked_for(args: &[OsString]) -> anyhow::Result<Option<Command>> {
    let parsed = |args: &[OsString]| {
        let matches = command_line().try_get_matches_from(args);
        let matches = matches.unwrap_or_else(|e| refused(&e, args));
        answer::begin(&matches);
        Cli::from_arg_matches(&matches).unwrap_or_else(|e| refused(&e, args)).command
    };
    Ok(Some(match helper::from_name(args)? {
        None => parsed(args),
        Some(Helper::Mount(args)) => {
            answer::begin_work(!args.dry_run);
            Command::Mount(args)
        }
        Some(Helper::Unmount(args)) => {
            answer::begin_work(!args.dry_run);
            Command::Unmount(args)
        }
        Some(Helper::Check(args)) => {
            answer::begin_work(args.repair);
            Command::Check(args)
        }
        Some(Helper::Create(words)) => {
            parsed(&[vec!["braid".into(), "create".into()], words].concat())
        }
        Some(Helper::Version) => Command::Version(version::Args {}),
        Some(Helper::NothingToCheck) => return Ok(None),
    }))
}

/// Says what is wrong with the command line, and ends.
fn refused(e: &clap::Error, args: &[OsString]) -> ! {
    let text = e.to_string();
    let shown = redacted(&text);
    let wrong = e.use_stderr();
    let of_check = wrong && args.get(1).is_some_and(|word| word == "check");
    let code = if of_check { check::MISUSED.into() } else { e.exit_code() };
    if shown == text || !wrong {
        // With its colours, on a terminal. A help text only looks as if it had secrets.
        e.print().ok();
    } else {
        eprint!("{shown}");
    }
    std::process::exit(code);
}

/// An error and its causes, without what was printed already, and without secrets.
fn said(e: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in e.chain().map(ToString::to_string).filter(|c| !c.is_empty()) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    answer::printable(&redacted(&text))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(a) => create::run(&a),
        Command::Mount(a) => mount::run(&a),
        Command::Unmount(a) => unmount::run(&a),
        Command::Status(a) => status::run(&a),
        Command::Nodes(a) => nodes::run(&a),
        Command::Locks(a) => locks::run(&a),
        Command::Why(a) => why::run(&a),
        Command::Iostat(a) => iostat::run(&a),
        Command::Top(a) => top::run(&a),
        Command::Fence(a) => fence::run(&a),
        Command::Scan(a) => scan::run(&a),
        Command::History(a) => history::run(&a),
        Command::Events(a) => events::run(&a),
        Command::Check(a) => check::run(&a),
        Command::Advise(a) => advise::run(&a),
        Command::Label(a) => label::run(&a),
        Command::DumpLabel(a) => dump_label::run(&a),
        Command::Fail(a) => fail::run(&a),
        Command::Offline(a) => offline::run(&a),
        Command::Online(a) => online::run(&a),
        Command::Replace(a) => replace::run(&a),
        Command::Spare(a) => spare::run(&a),
        Command::Add(a) => add::run(&a),
        Command::Grow(a) => grow::run(&a),
        Command::Rebalance(a) => rebalance::run(&a),
        Command::Evacuate(a) => evacuate::run(&a),
        Command::Remove(a) => remove::run(&a),
        Command::Rename(a) => rename::run(&a),
        Command::Set(a) => set::run(&a),
        Command::Get(a) => get::run(&a),
        Command::Destroy(a) => destroy::run(&a),
        Command::Scrub(a) => scrub::run(&a),
        Command::Clear(a) => clear::run(&a),
        Command::Trim(a) => trim::run(&a),
        Command::Freeze(a) => freeze::run(&a),
        Command::Thaw(a) => thaw::run(&a),
        Command::Target(a) => target::run(&a),
        Command::Export(a) => export::run(&a),
        Command::Serve(a) => serve::run(&a),
        Command::Cp(a) => cp::run(&a),
        Command::Bench(a) => braid_bench::cli::run(&a).map(|()| ExitCode::SUCCESS),
        Command::Lmdd(words) => braid_bench::compat::lmdd(&words),
        Command::Xdd(words) => braid_bench::compat::xdd(&words),
        Command::Guard(args) => guard::run(&args),
        Command::Generate(args) => generate::run(&args, command_line()),
        Command::Asker(_) => asker::run(),
        Command::Probe(args) => probe::run(&args),
        Command::Upgrade(a) => upgrade::run(&a),
        Command::Version(_) => {
            version::run();
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that change a pool or a host: each says with `--dry-run`, `-n`, what it would do.
    const CHANGING: &[&str] = &[
        "add",
        "check",
        "clear",
        "cp",
        "create",
        "destroy",
        "evacuate",
        "export",
        "fail",
        "fence",
        "freeze",
        "grow",
        "label accept",
        "label restore",
        "mount",
        "offline",
        "online",
        "rebalance",
        "remove",
        "rename",
        "replace",
        "scrub",
        "serve init",
        "serve install",
        "serve invite",
        "serve revoke",
        "set",
        "spare",
        "thaw",
        "trim",
        "unmount",
    ];
    /// Commands that only look, that serve until they are ended, or whose options are another program's.
    const OTHERS: &[&str] = &[
        "advise",
        "bench",
        "dump-label",
        "events",
        "get",
        "history",
        "iostat",
        "label dump",
        "lmdd",
        "locks",
        "nodes",
        "scan",
        "serve",
        "serve clients",
        "status",
        "target",
        "top",
        "upgrade",
        "version",
        "why",
        "xdd",
    ];

    /// Commands that people give, each with its words.
    fn given(command: &clap::Command, words: &str) -> Vec<(String, clap::Command)> {
        let mut all = Vec::new();
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let words = format!("{words} {}", sub.get_name()).trim_start().to_owned();
            // Its modes are one kind of work.
            let is_bench = sub.get_name() == "bench";
            if is_bench || !sub.has_subcommands() || sub.get_positionals().next().is_some() {
                all.push((words.clone(), sub.clone()));
            }
            if !is_bench {
                all.extend(given(sub, &words));
            }
        }
        all
    }

    #[test]
    fn what_changes_something_says_before_what_it_would_do() {
        let all = given(&command_line(), "");
        for (words, command) in &all {
            let is_changing = CHANGING.contains(&words.as_str());
            assert_ne!(is_changing, OTHERS.contains(&words.as_str()), "{words}: in one list");
            let dry = command.get_arguments().find(|arg| arg.get_long() == Some("dry-run"));
            assert_eq!(dry.is_some(), is_changing, "{words}");
            let short = dry.map(clap::Arg::get_short);
            assert_eq!(short, is_changing.then_some(Some('n')), "{words}: -n");
        }
        let missing = |words: &&&str| !all.iter().any(|(all, _)| all == **words);
        let gone: Vec<_> = CHANGING.iter().chain(OTHERS).filter(missing).collect();
        assert_eq!(gone, [&""; 0], "no commands any more");
    }

    #[test]
    fn whoever_asks_for_a_confirmation_takes_yes() {
        for line in [
            "fence --yes p 1",
            "destroy --yes p",
            "label accept --yes p",
            "label restore --yes p --member 1=d",
        ] {
            let words = std::iter::once("braid").chain(line.split(' '));
            command_line().try_get_matches_from(words).unwrap();
        }
    }
}

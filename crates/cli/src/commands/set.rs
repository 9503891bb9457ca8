//! `braid set`

use std::process::ExitCode;

use anyhow::Result;

use super::properties;
use crate::control::{
    Order,
    session::{Missing, Session},
};
use crate::terminal::answer::{self, say};

/// Give a pool properties: settings that stay with it, on all hosts.
///
/// They are kept in the labels of the members. The pool may be mounted, also on other hosts: all nodes have taken note
/// when the command is done. If nobody has it mounted, this command joins it meanwhile. An empty value takes a property
/// away.
///
///     comment=TEXT           free text, shown by `braid status`
///     io_timeout=SECONDS     timers of every node, as for `mount -o io_timeout=`, which counts instead if given
///     scrub.every=DAYS       days from one scrub to the next, or never (`braid scrub --due`; default: 30)
///     mount.options=LIST     options of every `braid mount` of the pool, before those that are given
///
/// An option that belongs to one host or one mount, or that is needed before the pool is read, is refused in
/// mount.options.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// What is to be set
    #[arg(required = true, value_name = "KEY=VALUE")]
    properties: Vec<String>,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let changes = args.properties.iter().map(|word| properties::parse(word));
    let changes = changes.collect::<Result<Vec<_>>>()?;
    if args.dry_run {
        return Session::with(&args.pool, Missing::Refused, |session| {
            session.plan(Order::Set { properties: changes })
        });
    }
    let view = Session::with(&args.pool, Missing::Refused, |session| {
        session.order(&Order::Set { properties: changes.clone() })
    })?;
    for (key, value) in &changes {
        match value {
            Some(value) => say!("{key}={value}"),
            None => say!("{key} is not set any more"),
        }
    }
    answer::add("properties", &view.properties);
    Ok(ExitCode::SUCCESS)
}

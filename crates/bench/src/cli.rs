//! `braid bench`

use anyhow::Result;

use crate::modes::{self, Run};

/// Measure what storage does, layer by layer.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, clap::Subcommand)]
enum Mode {
    Ladder(Run<modes::ladder::Args>),
    Buffered(Run<modes::buffered::Args>),
    Bulk(Run<modes::bulk::Args>),
    Memory(Run<modes::memory::Args>),
    Meta(Run<modes::meta::Args>),
    Surface(Run<modes::surface::Args>),
    Sweep(Run<modes::sweep::Args>),
    Stripe(Run<modes::stripe::Args>),
    FirstWrite(Run<modes::first_write::Args>),
    Curve(Run<modes::curve::Args>),
    Stream(Run<modes::stream::Args>),
    Verify(modes::verify::Args),
    Copy(Run<modes::copy::Args>),
    Share(Run<modes::share::Args>),
    Scale(Run<modes::stripe::Nodes>),
    Seeds(modes::seeds::Args),
    Report(crate::report::write::Args),
}

/// Runs it.
///
/// # Errors
/// Something could not be set up or measured, or `--accept` was not met.
pub fn run(args: &Args) -> Result<()> {
    match &args.mode {
        Mode::Ladder(mode) => mode.run(),
        Mode::Buffered(mode) => mode.run(),
        Mode::Bulk(mode) => mode.run(),
        Mode::Memory(mode) => mode.run(),
        Mode::Meta(mode) => mode.run(),
        Mode::Surface(mode) => mode.run(),
        Mode::Sweep(mode) => mode.run(),
        Mode::Stripe(mode) => mode.run(),
        Mode::FirstWrite(mode) => mode.run(),
        Mode::Curve(mode) => mode.run(),
        Mode::Stream(mode) => mode.run(),
        Mode::Share(mode) => mode.run(),
        Mode::Scale(mode) => mode.run(),
        Mode::Copy(mode) => mode.run(),
        Mode::Verify(args) => modes::verify::run(args),
        Mode::Seeds(args) => modes::seeds::run(args),
        Mode::Report(args) => crate::report::write::run(args),
    }
}

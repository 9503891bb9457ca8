//! `braid bench`

use anyhow::Result;

use crate::modes;

/// Measure what storage does, layer by layer.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, clap::Subcommand)]
enum Mode {
    Ladder(modes::ladder::Args),
    Buffered(modes::buffered::Args),
    Memory(modes::memory::Args),
    Meta(modes::meta::Args),
    Surface(modes::surface::Args),
    Sweep(modes::sweep::Args),
    Stripe(modes::stripe::Args),
    FirstWrite(modes::first_write::Args),
    Curve(modes::curve::Args),
    Stream(modes::stream::Args),
    Verify(modes::verify::Args),
    Copy(modes::copy::Args),
    Share(modes::share::Args),
    Scale(modes::scale::Args),
    Seeds(modes::seeds::Args),
    Report(crate::report::write::Args),
}

/// Runs it.
///
/// # Errors
/// Something could not be set up or measured, or `--accept` was not met.
pub fn run(args: &Args) -> Result<()> {
    match &args.mode {
        Mode::Ladder(a) => modes::run(a),
        Mode::Buffered(a) => modes::run(a),
        Mode::Memory(a) => modes::run(a),
        Mode::Meta(a) => modes::run(a),
        Mode::Surface(a) => modes::run(a),
        Mode::Sweep(a) => modes::run(a),
        Mode::Stripe(a) => modes::run(a),
        Mode::FirstWrite(a) => modes::run(a),
        Mode::Curve(a) => modes::run(a),
        Mode::Stream(a) => modes::run(a),
        Mode::Share(a) => modes::run(a),
        Mode::Scale(a) => modes::run(a),
        Mode::Copy(a) => modes::run(a),
        Mode::Verify(a) => modes::verify::run(a),
        Mode::Seeds(a) => modes::seeds::run(a),
        Mode::Report(a) => crate::report::write::run(a),
    }
}

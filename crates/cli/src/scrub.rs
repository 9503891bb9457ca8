//! `braid scrub`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::control::{self, Order, ScrubView};
use crate::{size, ui};

/// Places printed one by one.
const SHOWN_MAX: usize = 20;

/// Read every copy and all parity of a mounted pool, and heal what rotted.
///
/// The pool stays in use meanwhile. What cannot be read is written anew from the other members. Where
/// copies disagree, what is right is known for metadata (by its checksum), for three copies or more
/// (by majority) and for two parities; the rest is reported and left alone. The exit status is 1 if
/// any was.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or one of its devices
    pool: String,
    /// Do not wait for its end
    #[arg(long)]
    background: bool,
    /// End the scrub that is under way
    #[arg(long, conflicts_with = "background")]
    stop: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mount = control::find(&args.pool)?;
    let before = control::order(&mount, &Order::Scrub { run: !args.stop })?;
    if args.stop || args.background {
        control::show(&before);
        return Ok(ExitCode::SUCCESS);
    }
    let bar = ui::bar("scrubbing");
    let mut advance = ui::progress(&bar);
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let view = control::order(&mount, &Order::Members)?;
        if let Some((done, total)) = view.scrubbing {
            advance(done, total);
        }
        if view.scrubs == before.scrubs {
            continue;
        }
        bar.finish_and_clear();
        return match (view.scrubbed, view.error) {
            (Some(found), _) => Ok(report(&found)),
            (None, error) => bail!("the scrub ended early: {}", error.unwrap_or_default()),
        };
    }
}

fn report(found: &ScrubView) -> ExitCode {
    println!(
        "{} read, {} healed{}",
        size::show(found.checked),
        size::show(found.healed),
        if found.finished { "" } else { "; ended before all was read" }
    );
    if found.undecided == 0 {
        return ExitCode::SUCCESS;
    }
    println!(
        "{} disagree with their copies or parity, and nothing says which is right:",
        size::show(found.undecided)
    );
    for place in found.places.iter().take(SHOWN_MAX) {
        println!("  pool byte {place}");
    }
    if found.places.len() > SHOWN_MAX {
        println!("  ... and {} more places", found.places.len() - SHOWN_MAX);
    }
    ExitCode::FAILURE
}

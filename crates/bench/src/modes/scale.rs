//! One to n nodes: each directory is a mount of the same file system on another node (or another
//! process); all begin together, and what counts is the rate while all were at work (S4.3, S4.4).

use anyhow::Result;

use super::stripe::{Job, Words, side_by_side};
use super::{System, configuration};

/// Speed-up on 1, 2 ... n mounts of one file system, begun together
#[derive(Debug, Clone, clap::Args, serde::Serialize)]
pub(crate) struct Args {
    /// Directories, one on each node's mount
    #[arg(value_name = "[NAME=]DIR", required = true)]
    nodes: Vec<System>,
    #[command(flatten)]
    job: Job,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let words = Words { kind: "scale", one: "1 node", many: "nodes", together: true };
    side_by_side(&args.nodes, &args.job, &words, configuration(args))
}

//! `braid version`

use std::path::Path;

use braid_fs::format::superblock::RawSuperblock;
use braid_fs::pool::device::default_engine;
use serde_json::json;

use crate::terminal::answer;

/// Shows the version, the formats it speaks, and what this machine offers.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run() {
    let (version, format) = (env!("CARGO_PKG_VERSION"), RawSuperblock::VERSION);
    let (engine, fuse) = (default_engine(), Path::new("/dev/fuse").exists());
    if answer::is_json() {
        answer::add_all(json!({
            "version": version, "format": format, "device_engine": engine.to_string(), "fuse": fuse,
        }));
        return;
    }
    println!("braid {version}");
    println!("file system format {format}");
    println!("device engine {engine}");
    println!("/dev/fuse {}", if fuse { "yes" } else { "no: mounting will fail" });
}

//! `braid version`

/// Shows the version, the formats it speaks, and what this machine offers.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run() {
    println!("braid {}", env!("CARGO_PKG_VERSION"));
    println!("file system format {}", braid_fs::format::superblock::RawSuperblock::VERSION);
    println!("device engine {}", braid_fs::pool::device::default_engine());
    let fuse =
        if std::path::Path::new("/dev/fuse").exists() { "yes" } else { "no: mounting will fail" };
    println!("/dev/fuse {fuse}");
}

//! Programs of the system: run, and what they say.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Where administrators' programs are, whatever a user's PATH says.
pub(super) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a command; its error output is the error.
pub(crate) fn command(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .env("PATH", SYSTEM_PATH)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub(crate) fn braid(words: &[&str]) -> Result<String> {
    command(text(&std::env::current_exe()?)?, words)
}

pub(crate) fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{}: not UTF-8", path.display()))
}

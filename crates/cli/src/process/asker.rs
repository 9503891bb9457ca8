//! `braid asker`, which nobody types: asks devices whether they answer, and may hang in place of the command
//! that wants to know. See [`braid_pool::device::answers`].

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use braid_pool::device::answers;
use braid_pool::device::user_dir;

/// Ask devices whether they answer; standard input is the socket of who wants to know
#[derive(Debug, clap::Args)]
pub struct Args {}

/// How long devices may take to answer.
#[derive(Debug, Default, clap::Args)]
pub struct Patience {
    /// How long a device may take to answer; then the command goes on without it and names it
    /// (default: 10)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
}

impl Patience {
    /// From now on devices that take longer are silent.
    pub fn begin(&self) {
        if let Some(time) = self.timeout {
            answers::wait_for(time);
        }
    }
    /// How long a device may take.
    pub fn time(&self) -> Duration {
        self.timeout.unwrap_or(USUAL)
    }
}

/// As long, if nobody says otherwise.
const USUAL: Duration = Duration::from_secs(10);
/// Most seconds that somebody waits for a device to answer.
const LONGEST: f64 = 3600.0;
/// Fewest: any disk is that quick, if it answers.
const SHORTEST: f64 = 0.1;

/// A time in seconds.
///
/// # Errors
/// It is none, or much too short or too long.
pub fn seconds(text: &str) -> Result<Duration> {
    let seconds = text.parse().ok().filter(|s| (SHORTEST..=LONGEST).contains(s));
    let time = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    time.with_context(|| format!("not a number of seconds from {SHORTEST} to {LONGEST}"))
}

/// How an asker is started: the program that runs, even if its file has been replaced since.
pub fn program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("braid").arg("asker");
    command
}

/// Runs it.
pub fn run() -> Result<ExitCode> {
    answers::serve(&user_dir()?)?;
    Ok(ExitCode::SUCCESS)
}

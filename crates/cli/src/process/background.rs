//! Work that goes on in the background: this program started once more, whose parent waits until the child
//! says on a pipe that it serves, or why not. So nothing is forked after threads exist.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::log;
use crate::terminal::{answer::warning, lost_output};

/// What a child says when it serves.
const READY: &str = "ready";
/// One line written is one message.
const KERNEL_LOG: &str = "/dev/kmsg";

/// Starts this program again by `command` and waits for its word.
///
/// # Errors
/// It cannot be started, or says why it does not serve.
pub fn start(mut command: Command) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start a process in the background")?;
    let thread = || std::thread::Builder::new().name("messages".into());
    let told = child.stderr.take().map(|err| thread().spawn(move || pass_on(err)));
    let told = told.transpose().context("cannot start a thread").inspect_err(|_| {
        child.kill().ok();
    })?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    // Its end closes the pipe, and so does a child that serves.
    let why = told.and_then(|told| told.join().ok()).unwrap_or_default();
    if line.trim() == READY {
        lost_output::print_error(format_args!("{why}"));
        return Ok(());
    }
    child.wait()?;
    bail!("{}", why.trim().trim_start_matches("braid: "))
}

/// Says that this process serves, and lets go of the terminal: own session, messages to the log file.
///
/// # Errors
/// The parent has gone.
pub fn detach(log: Option<File>) -> Result<()> {
    rustix::process::setsid().ok();
    rustix::process::chdir("/")?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    // What is said later must not be lost: the kernel's log takes it (root's only).
    let to_file = log.is_some();
    let messages = log.map_or_else(|| File::options().write(true).open(KERNEL_LOG), Ok);
    let to_kernel = !to_file && messages.is_ok();
    // After this message nothing may fail, because nobody would see the error.
    println!("{READY}");
    std::io::stdout().flush()?;
    rustix::stdio::dup2_stdout(&null).ok();
    rustix::stdio::dup2_stderr(messages.unwrap_or(null)).ok();
    if to_kernel {
        log::goes_to_kernel();
    }
    Ok(())
}

/// Shows at once what a child says before it serves: it may wait, and says for what. Returns what is no
/// message of that kind: why it failed.
fn pass_on(err: std::process::ChildStderr) -> String {
    let mut why = String::new();
    for line in BufReader::new(err).lines().map_while(Result::ok) {
        if let Some(text) = message(&line).filter(|_| !line.starts_with("braid: ")) {
            warning!("{text}");
        } else {
            why.push_str(&line);
            why.push('\n');
        }
    }
    why
}

/// What a line of a log says, without its time and its module.
fn message(line: &str) -> Option<&str> {
    let level = [" WARN ", " INFO ", "ERROR "].into_iter().find_map(|l| line.split_once(l));
    level.map(|(_, rest)| rest.split_once(": ").map_or(rest, |(_, text)| text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_says_is_shown_without_its_time_and_module() {
        let line = "2026-11-25T04:50:51.7Z  WARN braid_lock::node::claim: slot 1: taken by=2";
        assert_eq!(message(line), Some("slot 1: taken by=2"));
        assert_eq!(message("braid: no such device"), None);
    }
}

//! Runs a program that must end within a time: one that hangs would otherwise hold the whole run up, and
//! nobody would learn which it was.

use std::io::{self, Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

/// Between two looks at whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for the end of one that was killed.
const GONE_MAX: Duration = Duration::from_secs(10);

/// What a program came to.
pub struct Ended {
    /// What it printed, and how it ended.
    pub output: Output,
    /// It was killed, because it had not ended by itself.
    pub hung: bool,
}

/// Runs `command`. After `limit` it and the programs of its process group are killed; what it had printed
/// until then is returned with the signal's status.
///
/// # Errors
/// It cannot be started, or what it prints cannot be kept.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<Ended> {
    // Files and not pipes: a program that it leaves behind could hold a pipe open for ever.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
    let mut child = command.spawn()?;
    let ended = wait(&mut child, limit)?;
    let hung = ended.is_none();
    let status = ended.map_or_else(|| kill(&mut child), Ok)?;
    let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
    stdout.rewind()?;
    stdout.read_to_end(&mut output.stdout)?;
    stderr.rewind()?;
    stderr.read_to_end(&mut output.stderr)?;
    Ok(Ended { output, hung })
}

/// How a program ended, if it did within `limit`.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK);
    }
    Ok(None)
}

fn kill(child: &mut Child) -> io::Result<ExitStatus> {
    Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
    // One that the kernel does not let go of is left.
    Ok(wait(child, GONE_MAX)?.unwrap_or(ExitStatus::from_raw(9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed_and_what_it_said_is_kept() {
        let mut hangs = Command::new("sh");
        let begun = Instant::now();
        let said = run(hangs.args(["-c", "echo begun; sleep 600"]), Duration::from_secs(1));
        let Ended { output, hung } = said.unwrap();
        assert!(begun.elapsed() < Duration::from_mins(1));
        assert!(hung);
        assert_eq!(output.status.signal(), Some(9));
        assert_eq!(output.stdout, b"begun\n");
    }

    #[test]
    fn a_program_that_somebody_else_kills_did_not_hang() {
        let mut dies = Command::new("sh");
        let said = run(dies.args(["-c", "kill -KILL $$"]), Duration::from_mins(1)).unwrap();
        assert_eq!((said.output.status.signal(), said.hung), (Some(9), false));
    }

    #[test]
    fn a_program_that_ends_is_as_without_a_limit() {
        let mut ends = Command::new("sh");
        let said = run(ends.args(["-c", "echo out; echo err >&2; exit 3"]), Duration::from_mins(1));
        let Ended { output, hung } = said.unwrap();
        assert_eq!((output.status.code(), hung), (Some(3), false));
        assert_eq!((output.stdout, output.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
    }
}

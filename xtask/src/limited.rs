//! Runs a program that must end within a time: one that hangs would otherwise hold the whole run up, and
//! nobody would learn which it was.

use std::io::{self, Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

/// What `command` printed, and how it ended. After `limit` it and the programs of its process group are
/// killed; what it had printed until then is returned with the signal's status.
///
/// # Errors
/// It cannot be started, or what it prints cannot be kept.
pub fn output(command: &mut Command, limit: Duration) -> io::Result<Output> {
    // Files and not pipes: a program that it leaves behind could hold a pipe open for ever.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
    let status = wait(&mut command.spawn()?, limit)?;
    let mut output = Output { status, stdout: Vec::new(), stderr: Vec::new() };
    stdout.rewind()?;
    stdout.read_to_end(&mut output.stdout)?;
    stderr.rewind()?;
    stderr.read_to_end(&mut output.stderr)?;
    Ok(output)
}

/// Whether [`output`] killed the program, or it ended by the same signal.
pub fn was_killed(output: &Output) -> bool {
    output.status.signal() == Some(9)
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
    // One that the kernel does not let go of is left.
    for _ in 0..500 {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(ExitStatus::from_raw(9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed_and_what_it_said_is_kept() {
        let mut hangs = Command::new("sh");
        let begun = Instant::now();
        let said = output(hangs.args(["-c", "echo begun; sleep 600"]), Duration::from_secs(1));
        let said = said.unwrap();
        assert!(begun.elapsed() < Duration::from_mins(1));
        assert!(was_killed(&said));
        assert_eq!(said.stdout, b"begun\n");
    }

    #[test]
    fn a_program_that_ends_is_as_without_a_limit() {
        let mut ends = Command::new("sh");
        let said =
            output(ends.args(["-c", "echo out; echo err >&2; exit 3"]), Duration::from_mins(1));
        let said = said.unwrap();
        assert_eq!((said.status.code(), was_killed(&said)), (Some(3), false));
        assert_eq!((said.stdout, said.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
    }
}

//! The control socket of a running target: faults come and go while it serves.
//!
//! One line in, any number of lines out: `add FAULT`, `clear`, `list`, `sessions`, `cut [NAME]`,
//! `power`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::TargetError;
use crate::server::Target;
use crate::session_table::SessionView;
use crate::state::TargetState;

/// Longest line.
const LINE_MAX: u64 = 4096;
/// A silent caller keeps nobody waiting longer.
const PATIENCE: Duration = Duration::from_secs(5);

impl Target {
    /// Listens at `path` until the program ends. What stands there and nobody listens at is
    /// removed first.
    ///
    /// # Errors
    /// The system's.
    pub fn control(&self, path: &Path) -> Result<(), TargetError> {
        let failed = |e| TargetError::io(path.display().to_string(), e);
        if UnixStream::connect(path).is_err() {
            let _ = std::fs::remove_file(path);
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        let target = self.state().clone();
        let serve = move || {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => {
                        if let Err(error) = serve(&target, &stream) {
                            tracing::debug!(%error, "control");
                        }
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        tracing::warn!(%error, "no caller taken");
                        // Out of descriptors, as likely as not.
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        };
        std::thread::Builder::new().name("target-control".into()).spawn(serve).map_err(failed)?;
        Ok(())
    }
}

fn serve(target: &Arc<TargetState>, mut stream: &UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut line)?;
    let said = match obey(target, line.trim()) {
        Ok(lines) => lines.iter().fold("ok\n".to_owned(), |all, l| all + l + "\n"),
        Err(why) => format!("error {why}\n"),
    };
    stream.write_all(said.as_bytes())
}

fn obey(target: &Arc<TargetState>, line: &str) -> Result<Vec<String>, TargetError> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "add" => target.faults.add(rest.trim()).map(|()| Vec::new()),
        "clear" => {
            target.faults.clear();
            Ok(Vec::new())
        }
        "list" => Ok(target.faults.list()),
        "sessions" => {
            let show = |s: &SessionView| {
                let isid = s.isid.iter().fold(0, |all, b| all << 8 | u64::from(*b));
                let from = s.from.map_or_else(|| "?".to_owned(), |a| a.to_string());
                format!("{} {isid:012x} {from}", s.initiator)
            };
            Ok(target.sessions.views().iter().map(show).collect())
        }
        "cut" => Ok(vec![format!("{} sessions cut", target.sessions.cut(rest.trim()))]),
        "power" => {
            target.luns.iter().for_each(|unit| unit.lose_power());
            Ok(Vec::new())
        }
        _ => Err(TargetError::BadCommand { command: line.to_owned() }),
    }
}

/// Says one line to the target whose control socket is at `path`; what it answers.
///
/// # Errors
/// The system's; what the target refused.
pub fn tell(path: &Path, line: &str) -> Result<String, TargetError> {
    let failed = |e| TargetError::io(path.display().to_string(), e);
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.write_all(format!("{line}\n").as_bytes()).map_err(failed)?;
    let mut said = String::new();
    stream.read_to_string(&mut said).map_err(failed)?;
    if let Some(lines) = said.strip_prefix("ok\n") {
        return Ok(lines.to_owned());
    }
    let why = said.trim().trim_start_matches("error ").to_owned();
    Err(TargetError::io("the target refused", std::io::Error::other(why)))
}

//! Orders to a supervisor: one line of JSON each way, on a socket beside its note.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::export::{Export, Server};

/// Longest line that is read, bytes.
const LINE_MAX: u64 = 64 << 10;
/// A caller that says nothing for so long is let go.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for an answer: a server may take that long to end.
const ANSWER_TIME: Duration = Duration::from_mins(2);

/// What a supervisor is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// How things are.
    Look,
    /// Export this, or change how it is exported.
    Put(Export),
    /// No longer export this part of the pool.
    Remove(String),
    /// Export nothing any more: the server ends, then the supervisor.
    End,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Done. So things are now.
    Done(View),
    /// It cannot be done.
    Refused(String),
}

/// How the server is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It answers clients.
    Serving,
    /// It has ended, and is started again.
    Restarting(String),
    /// It has ended too often.
    Failed(String),
}

/// How things are with a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct View {
    /// The server.
    #[serde(flatten)]
    pub server: Server,
    /// The supervisor.
    pub pid: u32,
    /// Ganesha's process, while it runs.
    pub ganesha_pid: Option<u32>,
    /// How it is.
    pub state: State,
    /// How often it was started again.
    pub restarts: u32,
    /// What it exports.
    pub exports: Vec<Export>,
}

/// The socket of a supervisor.
pub fn socket(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("export-{id}.sock"))
}

/// Takes orders at `path`, in threads of their own; `obey` is called in them.
///
/// # Errors
/// The socket cannot be made.
pub fn serve(
    path: &Path,
    obey: impl Fn(Order) -> Result<View> + Clone + Send + 'static,
) -> io::Result<()> {
    std::fs::remove_file(path).ok();
    let listener = UnixListener::bind(path)?;
    let work = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors, as likely as not.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let obey = obey.clone();
            // A caller that says nothing keeps nobody else waiting.
            let thread = std::thread::Builder::new().name("order".into());
            // Where there is no thread the caller sees its connection end.
            thread.spawn(move || answer(&stream, &obey).ok()).ok();
        }
    };
    std::thread::Builder::new().name("orders".into()).spawn(work)?;
    Ok(())
}

fn answer(mut stream: &UnixStream, obey: &impl Fn(Order) -> Result<View>) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(Read::take(stream, LINE_MAX)).read_line(&mut line)?;
    let done = serde_json::from_str(&line).context("not an order").and_then(obey);
    let answer = done.map_or_else(|e| Answer::Refused(format!("{e:#}")), Answer::Done);
    writeln!(stream, "{}", serde_json::to_string(&answer)?)?;
    Ok(())
}

/// Gives a supervisor an order.
///
/// # Errors
/// It does not answer, or refuses.
pub fn order(dir: &Path, id: &str, order: &Order) -> Result<View> {
    let silent = || format!("the process that supervises NFS exports ({id}) does not answer");
    let mut stream = UnixStream::connect(socket(dir, id)).with_context(silent)?;
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    writeln!(stream, "{}", serde_json::to_string(order)?).with_context(silent)?;
    let mut line = String::new();
    let read = BufReader::new(stream).read_line(&mut line);
    let cut = |e: &io::Error| e.kind() == io::ErrorKind::ConnectionReset;
    if read.as_ref().is_err_and(cut) || read.is_ok() && !line.ends_with('\n') {
        bail!(
            "the process that supervises NFS exports ({id}) has ended before it answered: `braid export --list` shows \
             what is exported"
        );
    }
    read.with_context(silent)?;
    match serde_json::from_str(&line).with_context(silent)? {
        Answer::Done(view) => Ok(view),
        Answer::Refused(why) => bail!("{why}"),
    }
}

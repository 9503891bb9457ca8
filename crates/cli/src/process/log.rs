//! Where messages go, and how a line looks there.
//!
//! ```text
//!  terminal, file   2026-11-25T04:50:51.7Z  WARN braid_pool::pool: text key=value
//!  kernel's log     <4>braid[123]: WARN braid_pool::pool: text key=value
//!  journal          <4>WARN braid_pool::pool: text key=value
//! ```
//!
//! The kernel's log and the journal have a time of their own, and take the level from the number in front: 3 is an
//! error, 4 a warning, 6 the story of a node's life, 7 more.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Which messages are wanted, in the form of `tracing`'s filters.
const VARIABLE: &str = "BRAID_LOG";
/// The kernel refuses a longer record.
const KERNEL_LINE_MAX: usize = 900;

const PLAIN: u8 = 0;
const JOURNAL: u8 = 1;
const KERNEL: u8 = 2;

/// What standard error is.
static OUTPUT: AtomicU8 = AtomicU8::new(PLAIN);

/// Messages go to standard error from now on: those of a `node` from level info on, of commands warnings and
/// errors, unless the environment says otherwise.
pub fn start(node: bool) {
    if is_journal() {
        OUTPUT.store(JOURNAL, Ordering::Relaxed);
    }
    let usual = if node { "warn,braid=info" } else { "warn" };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| usual.into()))
        .with_ansi(std::io::stderr().is_terminal())
        .with_timer(Clock)
        .with_writer(Output)
        // It would say them where it could not write.
        .log_internal_errors(false)
        .init();
}

/// Standard error is the kernel's log from now on.
pub fn goes_to_kernel() {
    OUTPUT.store(KERNEL, Ordering::Relaxed);
}

/// Standard error is a file, or nothing, from now on.
pub fn goes_to_file() {
    OUTPUT.store(PLAIN, Ordering::Relaxed);
}

/// Whether systemd has made standard error its journal's: it names the file.
fn is_journal() -> bool {
    let Some(named) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let file = std::fs::metadata("/proc/self/fd/2");
    file.is_ok_and(|file| named == format!("{}:{}", file.dev(), file.ino()))
}

/// The time in front of a line, where it has none of its own.
struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        if OUTPUT.load(Ordering::Relaxed) == PLAIN { SystemTime.format_time(w) } else { Ok(()) }
    }
}

/// Standard error.
struct Output;

impl<'a> MakeWriter<'a> for Output {
    type Writer = Line;
    fn make_writer(&'a self) -> Line {
        Line { level: Level::INFO }
    }
    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        Line { level: *meta.level() }
    }
}

/// A message that is about to be written.
struct Line {
    level: Level,
}

impl Write for Line {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let output = OUTPUT.load(Ordering::Relaxed);
        if output == PLAIN {
            return io::stderr().write(text);
        }
        let line = record(output, self.level, &String::from_utf8_lossy(text));
        // One write is one record.
        io::stderr().write_all(line.as_bytes())?;
        Ok(text.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A message as the journal or the kernel's log takes it.
fn record(output: u8, level: Level, text: &str) -> String {
    let number = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    };
    let text = text.trim();
    if output == JOURNAL {
        return format!("<{number}>{text}\n");
    }
    let end = text.floor_char_boundary(KERNEL_LINE_MAX);
    format!("<{number}>braid[{}]: {}\n", std::process::id(), text.split_at(end).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_level_as_a_number_and_a_length_that_the_kernel_takes() {
        let text = "  WARN braid_pool::pool: a member is slow member=1\n";
        let line = record(JOURNAL, Level::WARN, text);
        assert_eq!(line, "<4>WARN braid_pool::pool: a member is slow member=1\n");
        let line = record(KERNEL, Level::ERROR, " ERROR lost");
        assert_eq!(line, format!("<3>braid[{}]: ERROR lost\n", std::process::id()));
        assert!(record(KERNEL, Level::INFO, &"\u{e4}".repeat(5000)).len() < 950);
    }
}

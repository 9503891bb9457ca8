//! Where messages go, and how a line looks there.
//!
//! ```text
//!  terminal, file   2026-11-25T04:50:51.7Z safe: node 0:  WARN braid_pool::pool: text key=value
//!  kernel's log     <4>braid[123]: safe: node 0:  WARN braid_pool::pool: text key=value
//!  journal          <4>safe: node 0:  WARN braid_pool::pool: text key=value
//!  JSON             {"pool":"safe","node":0,"timestamp":"2026-...Z","level":"WARN","message":"text","key":"value",...}
//! ```
//!
//! The pool and the node are those of this process: it serves one mount. A line has the pool once its labels are read,
//! and the node once it has joined. Commands that are no node have neither.
//!
//! Lines of JSON, if they are asked for, have a number in front in the kernel's log and the journal, too, and a time
//! of their own everywhere.
//!
//! The kernel's log and the journal have a time of their own, and take the level from the number in front: 3 is an
//! error, 4 a warning, 6 the story of a node's life, 7 more.

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use braid_format::NodeId;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Json, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::terminal::answer::printable;

/// Which messages are wanted, in the form of `tracing`'s filters.
const VARIABLE: &str = "BRAID_LOG";
/// The form of a line: `text` or `json`.
const FORMAT_VARIABLE: &str = "BRAID_LOG_FORMAT";
/// The kernel refuses a longer record.
const KERNEL_LINE_MAX: usize = 900;

const PLAIN: u8 = 0;
const JOURNAL: u8 = 1;
const KERNEL: u8 = 2;

/// What standard error is.
static OUTPUT: AtomicU8 = AtomicU8::new(PLAIN);
/// Lines are JSON.
static JSON: AtomicBool = AtomicBool::new(false);

/// The pool whose node this process is.
static POOL: OnceLock<String> = OnceLock::new();
/// The node.
static NODE: OnceLock<NodeId> = OnceLock::new();

/// Lines are about this pool from now on.
pub fn of_pool(name: &str) {
    POOL.set(name.to_owned()).ok();
}

/// Lines are this node's from now on.
pub fn of_node(node: NodeId) {
    NODE.set(node).ok();
}

/// Whose a line is.
#[derive(Debug, Clone, Copy)]
struct Whose<'a> {
    pool: Option<&'a str>,
    node: Option<NodeId>,
}

impl Whose<'_> {
    fn now() -> Self {
        Self { pool: POOL.get().map(String::as_str), node: NODE.get().copied() }
    }
    /// In front of a line for people.
    fn text(&self) -> String {
        let pool = self.pool.map(|pool| format!("{}:", unforged(pool)));
        let node = self.node.map(|node| format!("node {node}:"));
        pool.into_iter().chain(node).collect::<Vec<_>>().join(" ")
    }
    /// In front of the members of a JSON object that has not `has` them already.
    fn json(&self, has: impl Fn(&str) -> bool) -> String {
        let pool = self.pool.filter(|_| !has("pool"));
        let pool = pool.map(|pool| format!("\"pool\":{},", serde_json::Value::from(pool)));
        let node = self.node.filter(|_| !has("node")).map(|node| format!("\"node\":{node},"));
        pool.into_iter().chain(node).collect()
    }
}

/// A pool's name as it stands in front of a line. One that could be taken for more than a name is quoted.
fn unforged(pool: &str) -> String {
    let shown = printable(pool);
    let is_more = shown.contains(':') && shown.contains(char::is_whitespace);
    if is_more || shown.starts_with('"') { format!("\"{}\"", shown.escape_debug()) } else { shown }
}

/// The form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

impl LineFormat {
    /// From its name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
    /// What the environment asks for.
    pub fn of_environment() -> Self {
        let name = std::env::var(FORMAT_VARIABLE).unwrap_or_default();
        Self::parse(&name).unwrap_or(Self::Text)
    }
    /// Lines have this form from now on. A node that starts in the background uses it once it serves: until then
    /// the command that started it reads what it says, and shows it.
    pub fn begin(self) {
        JSON.store(self == Self::Json, Ordering::Relaxed);
    }
}

/// Messages go to a file of this name from now on, which may be a new one.
///
/// # Errors
/// It cannot be opened: they go where they went.
pub fn reopen(path: &Path) -> io::Result<()> {
    let file = File::options().create(true).append(true).open(path)?;
    Ok(rustix::stdio::dup2_stderr(file)?)
}

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
        // It would say them where it could not write.
        .log_internal_errors(false)
        .event_format(Line::new())
        .with_writer(Output)
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

/// A line of one form or the other.
struct Line {
    text: Format<Full, Clock>,
    json: Format<Json, SystemTime>,
}

impl Line {
    fn new() -> Self {
        let json = Format::default().json().flatten_event(true);
        Self {
            text: Format::default().with_timer(Clock),
            json: json.with_current_span(false).with_span_list(false),
        }
    }
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if JSON.load(Ordering::Relaxed) {
            let mut line = String::new();
            self.json.format_event(context, Writer::new(&mut line), event)?;
            let fields = event.metadata().fields();
            let whose = Whose::now().json(|name| fields.field(name).is_some());
            let members = line.strip_prefix('{').unwrap_or(&line);
            write!(writer, "{{{whose}{members}")
        } else {
            self.text.format_event(context, writer, event)
        }
    }
}

/// In front of a line: the time, where it has none of its own, and whose it is.
struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        let whose = Whose::now().text();
        if OUTPUT.load(Ordering::Relaxed) != PLAIN {
            return w.write_str(&whose);
        }
        SystemTime.format_time(w)?;
        if whose.is_empty() { Ok(()) } else { write!(w, " {whose}") }
    }
}

/// Standard error.
struct Output;

impl<'a> MakeWriter<'a> for Output {
    type Writer = Message;
    fn make_writer(&'a self) -> Message {
        Message { level: Level::INFO }
    }
    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Message {
        Message { level: *meta.level() }
    }
}

/// A message that is about to be written.
struct Message {
    level: Level,
}

impl Write for Message {
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
    fn a_line_names_its_pool_and_its_node() {
        let whose = |pool, node: Option<u16>| Whose { pool, node: node.map(NodeId) };
        let safe = whose(Some("safe"), Some(3));
        assert_eq!(safe.text(), "safe: node 3:");
        assert_eq!(whose(Some("a\u{202e}"), None).text(), "a\\u{202e}:");
        assert_eq!(whose(None, None).text(), "");
        // No name is taken for another pool's node.
        assert_eq!(whose(Some("safe: node 3"), None).text(), "\"safe: node 3\":");
        assert_eq!(whose(Some("\"a\""), None).text(), r#""\"a\"":"#);
        assert_eq!(safe.json(|_| false), r#""pool":"safe","node":3,"#);
        assert_eq!(safe.json(|name| name == "pool"), r#""node":3,"#);
        assert_eq!(whose(Some("a\"b"), None).json(|_| false), r#""pool":"a\"b","#);
        assert_eq!(whose(None, None).json(|_| false), "");
        let line = record(KERNEL, Level::WARN, &format!("{}  WARN lost", safe.text()));
        assert_eq!(line, format!("<4>braid[{}]: safe: node 3:  WARN lost\n", std::process::id()));
    }

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

//! What a command answers: lines for people or, with `--json`, one JSON object for programs.
//!
//! Every command but those that imitate other programs takes `--json` ([`add_option`]). Then standard output has
//! one object, or one on each line from commands that go on (`iostat`, `top`, `events`) or begin to serve (`serve`, `target`).
//! An object has
//!
//! * `schema`: [`SCHEMA`]; it grows if a member is renamed or means something else, not if one is added,
//! * `command`: the command, as `label dump`,
//! * the command's own members (docs/GUIDE.md lists them),
//! * `messages`: the lines that people would have read; commands that only look have none,
//! * `error`: why it failed, if it did; then standard error has it, too.
//!
//! A process carries out one command, so there is one answer.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use braid_format::text;
use clap::{Arg, ArgAction, ArgMatches, Command};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value};

use super::lost_output;

/// Version of all answers.
const SCHEMA: u32 = 1;
/// Name of the option.
const JSON: &str = "json";
/// Commands with options of other programs, or of their own.
const OTHERS: &[&str] = &["bench", "lmdd", "xdd"];

/// The answer, if it is for programs.
static ANSWER: OnceLock<Mutex<Answer>> = OnceLock::new();

struct Answer {
    command: String,
    members: Map<String, Value>,
    messages: Vec<String>,
    /// Lines were given: nothing more is to come but an error.
    in_lines: bool,
}

impl Answer {
    fn object(&self, members: Map<String, Value>) -> Value {
        let mut object = Map::new();
        object.insert("schema".into(), SCHEMA.into());
        object.insert("command".into(), self.command.clone().into());
        object.extend(members);
        Value::Object(object)
    }
}

/// The same commands; each that people use takes `--json`.
pub fn add_option(command: Command) -> Command {
    if OTHERS.contains(&command.get_name()) || command.is_hide_set() {
        return command;
    }
    // `serve` does something by itself, too.
    let only_subcommands = command.has_subcommands() && command.get_positionals().next().is_none();
    let command = command.mut_subcommands(add_option);
    if only_subcommands {
        return command;
    }
    let help = "Machine-readable: one JSON object (see the guide)";
    command.arg(Arg::new(JSON).long(JSON).action(ArgAction::SetTrue).help(help))
}

/// The option of all commands that change a pool or a host.
const DRY_RUN: &str = "dry_run";
/// The option without which a command that has it only looks.
const REPAIR: &str = "repair";

/// This command says what it would do.
static IS_DRY: AtomicBool = AtomicBool::new(false);

/// Whether this command changes nothing.
pub fn is_dry_run() -> bool {
    IS_DRY.load(Ordering::Relaxed)
}

/// Whether a command changes something; `None`: it has no option that says so, and only looks.
fn changes(matches: &ArgMatches) -> Option<bool> {
    let given = |option| matches.try_get_one::<bool>(option).ok().flatten().copied();
    given(DRY_RUN).map(|dry| !dry && given(REPAIR) != Some(false))
}

/// This command changes something, or says what it would change.
pub fn begin_work(changes: bool) {
    if changes {
        lost_output::finish_work();
    } else {
        IS_DRY.store(true, Ordering::Relaxed);
    }
}

/// The answer is for programs if the command line says so. Called once, before anything is said.
pub fn begin(matches: &ArgMatches) {
    let (mut words, mut at) = (Vec::new(), matches);
    while let Some((word, below)) = at.subcommand() {
        words.push(word);
        at = below;
    }
    changes(at).into_iter().for_each(begin_work);
    if at.try_get_one::<bool>(JSON).ok().flatten() != Some(&true) || OTHERS.contains(&words[0]) {
        return;
    }
    let answer = Answer {
        command: words.join(" "),
        members: Map::new(),
        messages: Vec::new(),
        in_lines: false,
    };
    // A second answer of one process would be lost.
    let first = ANSWER.set(Mutex::new(answer)).is_ok();
    debug_assert!(first, "two commands in one process");
}

/// Whether the answer is for programs.
pub fn is_json() -> bool {
    ANSWER.get().is_some()
}

/// One member of the answer for programs. What has no form as JSON is `null`.
pub fn add(name: &str, value: impl Serialize) {
    if let Some(answer) = ANSWER.get() {
        let value = serde_json::to_value(value).unwrap_or_default();
        answer.lock().members.insert(name.to_owned(), value);
    }
}

/// All members of an object.
pub fn add_all(value: Value) {
    if let (Some(answer), Value::Object(members)) = (ANSWER.get(), value) {
        answer.lock().members.extend(members);
    }
}

/// One object of many, at once, on a line of its own.
pub fn line(value: Value) {
    if let (Some(answer), Value::Object(members)) = (ANSWER.get(), value) {
        let object = {
            let mut answer = answer.lock();
            answer.in_lines = true;
            answer.object(members)
        };
        lost_output::print(format_args!("{}\n", printable_json(&object.to_string())));
    }
}

/// A line for people; [`say`] is the short form.
pub fn say_line(text: fmt::Arguments<'_>) {
    match ANSWER.get() {
        Some(answer) => answer.lock().messages.push(text.to_string()),
        None => lost_output::print(format_args!("{}\n", printable(&text.to_string()))),
    }
}

/// What shows as it is; other characters as escapes: names come from disks and from other users, and would speak to
/// the terminal, or look like others.
pub fn printable(text: &str) -> String {
    escaped(text, |c| c.escape_default().to_string())
}

/// The same for a text of JSON, which means the same to programs: such characters stand in strings alone.
pub fn printable_json(text: &str) -> String {
    let escape = |c: char| {
        let mut units = [0; 2];
        let units = c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}"));
        units.collect::<Vec<_>>().concat()
    };
    escaped(text, escape)
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let kept = |c: char| text::shows(c) || matches!(c, '\n' | '\t');
    text.chars().map(|c| if kept(c) { c.to_string() } else { escape(c) }).collect()
}

/// A line of warning on standard error.
pub fn warn_line(text: fmt::Arguments<'_>) {
    lost_output::print_error(format_args!("braid: {}\n", printable(&text.to_string())));
}

/// A line on standard error that is no warning.
pub fn note_line(text: fmt::Arguments<'_>) {
    lost_output::print_error(format_args!("{}\n", printable(&text.to_string())));
}

/// Warns on standard error, as `eprintln!` does.
macro_rules! warning {
    ($($words:tt)*) => { $crate::terminal::answer::warn_line(format_args!($($words)*)) };
}
pub(crate) use warning;

/// A path on one line, whatever characters it has.
pub fn shown(path: &Path) -> String {
    path.display().to_string().replace('\n', "\\n")
}

/// Lines for people, each with its end.
pub fn say_lines(text: &str) {
    text.lines().for_each(|line| say_line(format_args!("{line}")));
}

/// Says a line as `println!` does; for programs it is one of the answer's messages.
macro_rules! say {
    ($($words:tt)*) => { $crate::terminal::answer::say_line(format_args!($($words)*)) };
}
pub(crate) use say;

/// The command has ended, perhaps by an error: what programs read is printed.
pub fn end(error: Option<&str>) {
    let Some(answer) = ANSWER.get() else { return };
    let object = {
        let mut answer = answer.lock();
        if answer.in_lines && error.is_none() {
            return;
        }
        let mut members = std::mem::take(&mut answer.members);
        if !answer.messages.is_empty() {
            members.insert("messages".into(), std::mem::take(&mut answer.messages).into());
        }
        if let Some(error) = error {
            members.insert("error".into(), error.into());
        }
        let object = answer.object(members);
        if answer.in_lines { object.to_string() } else { format!("{object:#}") }
    };
    lost_output::print(format_args!("{}\n", printable_json(&object)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_without_repair_only_looks() {
        let switch = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let command = |names: &[&'static str]| {
            names.iter().fold(Command::new("c"), |command, name| command.arg(switch(name)))
        };
        let changes = |names: &[&'static str], words: &[&str]| {
            let words = [&["c"], words].concat();
            changes(&command(names).try_get_matches_from(words).unwrap())
        };
        assert_eq!(changes(&[], &[]), None);
        assert_eq!(changes(&[DRY_RUN], &[]), Some(true));
        assert_eq!(changes(&[DRY_RUN], &["--dry_run"]), Some(false));
        let both = [DRY_RUN, REPAIR];
        assert_eq!(changes(&both, &[]), Some(false));
        assert_eq!(changes(&both, &["--repair"]), Some(true));
        assert_eq!(changes(&both, &["--repair", "--dry_run"]), Some(false));
    }

    #[test]
    fn what_would_not_show_as_it_is_is_escaped() {
        let name = "a\u{202e}b\u{200b}\x1b[31m ä 🦀\n";
        assert_eq!(printable(name), "a\\u{202e}b\\u{200b}\\u{1b}[31m ä 🦀\n");
        let json = serde_json::json!({"name": format!("{name}\u{e0041}\u{9b}")}).to_string();
        let shown = printable_json(&json);
        assert!(shown.chars().all(text::shows), "{shown:?}");
        let (read, was): (Value, Value) =
            (serde_json::from_str(&shown).unwrap(), serde_json::from_str(&json).unwrap());
        assert_eq!(read, was);
    }
}

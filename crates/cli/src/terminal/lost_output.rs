//! Output that nobody reads any more (`braid status | head -1`), or that cannot be written (a full disk).
//!
//! SIGPIPE is ignored, as in all programs of Rust: a node writes to sockets whose other side may go
//! away. So `print!` finds the closed pipe by itself, and panics, as it does at every other error. Here
//! that panic says nothing and unwinds, so that a node of this process leaves its pool. Then the program
//! ends: by the signal, as every other tool does, or with a message and an error.

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::process::ExitCode;

use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;

/// The standard library's message for it.
const PRINTING: &str = "failed printing to std";

/// Runs a program to its end, or until its output cannot be written.
pub fn ended_by(run: impl FnOnce() -> ExitCode) -> ExitCode {
    let usual = take_hook();
    set_hook(Box::new(move |info| {
        if lost(info.payload()).is_none() {
            usual(info);
        }
    }));
    let panic = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(code) => return code,
        Err(panic) => panic,
    };
    let Some(why) = lost(&*panic) else { resume_unwind(panic) };
    if is_closed_pipe(why) {
        emulate_default_handler(SIGPIPE).ok();
    }
    // Where this cannot be written either, nothing more can be said.
    let said = "what this command prints cannot be written";
    let next = "look at what it has done with `braid status`";
    writeln!(std::io::stderr(), "braid: {said}: {why}; {next}").ok();
    ExitCode::FAILURE
}

/// Does `work`, then `after`, even if the output of `work` was not read to its end.
pub fn and_then<T, U>(work: impl FnOnce() -> T, after: impl FnOnce() -> U) -> (T, U) {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => (done, after()),
        Err(panic) => {
            if lost(&*panic).is_some() {
                after();
            }
            resume_unwind(panic)
        }
    }
}

/// Why output could not be written, if that is what a panic is about.
fn lost(panic: &(dyn Any + Send)) -> Option<&str> {
    // `failed printing to stdout: No space left on device (os error 28)`
    let (_, why) = panic.downcast_ref::<String>()?.strip_prefix(PRINTING)?.split_once(": ")?;
    Some(why)
}

fn is_closed_pipe(why: &str) -> bool {
    why == std::io::Error::from(rustix::io::Errno::PIPE).to_string()
}

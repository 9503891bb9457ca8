//! Output that nobody reads any more: `braid status | head -1`.
//!
//! SIGPIPE is ignored, as in all programs of Rust: a node writes to sockets whose other side may go
//! away. So `print!` finds the closed pipe by itself, and panics. Here that panic says nothing and
//! unwinds, so that a node of this process leaves its pool; then the program ends by the signal, as
//! every other tool does.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::process::ExitCode;

use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;

/// The standard library's message for it.
const PRINTING: &str = "failed printing to std";

/// Runs a program to its end, or until it writes to a pipe that was closed.
pub fn ended_by(run: impl FnOnce() -> ExitCode) -> ExitCode {
    let usual = take_hook();
    set_hook(Box::new(move |info| {
        if !is_unread(info.payload()) {
            usual(info);
        }
    }));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(code) => code,
        Err(panic) if is_unread(&*panic) => {
            emulate_default_handler(SIGPIPE).ok();
            ExitCode::FAILURE
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// Does `work`, then `after`, even if the output of `work` was not read to its end.
pub fn and_then<T, U>(work: impl FnOnce() -> T, after: impl FnOnce() -> U) -> (T, U) {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => (done, after()),
        Err(panic) => {
            if is_unread(&*panic) {
                after();
            }
            resume_unwind(panic)
        }
    }
}

fn is_unread(panic: &(dyn Any + Send)) -> bool {
    let broken = || std::io::Error::from(rustix::io::Errno::PIPE).to_string();
    let said = panic.downcast_ref::<String>();
    said.is_some_and(|said| said.starts_with(PRINTING) && said.ends_with(&broken()))
}

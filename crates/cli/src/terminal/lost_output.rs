//! Output that nobody reads any more (`braid status | head -1`), or that cannot be written (a full disk).
//!
//! SIGPIPE is ignored, as in all programs of Rust: a node writes to sockets whose other side may go
//! away. So `print!` finds the closed pipe by itself, and panics, as it does at every other error. Here
//! that panic says nothing and unwinds, so that a node of this process leaves its pool. Then the program
//! ends: by the signal, as every other tool does, or with a message and an error.
//!
//! A command that changes a pool or a host does not stop in the middle for that ([`finish_work`]): what it prints goes
//! through [`print`], which drops the rest. Its exit status is that of its work, or an error if a file could not be
//! written.

use std::any::Any;
use std::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;

/// The standard library's message for it.
const PRINTING: &str = "failed printing to std";

/// The work is finished, whatever becomes of what is said of it.
static FINISHES: AtomicBool = AtomicBool::new(false);
/// Why the rest of the output is dropped.
static DROPPED: Mutex<Option<io::Error>> = Mutex::new(None);

/// From now on the work of this process goes on when its output cannot be written.
pub fn finish_work() {
    FINISHES.store(true, Ordering::Relaxed);
}

/// Prints on standard output, as `print!` does.
///
/// # Panics
/// As that, unless the work is to be finished.
pub fn print(text: fmt::Arguments<'_>) {
    if !FINISHES.load(Ordering::Relaxed) {
        print!("{text}");
        return;
    }
    write_or_drop(&mut io::stdout(), text, &mut DROPPED.lock());
}

/// The same on standard error; what cannot be written there is dropped if the work is to be finished.
pub fn print_error(text: fmt::Arguments<'_>) {
    if FINISHES.load(Ordering::Relaxed) {
        io::stderr().write_fmt(text).ok();
    } else {
        eprint!("{text}");
    }
}

fn write_or_drop(out: &mut impl Write, text: fmt::Arguments<'_>, dropped: &mut Option<io::Error>) {
    if dropped.is_none() {
        *dropped = out.write_fmt(text).and_then(|()| out.flush()).err();
    }
}

/// Runs a program to its end, or until its output cannot be written.
pub fn ended_by(run: impl FnOnce() -> ExitCode) -> ExitCode {
    let usual = take_hook();
    set_hook(Box::new(move |info| {
        if lost(info.payload()).is_none() {
            usual(info);
        }
    }));
    let panic = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(code) => match DROPPED.lock().take() {
            Some(why) if why.kind() != io::ErrorKind::BrokenPipe => {
                return cannot_be_written(&why.to_string());
            }
            _ => return code,
        },
        Err(panic) => panic,
    };
    let Some(why) = lost(&*panic) else { resume_unwind(panic) };
    if is_closed_pipe(why) {
        emulate_default_handler(SIGPIPE).ok();
    }
    cannot_be_written(why)
}

fn cannot_be_written(why: &str) -> ExitCode {
    // Where this cannot be written either, nothing more can be said.
    let said = "what this command prints cannot be written";
    let next = "look at what it has done with `braid status`";
    writeln!(io::stderr(), "braid: {said}: {why}; {next}").ok();
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
    why == io::Error::from(rustix::io::Errno::PIPE).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe whose reader takes some lines and goes.
    struct Head(usize);

    impl Write for Head {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.0 -= 1;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_nobody_reads_is_dropped_from_the_first_line_on() {
        let (mut out, mut dropped) = (Head(1), None);
        write_or_drop(&mut out, format_args!("one\n"), &mut dropped);
        assert!(dropped.is_none() && out.0 == 0);
        write_or_drop(&mut out, format_args!("two\n"), &mut dropped);
        out.0 = 1;
        write_or_drop(&mut out, format_args!("three\n"), &mut dropped);
        assert_eq!((dropped.unwrap().kind(), out.0), (io::ErrorKind::BrokenPipe, 1));
    }
}

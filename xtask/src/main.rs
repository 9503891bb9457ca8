//! Development tasks. `cargo xtask tidy` (or `cargo run -p xtask -- tidy`) checks what no lint does:
//! layering of crates and of modules, retired names, file sizes, module documents, and that documents
//! were looked at when what they describe changed. `xtask test` runs all tests.

mod limited;
mod modules;
mod suites;
mod tidy;
mod unsteady;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let done = match task.as_str() {
        "tidy" => tidy::check(),
        "stamp" => tidy::stamp(),
        "test" => suites::run(at_once()),
        _ => {
            eprintln!("usage: xtask tidy    check the rules of STYLE.md that no lint knows");
            eprintln!("       xtask stamp   note in the documents that they match the code now");
            eprintln!("       xtask test    run every test program, several at a time");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in problems {
                eprintln!("{task}: {problem}");
            }
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// Test programs at a time: one more than there are processors, because many of them mostly wait;
/// `BRAID_TESTS_AT_ONCE` says otherwise.
fn at_once() -> usize {
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let said = std::env::var("BRAID_TESTS_AT_ONCE").ok().and_then(|n| n.parse().ok());
    said.unwrap_or(processors + 1)
}

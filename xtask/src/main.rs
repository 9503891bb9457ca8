//! Development tasks. `cargo xtask tidy` (or `cargo run -p xtask -- tidy`) checks what no lint does:
//! layering, file sizes, module documents, and that documents were looked at when what they
//! describe changed.

mod tidy;

use std::process::ExitCode;

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    let done = match task.as_str() {
        "tidy" => tidy::check(),
        "stamp" => tidy::stamp(),
        _ => {
            eprintln!("usage: xtask tidy    check the rules of STYLE.md that no lint knows");
            eprintln!("       xtask stamp   note in the documents that they match the code now");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in problems {
                eprintln!("tidy: {problem}");
            }
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

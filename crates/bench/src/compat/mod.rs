//! The command lines of lmbench's lmdd and of xdd, on this engine.

pub(crate) mod lmdd;
pub(crate) mod xdd;

use std::ffi::OsString;
use std::path::Path;

/// How one of these commands ends: its exit status, or an error.
pub type Ended = anyhow::Result<std::process::ExitCode>;

/// Runs the command by whose name the program was called, if that is `lmdd` or `xdd`.
pub fn from_name(args: &[OsString]) -> Option<Ended> {
    let name = args.first().map(Path::new)?.file_name()?.to_str()?;
    let words = || {
        let rest = args.get(1..).unwrap_or_default();
        rest.iter().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    match name {
        "lmdd" => Some(lmdd::run(&words())),
        "xdd" | "xdd.linux" => Some(xdd::run(&words())),
        _ => None,
    }
}

/// Words that are not ours to judge, those that ask for help among them: `braid lmdd WORDS...`.
#[derive(Debug, Clone, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Words {
    /// As the original takes them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<String>,
}

/// `braid lmdd`.
///
/// # Errors
/// The words make no sense, or the move failed.
pub fn lmdd(words: &Words) -> Ended {
    lmdd::run(&words.words)
}

/// `braid xdd`.
///
/// # Errors
/// The words make no sense, or a target failed.
pub fn xdd(words: &Words) -> Ended {
    xdd::run(&words.words)
}

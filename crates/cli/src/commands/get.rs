//! `braid get`

use std::process::ExitCode;

use anyhow::Result;

use super::properties::{self, KNOWN};
use crate::terminal::{
    answer::{self, say},
    ui,
};

/// Show a pool's properties, or one of them: settings that stay with it (`braid set`).
///
/// With a key only its value is printed, or its default if none is set (which may be empty).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// One property
    key: Option<String>,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let known = args.key.as_deref().map(properties::known).transpose()?;
    let mut all = properties::of_pool(&args.pool)?;
    if let Some(known) = known {
        all.retain(|key, _| key == known.key);
        say!("{}", all.get(known.key).map_or(known.default, String::as_str));
    } else if !answer::is_json() {
        let mut table = ui::table(&["property", "value", "by default", "meaning"]);
        for known in &KNOWN {
            let value = all.get(known.key).map_or("-", String::as_str);
            table.add_row([known.key, value, known.default, known.meaning]);
        }
        // Of a later version.
        for (key, value) in all.iter().filter(|(key, _)| properties::known(key).is_err()) {
            table.add_row([key.as_str(), value, "", "not known to this version"]);
        }
        say!("{table}");
    }
    answer::add("properties", &all);
    Ok(ExitCode::SUCCESS)
}

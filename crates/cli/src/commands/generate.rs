//! `braid generate`, which nobody types: the manual pages and the shell completions of a package, made from the
//! definition of the command line.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::commands::{completion, mount_options};

/// Section of the manual: all is about the administration of a system.
const SECTION: &str = "8";
/// The top of each page.
const MANUAL: &str = "Braid";

/// Write manual pages and shell completions into a directory
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where: `man` and `completions` are made there
    directory: PathBuf,
}

/// Runs it for `command`, the whole command line.
pub fn run(args: &Args, command: clap::Command) -> Result<ExitCode> {
    let [pages, completions] = ["man", "completions"].map(|name| args.directory.join(name));
    for dir in [&pages, &completions] {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    let mut command = command.disable_help_flag(true);
    command.build();
    write_pages(&command, &pages)?;
    let shells: [(&dyn EnvCompleter, &str); 3] =
        [(&Bash, "braid.bash"), (&Zsh, "_braid"), (&Fish, "braid.fish")];
    for (shell, name) in shells {
        let mut file = create(&completions, name)?;
        shell.write_registration(completion::VARIABLE, "braid", "braid", "braid", &mut file)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A page for the command and one for each of its subcommands.
fn write_pages(command: &clap::Command, dir: &Path) -> Result<()> {
    let subcommands = command.get_subcommands().filter(|c| !c.is_hide_set());
    for subcommand in subcommands {
        write_pages(subcommand, dir)?;
    }
    let source = format!("braid {}", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).section(SECTION).manual(MANUAL).source(source);
    let mut file = create(dir, &page.get_filename())?;
    page.render_title(&mut file)?;
    page.render_name_section(&mut file)?;
    page.render_synopsis_section(&mut file)?;
    page.render_description_section(&mut file)?;
    page.render_options_section(&mut file)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut file)?;
    }
    let mut end = Roff::default();
    if command.get_name() == "mount" {
        mount_options::write_page(&mut end);
    } else if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        write_notes(&mut end, &notes.to_string());
    }
    write_see_also(&mut end, command.get_name());
    end.to_writer(&mut file)?;
    Ok(())
}

/// Text that keeps its lines.
fn write_notes(page: &mut Roff, notes: &str) {
    page.control("SH", ["NOTES"]);
    page.control("nf", []);
    for line in notes.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
}

fn write_see_also(page: &mut Roff, command: &str) {
    page.control("SH", ["SEE ALSO"]);
    let braid = if command == "braid" { None } else { Some([bold("braid"), roman("(8), ")]) };
    let mut words: Vec<_> = braid.into_iter().flatten().collect();
    words.extend([bold("braid"), roman("(7), "), bold("braid-mount"), roman("(8)")]);
    page.text(words);
}

fn create(dir: &Path, name: &str) -> Result<impl Write + use<>> {
    let path = dir.join(name);
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    Ok(std::io::BufWriter::new(file))
}

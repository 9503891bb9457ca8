//! The words of `braid mount`, and how what serves a mount is started: by all kinds of mounts.

use std::fmt::Debug;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;
use serde_json::json;

use super::mount_options;
use crate::process::{background, log, log::LineFormat, mounts};
use crate::terminal::answer;

/// Mount a pool's file system as one more node, or from a server.
///
/// Goes into the background once the mount serves; -f stays. For /etc/fstab:
///
///     scratch  /scratch  braid  defaults,_netdev  0 0
///
/// A host that does not reach the disks names a server (`braid serve`) instead of the pool:
///
///     braid mount braid://HOST[:PORT]/POOL[/DIRECTORY] DIR
///
/// That is encrypted, and wants an identity (`braid serve invite`), by default the one in ~/.config/braid/bulk/POOL.
/// Several servers of the pool may be named: braid://HOST,HOST.../POOL. One is used; if it dies, another.
///
/// What is mounted may be changed in a few ways: -o remount with ro or rw, nosuid, nodev, noexec or their contraries.
/// Options that the mount has already may stand beside them; another one is refused by name.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, override_usage = "braid mount [OPTIONS] <NAME|DEVICE>... <DIR>")]
#[command(after_long_help = mount_options::help())]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub struct Args {
    /// The pool's name (or all of its devices, or its place on a server), then the directory
    #[arg(required = true, value_name = "NAME|DEVICE... DIR")]
    pub words: Vec<String>,
    /// Mount options, comma separated; `braid mount --help` has a table of them
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Of a mount from a server: the identity to present to it, a file, a token, or - for standard input. Default:
    /// $BRAID_IDENTITY. (A token is taken off the command line at once, but other users may have seen it)
    #[arg(long, value_name = "FILE|TOKEN")]
    pub identity: Option<String>,
    /// Of a mount from a server: without encryption and authentication
    #[arg(long, conflicts_with = "identity")]
    pub insecure: bool,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Only say what would be mounted, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Ready signal on standard output (used by the background start)
    #[arg(long, hide = true)]
    pub ready: bool,
    /// The device shown in the mount table, if not the pool's name
    #[arg(long, hide = true, value_name = "TEXT")]
    pub shown_as: Option<String>,
    /// Mount nothing, but free the slot of this node, which has withdrawn (used by a node that ends)
    #[arg(long, hide = true, value_name = "SLOT:LIFE")]
    pub free_slot: Option<String>,
    /// Look at the options, then mount nothing
    #[arg(skip)]
    pub fake: bool,
    /// Options that nobody knows are left out
    #[arg(skip)]
    pub sloppy: bool,
}

/// Comma-separated words of all `-o`.
pub fn each(options: &[String]) -> impl Iterator<Item = &str> {
    options.iter().flat_map(|o| o.split(',')).filter(|o| !o.is_empty())
}

/// What is refused where an option stands that only has a meaning for a mount.
pub const ONLY_REMOUNT: &str = "option remount is for what is mounted: `mount -o remount,... DIR`, or `braid mount -o remount,... NAME DIR`";

/// The options that the note of a mount says: not those that may have secrets.
pub fn noted(options: &[String]) -> Vec<String> {
    let is_secret =
        |option: &&str| ["devices=", "identity="].iter().any(|secret| option.starts_with(secret));
    each(options).filter(|option| !is_secret(option)).map(str::to_owned).collect()
}

/// Whether an option would change what the options `noted` mean, which `parse` says, with those that nobody knows;
/// `None`: it is one of these.
pub fn changes_by<P: Debug>(
    parse: impl Fn(&[String]) -> Result<(P, Vec<String>)>,
    noted: &[String],
    option: &str,
) -> Result<Option<bool>> {
    let with = [noted, &[option.to_owned()]].concat();
    let ((before, _), (after, unknown)) = (parse(noted)?, parse(&with)?);
    let is_known = !unknown.iter().any(|unknown| unknown == option);
    Ok(is_known.then(|| format!("{before:?}") != format!("{after:?}")))
}

/// Sends messages where they are to go. In the `background` this process lets go of the terminal.
pub fn begin_log(log: Option<File>, format: LineFormat, background: bool) -> Result<()> {
    if background {
        background::detach(log)?;
    } else if let Some(log) = log {
        rustix::stdio::dup2_stderr(log).ok();
        log::goes_to_file();
    }
    format.begin();
    Ok(())
}

/// This program once more, as `braid mount` with the options but for these; without the words.
pub fn started_again(args: &Args, leave_out: &[String]) -> Result<Command> {
    let own = std::env::current_exe()?;
    // Once a package has put another program in its place, the kernel alone has it.
    let own = if own.exists() { own } else { PathBuf::from("/proc/self/exe") };
    let mut command = Command::new(own);
    // Whatever the file is called: this is no helper's call.
    command.arg0("braid").arg("mount");
    for option in each(&args.options).filter(|o| !leave_out.iter().any(|l| l == o)) {
        command.arg("-o").arg(option);
    }
    Ok(command)
}

/// Starts `command`, which serves the mount, and says what has come of it.
pub fn begin_in_background(args: &Args, command: Command) -> Result<ExitCode> {
    background::start(command)?;
    if answer::is_json() {
        let dir = args.words.last().and_then(|dir| mounts::resolved(dir.as_ref()).ok());
        let mut mounts = mounts::mounts().into_iter().chain(mounts::remotes());
        let mount = mounts.find(|m| Some(&m.mount_point) == dir.as_ref());
        let shown =
            |m: mounts::Mount| json!({"pid": m.pid, "pool": m.pool, "mount_point": m.mount_point});
        answer::add("mount", mount.map(shown));
    }
    Ok(ExitCode::SUCCESS)
}

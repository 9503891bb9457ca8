//! What a shell offers when somebody presses the tab key: the command line's own words, and the names of
//! pools that are known without a look at any device.
//!
//! The scripts of bash, zsh and fish ([`super::generate`]) call this program with [`VARIABLE`] set.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};

use crate::process::mounts;

/// The environment variable that asks for completions, and names the shell.
pub const VARIABLE: &str = "BRAID_COMPLETE";
/// Where pools stand that are to be mounted.
const FSTAB: &str = "/etc/fstab";

/// Answers a shell that asks for completions, and ends. Otherwise does nothing.
pub fn answer(command: impl Fn() -> clap::Command) {
    CompleteEnv::with_factory(|| with_names(command())).var(VARIABLE).complete();
}

/// The same commands; arguments that name a pool are completed by the names of pools, and by paths.
fn with_names(command: clap::Command) -> clap::Command {
    let add = |arg: clap::Arg| match arg.get_id().as_str() {
        "pool" | "sources" | "words" => arg.add(ArgValueCompleter::new(pools_and_paths)),
        "dir" => arg.add(ArgValueCompleter::new(directories)),
        _ => arg,
    };
    command.mut_args(add).mut_subcommands(with_names)
}

fn pools_and_paths(current: &OsStr) -> Vec<CompletionCandidate> {
    let mounted = mounts::mounts().into_iter().map(|mount| mount.pool);
    let fstab = std::fs::read_to_string(FSTAB).unwrap_or_default();
    let mut all = candidates(mounted.chain(pools_of(&fstab)), current);
    all.extend(PathCompleter::any().complete(current));
    all
}

/// Mount points, and other directories.
fn directories(current: &OsStr) -> Vec<CompletionCandidate> {
    let mounted = mounts::mounts().into_iter();
    let mounted = mounted.map(|mount| mount.mount_point.display().to_string());
    let mut all = candidates(mounted, current);
    all.extend(PathCompleter::dir().complete(current));
    all
}

/// Those of the names that begin so, each once.
fn candidates(names: impl Iterator<Item = String>, current: &OsStr) -> Vec<CompletionCandidate> {
    let begun = current.to_string_lossy();
    let names: BTreeSet<String> = names.filter(|name| name.starts_with(&*begun)).collect();
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The pools that lines of an fstab mount by name.
fn pools_of(fstab: &str) -> impl Iterator<Item = String> {
    fstab.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (source, kind) = (words.next()?, words.nth(1)?);
        let is_name = !source.starts_with('#') && !source.contains(['/', ':', '=']);
        (is_name && matches!(kind, "braid" | "fuse.braid")).then(|| source.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_an_fstab_are_offered_and_nothing_else_of_it() {
        let fstab = "# safe /old braid ro 0 0\nscratch /scratch braid defaults 0 0\n\
                     /dev/sda1 / ext4 errors=remount-ro 0 1\n/dev/sdb:/dev/sdc /d braid ro 0 0\n\
                     safe /safe fuse.braid ro\nodd\n";
        assert_eq!(pools_of(fstab).collect::<Vec<_>>(), ["scratch", "safe"]);
        let offered = candidates(pools_of(fstab), OsStr::new("sc"));
        assert_eq!(
            offered.iter().map(CompletionCandidate::get_value).collect::<Vec<_>>(),
            ["scratch"]
        );
    }
}

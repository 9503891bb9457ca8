//! What a shell offers when somebody presses the tab key: the command line's own words, the names of pools that are
//! known without a look at any device, and the members of a pool that is mounted.
//!
//! The scripts of bash, zsh and fish ([`super::generate`]) call this program with [`VARIABLE`] set.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::sync::mpsc::channel;
use std::time::Duration;

use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};

use crate::control::{self, View};
use crate::process::mounts;

/// The environment variable that asks for completions, and names the shell.
pub const VARIABLE: &str = "BRAID_COMPLETE";
/// Where pools stand that are to be mounted.
const FSTAB: &str = "/etc/fstab";

/// Where a shell says which word of the line the cursor is in; fish gives no later ones.
const INDEX: &str = "_CLAP_COMPLETE_INDEX";
/// Nobody waits longer for the tab key, whatever a node, or a file system on the way to it, does.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers a shell that asks for completions, and ends. Otherwise does nothing.
pub fn answer(command: impl Fn() -> clap::Command) {
    let pool = || pool_in(&command(), &words_before(std::env::args_os()));
    CompleteEnv::with_factory(|| with_names(command(), pool().as_deref())).var(VARIABLE).complete();
}

/// The same commands; arguments that name a pool are completed by the names of pools, and by paths, and those that name
/// a member by the members of `pool`.
fn with_names(command: clap::Command, pool: Option<&str>) -> clap::Command {
    let add = |arg: clap::Arg| match arg.get_id().as_str() {
        "pool" | "sources" | "words" => arg.add(ArgValueCompleter::new(pools_and_paths)),
        "dir" => arg.add(ArgValueCompleter::new(directories)),
        "member" => {
            let pool = pool.map(str::to_owned);
            arg.add(ArgValueCompleter::new(move |current: &OsStr| {
                members(pool.as_deref().map(view).unwrap_or_default(), current)
            }))
        }
        "to" => {
            let pool = pool.map(str::to_owned);
            arg.add(ArgValueCompleter::new(move |current: &OsStr| {
                let view = pool.as_deref().map(view).unwrap_or_default();
                let mut all = members(unused(view), current);
                all.extend(PathCompleter::any().complete(current));
                all
            }))
        }
        _ => arg,
    };
    command.mut_args(add).mut_subcommands(|command| with_names(command, pool))
}

/// The words of the line before the one in which the cursor is: `braid -- WORDS`.
fn words_before(args: impl Iterator<Item = OsString>) -> Vec<String> {
    let words = args.skip_while(|word| word != "--").skip(1);
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let index = std::env::var(INDEX).ok().and_then(|index| index.parse().ok());
    let before = index.unwrap_or_else(|| words.len().saturating_sub(1)).min(words.len());
    words.into_iter().take(before).collect()
}

/// The first word of a line that is neither a command nor an option: the pool, if the command has one.
fn pool_in(command: &clap::Command, words: &[String]) -> Option<String> {
    let mut command = command;
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        if let Some(name) = word.strip_prefix('-') {
            let is_it = |arg: &&clap::Arg| match name.strip_prefix('-') {
                Some(long) => arg.get_long() == Some(long),
                None => arg.get_short().is_some_and(|short| name == short.to_string()),
            };
            let option = command.get_arguments().find(is_it);
            if option.is_some_and(|arg| arg.get_action().takes_values()) {
                rest.next();
            }
        } else if let Some(sub) = command.find_subcommand(word) {
            command = sub;
        } else {
            return Some(word.clone());
        }
    }
    None
}

/// What a node of this host says of a pool. Nothing, if it does not soon.
fn view(pool: &str) -> View {
    let (tell, told) = channel();
    let pool = pool.to_owned();
    let look = move || {
        let views = control::views(&control::named(&pool)).into_iter();
        tell.send(views.flatten().next()).ok();
    };
    let looks = std::thread::Builder::new().name("completion".into()).spawn(look);
    looks.ok().and_then(|_| told.recv_timeout(PATIENCE).ok().flatten()).unwrap_or_default()
}

/// Members by their numbers, with their devices and what they are; by their devices, if one is begun.
fn members(view: View, current: &OsStr) -> Vec<CompletionCandidate> {
    let begun = current.to_string_lossy();
    let mut all = Vec::new();
    for member in view.members {
        let (number, path) = (member.index.to_string(), member.path);
        if number.starts_with(&*begun) {
            let about = format!("{path}, {}", member.state);
            all.push(CompletionCandidate::new(number).help(Some(about.into())));
        } else if path.starts_with(&*begun) {
            all.push(CompletionCandidate::new(path).help(Some(member.state.into())));
        }
    }
    all
}

/// The same of a pool's members on which nothing stands.
fn unused(view: View) -> View {
    let members = view.members.into_iter().filter(|member| member.used == 0).collect();
    View { members, ..View::default() }
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
    fn the_pool_of_a_line_is_found_behind_commands_and_options() {
        let command = clap::Command::new("braid").subcommand(
            clap::Command::new("evacuate")
                .arg(clap::Arg::new("pool"))
                .arg(clap::Arg::new("to").long("to"))
                .arg(clap::Arg::new("force").long("force").action(clap::ArgAction::SetTrue)),
        );
        let pool = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            pool_in(&command, &words)
        };
        assert_eq!(pool("braid evacuate safe").as_deref(), Some("safe"));
        assert_eq!(pool("braid evacuate --force --to 3 safe 1").as_deref(), Some("safe"));
        assert_eq!(pool("braid evacuate --to=3 safe").as_deref(), Some("safe"));
        assert_eq!(pool("braid evacuate"), None);
    }

    #[test]
    fn members_are_offered_by_number_or_by_device() {
        let member = |index, used| control::MemberView {
            index,
            path: format!("/dev/sd{}", char::from(b'b' + u8::try_from(index).unwrap())),
            state: "active".into(),
            used,
            ..control::MemberView::default()
        };
        let view = || View { members: vec![member(0, 9), member(1, 0)], ..View::default() };
        let offered = |view, current: &str| {
            let all = members(view, OsStr::new(current)).into_iter();
            all.map(|one| one.get_value().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(offered(view(), ""), ["0", "1"]);
        assert_eq!(offered(view(), "/dev/sdc"), ["/dev/sdc"]);
        assert_eq!(offered(unused(view()), ""), ["1"]);
    }

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

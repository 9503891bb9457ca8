//! `mount -o remount`: what can change while a pool is mounted changes, what stays as it is may be said again, and the
//! rest is refused by name.
//!
//! The kernel can change how programs see this one mount: `ro` and `rw`, `nosuid`, `nodev`, `noexec` and their
//! contraries. mount(8) says all of these that are to be; `braid mount` those that change. What the node was mounted with it keeps until it ends.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use braid_pool::device::{MountTable, TableEntry};
use nix::mount::{MsFlags, mount};

use super::mount_remote;
use super::mount_start::{Args, each};
use crate::control::{self, View, session::NOTHING_CHANGED};
use crate::pools::sources;
use crate::process::mounts::{self, Mount};
use crate::process::others;
use crate::terminal::answer::{say, warning};

/// Words that change a flag of the mount: the flag, and whether it is set.
const FLAGS: [(&str, MsFlags, bool); 8] = [
    ("ro", MsFlags::MS_RDONLY, true),
    ("rw", MsFlags::MS_RDONLY, false),
    ("nosuid", MsFlags::MS_NOSUID, true),
    ("suid", MsFlags::MS_NOSUID, false),
    ("nodev", MsFlags::MS_NODEV, true),
    ("dev", MsFlags::MS_NODEV, false),
    ("noexec", MsFlags::MS_NOEXEC, true),
    ("exec", MsFlags::MS_NOEXEC, false),
];
/// Flags that are never changed here, as the mount table names them.
const KEPT: [(&str, MsFlags); 3] = [
    ("noatime", MsFlags::MS_NOATIME),
    ("nodiratime", MsFlags::MS_NODIRATIME),
    ("relatime", MsFlags::MS_RELATIME),
];
const REMOUNT: &str = "remount";

/// Whether an option would change what a mount has with the options that stand before; `None`: nobody knows it.
type Changes = fn(&[String], &str) -> Result<Option<bool>>;

/// Whether the options ask for it.
pub fn is_asked(options: &[String]) -> bool {
    each(options).any(|option| option == REMOUNT)
}

/// Runs it. `of_node`: what the options of a node mean.
///
/// # Errors
/// Nothing is mounted there, or another pool; an option that cannot change; the kernel refuses.
pub fn run(args: &Args, devices: &[String], dir: &Path, of_node: Changes) -> Result<ExitCode> {
    let shown = dir.display();
    if let Some(other) = others::at(dir) {
        bail!("{other}");
    }
    let table = MountTable::own()?;
    let Some(entry) = table.on(dir).filter(|m| m.kind == "fuse.braid") else {
        bail!("{shown}: no pool is mounted there, so that nothing can be remounted");
    };
    let of = |m: &Mount| m.mount_point == dir && m.device.is_none_or(|d| d == entry.device);
    let mounted = mounts::mounts().into_iter().chain(mounts::remotes()).find(of);
    let mounted = mounted.with_context(|| {
        format!(
            "{shown}: the process that serves this mount has ended; unmount it, and mount it again"
        )
    })?;
    refuse_another(&mounted, entry, devices)?;
    let meaning = if mounted.is_remote { mount_remote::changes } else { of_node };
    let before = flags_of(&entry.flags);
    let mut after = before;
    if args.shown_as.is_some() {
        // mount(8) says all that is to be, and leaves words out that are the default.
        after.remove(MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC);
    }
    for option in each(&args.options).filter(|option| *option != REMOUNT) {
        if let Some((_, flag, set)) = FLAGS.iter().find(|(word, ..)| *word == option) {
            after.set(*flag, *set);
        } else if !has(&entry.options, option)
            && changes(meaning(&mounted.options, option)?, option, args.sloppy)?
        {
            bail!(
                "option {option} cannot change while {} is mounted: unmount {shown}, and mount it again with it; nothing \
                 was changed",
                mounted.pool
            );
        }
    }
    if before.contains(MsFlags::MS_RDONLY)
        && !after.contains(MsFlags::MS_RDONLY)
        && has(&entry.options, "ro")
    {
        bail!(
            "option rw cannot change while {} is mounted: its node only reads; unmount {shown}, and mount it again \
             without ro; nothing was changed",
            mounted.pool
        );
    }
    if args.dry_run {
        say!("{shown} would be mounted with {}", words_of(after));
        say!("{NOTHING_CHANGED}");
    } else if before != after && !args.fake {
        let all = after | MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
        let done = mount(None::<&str>, dir, None::<&str>, all, None::<&str>);
        done.map_err(|e| refused(dir, e))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn refused(dir: &Path, e: nix::errno::Errno) -> anyhow::Error {
    let dir = dir.display();
    match e {
        nix::errno::Errno::EBUSY => anyhow::anyhow!(
            "{dir}: a program has files open there for writing; nothing was changed"
        ),
        nix::errno::Errno::EPERM => {
            anyhow::anyhow!("{dir}: only root may change how it is mounted; nothing was changed")
        }
        e => anyhow::anyhow!("{dir}: the kernel does not remount it: {e}; nothing was changed"),
    }
}

/// # Errors
/// What is named is not what is mounted there.
fn refuse_another(mounted: &Mount, entry: &TableEntry, devices: &[String]) -> Result<()> {
    let Some(first) = devices.first() else { return Ok(()) };
    let url = mounted.sources.first().filter(|_| mounted.is_remote);
    let name = first.strip_prefix("LABEL=").map_or(first.as_str(), |name| name.trim_matches('"'));
    let is_one = name == mounted.pool || *first == entry.source || Some(first) == url;
    if devices.len() == 1 && is_one {
        return Ok(());
    }
    let other = || {
        let (dir, pool) = (mounted.mount_point.display(), &mounted.pool);
        anyhow::anyhow!(
            "{dir}: pool {pool} is mounted there, and not what {} names; nothing was changed",
            devices.join(" ")
        )
    };
    if mounted.is_remote {
        return Err(other());
    }
    let view = control::views(std::slice::from_ref(mounted)).pop().flatten();
    let is_uuid = |view: &View| first.strip_prefix("UUID=").unwrap_or(first) == view.uuid;
    if devices.len() == 1 && view.as_ref().is_some_and(is_uuid) {
        return Ok(());
    }
    let members = view.iter().flat_map(|view| view.members.iter().map(|m| &m.path));
    let known: Vec<&String> = mounted.sources.iter().chain(members).collect();
    let is_member = |path: &std::path::PathBuf| {
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        known.iter().any(|known| real == Path::new(known) || path == Path::new(known))
    };
    match sources::resolve(devices) {
        Ok(paths) if paths.iter().all(is_member) => Ok(()),
        _ => Err(other()),
    }
}

/// Whether a list of words, separated by commas, has this one.
fn has(list: &str, word: &str) -> bool {
    list.split(',').any(|own| own == word)
}

/// Whether an option changes something. `sloppy`: what nobody knows changes nothing.
fn changes(meaning: Option<bool>, option: &str, sloppy: bool) -> Result<bool> {
    match meaning {
        Some(changes) => Ok(changes),
        None if sloppy => Ok(false),
        None => bail!("unknown mount option '{option}'; see `braid mount --help`"),
    }
}

/// The flags of a mount, by the words of the mount table. What it has besides stays.
fn flags_of(words: &str) -> MsFlags {
    let mut flags = MsFlags::empty();
    let set = FLAGS.iter().filter(|(.., set)| *set).map(|(word, flag, _)| (*word, *flag));
    for (word, flag) in set.chain(KEPT) {
        flags.set(flag, has(words, word));
    }
    if !flags.intersects(MsFlags::MS_NOATIME | MsFlags::MS_RELATIME) {
        // Otherwise the kernel takes relatime for granted.
        flags |= MsFlags::MS_STRICTATIME;
    }
    if has(words, "nosymfollow") {
        warning!("the mount follows symbolic links again: that cannot be kept");
    }
    flags
}

/// The words for people.
fn words_of(flags: MsFlags) -> String {
    let is_so = |(_, flag, set): &&(&str, MsFlags, bool)| flags.contains(*flag) == *set;
    FLAGS.iter().filter(is_so).map(|(word, ..)| *word).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_the_mount_table() {
        let flags = flags_of("ro,nosuid,noatime");
        assert_eq!(flags, MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NOATIME);
        assert_eq!(words_of(flags), "ro,nosuid,dev,exec");
        assert_eq!(words_of(flags_of("rw,relatime")), "rw,suid,dev,exec");
    }
}

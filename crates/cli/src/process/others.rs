//! Mounts of other users of this host. Their nodes take no orders from this user, and their file systems may not even
//! let this user in: nothing is asked of them here but the mount table.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};
use braid_pool::device::{MountTable, TableEntry};

use crate::process::mounts::{self, Mount};
use crate::process::users;

/// Symbolic links that are followed on the way.
const LINKS_MAX: usize = 40;

/// A mount of another user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// Where.
    pub dir: PathBuf,
    /// What is mounted: a pool's name, as a rule.
    pub source: String,
    /// Who has mounted it.
    user: u32,
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dir, user, .. } = self;
        let name = users::name_of(*user);
        write!(f, "{} is mounted by another user, {name}", dir.display())?;
        if name != user.to_string() {
            write!(f, " ({user})")?;
        }
        let who = match user {
            0 => "sudo".to_owned(),
            _ if name == user.to_string() => format!("sudo -u '#{user}'"),
            _ => format!("sudo -u {name}"),
        };
        write!(
            f,
            ": only that user can ask its node. Give the command as that user (`{who} braid ...`)"
        )
    }
}

/// All that this process sees.
fn all(table: &MountTable) -> Vec<Other> {
    let known: Vec<Mount> = mounts::mounts().into_iter().chain(mounts::remotes()).collect();
    let is_known = |m: &TableEntry| known.iter().any(|known| known.mount_point == m.dir);
    let of = |m: &TableEntry| {
        let user = m.user.filter(|_| m.is_of_another_user())?;
        let is_other = m.kind == "fuse.braid" && !is_known(m);
        is_other.then(|| Other { dir: m.dir.clone(), source: m.source.clone(), user })
    };
    table.iter().filter_map(of).collect()
}

/// The mount of another user that a path leads into, or to.
pub fn at(path: &Path) -> Option<Other> {
    let table = MountTable::own().ok()?;
    let dir = mount_on_the_way(&std::path::absolute(path).ok()?, |dir| {
        table.on(dir).is_some_and(|m| m.kind == "fuse.braid")
    })?;
    all(&table).into_iter().find(|other| other.dir == dir)
}

/// The first directory on the way along a path, by symbolic links too, that `is_mount`. Nothing beyond is looked at.
fn mount_on_the_way(path: &Path, is_mount: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let words = |path: &Path| -> Vec<OsString> {
        let normal = path.components().filter(|c| !matches!(c, Component::RootDir));
        normal.map(|c| c.as_os_str().to_owned()).collect()
    };
    let mut rest = VecDeque::from(words(path));
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(word) = rest.pop_front() {
        if word == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&word);
        if is_mount(&next) {
            return Some(next);
        }
        let Ok(to) = std::fs::read_link(&next) else {
            at = next;
            continue;
        };
        links += 1;
        if links > LINKS_MAX {
            return None;
        }
        if to.is_absolute() {
            at = PathBuf::from("/");
        }
        words(&to).into_iter().rev().for_each(|word| rest.push_front(word));
    }
    None
}

/// The mount of another user that has a pool of this name.
pub fn of_pool(name: &str) -> Option<Other> {
    let table = MountTable::own().ok()?;
    all(&table).into_iter().find(|other| other.source == name)
}

/// # Errors
/// What the words name, which is no pool that this user has mounted, leads to a mount of another user.
pub fn refuse(names: &[String]) -> Result<()> {
    let other = names.iter().find_map(|name| at(Path::new(name)));
    other.map_or(Ok(()), |other| bail!("{other}"))
}

/// What failed, and that another user has mounted the pool of this name, if so.
pub fn explained(name: &str, why: anyhow::Error) -> anyhow::Error {
    match of_pool(name) {
        Some(other) => why.context(format!("pool {name}: {other}")),
        None => why,
    }
}

/// What to add where a user is told that nothing is mounted. Empty if no other user has a mount.
pub fn besides() -> String {
    let all = all(&MountTable::own().unwrap_or_default());
    let Some(first) = all.first() else { return String::new() };
    let dirs: Vec<_> = all.iter().skip(1).map(|other| other.dir.display().to_string()).collect();
    let more = if dirs.is_empty() { String::new() } else { format!("; also {}", dirs.join(", ")) };
    format!(" by this user ({first}{more})")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_is_known_by_the_first_mount_on_its_way() {
        let temp = tempfile::tempdir().unwrap();
        let base = temp.path().canonicalize().unwrap();
        let mount = base.join("mount");
        symlink("mount/deep", base.join("relative")).unwrap();
        symlink(&mount, base.join("absolute")).unwrap();
        symlink("circle", base.join("circle")).unwrap();
        let leads = |path: &str| {
            // A look behind the mount would fail the test: nothing is there.
            mount_on_the_way(&base.join(path), |dir| dir == mount).is_some()
        };
        for path in ["mount", "mount/a/b", "relative", "absolute/x", "other/../mount"] {
            assert!(leads(path), "{path}");
        }
        for path in ["", "mounts", "other", "circle", "circle/mount"] {
            assert!(!leads(path), "{path}");
        }
    }
}

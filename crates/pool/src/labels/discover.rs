//! Finding pools by their labels, whatever their devices are called.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_device::{Device, OpenOptions, UnitName, answers};
use braid_format::label::Member;
use braid_format::{Bytes, Epoch, MemberIndex};
use uuid::Uuid;

use super::{Found, Verdict, assess_labels, ended, out_of_date, own_uuid, same_device, settle};
use crate::error::MissingMember;

/// Names devices, files and directories to look at besides the machine's block devices, separated
/// by colons.
pub const DEVICES_VARIABLE: &str = "BRAID_DEVICES";

/// Most files of one directory that are looked at.
const DIRECTORY_FILES_MAX: usize = 4096;

/// In what condition a member was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberCondition {
    /// Current, both labels good.
    Good,
    /// Current; one label is damaged and will be healed when the pool is opened.
    Damaged,
    /// Failed, as the pool's labels say; not used.
    Failed,
    /// Of an older epoch.
    Stale(Epoch),
    /// Of a newer epoch than most.
    Ahead(Epoch),
    /// Removed from the pool.
    Removed,
    /// Smaller than it was.
    Truncated(Bytes),
    /// Another device carries the same label.
    Duplicate(PathBuf),
    /// As it was at an earlier time: put back from an old image.
    OutOfDate,
    /// Its pool is being destroyed.
    Ended,
    /// So many members are missing that nothing is known.
    Unknown,
}
impl core::fmt::Display for MemberCondition {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Good => write!(f, "good"),
            Self::Damaged => write!(f, "good, one label damaged"),
            Self::Failed => write!(f, "failed, not used any more"),
            Self::Stale(epoch) => write!(f, "stale, epoch {epoch}"),
            Self::Ahead(epoch) => write!(f, "newer than the rest, epoch {epoch}"),
            Self::Removed => write!(f, "removed from the pool"),
            Self::Truncated(expected) => write!(f, "truncated, had {expected} bytes"),
            Self::Duplicate(other) => write!(f, "copy of {}", other.display()),
            Self::OutOfDate => write!(f, "out of date, put back from an old image"),
            Self::Ended => write!(f, "its pool is being destroyed: `braid destroy` finishes that"),
            Self::Unknown => write!(f, "unknown, too few members"),
        }
    }
}

/// A device that carries a pool's label.
#[derive(Debug, Clone)]
pub struct FoundMember {
    /// Where it is.
    pub path: PathBuf,
    /// Its place in the pool, if it has one.
    pub index: Option<MemberIndex>,
    /// Its condition.
    pub state: MemberCondition,
}

/// A pool of which at least one member was found.
#[derive(Debug, Clone)]
pub struct FoundPool {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: Uuid,
    /// Its epoch (the highest seen, when no epoch has a majority).
    pub epoch: Epoch,
    /// What was found, in member order.
    pub members: Vec<FoundMember>,
    /// Members that were not found.
    pub missing: Vec<MissingMember>,
}
impl FoundPool {
    /// Whether all members are there and current.
    pub fn complete(&self) -> bool {
        use MemberCondition::{Damaged, Failed, Good, Removed};
        let good = |m: &FoundMember| matches!(m.state, Good | Damaged | Failed | Removed);
        self.missing.is_empty() && self.members.iter().all(good)
    }
    /// The paths of what was found and may be of use: not of what the pool has done without since.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        use MemberCondition::{Failed, Removed};
        let of_use = |m: &&FoundMember| !matches!(m.state, Failed | Removed);
        self.members.iter().filter(of_use).map(|m| m.path.as_path())
    }
}

/// Finds the pools on `paths` (devices, files, or directories of them), or, when `None`, on all
/// block devices of this machine and on what `$BRAID_DEVICES` names. What cannot be opened or has
/// no good label is passed over, and so is what does not answer (see [`braid_device::answers`]).
pub fn discover(paths: Option<&[PathBuf]>) -> Vec<FoundPool> {
    let mut paths: Vec<PathBuf> =
        paths.map_or_else(everywhere, |p| p.iter().flat_map(|p| expand(p)).collect());
    leave_out_silent(&mut paths);
    let backing: Vec<PathBuf> = paths.iter().filter_map(|p| backing_file(p)).collect();
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    let mut pools: HashMap<Uuid, Vec<Found>> = HashMap::new();
    for path in paths {
        // A file under a loop device is that device, not a copy of it.
        if !backing.is_empty() && path.canonicalize().is_ok_and(|p| backing.contains(&p)) {
            continue;
        }
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let device = match braid_device::open(&path, options) {
            Ok(device) => device,
            Err(error) => {
                if is_unit(&path) {
                    tracing::warn!(%error, "passed over");
                }
                continue;
            }
        };
        if devices.iter().any(|d| same_device(d, &device)) {
            continue;
        }
        devices.push(device.clone());
        let found = Found::read(device);
        if let Some(pool) = found.newest().map(|l| l.pool) {
            pools.entry(pool).or_default().push(found);
        }
    }
    let mut pools: Vec<FoundPool> = pools.into_values().filter_map(describe_settled).collect();
    pools.sort_by(|a, b| (&a.name, a.uuid).cmp(&(&b.name, b.uuid)));
    pools
}

/// Opens the device of a member of a pool in use: where its label was written, or wherever a device
/// carries it.
pub(crate) fn open_member(member: &Member) -> Option<Arc<dyn Device>> {
    let carries = |path: &Path| {
        let device = braid_device::open(path, OpenOptions::default()).ok()?;
        let found = Found::read(device.clone());
        (found.newest().and_then(own_uuid) == Some(member.uuid)).then_some(device)
    };
    let elsewhere = || {
        let mut paths = everywhere();
        leave_out_silent(&mut paths);
        paths.iter().find_map(|p| carries(p))
    };
    carries(Path::new(&member.path)).or_else(elsewhere)
}

/// Asks all devices at once.
fn leave_out_silent(paths: &mut Vec<PathBuf>) {
    let silent = answers::silent(paths.iter().map(PathBuf::as_path));
    let silent: Vec<PathBuf> = silent.into_iter().map(|(path, _)| path.to_owned()).collect();
    paths.retain(|path| !silent.contains(path));
}

fn describe_settled(found: Vec<Found>) -> Option<FoundPool> {
    let judge = |found: &[Found]| match describe(found) {
        Some(pool) if !pool.complete() => Err(Some(pool)),
        pool => Ok(pool),
    };
    match settle(found, judge).1 {
        Ok(pool) | Err(pool) => pool,
    }
}

fn describe(found: &[Found]) -> Option<FoundPool> {
    let newest = found.iter().filter_map(Found::newest).max_by_key(|l| l.epoch)?;
    let path = |f: &Found| PathBuf::from(f.path());
    let (label, mut members, missing) = match assess_labels(found, false) {
        Ok(j) => {
            let old = out_of_date(found, &j.label);
            let is_old = |i: usize| old.iter().any(|(o, _)| *o == i);
            let members = found.iter().zip(j.verdicts).enumerate().map(|(i, (f, v))| FoundMember {
                path: path(f),
                index: f.newest().map(|l| l.member),
                state: if f.has_failed(&j.label) {
                    MemberCondition::Failed
                } else if is_old(i) && matches!(v, Verdict::Current(_)) {
                    MemberCondition::OutOfDate
                } else {
                    condition(f, v)
                },
            });
            let members = members.collect::<Vec<_>>();
            (j.label, members, j.missing)
        }
        Err(e) => {
            let unknown = |f: &Found| FoundMember {
                path: path(f),
                index: f.newest().map(|l| l.member),
                state: MemberCondition::Unknown,
            };
            let missing = match e {
                crate::error::PoolError::Missing { missing, .. } => missing,
                _ => Vec::new(),
            };
            (newest.clone(), found.iter().map(unknown).collect(), missing)
        }
    };
    if ended(found).is_some() {
        let carry = |m: &FoundMember| {
            let own = found.iter().find(|f| Path::new(f.path()) == m.path);
            own.is_some_and(|f| f.labels().any(|l| l.ended))
        };
        members.iter_mut().filter(|m| carry(m)).for_each(|m| m.state = MemberCondition::Ended);
    }
    members.sort_by(|a, b| (a.index, &a.path).cmp(&(b.index, &b.path)));
    Some(FoundPool { name: label.name, uuid: label.pool, epoch: label.epoch, members, missing })
}

fn condition(found: &Found, verdict: Verdict) -> MemberCondition {
    match verdict {
        Verdict::Current(_) if found.copies.iter().all(Result::is_ok) => MemberCondition::Good,
        Verdict::Current(_) => MemberCondition::Damaged,
        Verdict::Stale(epoch) => MemberCondition::Stale(epoch),
        Verdict::Ahead(epoch) => MemberCondition::Ahead(epoch),
        Verdict::Removed => MemberCondition::Removed,
        Verdict::Truncated(expected) => MemberCondition::Truncated(expected),
        Verdict::Duplicate(other, _) => MemberCondition::Duplicate(other.into()),
    }
}

/// The machine's block devices, and what the environment names.
fn everywhere() -> Vec<PathBuf> {
    let partitions = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    let named = std::env::var_os(DEVICES_VARIABLE).unwrap_or_default();
    let mut paths: Vec<PathBuf> = block_devices(&partitions).collect();
    paths.extend(split_names(&named).iter().flat_map(|p| expand(p)));
    let loops = std::fs::read_dir("/dev").into_iter().flatten().flatten().map(|e| e.path());
    paths.extend(loops.filter(|p| is_loop(p)));
    paths
}

fn is_unit(path: &Path) -> bool {
    path.to_str().is_some_and(UnitName::is_meant)
}

/// Names of devices in one word, separated by colons. A colon inside a unit's name
/// (`iscsi://host:port/target:word/0`) is followed by neither a path nor another such name, except
/// the one of its own `://`.
pub fn split_names(list: &OsStr) -> Vec<PathBuf> {
    let Some(text) = list.to_str().filter(|t| t.contains(UnitName::SCHEME)) else {
        let paths = std::env::split_paths(list).filter(|p| !p.as_os_str().is_empty());
        return paths.collect();
    };
    let mut names = Vec::new();
    let mut rest = text;
    let ends = |rest: &str| {
        rest.match_indices(':').map(|(at, _)| at).find(|at| {
            let next = &rest[at + 1..];
            next.starts_with(UnitName::SCHEME) || next.starts_with('/') && !next.starts_with("//")
        })
    };
    while let Some(at) = ends(rest) {
        names.push(&rest[..at]);
        rest = &rest[at + 1..];
    }
    names.push(rest);
    names.into_iter().filter(|n| !n.is_empty()).map(PathBuf::from).collect()
}

/// Paths of `/proc/partitions`' lines: major, minor, blocks, name.
fn block_devices(partitions: &str) -> impl Iterator<Item = PathBuf> {
    partitions.lines().skip(1).filter_map(|line| {
        let name = line.split_whitespace().nth(3)?;
        Some(Path::new("/dev").join(name))
    })
}

fn is_loop(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix("loop"));
    name.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// The file under a loop device.
fn backing_file(path: &Path) -> Option<PathBuf> {
    let name = path.file_name().filter(|_| is_loop(path))?;
    let file = Path::new("/sys/block").join(name).join("loop/backing_file");
    let text = std::fs::read_to_string(file).ok()?;
    Path::new(text.trim_end_matches('\n')).canonicalize().ok()
}

/// A directory's files (not below it), or the path itself.
fn expand(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else { return vec![path.to_owned()] };
    let files = entries.flatten().map(|e| e.path()).filter(|p| !p.is_dir());
    let mut files: Vec<PathBuf> = files.take(DIRECTORY_FILES_MAX).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_partitions_become_paths() {
        let text = "major minor  #blocks  name\n\n 253        0   41943040 vda\n 7 0 1024 loop0\n";
        let paths: Vec<_> = block_devices(text).collect();
        assert_eq!(paths, [Path::new("/dev/vda"), Path::new("/dev/loop0")]);
    }

    #[test]
    fn units_of_targets_stand_in_lists_of_devices() {
        let (a, b) = ("iscsi://10.0.0.1:3260/iqn.2026-11.org:a/0", "iscsi://u@[::1]/iqn.x:y/1");
        let list = format!("{a}:/dev/sdb:{b}:/dev/sdc");
        let names: Vec<_> = split_names(list.as_ref());
        assert_eq!(names, [a, "/dev/sdb", b, "/dev/sdc"].map(PathBuf::from));
        assert_eq!(split_names("/a::/b".as_ref()), ["/a", "/b"].map(PathBuf::from));
        assert_eq!(split_names(a.as_ref()), [PathBuf::from(a)]);
    }

    #[test]
    fn loop_devices_are_told_from_their_like() {
        assert!(is_loop(Path::new("/dev/loop12")));
        assert!(!is_loop(Path::new("/dev/loop-control")));
        assert!(!is_loop(Path::new("/dev/loop")));
    }
}

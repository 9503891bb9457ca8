//! From what a user names (a pool, or its devices) to an assembled pool.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use anyhow::{Result, bail};
use braid_pool::device::{self, Device, OpenOptions, UnitName, answers};
use braid_pool::labels::Found;
use braid_pool::{FoundPool, Pool, PoolError};

use crate::process::{left_behind, mounts, others};
use crate::terminal::answer::{self, warning};

/// Opens the pool that `sources` name: one pool name (found by label), or all of its devices.
///
/// # Errors
/// Nothing of that name, a device cannot be opened, or the members do not make a pool.
pub fn open(sources: &[String], read_only: bool) -> Result<Pool> {
    let paths = members(sources)?;
    let devices = open_devices(&paths, read_only)?;
    Ok(Pool::assemble(devices)?)
}

/// As [`open`], without members that are missing or cannot be opened if the others hold everything:
/// the user said so, or only looks. What cannot be opened is named on standard error.
///
/// # Errors
/// As [`open`]; too many members are missing; none can be opened.
pub fn open_degraded(sources: &[String], read_only: bool) -> Result<Pool> {
    let (mut devices, mut failures) = (Vec::new(), Vec::new());
    let paths = members(sources)?;
    ask(&paths);
    for path in paths {
        // A name without a device is a typing mistake.
        if !device::exists(&path) {
            return Err(no_such(&path));
        }
        match open_devices(std::slice::from_ref(&path), read_only) {
            Ok(opened) => devices.extend(opened),
            Err(why) => failures.push(why),
        }
    }
    if devices.is_empty() && !failures.is_empty() {
        return Err(failures.swap_remove(0));
    }
    let pool = Pool::assemble_degraded(devices);
    for why in failures {
        warning!("{why:#}");
    }
    Ok(pool?)
}

/// As [`open`], for commands that write nothing: members that cannot be written are opened for
/// reading.
///
/// # Errors
/// As [`open`]; with `degraded` as [`open_degraded`].
pub fn open_to_read(sources: &[String], degraded: bool) -> Result<Pool> {
    let devices = open_as_can_be(&members(sources)?)?.0;
    Ok(if degraded { Pool::assemble_degraded(devices) } else { Pool::assemble(devices) }?)
}

/// Opens devices for writing, or for reading if they cannot be written; returns whether there are
/// such.
///
/// # Errors
/// Names the device that cannot be opened.
pub fn open_as_can_be(paths: &[PathBuf]) -> Result<(Vec<Arc<dyn Device>>, bool)> {
    let mut protected = false;
    ask(paths);
    let leaves_mode = answer::is_dry_run();
    let open = |path: &PathBuf| {
        let one = std::slice::from_ref(path);
        let opened = |read_only| {
            open_each(one, OpenOptions { read_only, leaves_mode, ..OpenOptions::default() })
        };
        opened(false).or_else(|why| {
            // What cannot be opened at all says why it cannot be written.
            let opened = opened(true).map_err(|_| why);
            protected |= opened.is_ok();
            opened
        })
    };
    let devices = paths.iter().map(open).collect::<Result<Vec<_>>>()?;
    Ok((devices.into_iter().flatten().collect(), protected))
}

/// Opens devices as they are.
///
/// # Errors
/// Names the device that cannot be opened, or that nobody can write ([`PoolError::ReadOnly`]).
pub fn open_devices(paths: &[PathBuf], read_only: bool) -> Result<Vec<Arc<dyn Device>>> {
    open_each(paths, OpenOptions { read_only, ..OpenOptions::default() })
}

fn open_each(paths: &[PathBuf], options: OpenOptions) -> Result<Vec<Arc<dyn Device>>> {
    let read_only = options.read_only;
    if !read_only {
        // What such a node holds of the devices would be in use for ever. Once is enough for a command, which
        // may open many devices; a mounted node looks again by itself.
        static LOOKED: Once = Once::new();
        LOOKED.call_once(left_behind::end_all);
    }
    ask(paths);
    paths
        .iter()
        .map(|path| {
            if !device::exists(path) {
                return Err(no_such(path));
            }
            let device = device::open(path, options)?;
            // Found out at the first write it would be a member that fails.
            if device.info().read_only && !read_only {
                return Err(PoolError::ReadOnly { path: device.info().name.clone() }.into());
            }
            Ok(device)
        })
        .collect()
}

/// Finds out of all devices at once which answer. Each that does not fails when it is opened.
fn ask(paths: &[PathBuf]) {
    answers::silent(paths.iter().map(PathBuf::as_path));
}

/// # Errors
/// Names a device that does not answer.
pub fn refuse_silent(paths: &[PathBuf]) -> Result<()> {
    match answers::silent(paths.iter().map(PathBuf::as_path)).first() {
        Some((path, silent)) => bail!("{}: {silent}", path.display()),
        None => Ok(()),
    }
}

/// As [`braid_pool::discover`]; names on standard error what does not answer.
pub fn discover(paths: Option<&[PathBuf]>) -> Vec<FoundPool> {
    let pools = braid_pool::discover(paths);
    for (path, silent) in answers::found_silent() {
        warning!("{}: {silent}; passed over", path.display());
    }
    pools
}

fn no_such(path: &Path) -> anyhow::Error {
    anyhow::anyhow!("{}: no such device or file", path.display())
}

/// A device as a process that works in another directory must name it. Units of a target have no place
/// in any.
///
/// # Errors
/// There is no such directory as this one.
pub fn absolute(device: &Path) -> Result<PathBuf> {
    if device.to_str().is_some_and(UnitName::is_meant) {
        return Ok(device.to_owned());
    }
    Ok(std::path::absolute(device)?)
}

/// Paths of the members of the pool that is meant; one of them stands for all.
///
/// # Errors
/// No pool of that name, or several.
pub fn members(sources: &[String]) -> Result<Vec<PathBuf>> {
    let paths = resolve(sources)?;
    Ok(if let [device] = paths.as_slice() { its_pool(device) } else { paths })
}

/// Paths of what is named: members of the pool, or devices, as they are.
///
/// # Errors
/// No pool of that name, or several.
pub fn resolve(sources: &[String]) -> Result<Vec<PathBuf>> {
    // Their nodes may not answer.
    others::refuse(sources)?;
    match sources {
        [] => bail!("name a pool or its devices"),
        [list] if split(list).len() > 1 && !Path::new(list).exists() => {
            Ok(split(list).into_iter().map(PathBuf::from).collect())
        }
        [name] if !names_a_device(name) => by_name(name),
        _ => Ok(sources.iter().map(PathBuf::from).collect()),
    }
}

/// The members of the pool of which a block device is one, as far as this host sees them: mount(8) finds one for
/// `UUID=` and `LABEL=`. A file stands for itself.
fn its_pool(device: &Path) -> Vec<PathBuf> {
    let alone = || vec![device.to_owned()];
    let is_block = device.metadata().is_ok_and(|m| m.file_type().is_block_device());
    let opened = is_block.then(|| open_devices(&alone(), true).ok()).flatten();
    let found = opened.and_then(|mut devices| devices.pop()).map(Found::read);
    let Some(label) = found.as_ref().and_then(Found::newest) else { return alone() };
    if label.members.len() < 2 {
        return alone();
    }
    let pool = discover(None).into_iter().find(|pool| pool.uuid == label.pool);
    pool.map_or_else(alone, |pool| pool.paths().map(Path::to_owned).collect())
}

/// Whether a word means a path and not a pool: `scratch` may well be both a pool and the directory
/// where it is to be mounted.
fn names_a_device(word: &str) -> bool {
    if UnitName::is_meant(word) {
        return true;
    }
    let file = |m: std::fs::Metadata| m.is_file() || m.file_type().is_block_device();
    match std::fs::metadata(word) {
        Ok(found) => word.contains('/') || file(found),
        Err(_) => false,
    }
}

/// A list of devices in one word, as /etc/fstab has room for: separated by colons. Names of devices
/// may have colons in them, so after an absolute path only a colon before a slash separates, unless all
/// that the others separate is there, and the whole is not.
pub fn split(list: &str) -> Vec<String> {
    if list.contains(UnitName::SCHEME) {
        let names = braid_pool::split_names(list.as_ref());
        return names.into_iter().map(|n| n.display().to_string()).collect();
    }
    if !list.starts_with('/') {
        return list.split(':').map(str::to_owned).collect();
    }
    let mut paths = Vec::new();
    let mut rest = list;
    while let Some(at) = rest.find(":/") {
        paths.push(rest[..at].to_owned());
        rest = &rest[at + 1..];
    }
    paths.push(rest.to_owned());
    paths.into_iter().flat_map(apart).collect()
}

/// A path with colons: one device, or several of which only the first is absolute.
fn apart(path: String) -> Vec<String> {
    let there = |path: &str| Path::new(path).exists();
    let parts: Vec<String> = path.split(':').map(str::to_owned).collect();
    if !there(&path) && parts.iter().all(|p| there(p)) { parts } else { vec![path] }
}

/// The pool's name, or its UUID, among all devices that this host sees; also as `LABEL=` and `UUID=`.
fn by_name(word: &str) -> Result<Vec<PathBuf>> {
    if word.contains('/') {
        bail!("no such device: {word}");
    }
    let tag = |key: &str| Some(word.strip_prefix(key)?.trim_matches('"'));
    let (label, uuid) = (tag("LABEL="), tag("UUID="));
    let name = label.or(uuid).unwrap_or(word);
    let is = |p: &&FoundPool| {
        uuid.is_none() && p.name == name || label.is_none() && p.uuid.to_string() == name
    };
    let pools = discover(None);
    let found: Vec<_> = pools.iter().filter(is).collect();
    if found.is_empty()
        && let Some(mounted) = mounted(name)?
    {
        return Ok(mounted);
    }
    if found.is_empty()
        && let Some(other) = others::of_pool(name)
    {
        bail!("pool {name}: {other}");
    }
    match found.as_slice() {
        [] if Path::new(name).is_dir() => bail!(
            "no pool is mounted on the directory {name}, and no pool on this host's devices has that name; `braid scan` lists what is there"
        ),
        [] => bail!(
            "no pool called '{name}' on this host's devices; `braid scan` lists what is there \
             (for pools on plain files or units of iSCSI targets name those, or set BRAID_DEVICES)"
        ),
        [pool] => Ok(pool.paths().map(Path::to_owned).collect()),
        _ => {
            bail!("{} pools are called '{name}'; use the UUID that `braid scan` shows", found.len())
        }
    }
}

/// The devices of the pool of this name that this host has mounted: files and units of targets are not searched.
fn mounted(name: &str) -> Result<Option<Vec<PathBuf>>> {
    let mounts = mounts::mounts().into_iter().filter(|m| m.pool == name);
    let mut all: Vec<Vec<PathBuf>> = mounts
        .map(|m| {
            let mut paths: Vec<_> = m.sources.iter().map(PathBuf::from).collect();
            paths.sort();
            paths
        })
        .collect();
    all.sort();
    all.dedup();
    if all.len() > 1 {
        bail!(
            "mounts of several pools called '{name}', or by other names of its devices: name the devices"
        );
    }
    Ok(all.pop())
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn lists_of_devices() {
        assert_eq!(split("/dev/sdb:/dev/sdc"), ["/dev/sdb", "/dev/sdc"]);
        let by_path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-1";
        assert_eq!(split(&format!("{by_path}:/dev/sdb")), [by_path, "/dev/sdb"]);
        assert_eq!(split("a:b"), ["a", "b"]);
        let unit = "iscsi://10.0.0.1:3260/iqn.2026-11.org:x/0";
        assert_eq!(split(&format!("{unit}:/dev/sdb")), [unit, "/dev/sdb"]);
        assert_eq!(split("scratch"), ["scratch"]);
        // Tests run in the crate's folder.
        let here = std::env::current_dir().unwrap().join("src");
        let here = here.to_str().unwrap();
        assert_eq!(split(&format!("{here}:tests:{here}")), [here, "tests", here]);
        assert_eq!(split(&format!("{here}:nowhere")), [format!("{here}:nowhere")]);
    }
}

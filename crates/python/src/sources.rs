//! From what a program names (a pool's name, its UUID, or its members) to an open pool.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_device::{Device, MountTable, OpenOptions, UnitName};
use braid_format::node::SlotState;
use braid_fs::lock::NodeView;
use braid_fs::pool::{FoundPool, Pool, PoolError, discover};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use rustix::io::Errno;

use crate::errors;

/// What a program names.
#[derive(Debug, Clone)]
pub enum Source {
    /// A pool, by name or UUID.
    Pool(String),
    /// All its members.
    Members(Vec<PathBuf>),
}

impl<'py> FromPyObject<'_, 'py> for Source {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let source = match object.extract::<PathBuf>() {
            Ok(path) => match path.to_str().filter(|word| !names_a_device(word)) {
                Some(name) => Self::Pool(name.to_owned()),
                None => Self::Members(vec![path]),
            },
            Err(_) => Self::Members(object.extract().map_err(|_| {
                PyTypeError::new_err(
                    "name a pool (its name, or its UUID), or the paths of its members",
                )
            })?),
        };
        match &source {
            Self::Members(paths) if paths.is_empty() => {
                Err(PyValueError::new_err("name a pool or its members"))
            }
            Self::Members(paths)
                if paths.iter().any(|path| path.as_os_str().as_bytes().contains(&0)) =>
            {
                Err(PyValueError::new_err("embedded null byte in a path"))
            }
            _ => Ok(source),
        }
    }
}

/// Whether a word means a path and not a pool.
fn names_a_device(word: &str) -> bool {
    let is_file = |path: &Path| {
        let meta = std::fs::metadata(path);
        meta.is_ok_and(|meta| meta.is_file() || meta.file_type().is_block_device())
    };
    word.contains('/') || UnitName::is_meant(word) || is_file(word.as_ref())
}

impl Source {
    /// The members' paths, absolute: a program may go to another directory.
    ///
    /// # Errors
    /// No pool of that name, or several.
    pub fn members(&self) -> PyResult<Vec<PathBuf>> {
        let paths = match self {
            Self::Pool(name) => by_name(name)?,
            Self::Members(paths) => paths.clone(),
        };
        let absolute = |path: PathBuf| {
            if path.to_str().is_some_and(UnitName::is_meant) {
                return Ok(path);
            }
            std::path::absolute(path)
        };
        Ok(paths.into_iter().map(absolute).collect::<Result<_, _>>()?)
    }
}

fn by_name(name: &str) -> PyResult<Vec<PathBuf>> {
    let pools = discover(None);
    let is = |pool: &&FoundPool| pool.name == name || pool.uuid.to_string() == name;
    let found: Vec<&FoundPool> = pools.iter().filter(is).collect();
    match found.as_slice() {
        [pool] => Ok(pool.paths().map(Path::to_owned).collect()),
        [] => Err(errors::os_error(
            Errno::NOENT,
            format!(
                "no pool called '{name}' on this host's devices; `braid scan` lists what is there (for pools on plain \
                 files or units of iSCSI targets name those, or set BRAID_DEVICES)"
            ),
        )),
        several => Err(errors::os_error(
            Errno::NOTUNIQ,
            format!(
                "{} pools are called '{name}': use the UUID that `braid scan` shows",
                several.len()
            ),
        )),
    }
}

/// Opens a device, to write it or only to read it.
fn open_device(path: &Path, read_only: bool) -> PyResult<Arc<dyn Device>> {
    if !braid_device::exists(path) {
        let message = format!("{}: no such device or file", path.display());
        return Err(errors::os_error(Errno::NOENT, message));
    }
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    let device = braid_device::open(path, options).map_err(|error| errors::of_device(&error))?;
    if device.info().read_only && !read_only {
        let path = device.info().name.clone();
        return Err(errors::of_pool(&PoolError::ReadOnly { path }));
    }
    Ok(device)
}

/// Opens a pool to join it. With `read_only` devices that nobody can write may do; whether there are such is
/// returned, too.
///
/// # Errors
/// A device cannot be opened, or the members do not make a pool.
pub fn open(source: &Source, read_only: bool) -> PyResult<(Pool, bool)> {
    let (mut devices, mut protected) = (Vec::new(), false);
    for path in source.members()? {
        let device = open_device(&path, false).or_else(|why| {
            let device = if read_only { open_device(&path, true).ok() } else { None };
            protected |= device.is_some();
            device.ok_or(why)
        });
        devices.push(device?);
    }
    let pool = Pool::assemble(devices).map_err(|error| errors::of_pool(&error))?;
    refuse_copies(&pool)?;
    Ok((pool, protected))
}

/// Refuses copies of all members of a pool that is mounted on this host, as `braid mount` does: nothing on them says that
/// a node lives on the originals, and it would be recovered. A node that lives holds its lock on the devices that it uses;
/// one that is noted on these, lives, and holds none here, uses others.
fn refuse_copies(pool: &Pool) -> PyResult<()> {
    let nodes = braid_fs::inspect(pool.clone()).map_err(|error| errors::of(&error))?.nodes;
    let table = MountTable::own().unwrap_or_default();
    let serves = |node: &NodeView| {
        let program = std::fs::read_to_string(format!("/proc/{}/comm", node.pid));
        let dir = Path::new(&node.mount_point);
        program.is_ok_and(|name| name.trim_end() == "braid")
            && table.iter().any(|mount| mount.kind == "fuse.braid" && mount.dir == dir)
    };
    let silent = |n: &&NodeView| n.state == SlotState::Active && n.of_this_host && !n.beating;
    let Some(node) = nodes.iter().filter(silent).find(|node| serves(node)) else { return Ok(()) };
    let (name, dir) = (&pool.info().name, &node.mount_point);
    let message = format!(
        "these are copies of the members of pool {name}, or the same ones by other devices; it is mounted on {dir} from \
         other devices: unmount that first (`braid unmount {dir}`), or take the devices that are mounted there"
    );
    Err(errors::os_error(Errno::BUSY, message))
}

/// Opens a pool to look at it, without members that are missing if the others hold everything.
///
/// # Errors
/// As [`open`]; too many members are missing.
pub fn open_to_look(source: &Source) -> PyResult<Pool> {
    let (mut devices, mut first) = (Vec::new(), None);
    for path in source.members()? {
        match open_device(&path, true) {
            Ok(device) => devices.push(device),
            Err(why) => first = first.or(Some(why)),
        }
    }
    if let (true, Some(why)) = (devices.is_empty(), first) {
        return Err(why);
    }
    Pool::assemble_degraded(devices).map_err(|error| errors::of_pool(&error))
}

//! `FileSystem`: a node of a pool in this process, with the operations on names.

#![expect(clippy::needless_pass_by_value, reason = "PyO3 hands arguments over by value")]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use braid_format::{Bytes, NodeId};
use braid_fs::mode::{S_IFLNK, S_IFMT};
use braid_fs::{Attr, Cred, Error, Fs, MountOptions, SetAttr, Time, TimeSet, WithAttrs};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::closed::in_repr;
use crate::file::{File, OpenAs};
use crate::node::{Node, uses_pools};
use crate::paths::{Fault, Name, Place, resolve};
use crate::pool::Pool;
use crate::sources::{self, Source};
use crate::status::stat_result;

const O_WRONLY: i32 = 1;
const O_RDWR: i32 = 2;
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;
const O_SYNC: i32 = 0o4_010_000;
/// Of renameat2(2).
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;

/// A node of a pool in this process: `FileSystem(source, *, read_only=False, memory=None, slot=None)`.
///
/// `source` is a `Pool`, a pool's name or UUID, or the paths of all its members. The node takes a slot of the pool until
/// `close`, or until the process ends. It needs access to the devices, and checks no permissions. `memory` bounds what it
/// keeps, bytes (default 512 MiB, least 64 MiB). What was written is seen by all nodes on return; it is durable after
/// `File.fsync`, `sync` or `close`. Paths begin at the root of the file system.
///
/// Raises OSError with an errno and what to do: no slot is free, a member is missing or cannot be opened. After a fork
/// the child's copies raise (EBADF). Once closed, calls raise ValueError.
#[pyclass(frozen, weakref, module = "braid")]
pub struct FileSystem {
    node: Arc<Node>,
    name: String,
    uuid: String,
    slot: u16,
    read_only: bool,
}

/// A name in a directory, with what is behind it.
#[pyclass(frozen, module = "braid")]
pub struct DirEntry {
    name: OsString,
    attr: Attr,
}

#[pymethods]
impl DirEntry {
    /// The name.
    #[getter]
    fn name(&self) -> OsString {
        self.name.clone()
    }
    /// Attributes, not those of what a symbolic link leads to.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        stat_result(py, &self.attr)
    }
    /// The inode's number.
    fn inode(&self) -> u64 {
        self.attr.ino.get()
    }
    /// Whether it is a directory.
    fn is_dir(&self) -> bool {
        self.attr.is_dir()
    }
    /// Whether it is a regular file.
    fn is_file(&self) -> bool {
        self.attr.is_regular()
    }
    /// Whether it is a symbolic link.
    fn is_symlink(&self) -> bool {
        self.attr.mode & S_IFMT == S_IFLNK
    }
    fn __repr__(&self) -> String {
        format!("<braid.DirEntry '{}'>", self.name.display())
    }
}

/// What this process is, to whom new inodes belong.
fn cred() -> Cred {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let umask = umask.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok());
    Cred {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: std::process::id(),
        umask: umask.unwrap_or(0o022),
    }
}

/// What `open` is to do.
struct Opening {
    how: OpenAs,
    flags: i32,
    creates: bool,
    exclusive: bool,
}

impl Opening {
    fn parse(path: PathBuf, mode: &str, direct: bool, sync: bool) -> PyResult<Self> {
        let bad = |why: &str| PyValueError::new_err(format!("mode {mode:?}: {why}"));
        if mode.contains('t') {
            return Err(bad(
                "native files are binary: wrap one in io.TextIOWrapper(io.BufferedReader(...))",
            ));
        }
        let plus = mode.contains('+');
        let letters: String = mode.chars().filter(|c| !matches!(c, '+' | 'b')).collect();
        let once = |c| mode.matches(c).count() <= 1;
        if !matches!(letters.as_str(), "r" | "w" | "a" | "x") || !once('+') || !once('b') {
            return Err(bad("not r, w, a or x, with + or without"));
        }
        let (reads, writes) = (letters == "r" || plus, letters != "r" || plus);
        let mut flags = match (reads, writes) {
            (true, true) => O_RDWR,
            (false, true) => O_WRONLY,
            _ => 0,
        };
        if letters == "w" {
            flags |= O_TRUNC;
        }
        if letters == "x" {
            flags |= O_EXCL;
        }
        if sync {
            flags |= O_SYNC;
        }
        let how = OpenAs {
            path,
            mode: mode.to_owned(),
            readable: reads,
            writable: writes,
            append: letters == "a",
            direct,
        };
        Ok(Self { how, flags, creates: letters != "r", exclusive: letters == "x" })
    }
}

/// A pool, or what names one.
#[derive(FromPyObject)]
enum Named<'py> {
    Pool(PyRef<'py, Pool>),
    Source(Source),
}

impl FileSystem {
    /// Resolves a path and does something with it, with the GIL released.
    fn on<T: Send>(
        &self,
        py: Python<'_>,
        name: &Name,
        follow: bool,
        f: impl FnOnce(&Fs, Place) -> Result<T, Fault> + Send,
    ) -> PyResult<T> {
        let fs = self.node.fs()?;
        let done = py.detach(|| f(fs, resolve(fs, name.bytes(), follow)?));
        done.map_err(|fault| fault.at(name))
    }

    fn set(&self, py: Python<'_>, name: &Name, follow: bool, set: &SetAttr) -> PyResult<()> {
        self.on(py, name, follow, |fs, place| {
            fs.setattr(place.there()?.ino, set, None)?;
            Ok(())
        })
    }
}

fn time(ns: i128) -> PyResult<TimeSet> {
    let range = || PyValueError::new_err("a time out of range");
    let sec = i64::try_from(ns.div_euclid(1_000_000_000)).map_err(|_| range())?;
    let nsec = u32::try_from(ns.rem_euclid(1_000_000_000)).map_err(|_| range())?;
    Ok(TimeSet::At(Time { sec, nsec }))
}

#[pymethods]
impl FileSystem {
    /// Joins a pool as a node.
    #[new]
    #[pyo3(signature = (source, *, read_only=false, memory=None, slot=None))]
    fn new(
        py: Python<'_>,
        source: Named<'_>,
        read_only: bool,
        memory: Option<u64>,
        slot: Option<u16>,
    ) -> PyResult<Self> {
        uses_pools()?;
        let source = match source {
            Named::Pool(pool) => {
                Source::Members(pool.paths().into_iter().map(PathBuf::from).collect())
            }
            Named::Source(source) => source,
        };
        let mut options = MountOptions {
            read_only,
            slot: slot.map(NodeId),
            mount_point: PathBuf::from("(native, python)"),
            ..MountOptions::default()
        };
        if let Some(bytes) = memory.map(Bytes) {
            if bytes < MountOptions::MEMORY_MIN {
                let least = MountOptions::MEMORY_MIN.get();
                return Err(PyValueError::new_err(format!("memory: at least {least} bytes")));
            }
            options.bound_memory(bytes);
        }
        let (pool, protected) = py.detach(|| sources::open(&source, read_only))?;
        let info = pool.info().clone();
        let node = Node::join(py, pool, options, protected)?;
        let slot = node.fs()?.life().slot.get();
        Ok(Self { node, name: info.name.clone(), uuid: info.uuid.to_string(), slot, read_only })
    }

    /// The pool's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }
    /// The pool's identity.
    #[getter]
    fn uuid(&self) -> &str {
        &self.uuid
    }
    /// The node's slot.
    #[getter]
    const fn slot(&self) -> u16 {
        self.slot
    }
    /// Whether it was opened to be read only.
    #[getter]
    const fn read_only(&self) -> bool {
        self.read_only
    }
    /// Whether the node has left.
    #[getter]
    fn closed(&self) -> bool {
        self.node.is_closed()
    }
    /// Leaves the pool: all that was written is durable on return, and the node slot is free.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.node.leave(py)
    }
    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        slf.node.fs()?;
        Ok(slf)
    }
    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
    fn __repr__(&self) -> String {
        let closed = in_repr(self.closed());
        format!("<braid.FileSystem of pool '{}', node {}{closed}>", self.name, self.slot)
    }

    /// Opens a regular file: `mode` is r, w, a or x, with + or without; always binary.
    ///
    /// `direct`: writes go past this node's cache. `sync`: each write is durable on return. `permissions` are those of a
    /// new file, less the umask. Raises FileNotFoundError, FileExistsError, IsADirectoryError, and so on.
    #[pyo3(signature = (path, mode="r", *, direct=false, sync=false, permissions=0o666))]
    fn open(
        &self,
        py: Python<'_>,
        path: Name,
        mode: &str,
        direct: bool,
        sync: bool,
        permissions: u32,
    ) -> PyResult<File> {
        let opening = Opening::parse(path.path().to_owned(), mode, direct, sync)?;
        let flags = opening.flags;
        let opened = self.on(py, &path, !opening.exclusive, |fs, place| match place.attr {
            Some(_) if opening.exclusive => Err(Fault::Fs(Error::Exists)),
            Some(attr) if attr.is_dir() => Err(Fault::Fs(Error::IsDirectory)),
            Some(attr) if !attr.is_regular() => {
                Err(Fault::Fs(Error::NotSupported("not a regular file: open it through a mount")))
            }
            Some(attr) => Ok((attr.ino, fs.open(attr.ino, flags)?)),
            None if opening.creates => {
                let (dir, name) = place.entry()?;
                let (attr, fh) = fs.create(dir, name, permissions & 0o7777, flags, &cred())?;
                Ok((attr.ino, fh))
            }
            None => Err(Fault::Fs(Error::NotFound)),
        })?;
        Ok(File::new(self.node.clone(), opened, opening.how))
    }

    /// The names in a directory, in no order.
    #[pyo3(signature = (path=Name::root()))]
    fn listdir(&self, py: Python<'_>, path: Name) -> PyResult<Vec<OsString>> {
        self.on(py, &path, true, |fs, place| {
            let mut names = Vec::new();
            entries(fs, place.there()?, WithAttrs::No, &mut |name, _| names.push(name))?;
            Ok(names)
        })
    }
    /// The names in a directory, with attributes, in no order.
    #[pyo3(signature = (path=Name::root()))]
    fn scandir(&self, py: Python<'_>, path: Name) -> PyResult<Vec<DirEntry>> {
        self.on(py, &path, true, |fs, place| {
            let dir = place.there()?;
            let mut all = Vec::new();
            entries(fs, dir, WithAttrs::Yes, &mut |name, attr| all.push((name, attr)))?;
            let mut found = Vec::new();
            for (name, attr) in all {
                let attr = match attr {
                    Some(attr) => attr,
                    None => match fs.lookup(dir.ino, name.as_encoded_bytes()) {
                        // Gone meanwhile.
                        Err(Error::NotFound) => continue,
                        looked => looked?,
                    },
                };
                found.push(DirEntry { name, attr });
            }
            Ok(found)
        })
    }
    /// Attributes, as `os.stat`.
    #[pyo3(signature = (path, *, follow_symlinks=true))]
    fn stat<'py>(
        &self,
        py: Python<'py>,
        path: Name,
        follow_symlinks: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let attr = self.on(py, &path, follow_symlinks, |_, place| place.there())?;
        stat_result(py, &attr)
    }
    /// Whether a path leads to something.
    fn exists(&self, py: Python<'_>, path: Name) -> PyResult<bool> {
        let fs = self.node.fs()?;
        let there = py.detach(|| resolve(fs, path.bytes(), true));
        match there {
            Ok(place) => Ok(place.attr.is_some()),
            Err(Fault::Fs(Error::NotFound | Error::NotDirectory)) => Ok(false),
            Err(fault) => Err(fault.at(&path)),
        }
    }
    /// Makes a directory.
    #[pyo3(signature = (path, permissions=0o777))]
    fn mkdir(&self, py: Python<'_>, path: Name, permissions: u32) -> PyResult<()> {
        self.on(py, &path, false, |fs, place| {
            if place.attr.is_some() {
                return Err(Fault::Fs(Error::Exists));
            }
            let (dir, name) = place.entry()?;
            fs.mkdir(dir, name, permissions & 0o7777, &cred())?;
            Ok(())
        })
    }
    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: Name) -> PyResult<()> {
        self.on(py, &path, false, |fs, place| {
            let (dir, name) = place.entry()?;
            Ok(fs.rmdir(dir, name)?)
        })
    }
    /// Removes a name that is not a directory's.
    fn unlink(&self, py: Python<'_>, path: Name) -> PyResult<()> {
        self.on(py, &path, false, |fs, place| {
            let (dir, name) = place.entry()?;
            Ok(fs.unlink(dir, name)?)
        })
    }
    /// Renames in one step for all nodes. What has the new name is replaced; without `replace` FileExistsError is raised;
    /// with `exchange` both change names.
    #[pyo3(signature = (src, dst, *, replace=true, exchange=false))]
    fn rename(
        &self,
        py: Python<'_>,
        src: Name,
        dst: Name,
        replace: bool,
        exchange: bool,
    ) -> PyResult<()> {
        let flags = match (replace, exchange) {
            (_, true) => RENAME_EXCHANGE,
            (false, _) => RENAME_NOREPLACE,
            _ => 0,
        };
        self.on(py, &src, false, |fs, from| {
            let to = resolve(fs, dst.bytes(), false)?;
            let ((dir, name), (new_dir, new_name)) = (from.entry()?, to.entry()?);
            Ok(fs.rename(dir, name, new_dir, new_name, flags)?)
        })
    }
    /// Gives a file another name.
    fn link(&self, py: Python<'_>, src: Name, dst: Name) -> PyResult<()> {
        self.on(py, &src, false, |fs, from| {
            let to = resolve(fs, dst.bytes(), false)?;
            let (dir, name) = to.entry()?;
            fs.link(from.there()?.ino, dir, name)?;
            Ok(())
        })
    }
    /// Makes a symbolic link to `target`.
    fn symlink(&self, py: Python<'_>, target: Name, path: Name) -> PyResult<()> {
        self.on(py, &path, false, |fs, place| {
            let (dir, name) = place.entry()?;
            fs.symlink(dir, name, target.bytes(), &cred())?;
            Ok(())
        })
    }
    /// Where a symbolic link leads.
    fn readlink(&self, py: Python<'_>, path: Name) -> PyResult<OsString> {
        let target = self.on(py, &path, false, |fs, place| Ok(fs.readlink(place.there()?.ino)?))?;
        Ok(OsString::from_vec(target))
    }
    /// Sets permission bits.
    fn chmod(&self, py: Python<'_>, path: Name, permissions: u32) -> PyResult<()> {
        let set = SetAttr { mode: Some(permissions & 0o7777), ..SetAttr::default() };
        self.set(py, &path, true, &set)
    }
    /// Sets owner and group; -1 leaves one alone.
    fn chown(&self, py: Python<'_>, path: Name, uid: i64, gid: i64) -> PyResult<()> {
        let set = SetAttr {
            uid: u32::try_from(uid).ok(),
            gid: u32::try_from(gid).ok(),
            ..SetAttr::default()
        };
        self.set(py, &path, true, &set)
    }
    /// Sets times of access and modification, in nanoseconds since 1970; without them, to the present.
    #[pyo3(signature = (path, ns=None))]
    fn utime(&self, py: Python<'_>, path: Name, ns: Option<(i128, i128)>) -> PyResult<()> {
        let (atime, mtime) = match ns {
            Some((atime, mtime)) => (time(atime)?, time(mtime)?),
            None => (TimeSet::Now, TimeSet::Now),
        };
        let set = SetAttr { atime: Some(atime), mtime: Some(mtime), ..SetAttr::default() };
        self.set(py, &path, true, &set)
    }
    /// Makes a file as long as `size` bytes.
    fn truncate(&self, py: Python<'_>, path: Name, size: u64) -> PyResult<()> {
        self.set(py, &path, true, &SetAttr { size: Some(size), ..SetAttr::default() })
    }
    /// Makes durable on return the names in a directory.
    fn fsync_dir(&self, py: Python<'_>, path: Name) -> PyResult<()> {
        self.on(py, &path, true, |fs, place| Ok(fs.fsync_dir(place.there()?.ino)?))
    }
    /// Makes durable on return all that was written through this node.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let fs = self.node.fs()?;
        py.detach(|| fs.sync()).map_err(|error| crate::errors::of(&error))
    }
    /// Bytes for file data: (size, free).
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let fs = self.node.fs()?;
        let space = py.detach(|| fs.statfs()).map_err(|error| crate::errors::of(&error))?;
        let unit = u64::from(space.block_size);
        Ok((space.blocks.saturating_mul(unit), space.available.saturating_mul(unit)))
    }
}

/// Reads a directory to its end, without its own and its parent's name.
fn entries(
    fs: &Fs,
    dir: Attr,
    with: WithAttrs,
    take: &mut dyn FnMut(OsString, Option<Attr>),
) -> Result<(), Fault> {
    if !dir.is_dir() {
        return Err(Fault::Fs(Error::NotDirectory));
    }
    let mut cookie = 0;
    loop {
        let mut last = None;
        fs.readdir(dir.ino, cookie, with, &mut |entry| {
            last = Some(entry.next);
            if !matches!(entry.name, b"." | b"..") {
                take(OsString::from_vec(entry.name.to_vec()), entry.attr);
            }
            true
        })?;
        match last {
            Some(next) => cookie = next,
            None => return Ok(()),
        }
    }
}

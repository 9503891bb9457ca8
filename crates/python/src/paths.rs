//! From a path to an inode, as the kernel does it for a mount: the native API knows names in directories only.
//!
//! Paths begin at the file system's root, with or without a slash in front. So does the target of a symbolic link that
//! begins with a slash: the file system's root, not the host's.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use braid_format::InodeNo;
use braid_fs::mode::{S_IFLNK, S_IFMT};
use braid_fs::{Attr, Error, Fs};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustix::io::Errno;

use crate::errors;

/// Symbolic links in one path, as Linux allows.
const LINKS_MAX: usize = 40;

/// A path that a program gave.
#[derive(Debug, Clone)]
pub struct Name(PathBuf);

impl<'py> FromPyObject<'_, 'py> for Name {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let path: PathBuf = object.extract()?;
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(PyValueError::new_err("embedded null byte in a path"));
        }
        Ok(Self(path))
    }
}

impl Name {
    /// The root.
    pub fn root() -> Self {
        Self(PathBuf::from("/"))
    }
    /// As it was given.
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_os_str().as_bytes()
    }
}

/// Why a path leads nowhere.
#[derive(Debug)]
pub enum Fault {
    /// A call failed.
    Fs(Error),
    /// Too many symbolic links.
    Loop,
    /// The root has no name that could be changed.
    Root,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Fs(error)
    }
}

impl Fault {
    /// As the program sees it.
    pub fn at(&self, name: &Name) -> PyErr {
        let say = |errno: Errno, text: &'static str| {
            pyo3::exceptions::PyOSError::new_err((
                errno.raw_os_error(),
                text,
                name.path().as_os_str().to_owned(),
            ))
        };
        match self {
            Self::Fs(error) => errors::at(error, name.path()),
            Self::Loop => say(Errno::LOOP, "too many symbolic links in the path"),
            Self::Root => say(Errno::BUSY, "this is the root of the file system"),
        }
    }
}

/// Where a path leads.
#[derive(Debug, Clone)]
pub struct Place {
    /// The directory that its last name is in; the root's own number for the root.
    pub dir: InodeNo,
    /// The last name; empty if the path leads to the root, or ends with `..`.
    pub name: Vec<u8>,
    /// What is there.
    pub attr: Option<Attr>,
}

impl Place {
    /// What is there.
    ///
    /// # Errors
    /// Nothing is.
    pub fn there(&self) -> Result<Attr, Fault> {
        self.attr.ok_or(Fault::Fs(Error::NotFound))
    }
    /// The directory and the name in it.
    ///
    /// # Errors
    /// It is the root.
    pub fn entry(&self) -> Result<(InodeNo, &[u8]), Fault> {
        if self.name.is_empty() { Err(Fault::Root) } else { Ok((self.dir, &self.name)) }
    }
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".").map(<[u8]>::to_vec)
}

/// Goes along a path. `follow`: also a symbolic link at its end.
///
/// # Errors
/// A directory on the way is missing, or none.
pub fn resolve(fs: &Fs, path: &[u8], follow: bool) -> Result<Place, Fault> {
    let mut rest: VecDeque<Vec<u8>> = names(path).collect();
    let mut dirs = vec![fs.root()];
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        let dir = dirs.last().copied().unwrap_or(fs.root());
        if name == b".." {
            if dirs.len() > 1 {
                dirs.pop();
            }
            continue;
        }
        let attr = match fs.lookup(dir, &name) {
            Err(Error::NotFound) if rest.is_empty() => {
                return Ok(Place { dir, name, attr: None });
            }
            looked => looked?,
        };
        if attr.mode & S_IFMT == S_IFLNK && (follow || !rest.is_empty()) {
            links += 1;
            if links > LINKS_MAX {
                return Err(Fault::Loop);
            }
            let target = fs.readlink(attr.ino)?;
            if target.first() == Some(&b'/') {
                dirs.truncate(1);
            }
            names(&target).rev().for_each(|name| rest.push_front(name));
        } else if rest.is_empty() {
            return Ok(Place { dir, name, attr: Some(attr) });
        } else if attr.is_dir() {
            dirs.push(attr.ino);
        } else {
            return Err(Fault::Fs(Error::NotDirectory));
        }
    }
    let dir = dirs.last().copied().unwrap_or(fs.root());
    Ok(Place { dir, name: Vec::new(), attr: Some(fs.getattr(dir)?) })
}

//! What a Python program sees of an error: `OSError` with errno, a message that says what to do, and the path if there
//! is one. Python makes `FileNotFoundError` and the like of it by errno.

use std::error::Error as StdError;
use std::io;
use std::path::Path;
use std::sync::Arc;

use braid_device::DeviceError;
use braid_fs::Error;
use braid_fs::pool::PoolError;
use pyo3::PyErr;
use pyo3::exceptions::PyOSError;
use rustix::io::Errno;

/// With a message of our own.
pub fn os_error(errno: Errno, message: impl Into<String>) -> PyErr {
    PyOSError::new_err((errno.raw_os_error(), message.into()))
}

/// Of a call of the file system.
pub fn of(error: &Error) -> PyErr {
    PyOSError::new_err((errno(error), error.to_string()))
}

/// Of a call of the file system on a path.
pub fn at(error: &Error, path: &Path) -> PyErr {
    PyOSError::new_err((errno(error), error.to_string(), path.as_os_str().to_owned()))
}

/// Of opening a pool.
pub fn of_pool(error: &PoolError) -> PyErr {
    PyOSError::new_err((pool_errno(error), error.to_string()))
}

/// Of opening a device.
pub fn of_device(error: &DeviceError) -> PyErr {
    let errno = system_errno(error).unwrap_or(Errno::IO.raw_os_error());
    let denied = [Errno::ACCESS, Errno::PERM].iter().any(|e| e.raw_os_error() == errno);
    let advice = if denied {
        "; who uses a pool without a mount must be allowed to open its devices: run this as root, or use a mount"
    } else {
        ""
    };
    PyOSError::new_err((errno, format!("{error}{advice}")))
}

fn errno(error: &Error) -> i32 {
    match error {
        Error::Pool(pool) => pool_errno(pool),
        other => other.errno(),
    }
}

fn pool_errno(error: &PoolError) -> i32 {
    match error {
        PoolError::ReadOnly { .. } => Errno::ROFS.raw_os_error(),
        PoolError::Missing { .. } => Errno::NODEV.raw_os_error(),
        other => system_errno(other).unwrap_or(Errno::IO.raw_os_error()),
    }
}

/// What the system said, if that is where an error comes from.
fn system_errno(error: &(dyn StdError + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        let by_system = error.downcast_ref::<io::Error>();
        let by_system = by_system.or_else(|| error.downcast_ref::<Arc<io::Error>>().map(|e| &**e));
        if let Some(errno) = by_system.and_then(io::Error::raw_os_error) {
            return Some(errno);
        }
        next = error.source();
    }
    None
}

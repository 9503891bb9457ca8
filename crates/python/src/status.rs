//! `os.stat_result` of an inode's attributes.

use braid_fs::{Attr, Time};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

fn seconds(time: Time) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "as os.stat; the fields in nanoseconds are exact"
    )]
    let whole = time.sec as f64;
    whole + f64::from(time.nsec) * 1e-9
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}

/// As `os.stat` has it. `st_dev` is 0.
///
/// # Errors
/// Python has no memory.
pub fn stat_result<'py>(py: Python<'py>, attr: &Attr) -> PyResult<Bound<'py, PyAny>> {
    let ids = (attr.mode, attr.ino.get(), 0, attr.nlink, attr.uid, attr.gid, attr.size);
    let times = (attr.atime, attr.mtime, attr.ctime);
    let whole = (times.0.sec, times.1.sec, times.2.sec);
    let parts = (seconds(times.0), seconds(times.1), seconds(times.2));
    let exact = (nanoseconds(times.0), nanoseconds(times.1), nanoseconds(times.2));
    let rest = (attr.blksize, attr.blocks512, attr.rdev);
    let mut fields = Vec::new();
    for part in [
        ids.into_pyobject(py)?.into_any(),
        whole.into_pyobject(py)?.into_any(),
        parts.into_pyobject(py)?.into_any(),
        exact.into_pyobject(py)?.into_any(),
        rest.into_pyobject(py)?.into_any(),
    ] {
        for field in part.try_iter()? {
            fields.push(field?);
        }
    }
    py.import("os")?.getattr("stat_result")?.call1((PyTuple::new(py, fields)?,))
}

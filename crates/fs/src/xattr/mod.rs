//! Extended attributes.

use std::sync::Arc;

use braid_format::InodeNo;

use crate::core::Core;
use crate::error::Result;

/// An attribute's value.
pub(crate) fn get(core: &Arc<Core>, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
    let _ = (core, ino, name);
    todo!()
}
/// Sets an attribute. `flags`: `XATTR_CREATE` (1), `XATTR_REPLACE` (2).
pub(crate) fn set(
    core: &Arc<Core>,
    ino: InodeNo,
    name: &[u8],
    value: &[u8],
    flags: i32,
) -> Result<()> {
    let _ = (core, ino, name, value, flags);
    todo!()
}
/// All names, each followed by a NUL.
pub(crate) fn list(core: &Arc<Core>, ino: InodeNo) -> Result<Vec<u8>> {
    let _ = (core, ino);
    todo!()
}
/// Removes an attribute.
pub(crate) fn remove(core: &Arc<Core>, ino: InodeNo, name: &[u8]) -> Result<()> {
    let _ = (core, ino, name);
    todo!()
}

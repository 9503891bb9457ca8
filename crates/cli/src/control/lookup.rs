//! What an order names, as the node finds it: devices, members, spares.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use braid_format::label::MemberState;
use braid_fs::{Fill, Fs};
use braid_pool::MemberSelector;
use braid_pool::device::{Device, OpenOptions};

use crate::control::member::MemberId;

/// A device that is to become a member.
pub(super) fn open(path: &Path) -> Result<Arc<dyn Device>> {
    if let Some(use_) = braid_pool::device::in_use(path)? {
        bail!("{}: in use: {use_}", path.display());
    }
    Ok(braid_pool::device::open(path, OpenOptions::default())?)
}

/// The member that was named, if it is in that place still.
pub(super) fn selector_of(fs: &Fs, named: &MemberId) -> Result<MemberSelector> {
    let label = fs.pool().label();
    let there = label.members.get(usize::from(named.place));
    let Some(there) = there.filter(|m| m.uuid.to_string() == named.uuid) else {
        bail!(
            "member {named} is another device now than when it was named: look at the members (`braid status`) and name it again; nothing was changed"
        );
    };
    // Another node may change places before it is done.
    Ok(there.uuid.into())
}

/// How full a part of the pool is.
pub(super) fn percent(f: &Fill) -> String {
    let mille = u128::from(f.used) * 1000 / u128::from(f.blocks.max(1));
    format!("{}.{} %", mille / 10, mille % 10)
}

/// The spares of the pool.
pub(super) fn spares(fs: &Fs) -> Vec<MemberSelector> {
    let members = fs.pool().label().members.into_iter();
    members.filter(|m| m.state == MemberState::Spare).map(|m| m.uuid.into()).collect()
}

/// # Errors
/// There is nothing to compare.
pub(super) fn may_scrub(fs: &Fs) -> Result<()> {
    if !fs.pool().info().redundant {
        bail!("nothing in this pool is mirrored or protected by parity");
    }
    Ok(())
}

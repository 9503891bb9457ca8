//! Copies of all members of a pool that is mounted on this host: nothing on them says that a node lives on the
//! originals, and two file systems of one identity would be mounted side by side.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::{Result, bail};
use braid_format::NodeId;
use braid_format::node::SlotState;
use braid_fs::lock::NodeView;
use braid_pool::Pool;

use crate::control::{self, View};
use crate::process::mounts::{self, Mount};

/// Which device a name leads to: by the numbers of the device or of the file; by the name itself where it is no
/// path of this host.
#[derive(Debug, PartialEq, Eq)]
enum Which {
    Device(u64),
    File(u64, u64),
    Name(String),
}

fn which(name: &str) -> Which {
    match std::fs::metadata(name) {
        Ok(meta) if meta.file_type().is_block_device() => Which::Device(meta.rdev()),
        Ok(meta) => Which::File(meta.dev(), meta.ino()),
        Err(_) => Which::Name(name.to_owned()),
    }
}

/// Refuses the devices of `pool` if a node of this host that lives has a pool of the same identity mounted from
/// others, and shows no life on these. Copies of some members only are found by the node that joins.
pub fn refuse(pool: &Pool) -> Result<()> {
    let info = pool.info();
    let of_name = |m: &Mount| m.pool == info.name;
    let mounts: Vec<Mount> = mounts::mounts().into_iter().filter(of_name).collect();
    let named: Vec<String> = pool.devices().iter().map(|d| d.info().name.clone()).collect();
    for (mount, view) in mounts.iter().zip(control::views(&mounts)) {
        let elsewhere = match view {
            Some(view) => lives_elsewhere(pool, &named, mount, &view)?,
            None => is_noted_without_lock(pool, mount)?,
        };
        if elsewhere {
            let (dir, name, pid) = (mount.mount_point.display(), &info.name, mount.pid);
            bail!(
                "{}: copies of the members of pool {name}, or the same ones by other devices (such as loop devices over them); it is mounted on {dir} (process {pid}) from other devices: two file systems of one identity are not mounted on one host; unmount that one first (`braid unmount {dir}`), or detach these",
                named.join(", ")
            );
        }
    }
    Ok(())
}

/// Whether the node of a mount, as which it answered, uses none of the devices that are `named`, and shows no life
/// on them. One that has withdrawn shows none anywhere.
fn lives_elsewhere(pool: &Pool, named: &[String], mount: &Mount, view: &View) -> Result<bool> {
    let Some(slot) = view.node else { return Ok(false) };
    if view.uuid != pool.info().uuid.to_string() || view.withdrawn.is_some() {
        return Ok(false);
    }
    let ours: Vec<Which> = named.iter().map(|name| which(name)).collect();
    if view.members.iter().any(|m| ours.contains(&which(&m.path))) {
        return Ok(false);
    }
    Ok(!braid_fs::shows_life(pool.clone(), NodeId(slot), mount.pid)?)
}

/// Whether the node of a mount that does not answer is in a slot of the pool, and its lock, which it holds while
/// its process lives, is on none of the devices.
fn is_noted_without_lock(pool: &Pool, mount: &Mount) -> Result<bool> {
    let is_its = |n: &NodeView| {
        n.state == SlotState::Active
            && (n.pid, Path::new(&n.mount_point)) == (mount.pid, &mount.mount_point)
    };
    let nodes = braid_fs::inspect(pool.clone())?.nodes;
    Ok(nodes.iter().any(|n| is_its(n) && !n.beating))
}

//! Keeps other programs from a block device that nodes of this host share.
//!
//! Programs that write a device (mkfs, wipefs, blkdiscard, mount, mdadm) open it exclusively first, and stop if
//! somebody else has it open so. Only one open file of a device may be exclusive, but several nodes of a host have
//! a member open. So none of them uses members exclusively; one of them has another open file besides, which is
//! exclusive and does nothing: it *holds* the member for all. A lock on that file says that it is a node's.
//!
//! ```text
//!  free ──exclusive open, lock──> held by this node ──closed, or the process dies──> free
//!    └─ somebody was sooner: by a lock that others see, a node (ByNode), else another program (Claimed)
//! ```
//!
//! The kernel ends both when the process dies. Until another node has taken the hold, nothing is held.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::block::Node;
use crate::host_locks::{is_noted_held, note_held};

/// A node takes its exclusive open and its lock one after the other, and gives them up in the same way. In between
/// its hold looks like another program's, so such a hold is looked at this many times before it counts as one.
const LOOKS: u32 = 10;
/// Between two such looks.
const PAUSE: Duration = Duration::from_millis(10);

/// A block device is held, as long as this lives.
#[derive(Debug)]
pub struct Hold {
    _file: File,
}

/// Who holds a block device.
#[derive(Debug)]
pub enum Holding {
    /// Whoever asked, from now on.
    Held(Hold),
    /// Another node of this host.
    ByNode,
    /// Another program: a mount, a volume manager, somebody who is just about to write it.
    Claimed,
}

impl Hold {
    /// Takes the hold of the block device at `path`, if nobody has it.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn take(path: &Path) -> io::Result<Holding> {
        let node = Node::of_block(path, std::fs::metadata(path)?.rdev());
        let open = |flags| File::options().read(true).custom_flags(flags).open(&node.path);
        for look in 1.. {
            match open(libc::O_EXCL | libc::O_NONBLOCK) {
                Ok(file) => {
                    note_held(&file)?;
                    return Ok(Holding::Held(Self { _file: file }));
                }
                Err(e) if e.raw_os_error() != Some(libc::EBUSY) => return Err(e),
                Err(_) if is_noted_held(&open(libc::O_NONBLOCK)?)? => return Ok(Holding::ByNode),
                Err(_) if look == LOOKS => break,
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        Ok(Holding::Claimed)
    }
}

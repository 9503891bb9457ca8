//! What can go wrong, and the errno that a program sees.

use braid_format::{BlockNo, Bytes, FormatError, InodeNo};
use braid_lock::{LockError, NotFrozen};
use braid_pool::PoolError;
use thiserror::Error;

/// Any failure of the file system. Variants name the fact; [`Error::errno`] maps them for POSIX.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// No such name or inode.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("exists already")]
    Exists,
    /// A directory is needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory will not do.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// A name longer than 255 bytes.
    #[error("name too long")]
    NameTooLong,
    /// A directory with directories in it cannot be moved that far down.
    #[error("the new place is more than {levels} levels below the root")]
    TooDeep {
        /// The limit.
        levels: usize,
    },
    /// Too many links to one inode.
    #[error("too many links")]
    TooManyLinks,
    /// No space left in the pool.
    #[error("no space left in the pool")]
    NoSpace,
    /// The file would pass the largest size.
    #[error("file too large")]
    TooLarge,
    /// An argument without meaning.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// Not done here.
    #[error("operation not supported: {0}")]
    NotSupported(&'static str),
    /// The inode refuses it (immutable, append only; a further name of a directory).
    #[error("operation not permitted")]
    NotPermitted,
    /// The mount is read-only.
    #[error("read-only file system")]
    ReadOnly,
    /// A handle that is not open, or not open for this.
    #[error("bad file handle")]
    BadHandle,
    /// The inode was deleted and its number given to another.
    #[error("stale inode {0}")]
    Stale(InodeNo),
    /// Attribute not there.
    #[error("no such attribute")]
    NoAttribute,
    /// Attribute or answer does not fit.
    #[error("value too large for its place")]
    Range,
    /// Attribute space is full.
    #[error("no room for attributes")]
    AttributeSpace,
    /// SEEK_DATA or SEEK_HOLE past the end.
    #[error("no such offset")]
    NoSuchOffset,
    /// A lock of another program is in the way.
    #[error("lock held by another")]
    WouldBlock,
    /// Waiting for a lock was broken off.
    #[error("interrupted")]
    Interrupted,
    /// Waiting would close a circle.
    #[error("deadlock")]
    Deadlock,
    /// A user, or this node, has as many locks of programs as are allowed, or there is no space for
    /// another.
    #[error("no more locks: the user, or this node, has as many as are allowed")]
    NoLocks,
    /// Too many unlinked files are still open.
    #[error("too many unlinked files are open")]
    TooManyOrphans,
    /// Metadata on disk is not what it must be. The caller gets EIO. The node withdraws only if a
    /// transaction has begun to change something (see `crate::damage`).
    #[error("metadata block {block} is damaged: {source}; run `braid check`")]
    Damaged {
        /// The slot.
        block: BlockNo,
        /// What was found.
        source: FormatError,
    },
    /// Metadata is sealed but contradicts itself. As [`Self::Damaged`].
    #[error("metadata block {block} is inconsistent: {what}; run `braid check`")]
    Inconsistent {
        /// The slot.
        block: BlockNo,
        /// What is wrong.
        what: &'static str,
    },
    /// The device cannot read a block of metadata. As [`Self::Damaged`].
    #[error("metadata block {block} cannot be read: {source}")]
    Unreadable {
        /// The slot.
        block: BlockNo,
        /// What the device said.
        source: PoolError,
    },
    /// A journal cannot be replayed: something in it is damaged that must have been durable.
    #[error(
        "the journal of node {node} is damaged at block {block}: {what}; run `braid check --repair` after unmounting all nodes"
    )]
    Journal {
        /// Whose.
        node: braid_format::NodeId,
        /// The block that the damaged record begins in.
        block: BlockNo,
        /// What is wrong.
        what: Box<str>,
    },
    /// This node left the cluster after a failure.
    #[error("this node has withdrawn: {reason}; unmount, and see the log")]
    Withdrawn {
        /// First failure.
        reason: std::sync::Arc<str>,
    },
    /// Not a Braid file system, or one this version cannot use.
    #[error("cannot use the superblock: {0}")]
    Superblock(FormatError),
    /// The first superblock cannot be used, and its copy may lack a part of the pool that is in use.
    #[error(
        "{first}; its copy may be from before the pool last grew and is not used, because files may be in space that it does not name: nothing was changed"
    )]
    OldSuperblock {
        /// Why the first one cannot be used.
        first: Box<Self>,
    },
    /// The store that the locks are in, if that is not the pool.
    #[error(transparent)]
    LockStore(#[from] braid_lock::etcd::EtcdError),
    /// A node has the file system mounted, or may have.
    #[error(
        "node {slot} on host {host} has the file system mounted; unmount it first{}",
        if *away { format!("; if that host is off, or the process has ended, confirm that: `braid fence POOL {slot} --confirm`") } else { String::new() }
    )]
    Mounted {
        /// Its slot.
        slot: braid_format::NodeId,
        /// Where it runs.
        host: Box<str>,
        /// That is another host, of which nothing tells whether it is off.
        away: bool,
    },
    /// Somebody has the liveness lock of a slot that is not taken.
    #[error(
        "node slot {0} is in use on this host: a node is mounting, or another check or create runs; try again when it is done"
    )]
    SlotBusy(braid_format::NodeId),
    /// The pool cannot be changed while others have it mounted.
    #[error(
        "{nodes} other {} mounted: which devices a pool stands on is changed by a node that has it alone, as yet",
        if *nodes == 1 { "node has the pool" } else { "nodes have the pool" }
    )]
    OtherNodes {
        /// How many.
        nodes: usize,
    },
    /// The superblock has no room to say of more.
    #[error("the file system was made larger {max} times already, which is the limit")]
    TooManyRegions {
        /// How often it can be.
        max: usize,
    },
    /// A member that holds what was there at first.
    #[error(
        "member {member} holds {bytes} bytes of what the pool was made with: only what `add` or `grow` brought can leave again; {} (`braid {} POOL {member} {}DEVICE`); nothing was changed",
        if *failed { "it has failed: put a device in its place" } else { "move it to another device" },
        if *failed { "replace" } else { "evacuate" },
        if *failed { "" } else { "--to " },
    )]
    Founding {
        /// The member's number.
        member: u16,
        /// How much of the pool is on it.
        bytes: Bytes,
        /// It has failed: nothing can be moved from it.
        failed: bool,
    },
    /// No member can take the place of one that holds part of what the pool was made with.
    #[error(
        "it holds part of what the pool was made with, which never leaves, and no other member can take its place: {why}; move it to another device (`braid evacuate POOL MEMBER --to DEVICE`); nothing was changed"
    )]
    NoSuccessor {
        /// Of each part of the pool.
        why: String,
    },
    /// The rest of the pool cannot hold what would have to move there.
    #[error("{need} bytes would have to move, and the rest of the pool has room for {room}")]
    NoRoomElsewhere {
        /// What is there.
        need: Bytes,
        /// What is free elsewhere.
        room: Bytes,
    },
    /// Metadata does not move.
    #[error(
        "{blocks} blocks of metadata are there, which cannot be moved: those of inodes {inodes}; copies of those files (`find -inum`, `cp -a`) have theirs elsewhere: remove the originals and try again"
    )]
    Immovable {
        /// How many.
        blocks: u64,
        /// Whose, or some of them.
        inodes: String,
    },
    /// What was to become empty did not.
    #[error(
        "{blocks} blocks could not be moved: their files are open and have no name any more, or a node that uses them does not answer; the space is in use again, try later"
    )]
    NotEmptied {
        /// How many.
        blocks: u64,
    },
    /// Space that is being emptied is no place to move to.
    #[error(
        "a part of the pool is being emptied: `braid remove POOL MEMBER` goes on with it, or `braid remove POOL --cancel` ends it"
    )]
    Leaving,
    /// One node at a time moves file data, and does one such thing.
    #[error(
        "file data is being moved already, here or by another node: wait until that is done, or end it there (`braid rebalance POOL --stop`, `braid remove POOL --cancel`)"
    )]
    UnderWay,
    /// One trim at a time on a node.
    #[error(
        "this node is giving free space back to the devices already: wait until that is done, or end it (`braid trim POOL --stop`)"
    )]
    Trimming,
    /// The pool is not frozen, or was not all the time.
    #[error(transparent)]
    Freeze(Box<NotFrozen>),
    /// Somebody has made another file system on the devices since this one was looked at.
    #[error("another file system was made on these devices just now; try again")]
    Replaced,
    /// The pool is too small for a file system.
    #[error(
        "pool of {have} bytes is too small: a file system needs {need} (fewer --nodes and smaller --journal-size need less)"
    )]
    PoolTooSmall {
        /// Bytes there.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// A subpool without room for what it is for.
    #[error("the subpool for {kind} has {have} bytes; with these options it needs {need}")]
    SubpoolTooSmall {
        /// What it is for.
        kind: &'static str,
        /// Bytes there.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// A journal that one transaction could fill.
    #[error(
        "a journal of {size} bytes is too small: with this block size it needs {need} (--journal-size)"
    )]
    JournalTooSmall {
        /// Bytes asked for.
        size: Bytes,
        /// Bytes needed.
        need: Bytes,
    },
    /// More nodes than have a redundancy log.
    #[error("the pool has redundancy logs for {most} nodes, not for {nodes}")]
    TooManyNodes {
        /// Asked for.
        nodes: u16,
        /// Possible.
        most: u16,
    },
    /// More nodes than a lock record of the pool can name.
    #[error(
        "lock sectors of {sector} bytes hold the records of 1 to {most} nodes, not of {nodes}{}",
        more_nodes(*.sector)
    )]
    NodesPerSector {
        /// Asked for.
        nodes: u16,
        /// Possible.
        most: usize,
        /// The pool's lock sector.
        sector: Bytes,
    },
    /// Contents of a file could not be read or written. Only this file suffers.
    #[error("contents of a file: {0}")]
    Contents(#[source] PoolError),
    /// Writes to more new blocks failed than this node may keep from being used again.
    #[error("too much could not be written: this node's devices, or its paths to them, fail")]
    KeptBack,
    /// From the volume layer.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// From the lock layer.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Result of file system calls.
pub type Result<T> = std::result::Result<T, Error>;

/// What to do where lock sectors are too small for the number of nodes.
fn more_nodes(sector: Bytes) -> &'static str {
    if sector < Bytes(4096) { ": more need lock sectors of 4096 bytes" } else { "" }
}

impl Error {
    /// The errno a POSIX caller sees.
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno as E;
        let e = match self {
            Self::NotFound => E::NOENT,
            Self::Exists => E::EXIST,
            Self::NotDirectory => E::NOTDIR,
            Self::IsDirectory => E::ISDIR,
            Self::NotEmpty => E::NOTEMPTY,
            Self::NameTooLong | Self::TooDeep { .. } => E::NAMETOOLONG,
            Self::TooManyLinks => E::MLINK,
            Self::NoSpace
            | Self::AttributeSpace
            | Self::PoolTooSmall { .. }
            | Self::SubpoolTooSmall { .. }
            | Self::NoRoomElsewhere { .. }
            | Self::TooManyRegions { .. } => E::NOSPC,
            Self::TooLarge => E::FBIG,
            Self::Invalid(_)
            | Self::Superblock(_)
            | Self::OldSuperblock { .. }
            | Self::JournalTooSmall { .. }
            | Self::TooManyNodes { .. }
            | Self::NodesPerSector { .. } => E::INVAL,
            Self::NotSupported(_)
            | Self::Founding { .. }
            | Self::NoSuccessor { .. }
            | Self::Immovable { .. } => E::OPNOTSUPP,
            Self::NotPermitted => E::PERM,
            Self::ReadOnly => E::ROFS,
            Self::BadHandle => E::BADF,
            Self::Stale(_) => E::STALE,
            Self::NoAttribute => E::NODATA,
            Self::Range => E::RANGE,
            Self::NoSuchOffset => E::NXIO,
            Self::WouldBlock => E::AGAIN,
            Self::Interrupted | Self::Lock(LockError::Interrupted) => E::INTR,
            Self::Deadlock => E::DEADLK,
            Self::NoLocks => E::NOLCK,
            Self::TooManyOrphans => E::NFILE,
            Self::Mounted { .. }
            | Self::SlotBusy(_)
            | Self::Replaced
            | Self::OtherNodes { .. }
            | Self::NotEmptied { .. }
            | Self::Leaving
            | Self::UnderWay
            | Self::Trimming
            | Self::Freeze(_) => E::BUSY,
            Self::Damaged { .. }
            | Self::Inconsistent { .. }
            | Self::Unreadable { .. }
            | Self::Journal { .. }
            | Self::Withdrawn { .. }
            | Self::Contents(_)
            | Self::KeptBack
            | Self::Pool(_)
            | Self::Lock(_)
            | Self::LockStore(_) => E::IO,
        };
        e.raw_os_error()
    }
    /// Why the node withdraws, if it does because of this.
    pub(crate) fn reason(&self) -> std::sync::Arc<str> {
        match self {
            Self::Withdrawn { reason } => reason.clone(),
            Self::Lock(LockError::Withdrawn) => "a lock could not be given up: see the log".into(),
            other => other.to_string().into(),
        }
    }
    /// Whether the node must withdraw: what is on its way to the devices can no longer be trusted.
    /// Damage that a read meets is not: see `Self::damaged_block`.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Pool(_) | Self::Journal { .. })
    }
    /// The block of metadata that is damaged or cannot be read, if that is what failed: an error of
    /// what the block belongs to, as long as nothing was built upon it.
    pub(crate) fn damaged_block(&self) -> Option<BlockNo> {
        match self {
            Self::Damaged { block, .. }
            | Self::Inconsistent { block, .. }
            | Self::Unreadable { block, .. } => Some(*block),
            _ => None,
        }
    }
    /// Whether a resource group cannot be used before a repair, and others can: its lock is lost, or
    /// its header or bitmap is damaged.
    pub(crate) fn is_of_one_group(&self) -> bool {
        self.is_lost_lock() || self.damaged_block().is_some()
    }
    /// Fails with what ends everything; what is only of one resource group is given back, so that the
    /// caller goes on with the others first.
    pub(crate) fn of_one_group<T>(result: Result<T>) -> Result<Result<T>> {
        match result {
            Err(e) if !e.is_of_one_group() => Err(e),
            other => Ok(other),
        }
    }
    /// Whether it says that what is on disk is damaged.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Inconsistent { .. } | Self::Journal { .. })
    }
    /// Whether it is about a lock that nobody gets before a repair: a node has it that cannot be recovered, or
    /// its record is damaged.
    pub(crate) fn is_lost_lock(&self) -> bool {
        matches!(self, Self::Lock(LockError::Lost { .. } | LockError::Record { .. }))
    }
    /// Whether a wait for a lock was ended from outside.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted | Self::Lock(LockError::Interrupted))
    }
    /// Whether it is about a lock that does not come, and not for this caller to wait for.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.is_lost_lock() || matches!(self, Self::Lock(LockError::Interrupted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_node_has_withdrawn_is_said_once_however_often_it_is_passed_on() {
        let mut error = Error::Pool(PoolError::Closed);
        for _ in 0..3 {
            error = Error::Withdrawn { reason: error.reason() };
        }
        let said = error.to_string();
        assert_eq!(said.matches("this node has withdrawn").count(), 1, "{said}");
        assert!(said.contains(&PoolError::Closed.to_string()), "{said}");
        let by_a_lock = Error::Withdrawn { reason: Error::Lock(LockError::Withdrawn).reason() };
        assert_eq!(by_a_lock.to_string().matches("withdrawn").count(), 1, "{by_a_lock}");
    }
}

//! Writing back what is dirty: blocks are allocated, contents written, and then entered in the extent map
//! by one transaction. What reads and changes contents is [`crate::data`].

pub(crate) mod extent_commit;
pub(crate) mod extents;
pub(crate) mod flush;
mod held;
pub(crate) mod limit;

pub(crate) use flush::{flush_all, flush_for_demotion, flush_inode, fsync, make_stable};
pub(crate) use held::{HeldInode, View, touch};

//! Extended attributes: all of an inode's stand together, at the end of its dinode's body while
//! they and the tail fit, else in attribute blocks (until the last one goes). A value that is too
//! long for the dinode is in blocks of its own ([`place`]).
//!
//! Values are opaque here, those of `security.` and `trusted.` too; ACLs are not ([`acl`]).

pub(crate) mod acl;
mod attributes;
pub(crate) mod pack;
pub(crate) mod place;
#[cfg(test)]
mod tests;

pub use acl::{ACCESS as ACCESS_LIST, DEFAULT as DEFAULT_LIST, Person};
pub use attributes::KILL_GROUP;
pub(crate) use attributes::{
    Inherited, default_acl, drop_capability, get, has_capability, is_access_list, is_sound, list,
    remove, set,
};

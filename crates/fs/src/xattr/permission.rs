//! Whether somebody may read, write or search what has a mode and perhaps an ACL, as Linux says: for carriers
//! whose callers no kernel has checked. Pure.

use super::acl::Acl;
use crate::attr::Attr;

/// Somebody who asks.
#[derive(Debug, Clone, Copy)]
pub struct Person<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The other groups.
    pub groups: &'a [u32],
}

impl Person<'_> {
    /// Root may do everything.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
    /// Whether it is one of the groups.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
    /// Whether all of `want` is allowed (bits: 4 read, 2 write, 1 search). `acl`: the value of the attribute
    /// `system.posix_acl_access`, if there is one; one that makes no sense allows nothing but to the owner.
    pub fn may(&self, attr: &Attr, acl: Option<&[u8]>, want: u32) -> bool {
        if self.is_root() {
            return true;
        }
        let allows = |bits: u32| bits & want == want;
        if self.uid == attr.uid {
            return allows(attr.mode >> 6);
        }
        let acl = match acl.map(Acl::decode) {
            None | Some(Ok(None)) => None,
            Some(Ok(Some(acl))) => Some(acl),
            Some(Err(_)) => return false,
        };
        match acl.and_then(|acl| acl.allows(attr.gid, self, want)) {
            Some(allowed) => allowed,
            None if self.is_in(attr.gid) => allows(attr.mode >> 3),
            None => allows(attr.mode),
        }
    }
}

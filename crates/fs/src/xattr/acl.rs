//! POSIX access control lists, in the form in which programs and the kernel give them: a version, then
//! entries in a fixed order. Pure; bytes may be hostile.
//!
//! The permissions of the owner, the mask (without one: the owning group) and all others are in the
//! mode, too. The mode counts: a reader of an access list gets these three from the mode. So a list
//! and a mode cannot differ, and a change of the mode need not touch the list. A list that says no
//! more than a mode does is not kept.

use crate::attr::Attr;

/// The attribute with the ACL that permissions are checked against.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory with the ACL that what is made in it gets.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The value that means no list.
pub(super) const NONE: &[u8] = &VERSION.to_le_bytes();
const VERSION: u32 = 2;
const HEAD: usize = 4;
const ENTRY: usize = 8;
/// The number of entries that are about nobody in particular.
const NOBODY: u32 = u32::MAX;
const PERMISSIONS: u16 = 7;

/// The tag of an entry: which users it is about. Entries are in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AclTag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    /// The most that `User`, `OwningGroup` and `Group` may do.
    Mask = 0x10,
    Others = 0x20,
}

impl AclTag {
    fn of(bits: u16) -> Option<Self> {
        Some(match bits {
            0x01 => Self::Owner,
            0x02 => Self::User,
            0x04 => Self::OwningGroup,
            0x08 => Self::Group,
            0x10 => Self::Mask,
            0x20 => Self::Others,
            _ => return None,
        })
    }
    fn is_named(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: AclTag,
    permissions: u16,
    /// The number of the user or group, if it is a named one.
    id: u32,
}

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

/// A list that makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// The list in an attribute's value; `None`: an empty list, which means no list.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(value: &[u8]) -> Result<Option<Self>, &'static str> {
        let (version, rest) = value.split_at_checked(HEAD).ok_or("an ACL is cut off")?;
        if version != VERSION.to_le_bytes() {
            return Err("version of an ACL");
        }
        let (entries, cut) = rest.as_chunks::<ENTRY>();
        if !cut.is_empty() {
            return Err("an ACL is cut off");
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let entry = |&[t0, t1, p0, p1, i0, i1, i2, i3]: &[u8; ENTRY]| {
            let tag = AclTag::of(u16::from_le_bytes([t0, t1])).ok_or("kind of an ACL's entry")?;
            let permissions = u16::from_le_bytes([p0, p1]);
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            if permissions & !PERMISSIONS != 0 || tag.is_named() && id == NOBODY {
                return Err("an ACL's entry");
            }
            Ok(Entry { tag, permissions, id: if tag.is_named() { id } else { NOBODY } })
        };
        let acl = Self(entries.iter().map(entry).collect::<Result<_, _>>()?);
        acl.check().map(|()| Some(acl))
    }
    /// In order, each of the three that a mode has once, and a mask if anybody is named.
    fn check(&self) -> Result<(), &'static str> {
        let ordered = self.0.windows(2).all(|pair| match pair {
            [a, b] => a.tag < b.tag || a.tag == b.tag && a.tag.is_named(),
            _ => true,
        });
        let has = |tag| self.0.iter().any(|e| e.tag == tag);
        let named = self.0.iter().any(|e| e.tag.is_named());
        let whole = has(AclTag::Owner) && has(AclTag::OwningGroup) && has(AclTag::Others);
        if !ordered || !whole || named && !has(AclTag::Mask) {
            return Err("entries of an ACL");
        }
        Ok(())
    }
    /// Whether the entries for users and groups allow `want` to somebody who is not the owner of the file, which
    /// belongs to `group`. `None`: he is one of all others.
    pub fn allows(&self, group: u32, person: &Person<'_>, want: u32) -> Option<bool> {
        let find = |tag| self.0.iter().find(|e: &&Entry| e.tag == tag);
        let mask = find(AclTag::Mask).map_or(PERMISSIONS, |e| e.permissions);
        let allows = |e: &Entry| u32::from(e.permissions & mask) & want == want;
        let named = self.0.iter().find(|e| e.tag == AclTag::User && e.id == person.uid);
        if let Some(entry) = named {
            return Some(allows(entry));
        }
        let mut of_groups = self.0.iter().filter(|e| match e.tag {
            AclTag::OwningGroup => person.is_in(group),
            AclTag::Group => person.is_in(e.id),
            _ => false,
        });
        let first = of_groups.next()?;
        Some(allows(first) || of_groups.any(allows))
    }
    /// As an attribute's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.0.len() * ENTRY);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.0 {
            out.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            out.extend_from_slice(&entry.permissions.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }
    /// Whether a mode says as much.
    pub fn is_minimal(&self) -> bool {
        !self.0.iter().any(|e| e.tag.is_named() || e.tag == AclTag::Mask)
    }
    /// The entry whose permissions are in the group's bits of the mode.
    fn in_group_bits(&self) -> AclTag {
        if self.0.iter().any(|e| e.tag == AclTag::Mask) {
            AclTag::Mask
        } else {
            AclTag::OwningGroup
        }
    }
    /// How far up in a mode an entry's permissions stand, if they do.
    fn shift(&self, tag: AclTag) -> Option<u32> {
        match tag {
            AclTag::Owner => Some(6),
            AclTag::Others => Some(0),
            other => (other == self.in_group_bits()).then_some(3),
        }
    }
    /// `mode` with the permissions that the list gives.
    pub fn to_mode(&self, mode: u32) -> u32 {
        self.0.iter().fold(mode & !0o777, |mode, e| match self.shift(e.tag) {
            Some(shift) => mode | u32::from(e.permissions) << shift,
            None => mode,
        })
    }
    /// The list with the permissions that `mode` gives.
    pub fn with_mode(mut self, mode: u32) -> Self {
        for n in 0..self.0.len() {
            let shift = self.0.get(n).and_then(|e| self.shift(e.tag));
            if let (Some(shift), Some(entry)) = (shift, self.0.get_mut(n)) {
                entry.permissions = low_bits(mode >> shift);
            }
        }
        self
    }
    /// What a new inode that is asked for with `mode` gets of a directory's default list: its mode, and
    /// its access list if that says more.
    pub fn inherited(&self, mode: u32) -> (u32, Option<Self>) {
        let mut own = self.clone();
        for n in 0..own.0.len() {
            let shift = own.0.get(n).and_then(|e| self.shift(e.tag));
            if let (Some(shift), Some(entry)) = (shift, own.0.get_mut(n)) {
                entry.permissions &= low_bits(mode >> shift);
            }
        }
        let mode = own.to_mode(mode);
        (mode, (!own.is_minimal()).then_some(own))
    }
}

/// The lowest permissions of a mode.
fn low_bits(mode: u32) -> u16 {
    u16::try_from(mode & u32::from(PERMISSIONS)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(AclTag, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, permissions, id)| Entry { tag, permissions, id }).collect())
    }
    fn full() -> Acl {
        acl(&[
            (AclTag::Owner, 7, NOBODY),
            (AclTag::User, 6, 1000),
            (AclTag::User, 4, 1001),
            (AclTag::OwningGroup, 5, NOBODY),
            (AclTag::Group, 7, 1000),
            (AclTag::Mask, 6, NOBODY),
            (AclTag::Others, 1, NOBODY),
        ])
    }
    fn minimal() -> Acl {
        acl(&[
            (AclTag::Owner, 6, NOBODY),
            (AclTag::OwningGroup, 4, NOBODY),
            (AclTag::Others, 0, NOBODY),
        ])
    }

    #[test]
    fn bytes_are_those_of_the_kernel() {
        let bytes = minimal().encode();
        assert_eq!(
            bytes,
            [
                2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0,
                0, 0, 255, 255, 255, 255
            ]
        );
        for one in [minimal(), full()] {
            assert_eq!(Acl::decode(&one.encode()), Ok(Some(one)));
        }
        assert_eq!(Acl::decode(&[2, 0, 0, 0]), Ok(None));
    }

    #[test]
    fn nonsense_is_refused_without_panic() {
        let bytes = full().encode();
        for cut in 0..bytes.len() {
            if let Ok(Some(found)) = Acl::decode(&bytes[..cut]) {
                panic!("cut at {cut}: {found:?}");
            }
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut broken = bytes.clone();
                broken[at] ^= 1 << bit;
                if let Ok(Some(found)) = Acl::decode(&broken) {
                    assert_eq!(found.check(), Ok(()));
                    assert_eq!(Acl::decode(&found.encode()), Ok(Some(found)));
                }
            }
        }
        let owner = (AclTag::Owner, 7, NOBODY);
        let (group, others) = ((AclTag::OwningGroup, 5, NOBODY), (AclTag::Others, 1, NOBODY));
        for bad in [
            &[owner, group][..],
            &[owner, others],
            &[group, owner, others],
            &[owner, owner, group, others],
            &[owner, (AclTag::User, 7, 5), group, others],
            &[owner, (AclTag::User, 7, NOBODY), group, (AclTag::Mask, 7, NOBODY), others],
            &[owner, group, (AclTag::Mask, 7, NOBODY), (AclTag::Mask, 7, NOBODY), others],
            &[owner, group, (AclTag::Others, 8, NOBODY)],
        ] {
            assert!(Acl::decode(&acl(bad).encode()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn list_and_mode_say_the_same() {
        assert!(minimal().is_minimal() && !full().is_minimal());
        assert_eq!(minimal().to_mode(0o102_777), 0o102_640);
        // The group's bits are the mask.
        assert_eq!(full().to_mode(0o100_000), 0o100_761);
        let changed = full().with_mode(0o100_640);
        assert_eq!(changed.to_mode(0o100_000), 0o100_640);
        let group = changed.0.iter().find(|e| e.tag == AclTag::OwningGroup).unwrap();
        assert_eq!(group.permissions, 5, "only the mask changes");
        assert_eq!(minimal().with_mode(0o751).to_mode(0), 0o751);
    }

    #[test]
    fn what_is_made_inherits_no_more_than_it_asks_for() {
        let (mode, own) = full().inherited(0o100_666);
        assert_eq!(mode, 0o100_660);
        assert_eq!(own.unwrap().to_mode(0), 0o660);
        let (mode, own) = full().inherited(0o040_777);
        assert_eq!((mode, own), (0o040_761, Some(full())));
        assert_eq!(minimal().inherited(0o100_777), (0o100_640, None));
        assert_eq!(minimal().inherited(0o100_200), (0o100_200, None));
    }

    #[test]
    fn a_person_may_what_mode_and_list_say() {
        use crate::attr::Time;
        let time = Time::default();
        let attr = |mode| Attr {
            ino: braid_format::InodeNo(7),
            generation: 1,
            size: 0,
            blocks512: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            mode,
            nlink: 1,
            uid: 10,
            gid: 20,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        let person = |uid, groups: &'static [u32]| Person { uid, gid: 1, groups };
        let bits = |who: Person<'_>, mode, list: Option<&[u8]>| {
            [4, 2, 1].into_iter().filter(|bit| who.may(&attr(mode), list, *bit)).sum::<u32>()
        };
        assert_eq!(bits(person(0, &[]), 0, None), 7, "root");
        assert_eq!(bits(person(10, &[20]), 0o077, None), 0, "the owner, and not one of the others");
        assert_eq!(bits(person(11, &[20]), 0o707, None), 0, "of the group");
        assert_eq!(bits(person(11, &[]), 0o775, None), 5);
        assert!(!person(11, &[]).may(&attr(0o774), None, 5), "all of it");
        let list = acl(&[
            (AclTag::Owner, 6, NOBODY),
            (AclTag::User, 7, 11),
            (AclTag::OwningGroup, 1, NOBODY),
            (AclTag::Group, 6, 30),
            (AclTag::Mask, 5, NOBODY),
            (AclTag::Others, 2, NOBODY),
        ])
        .encode();
        let by_list = |who| bits(who, 0o652, Some(&list));
        assert_eq!(by_list(person(11, &[20])), 5, "by name, within the mask");
        assert_eq!(by_list(person(12, &[30])), 4);
        assert_eq!(by_list(person(12, &[20])), 1);
        // Each of the groups alone counts.
        assert!(!person(12, &[20, 30]).may(&attr(0o652), Some(&list), 5));
        assert_eq!(by_list(person(12, &[])), 2);
        assert_eq!(by_list(person(10, &[30])), 6, "the owner by the mode");
        assert_eq!(bits(person(12, &[]), 0o777, Some(b"rubbish")), 0);
    }
}

//! Users and groups that have other numbers at clients than in the pool.
//!
//! A map is one to one. A number that is in no range is itself on both sides, unless it is taken there: then it is nobody.
//! So no two users of clients are one in the pool, and none in the pool are one at a client, but for nobody.

use std::fmt;
use std::str::FromStr;

use braid_fs::{ACCESS_LIST, Attr, DEFAULT_LIST, SetAttr};

use crate::wire::{Caller, Reply};

/// User and group of whom there is none on the other side.
pub const NOBODY: u32 = 65_534;

/// Of whom a rule speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Users,
    Groups,
    Both,
}

/// So many numbers at clients, one after the other, and in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    client: u32,
    pool: u32,
    count: u32,
}

/// One rule of a map, as a person writes it: `1000:5000`, `1000-1999:5000` (up to 5999), `u1000:5000` for users alone,
/// `g1000:5000` for groups alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRule {
    of: Of,
    range: Range,
}

/// Why a map makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdMapError {
    /// That is no rule.
    #[error("{word:?} is no rule like 1000:5000, 1000-1999:5000, u1000:5000 or g1000:5000")]
    Word {
        /// What was written.
        word: String,
    },
    /// Two rules speak of the same number.
    #[error("the rules {first} and {second} have a number in common")]
    Overlap {
        /// One.
        first: IdRule,
        /// The other.
        second: IdRule,
    },
}

impl fmt::Display for IdRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { client, pool, count } = self.range;
        f.write_str(match self.of {
            Of::Users => "u",
            Of::Groups => "g",
            Of::Both => "",
        })?;
        match count {
            1 => write!(f, "{client}:{pool}"),
            _ => write!(f, "{client}-{}:{pool}", client + (count - 1)),
        }
    }
}

impl FromStr for IdRule {
    type Err = IdMapError;

    fn from_str(word: &str) -> Result<Self, IdMapError> {
        let (of, numbers) = match word.as_bytes().first() {
            Some(b'u') => (Of::Users, &word[1..]),
            Some(b'g') => (Of::Groups, &word[1..]),
            _ => (Of::Both, word),
        };
        // u32::MAX is no number of anybody.
        let number = |text: &str| -> Option<u32> {
            let digits = text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|n| digits && *n != u32::MAX)
        };
        let range = || {
            let (client, pool) = numbers.split_once(':')?;
            let (first, last) = client.split_once('-').unwrap_or((client, client));
            let (client, last, pool) = (number(first)?, number(last)?, number(pool)?);
            let count = last.checked_sub(client)?.checked_add(1)?;
            pool.checked_add(count).map(|_| Range { client, pool, count })
        };
        let range = range().ok_or_else(|| IdMapError::Word { word: word.to_owned() })?;
        Ok(Self { of, range })
    }
}

/// What a number is on the other side.
fn across(ranges: &[Range], number: u32, ends: impl Fn(&Range) -> (u32, u32)) -> Option<u32> {
    let mapped = ranges.iter().find_map(|range| {
        let (from, to) = ends(range);
        let at = number.checked_sub(from).filter(|at| *at < range.count)?;
        Some(to + at)
    });
    let is_taken = || {
        let taken =
            |range: &Range| number.checked_sub(ends(range).1).is_some_and(|at| at < range.count);
        ranges.iter().any(taken)
    };
    mapped.or_else(|| (!is_taken()).then_some(number))
}

/// Users and groups that have other numbers at clients than in the pool.
#[derive(Debug, Clone, Default)]
pub struct IdMap {
    users: Vec<Range>,
    groups: Vec<Range>,
}

impl IdMap {
    /// By these rules.
    ///
    /// # Errors
    /// [`IdMapError::Overlap`].
    pub fn new(rules: &[IdRule]) -> Result<Self, IdMapError> {
        let meet = |a: &IdRule, b: &IdRule| {
            let (x, y) = (a.range, b.range);
            let overlap = |a: u32, b: u32| a < b + y.count && b < a + x.count;
            let same = a.of == b.of || a.of == Of::Both || b.of == Of::Both;
            same && (overlap(x.client, y.client) || overlap(x.pool, y.pool))
        };
        for (n, first) in rules.iter().enumerate() {
            if let Some(second) = rules.iter().skip(n + 1).find(|second| meet(first, second)) {
                return Err(IdMapError::Overlap { first: *first, second: *second });
            }
        }
        let of = |other: Of| {
            rules.iter().filter(|rule| rule.of != other).map(|rule| rule.range).collect()
        };
        Ok(Self { users: of(Of::Groups), groups: of(Of::Users) })
    }
    /// Whether every number is itself.
    fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }
    fn user_in_pool(&self, uid: u32) -> Option<u32> {
        across(&self.users, uid, |range| (range.client, range.pool))
    }
    fn group_in_pool(&self, gid: u32) -> Option<u32> {
        across(&self.groups, gid, |range| (range.client, range.pool))
    }
    fn user_at_client(&self, uid: u32) -> u32 {
        across(&self.users, uid, |range| (range.pool, range.client)).unwrap_or(NOBODY)
    }
    fn group_at_client(&self, gid: u32) -> u32 {
        across(&self.groups, gid, |range| (range.pool, range.client)).unwrap_or(NOBODY)
    }

    /// Who asks, as the pool knows him.
    pub(super) fn caller(&self, caller: &Caller) -> Caller {
        let group = |gid: u32| self.group_in_pool(gid).unwrap_or(NOBODY);
        Caller {
            generations: caller.generations,
            uid: self.user_in_pool(caller.uid).unwrap_or(NOBODY),
            gid: group(caller.gid),
            groups: caller.groups.iter().map(|gid| group(*gid)).collect(),
        }
    }
    /// Owner and group that a client sets, as the pool knows them. `None`: there is none of that number.
    pub(super) fn set(&self, set: SetAttr) -> Option<SetAttr> {
        let uid = set.uid.map(|uid| self.user_in_pool(uid).ok_or(())).transpose().ok()?;
        let gid = set.gid.map(|gid| self.group_in_pool(gid).ok_or(())).transpose().ok()?;
        Some(SetAttr { uid, gid, ..set })
    }
    /// Attributes as a client knows them.
    pub(super) fn shown(&self, attr: &Attr) -> Attr {
        Attr { uid: self.user_at_client(attr.uid), gid: self.group_at_client(attr.gid), ..*attr }
    }
    /// A reply as a client knows it.
    pub(super) fn reply(&self, reply: Reply) -> Reply {
        match reply {
            Reply::Attr(attr) => Reply::Attr(self.shown(&attr)),
            Reply::Opened { handle, attr } => Reply::Opened { handle, attr: self.shown(&attr) },
            other => other,
        }
    }
    /// An extended attribute that a client sets, as the pool knows it. `None`: it names somebody who is not there.
    pub(super) fn xattr_in_pool(&self, name: &[u8], value: &mut [u8]) -> Option<()> {
        self.access_list(name, value, |of, id| match of {
            Of::Users => self.user_in_pool(id),
            _ => self.group_in_pool(id),
        })
    }
    /// One as a client knows it.
    pub(super) fn xattr_shown(&self, name: &[u8], value: &mut [u8]) {
        let shown = self.access_list(name, value, |of, id| match of {
            Of::Users => Some(self.user_at_client(id)),
            _ => Some(self.group_at_client(id)),
        });
        debug_assert!(shown.is_some(), "everybody is somebody at a client");
    }
    /// Changes the numbers in an ACL: 4 bytes of version, then entries of 8 bytes, with a tag at 0 and the number at
    /// 4 (posix_acl_xattr.h). Other attributes have none, and what makes no sense is left to who reads it.
    fn access_list(
        &self,
        name: &[u8],
        value: &mut [u8],
        map: impl Fn(Of, u32) -> Option<u32>,
    ) -> Option<()> {
        const USER: u16 = 0x02;
        const GROUP: u16 = 0x08;
        if self.is_empty() || name != ACCESS_LIST && name != DEFAULT_LIST {
            return Some(());
        }
        let entries = value.get_mut(4..).unwrap_or_default();
        for entry in entries.chunks_exact_mut(8) {
            let (tag, id) = entry.split_at_mut(4);
            let of = match tag {
                [low, high, ..] if u16::from_le_bytes([*low, *high]) == USER => Of::Users,
                [low, high, ..] if u16::from_le_bytes([*low, *high]) == GROUP => Of::Groups,
                _ => continue,
            };
            let Ok(number) = <[u8; 4]>::try_from(&*id) else { continue };
            id.copy_from_slice(&map(of, u32::from_le_bytes(number))?.to_le_bytes());
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(words: &str) -> IdMap {
        let rules: Vec<IdRule> = words.split(',').map(|word| word.parse().unwrap()).collect();
        IdMap::new(&rules).unwrap()
    }

    #[test]
    fn a_map_is_one_to_one_and_the_rest_is_itself_or_nobody() {
        let ids = map("1000-1999:5000,u0:100,g7:8");
        let users = [(1000, 5000), (1999, 5999), (0, 100), (7, 7), (999, 999), (2000, 2000)];
        for (client, pool) in users {
            assert_eq!((ids.user_in_pool(client), ids.user_at_client(pool)), (Some(pool), client));
        }
        for (client, pool) in [(1500, 5500), (0, 0), (7, 8)] {
            assert_eq!(
                (ids.group_in_pool(client), ids.group_at_client(pool)),
                (Some(pool), client)
            );
        }
        // Taken by others on that side.
        assert_eq!(
            (ids.user_in_pool(5000), ids.user_in_pool(100), ids.group_in_pool(8)),
            (None, None, None)
        );
        assert_eq!((ids.user_at_client(1000), ids.user_at_client(0)), (NOBODY, NOBODY));
        assert_eq!(ids.group_at_client(7), NOBODY);
        for id in (0..8000).chain([u32::MAX]) {
            if let Some(pool) = ids.user_in_pool(id) {
                assert_eq!(ids.user_at_client(pool), id);
            }
        }
        let other = IdMap::default();
        assert_eq!((other.user_in_pool(5), other.group_at_client(u32::MAX)), (Some(5), u32::MAX));
    }

    #[test]
    fn who_asks_and_what_is_shown_go_across() {
        let ids = map("1000:5000");
        let caller = Caller { generations: [1, 2], uid: 1000, gid: 5000, groups: vec![1000, 3] };
        let seen = ids.caller(&caller);
        assert_eq!(
            (seen.uid, seen.gid, seen.groups, seen.generations),
            (5000, NOBODY, vec![5000, 3], [1, 2])
        );
        let set = SetAttr { uid: Some(1000), size: Some(9), ..SetAttr::default() };
        let set = ids.set(set).unwrap();
        assert_eq!((set.uid, set.gid, set.size), (Some(5000), None, Some(9)));
        assert!(ids.set(SetAttr { gid: Some(5000), ..SetAttr::default() }).is_none());
    }

    #[test]
    fn users_and_groups_in_access_lists_go_across() {
        let entry = |tag: u16, id: u32| {
            let mut bytes = [tag.to_le_bytes(), 6_u16.to_le_bytes()].concat();
            bytes.extend(id.to_le_bytes());
            bytes
        };
        let list = |user: u32, group: u32| {
            let parts = [2_u32.to_le_bytes().to_vec(), entry(1, u32::MAX), entry(2, user)];
            [parts.concat(), entry(4, u32::MAX), entry(8, group), entry(0x20, u32::MAX)].concat()
        };
        let ids = map("u1000:5000,g20:30");
        for name in [ACCESS_LIST, DEFAULT_LIST] {
            let mut value = list(1000, 20);
            ids.xattr_in_pool(name, &mut value).unwrap();
            assert_eq!(value, list(5000, 30));
            ids.xattr_shown(name, &mut value);
            assert_eq!(value, list(1000, 20));
        }
        assert!(ids.xattr_in_pool(ACCESS_LIST, &mut list(5000, 20)).is_none());
        let mut other = list(1000, 20);
        ids.xattr_in_pool(b"user.list", &mut other).unwrap();
        assert_eq!(other, list(1000, 20));
        for len in 0..12 {
            let mut short = list(1000, 20)[..len].to_vec();
            ids.xattr_in_pool(ACCESS_LIST, &mut short).unwrap();
            assert_eq!(short, list(1000, 20)[..len]);
        }
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        for word in [
            "",
            "1",
            "1:",
            ":1",
            "a:b",
            "2-1:5",
            "1:-5",
            "+1:2",
            "x1:2",
            "1-:2",
            "4294967295:1",
            "ü1:2",
        ] {
            let refused = word.parse::<IdRule>().unwrap_err();
            assert!(refused.to_string().contains("1000-1999:5000"), "{word}: {refused}");
        }
        assert!("0-4294967294:1".parse::<IdRule>().is_err(), "beyond the last number");
        for word in ["1:2", "u1-5:9", "g0-4294967293:1"] {
            assert_eq!(word.parse::<IdRule>().unwrap().to_string(), word);
        }
        for (words, meet) in [
            ("1-5:10,5:99", true),
            ("1:10,2:10", true),
            ("u1:10,g1:10", false),
            ("1-4:10,5-9:14", false),
            ("u1:10,1:20", true),
        ] {
            let rules: Vec<IdRule> = words.split(',').map(|word| word.parse().unwrap()).collect();
            assert_eq!(IdMap::new(&rules).is_err(), meet, "{words}");
        }
    }
}

//! Entries packed one after the other, sorted by cookie: the contents of a directory's tail or of
//! one leaf. Pure; bytes may be hostile.

use std::ops::Range;

use braid_format::InodeNo;
use braid_format::dirent::RawDirent;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes that are no entries; says what is wrong.
pub(crate) type Bad = &'static str;

const HEAD: usize = size_of::<RawDirent>();

/// An entry in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Where its record begins and ends in the area.
    pub record: Range<usize>,
    /// Key.
    pub cookie: u64,
    /// The inode.
    pub ino: InodeNo,
    /// `DT_*`.
    pub kind: u32,
    /// The name.
    pub name: &'a [u8],
}

/// Walks over the entries of an area; ends after the first error.
pub(crate) struct Entries<'a> {
    area: &'a [u8],
    at: usize,
    left: usize,
    /// Cookies must be at least this ...
    low: u64,
    /// ... and below this.
    high: u64,
}

/// The `count` entries in `area`, whose cookies lie in `bounds`.
pub(crate) fn entries(area: &[u8], count: usize, bounds: Range<u64>) -> Entries<'_> {
    Entries { area, at: 0, left: count, low: bounds.start, high: bounds.end }
}

impl<'a> Entries<'a> {
    fn decode(&mut self) -> Result<Entry<'a>, Bad> {
        let rest = self.area.get(self.at..).unwrap_or_default();
        let (head, rest) =
            RawDirent::ref_from_prefix(rest).map_err(|_| "entry beyond the end of its block")?;
        let len = usize::from(head.record_len.get());
        let name_len = usize::from(head.name_len.get());
        let cookie = head.cookie.get();
        if name_len == 0 || name_len > RawDirent::NAME_MAX {
            return Err("length of a name");
        }
        if len != RawDirent::len_for(name_len) || len - HEAD > rest.len() {
            return Err("length of an entry");
        }
        if cookie < self.low || cookie >= self.high {
            return Err("order of entries");
        }
        let name = rest.get(..name_len).ok_or("length of a name")?;
        let record = self.at..self.at + len;
        self.low = cookie + 1;
        self.at += len;
        self.left -= 1;
        Ok(Entry {
            record,
            cookie,
            ino: InodeNo(head.inode.get()),
            kind: head.file_type.get(),
            name,
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Bad>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let entry = self.decode();
        if entry.is_err() {
            self.left = 0;
        }
        Some(entry)
    }
}

/// An entry as bytes.
pub(crate) fn encode(cookie: u64, ino: InodeNo, kind: u32, name: &[u8]) -> Vec<u8> {
    let len = RawDirent::len_for(name.len());
    let head = RawDirent {
        cookie: cookie.into(),
        inode: ino.get().into(),
        record_len: u16::try_from(len).unwrap_or(0).into(),
        name_len: u16::try_from(name.len()).unwrap_or(0).into(),
        file_type: kind.into(),
    };
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(name);
    out.resize(len, 0);
    out
}

/// Entries taken out of their block to be changed: verified bytes and their count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packed {
    /// The entries, nothing else.
    pub bytes: Vec<u8>,
    /// How many.
    pub count: usize,
}

impl Packed {
    /// Copies `count` entries, with room for one more.
    pub fn copy(area: &[u8], count: usize, bounds: Range<u64>) -> Result<Self, Bad> {
        let mut used = 0;
        for entry in entries(area, count, bounds) {
            used = entry?.record.end;
        }
        let mut bytes = Vec::with_capacity(used + RawDirent::len_for(RawDirent::NAME_MAX));
        bytes.extend_from_slice(area.get(..used).unwrap_or_default());
        Ok(Self { bytes, count })
    }
    /// The entries; they were verified.
    fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        entries(&self.bytes, self.count, 0..u64::MAX).map_while(Result::ok)
    }
    /// Puts an encoded entry with key `cookie` (which is not there) in its place.
    pub fn insert(&mut self, cookie: u64, record: &[u8]) {
        let at =
            self.iter().find(|e| e.cookie > cookie).map_or(self.bytes.len(), |e| e.record.start);
        self.bytes.splice(at..at, record.iter().copied());
        self.count += 1;
    }
    /// The name of the entry with key `cookie`.
    pub fn name_of(&self, cookie: u64) -> Option<Vec<u8>> {
        self.iter().find(|e| e.cookie == cookie).map(|e| e.name.to_vec())
    }
    /// Removes the entry with key `cookie`; says whether it was there.
    pub fn remove(&mut self, cookie: u64) -> bool {
        let Some(record) = self.iter().find(|e| e.cookie == cookie).map(|e| e.record) else {
            return false;
        };
        self.bytes.drain(record);
        self.count -= 1;
        true
    }
    /// Makes the entry with key `cookie` lead to another inode; says whether it was there.
    pub fn replace(&mut self, cookie: u64, ino: InodeNo, kind: u32) -> bool {
        let Some(at) = self.iter().find(|e| e.cookie == cookie).map(|e| e.record.start) else {
            return false;
        };
        let Some((head, _)) =
            self.bytes.get_mut(at..).and_then(|b| RawDirent::mut_from_prefix(b).ok())
        else {
            return false;
        };
        head.inode = ino.get().into();
        head.file_type = kind.into();
        true
    }
    /// Moves the upper half (by bytes) out; returns it and its first cookie. Both halves have an
    /// entry at least; `None` with fewer than two.
    pub fn split(&mut self) -> Option<(u64, Self)> {
        if self.count < 2 {
            return None;
        }
        let half = self.bytes.len() / 2;
        let (index, at, cookie) = self
            .iter()
            .enumerate()
            .skip(1)
            .find(|(i, e)| e.record.end > half || *i + 1 == self.count)
            .map(|(i, e)| (i, e.record.start, e.cookie))?;
        let right = Self { bytes: self.bytes.split_off(at), count: self.count - index };
        self.count = index;
        Some((cookie, right))
    }
    /// Appends entries whose cookies are all higher.
    pub fn append(&mut self, higher: &Self) {
        self.bytes.extend_from_slice(&higher.bytes);
        self.count += higher.count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(cookies: &[u64]) -> Packed {
        let mut p = Packed { bytes: Vec::new(), count: 0 };
        for &c in cookies {
            p.insert(c, &encode(c, InodeNo(c + 100), 8, format!("n{c}").as_bytes()));
        }
        p
    }
    fn cookies(p: &Packed) -> Vec<u64> {
        entries(&p.bytes, p.count, 0..u64::MAX).map(|e| e.unwrap().cookie).collect()
    }

    #[test]
    fn entries_stay_sorted_and_whole() {
        let mut p = packed(&[50, 10, 30, 20, 40]);
        assert_eq!(cookies(&p), [10, 20, 30, 40, 50]);
        assert!(p.remove(30));
        assert!(!p.remove(30));
        assert!(p.replace(40, InodeNo(7), 4));
        assert!(!p.replace(41, InodeNo(7), 4));
        let all: Vec<_> = entries(&p.bytes, p.count, 0..100).map(Result::unwrap).collect();
        assert_eq!(all[2].ino, InodeNo(7));
        assert_eq!((all[2].kind, all[2].name), (4, &b"n40"[..]));
        assert_eq!(all[3].ino, InodeNo(150));
        let copy = Packed::copy(&p.bytes, p.count, 0..100).unwrap();
        assert_eq!(copy, p);
    }

    #[test]
    fn split_halves_by_bytes_and_append_undoes_it() {
        let whole = packed(&(1..=40).collect::<Vec<_>>());
        let mut left = whole.clone();
        let (key, right) = left.split().unwrap();
        assert_eq!(cookies(&right)[0], key);
        assert_eq!(left.count + right.count, 40);
        assert!(left.bytes.len().abs_diff(right.bytes.len()) <= 64);
        left.append(&right);
        assert_eq!(left, whole);
        assert!(packed(&[1]).split().is_none());
        let (key, _) = packed(&[1, 2]).split().unwrap();
        assert_eq!(key, 2);
    }

    #[test]
    fn hostile_bytes_are_refused_without_panic() {
        let good = packed(&[10, 20, 30]);
        assert!(Packed::copy(&good.bytes, 4, 0..100).is_err(), "count too large");
        assert!(Packed::copy(&good.bytes, 3, 11..100).is_err(), "below the bounds");
        assert!(Packed::copy(&good.bytes, 3, 0..30).is_err(), "above the bounds");
        for at in 0..good.bytes.len() {
            for bit in 0..8 {
                let mut bytes = good.bytes.clone();
                bytes[at] ^= 1 << bit;
                let _ = Packed::copy(&bytes, 3, 0..100);
            }
        }
        let mut swapped = good.bytes[32..64].to_vec();
        swapped.extend_from_slice(&good.bytes[..32]);
        assert!(Packed::copy(&swapped, 2, 0..100).is_err(), "order");
        assert!(Packed::copy(&[0x5a; 100], 1, 0..u64::MAX).is_err());
    }
}

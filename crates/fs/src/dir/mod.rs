//! Directories: entries keyed by cookie, in the dinode's tail while they fit (`tree_height` 0),
//! then in a tree of leaves.
//!
//! The cookie of a name is its keyed 63-bit hash, or, when another name has that one, one of the
//! next [`WINDOW`] values; it never changes while the entry exists. A search looks at the whole
//! window, since an entry in its middle may have been removed. Values up to 2 stand for ".", ".."
//! and the start, which are not stored.
//!
//! Everything here works on [`Nodes`]: the metadata cache, an open transaction, or memory in tests.

pub(crate) mod page;
#[cfg(test)]
mod tests;

use std::hash::Hasher;
use std::ops::Range;

use braid_format::dirent::RawDirent;
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::tree::RawNode;
use braid_format::{BlockNo, InodeNo};
use siphasher::sip::SipHasher24;
use zerocopy::FromBytes;

use crate::error::{Error, Result};
use crate::meta::Body;
use crate::tree::{self, Nodes, NodesMut, Path};
use page::{Bad, Packed};

/// Values a name's cookie may take: its hash and those after it.
pub(crate) const WINDOW: u64 = 32;
/// The cookie of "..", the last one that is not stored.
pub(crate) const DOT_DOT: u64 = 2;
/// One past the largest cookie: offsets in directories are signed 64-bit numbers.
const COOKIE_END: u64 = 1 << 63;

/// The first cookie that `name` may have. SipHash-2-4: every program sees cookies, and with a hash that can
/// be inverted anybody could compute names that fill the [`WINDOW`] of a name which others need.
pub(crate) fn hash(seed: u64, name: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(seed, !seed);
    hasher.write(name);
    let h = hasher.finish() & (COOKIE_END - 1);
    h.clamp(DOT_DOT + 1, COOKIE_END - WINDOW)
}

/// Refuses what cannot be a name of an entry.
///
/// # Errors
/// `NameTooLong`, `Invalid`.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > RawDirent::NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name == b"." || name == b".." {
        return Err(Error::Invalid("name of a directory entry"));
    }
    if name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(Error::Invalid("byte in a name"));
    }
    Ok(())
}

/// An entry that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its key.
    pub cookie: u64,
    /// Where it leads.
    pub ino: InodeNo,
    /// `DT_*`.
    pub kind: u32,
}

/// Where a name that does not exist yet will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its key.
    pub cookie: u64,
    /// Slots that [`insert`] may take.
    pub slots: u64,
}

/// Outcome of [`probe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probe {
    /// The name is there.
    Found(Found),
    /// It is not, and would stand here.
    Absent(Place),
}

/// An entry taken out of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Its key.
    pub cookie: u64,
    /// Where it leads.
    pub ino: InodeNo,
    /// `DT_*`.
    pub kind: u32,
    /// The name.
    pub name: Box<[u8]>,
}

/// The entries that stand together with a cookie: the tail, or a leaf.
struct Page {
    body: Body,
    block: BlockNo,
    /// The entries and the room after them.
    area: Range<usize>,
    count: usize,
    /// Cookies that may stand here.
    bounds: Range<u64>,
    /// The way to it; `None`: the tail.
    path: Option<Path>,
    /// Height of the tree, 0 for the tail.
    height: u16,
}

impl Page {
    fn area(&self) -> &[u8] {
        self.body.get(self.area.clone()).unwrap_or_default()
    }
    fn capacity(&self) -> usize {
        self.area.len()
    }
    fn entries(&self) -> impl Iterator<Item = Result<page::Entry<'_>>> {
        page::entries(self.area(), self.count, self.bounds.clone())
            .map(|e| e.map_err(|what| self.bad(what)))
    }
    fn bad(&self, what: Bad) -> Error {
        Error::Inconsistent { block: self.block, what }
    }
    fn packed(&self) -> Result<Packed> {
        Packed::copy(self.area(), self.count, self.bounds.clone()).map_err(|w| self.bad(w))
    }
    fn used(&self) -> Result<usize> {
        self.entries().try_fold(0, |_, e| Ok(e?.record.end))
    }
    /// First cookie of the page after this one.
    fn next(&self) -> Option<u64> {
        self.path.as_ref().and_then(|p| p.next)
    }
}

/// The page that covers `cookie`.
fn page_of(nodes: &mut impl Nodes, cookie: u64) -> Result<Page> {
    let (root, body) = nodes.root()?;
    if root.height == 0 {
        let area = root.tail_at..root.tail_at + root.capacity;
        if area.end > body.len() {
            return Err(Error::Inconsistent { block: root.block, what: "tail" });
        }
        let count = usize::from(root.count);
        let bounds = DOT_DOT + 1..COOKIE_END;
        return Ok(Page { body, block: root.block, area, count, bounds, path: None, height: 0 });
    }
    drop(body);
    let path = tree::descend(nodes, cookie)?;
    let block = path.leaf;
    let body = nodes.read(block, MetaKind::DirLeaf)?;
    let (head, _) = RawNode::ref_from_prefix(&body)
        .map_err(|_| Error::Inconsistent { block, what: "leaf too short" })?;
    if head.level.get() != 0 {
        return Err(Error::Inconsistent { block, what: "level of a directory leaf" });
    }
    let count = usize::from(head.count.get());
    let bounds = path.low.max(DOT_DOT + 1)..path.next.unwrap_or(COOKIE_END);
    let area = size_of::<RawNode>()..body.len();
    Ok(Page { body, block, area, count, bounds, path: Some(path), height: root.height })
}

/// Looks for `name`, whose first cookie is `hash`.
pub(crate) fn find(nodes: &mut impl Nodes, hash: u64, name: &[u8]) -> Result<Option<Found>> {
    Ok(match search(nodes, hash, name)? {
        Search::Found(found) => Some(found),
        Search::Absent { .. } => None,
    })
}

enum Search {
    Found(Found),
    /// First cookie of the window that is not taken.
    Absent {
        free: u64,
    },
}

fn search(nodes: &mut impl Nodes, hash: u64, name: &[u8]) -> Result<Search> {
    let end = hash + WINDOW;
    let (mut free, mut key) = (hash, hash);
    loop {
        let page = page_of(nodes, key)?;
        for entry in page.entries() {
            let entry = entry?;
            if entry.cookie >= end {
                break;
            }
            if entry.cookie < hash {
                continue;
            }
            if entry.name == name {
                let (cookie, ino, kind) = (entry.cookie, entry.ino, entry.kind);
                return Ok(Search::Found(Found { cookie, ino, kind }));
            }
            if entry.cookie == free {
                free += 1;
            }
        }
        match page.next() {
            Some(next) if next < end => key = next,
            _ => return Ok(Search::Absent { free }),
        }
    }
}

/// Looks for `name` and, when it is not there, for its place.
///
/// # Errors
/// `NoSpace` when all cookies that the name may have are taken.
pub(crate) fn probe(nodes: &mut impl Nodes, hash: u64, name: &[u8]) -> Result<Probe> {
    let cookie = match search(nodes, hash, name)? {
        Search::Found(found) => return Ok(Probe::Found(found)),
        Search::Absent { free } => free,
    };
    if cookie >= hash + WINDOW {
        return Err(Error::NoSpace);
    }
    let page = page_of(nodes, cookie)?;
    let fits = page.used()? + RawDirent::len_for(name.len()) <= page.capacity();
    // From the tail: one leaf, perhaps split at once.
    let slots = if fits { 0 } else { tree::slots_for_insert(page.height.max(1)) };
    Ok(Probe::Absent(Place { cookie, slots }))
}

/// Writes the contents of a leaf.
fn fill(body: &mut [u8], packed: &Packed) {
    let Some((head, area)) = body.split_at_mut_checked(size_of::<RawNode>()) else { return };
    let mut fields = [0_u8; size_of::<RawNode>() - MetaHeader::LEN];
    let count = u16::try_from(packed.count).unwrap_or(u16::MAX);
    let used = u32::try_from(packed.bytes.len()).unwrap_or(u32::MAX);
    fields[2..4].copy_from_slice(&count.to_le_bytes());
    fields[4..].copy_from_slice(&used.to_le_bytes());
    if let Some(to) = head.get_mut(MetaHeader::LEN..) {
        to.copy_from_slice(&fields);
    }
    if let Some((to, rest)) = area.split_at_mut_checked(packed.bytes.len()) {
        to.copy_from_slice(&packed.bytes);
        rest.fill(0);
    }
}

/// Writes a page's new contents, which fit.
fn store(nodes: &mut impl NodesMut, page: &Page, packed: &Packed) -> Result<()> {
    if page.path.is_some() {
        return nodes.modify(page.block, MetaKind::DirLeaf, &mut |body| fill(body, packed));
    }
    let count = u16::try_from(packed.count).map_err(|_| page.bad("number of entries"))?;
    nodes.set_tail(0, count, &packed.bytes)
}

/// Inserts an entry at a cookie that [`probe`] gave (the directory has not changed since, other
/// than by removals and by insertions that were probed together with their reservation).
///
/// # Errors
/// Fatal ones only, given the reservation.
pub(crate) fn insert(
    nodes: &mut impl NodesMut,
    cookie: u64,
    (ino, kind): (InodeNo, u32),
    name: &[u8],
) -> Result<()> {
    let record = page::encode(cookie, ino, kind, name);
    let mut page = page_of(nodes, cookie)?;
    let mut packed = page.packed()?;
    if packed.bytes.len() + record.len() > page.capacity() && page.path.is_none() {
        let leaf = nodes.create(MetaKind::DirLeaf, &mut |body| fill(body, &packed))?;
        tree::root_one_child(nodes, leaf)?;
        page = page_of(nodes, cookie)?;
    }
    if packed.bytes.len() + record.len() <= page.capacity() {
        packed.insert(cookie, &record);
        return store(nodes, &page, &packed);
    }
    let (key, mut right) = packed.split().ok_or_else(|| page.bad("a full leaf of one entry"))?;
    let half = if cookie < key { &mut packed } else { &mut right };
    half.insert(cookie, &record);
    let leaf = nodes.create(MetaKind::DirLeaf, &mut |body| fill(body, &right))?;
    store(nodes, &page, &packed)?;
    let path = page.path.take().ok_or_else(|| page.bad("a leaf without a path"))?;
    tree::insert_after(nodes, path, key, leaf)
}

/// Makes the entry at `cookie` lead to another inode.
///
/// # Errors
/// Fatal ones only.
pub(crate) fn replace(
    nodes: &mut impl NodesMut,
    cookie: u64,
    ino: InodeNo,
    kind: u32,
) -> Result<()> {
    let page = page_of(nodes, cookie)?;
    let mut packed = page.packed()?;
    if !packed.replace(cookie, ino, kind) {
        return Err(page.bad("an entry vanished"));
    }
    store(nodes, &page, &packed)
}

/// Whether a leaf that holds `used` bytes is to be joined with its neighbour.
fn is_sparse(used: usize, capacity: usize) -> bool {
    used < capacity / 4
}

/// Free-log entries that [`remove`] of the entry at `cookie` may take.
pub(crate) fn frees_for_remove(nodes: &mut impl Nodes, cookie: u64) -> Result<u64> {
    let page = page_of(nodes, cookie)?;
    let sparse = page.count <= 1
        || is_sparse(page.used()?, page.capacity() + 4 * RawDirent::len_for(RawDirent::NAME_MAX));
    Ok(if page.path.is_some() && sparse { tree::frees_for_remove(page.height) } else { 0 })
}

/// Removes the entry at `cookie`. An empty leaf is freed; a sparse one takes in its neighbour
/// when `may_join` (there are free-log entries for it).
///
/// # Errors
/// Fatal ones only, given the reservation.
pub(crate) fn remove(nodes: &mut impl NodesMut, cookie: u64, may_join: bool) -> Result<()> {
    let mut page = page_of(nodes, cookie)?;
    let mut packed = page.packed()?;
    if !packed.remove(cookie) {
        return Err(page.bad("an entry vanished"));
    }
    if packed.count == 0
        && let Some(path) = page.path.take()
    {
        return tree::remove_leaf(nodes, path);
    }
    if may_join
        && is_sparse(packed.bytes.len(), page.capacity())
        && let Some(next) = page.next()
    {
        return join(nodes, &page, packed, next);
    }
    store(nodes, &page, &packed)
}

/// Takes the entries of the next leaf into `page` if both hang from one index node and the sum
/// leaves room.
fn join(nodes: &mut impl NodesMut, page: &Page, mut packed: Packed, next: u64) -> Result<()> {
    let mut right = page_of(nodes, next)?;
    let more = right.packed()?;
    let sum = packed.bytes.len() + more.bytes.len();
    let path = right.path.take().filter(|p| !p.is_first_child());
    if let Some(path) = path
        && sum <= page.capacity() / 4 * 3
    {
        packed.append(&more);
        store(nodes, page, &packed)?;
        return tree::remove_leaf(nodes, path);
    }
    store(nodes, page, &packed)
}

/// Bytes of a directory's tail that entries take, while they stand there.
pub(crate) fn tail_used(nodes: &mut impl Nodes) -> Result<usize> {
    let page = page_of(nodes, DOT_DOT + 1)?;
    if page.path.is_some() { Ok(0) } else { page.used() }
}

/// Appends to `out` the entries after `cookie`, until it holds `max` or the directory ends. Says
/// whether there may be more.
pub(crate) fn list_after(
    nodes: &mut impl Nodes,
    cookie: u64,
    max: usize,
    out: &mut Vec<Listed>,
) -> Result<bool> {
    let mut key = cookie.saturating_add(1);
    if key >= COOKIE_END {
        return Ok(false);
    }
    loop {
        let page = page_of(nodes, key)?;
        for entry in page.entries() {
            let entry = entry?;
            if entry.cookie <= cookie {
                continue;
            }
            if out.len() >= max {
                return Ok(true);
            }
            let (cookie, ino, kind, name) =
                (entry.cookie, entry.ino, entry.kind, entry.name.into());
            out.push(Listed { cookie, ino, kind, name });
        }
        match page.next() {
            Some(next) => key = next,
            None => return Ok(false),
        }
    }
}

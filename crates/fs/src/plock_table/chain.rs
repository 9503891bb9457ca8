//! A bucket as it is on the devices: blocks of entries, each naming the next. Pure.

use std::collections::BTreeSet;

use braid_format::plock::{RawPlock, RawPlockBucket};
use braid_format::{BlockNo, Incarnation, InodeNo, NodeId};
use braid_lock::Life;
use zerocopy::{FromBytes, IntoBytes};

use super::table::{Lock, Owner};

/// An entry of a bucket: a lock, held or waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Entry {
    /// Of a wait, its place among the requests; 0: the lock is held.
    pub order: u64,
    pub lock: Lock,
}

/// One block of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// The next one, if there is one.
    pub next: Option<BlockNo>,
    pub entries: Vec<Entry>,
}

const FLOCK: u32 = 1;
const WAITING: u32 = 2;
const HEAD: usize = size_of::<RawPlockBucket>();
const ENTRY: usize = size_of::<RawPlock>();

/// Entries that fit in a block whose body has `body_len` bytes.
pub(crate) fn capacity(body_len: usize) -> usize {
    body_len.saturating_sub(HEAD) / ENTRY
}

impl Block {
    /// From a block's body.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(body: &[u8]) -> Result<Self, &'static str> {
        const COUNT: &str = "count of program locks";
        let (head, rest) = RawPlockBucket::ref_from_prefix(body).map_err(|_| "bucket too short")?;
        let count = usize::try_from(head.count.get()).map_err(|_| COUNT)?;
        let bytes = count.checked_mul(ENTRY).and_then(|len| rest.get(..len)).ok_or(COUNT)?;
        let raws = <[RawPlock]>::ref_from_bytes(bytes).map_err(|_| COUNT)?;
        let entries = raws.iter().map(entry).collect::<Result<_, _>>()?;
        let next = head.next.get();
        Ok(Self { next: (next != 0).then_some(BlockNo(next)), entries })
    }
    /// Into a block's body. The entries fit.
    pub fn encode(&self, body: &mut [u8]) {
        let Some((head, rest)) = body.split_at_mut_checked(HEAD) else { return };
        let numbers = [self.entries.len() as u64, self.next.map_or(0, BlockNo::get)];
        if let Some(to) = head.get_mut(HEAD - numbers.as_bytes().len()..) {
            to.copy_from_slice(numbers.map(u64::to_le_bytes).as_flattened());
        }
        rest.fill(0);
        for (to, entry) in rest.chunks_exact_mut(ENTRY).zip(&self.entries) {
            to.copy_from_slice(raw(entry).as_bytes());
        }
    }
}

fn entry(raw: &RawPlock) -> Result<Entry, &'static str> {
    let exclusive = match raw.mode.get() {
        1 => false,
        2 => true,
        _ => return Err("mode of a program lock"),
    };
    let (start, end) = (raw.start.get(), raw.end.get());
    if start > end {
        return Err("range of a program lock");
    }
    let node =
        Life { slot: NodeId(raw.slot.get()), incarnation: Incarnation(raw.incarnation.get()) };
    let flags = raw.flags.get();
    let owner = Owner { node, id: raw.owner.get(), flock: flags & FLOCK != 0 };
    let ino = InodeNo(raw.inode.get());
    let lock = Lock { ino, start, end, owner, pid: raw.pid.get(), exclusive };
    let order = if flags & WAITING == 0 { 0 } else { raw.order.get().max(1) };
    Ok(Entry { order, lock })
}

fn raw(Entry { order, lock }: &Entry) -> RawPlock {
    let flags = if *order > 0 { WAITING } else { 0 } | if lock.owner.flock { FLOCK } else { 0 };
    RawPlock {
        inode: lock.ino.get().into(),
        start: lock.start.into(),
        end: lock.end.into(),
        owner: lock.owner.id.into(),
        pid: lock.pid.into(),
        incarnation: lock.owner.node.incarnation.get().into(),
        slot: lock.owner.node.slot.get().into(),
        mode: if lock.exclusive { 2 } else { 1 }.into(),
        flags: flags.into(),
        order: (*order).into(),
    }
}

/// What each block of a bucket is to hold, with `capacity` entries at most: entries of other nodes
/// that are alive (`keep`) and those of `mine` that stand there already stay where they are, the
/// rest of `mine` goes where there is room. Returns the blocks' entries, and how many of `mine` found
/// no room.
pub(crate) fn place(
    blocks: &[Block],
    keep: &dyn Fn(&Entry) -> bool,
    mut mine: BTreeSet<Entry>,
    capacity: usize,
) -> (Vec<Vec<Entry>>, usize) {
    let stays = |e: &Entry, mine: &mut BTreeSet<Entry>| mine.remove(e) || keep(e);
    let mut out: Vec<Vec<Entry>> = blocks
        .iter()
        .map(|b| b.entries.iter().filter(|e| stays(e, &mut mine)).copied().collect())
        .collect();
    let mut rest = mine.into_iter();
    for entries in &mut out {
        let room = capacity.saturating_sub(entries.len());
        entries.extend(rest.by_ref().take(room));
    }
    (out, rest.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(slot: u16, start: u64) -> Entry {
        let node = Life { slot: NodeId(slot), incarnation: Incarnation(3) };
        let owner = Owner { node, id: 7, flock: false };
        let ino = InodeNo(5);
        Entry { order: 0, lock: Lock { ino, start, end: start, owner, pid: 1, exclusive: true } }
    }

    #[test]
    fn blocks_are_read_as_written_and_nonsense_is_refused() {
        let mut waits = entry(2, 9);
        waits.order = 4;
        waits.lock.owner.flock = true;
        let block =
            Block { next: Some(BlockNo(0x77)), entries: vec![entry(1, 1), entry(2, 5), waits] };
        let mut body = vec![0x5a_u8; 512];
        block.encode(&mut body);
        assert_eq!(Block::decode(&body).unwrap(), block);
        for at in 40..body.len() {
            let mut broken = body.clone();
            broken[at] ^= 0xff;
            let _ = Block::decode(&broken);
        }
        body[40..48].fill(0xff);
        assert!(Block::decode(&body).is_err());
        assert_eq!(Block::decode(&[0; 56]).unwrap(), Block::default());
        assert!(Block::decode(&[0; 55]).is_err());
        assert_eq!(capacity(3584), 63);
    }

    #[test]
    fn what_stays_does_not_move() {
        let block = |entries: &[Entry]| Block { next: None, entries: entries.to_vec() };
        let blocks = [
            block(&[entry(1, 1), entry(2, 2), entry(1, 3)]),
            block(&[entry(3, 4), entry(1, 5), entry(2, 6)]),
        ];
        // Node 3 is dead; node 1 has given 1 up and has 7, 8, 9 more.
        let keep = |e: &Entry| e.lock.owner.node.slot == NodeId(2);
        let mine: BTreeSet<Entry> = [3, 5, 7, 8, 9].map(|at| entry(1, at)).into();
        let (placed, left) = place(&blocks, &keep, mine, 3);
        assert_eq!(placed[0], [entry(2, 2), entry(1, 3), entry(1, 7)]);
        assert_eq!(placed[1], [entry(1, 5), entry(2, 6), entry(1, 8)]);
        assert_eq!(left, 1);
    }
}

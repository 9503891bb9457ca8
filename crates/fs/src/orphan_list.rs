//! Lists of inodes without a name: how they are stored in a node's blocks, and this node's lists in
//! memory. What becomes of the listed inodes is [`crate::orphan`]'s business.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use braid_format::node::RawOrphans;
use braid_format::{BlockNo, InodeNo};
use braid_pool::device::tasks::{self, Awaited};
use parking_lot::{Condvar, Mutex};
use zerocopy::FromBytes;

use crate::error::{Error, Result};

/// Where a list's entries begin.
pub(crate) const HEAD: usize = size_of::<RawOrphans>();
/// Bytes of an entry.
pub(crate) const ENTRY: usize = size_of::<u64>();

/// This node's orphan lists in memory: read from its blocks at first use.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    pub table: Mutex<Option<Table>>,
    /// Held by the thread that makes room in full lists. A thread may take it only if it has no
    /// lock.
    pub looking: Mutex<()>,
    /// What this node does about inodes that its kernel refers to.
    pub kernel: Mutex<InKernel>,
    /// One of `InKernel::leaving` has gone.
    pub gone: Condvar,
}

/// Inodes that this node keeps for its kernel's sake. Both sets are bounded by what the kernel refers
/// to.
#[derive(Debug, Default)]
pub(crate) struct InKernel {
    /// Unlinked here, not open: the kernel is about to give them back, unless a program uses them.
    pub leaving: HashMap<InodeNo, Instant>,
    /// Given back by the kernel; a thread without anything else to do looks whether they are to go.
    pub later: HashSet<InodeNo>,
    /// There is such a thread.
    pub running: bool,
}

/// The kernel gives an inode back within this time of the removal of its last name, if it does so
/// without waiting for a program.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);
/// How long a thread that lacks space, or a place in the lists, waits for inodes that are being
/// deleted.
pub(crate) const LEAVE_PATIENCE: Duration = Duration::from_millis(500);

/// A listed inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listed {
    /// In which of this node's blocks.
    pub block: usize,
    /// Not to be looked at before (Unix seconds): another node has it open, and looking takes its
    /// lock away from there.
    pub retry_at: i64,
    /// Whose file it was when it was listed; root's if that is not known.
    pub uid: u32,
    /// It has one of the places that are kept for what nobody has open.
    pub is_passing: bool,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub listed: HashMap<InodeNo, Listed>,
    /// Entries in each block.
    pub counts: Vec<usize>,
    /// Entries that fit in one block.
    pub capacity: usize,
    /// Rooms given out and not used yet.
    pub reserved: usize,
    /// Entries, and rooms given out, by user; not root's.
    pub by_user: HashMap<u32, usize>,
    /// Of these, and of root's, those in places that are kept for what nobody has open.
    pub passing: HashMap<u32, usize>,
}

/// The part (divisor) of all entries that files of one user other than root may take.
const USER_PART: usize = 2;
/// The part (divisor) that is kept for root's files.
const ROOT_PART: usize = 8;
/// The part (divisor) that is kept for what nobody has open: that is listed until the kernel gives it back, or until it
/// is freed, so whoever fills the lists with open files keeps nobody from removing others.
const PASSING_PART: usize = 32;
/// The part (divisor) of these that one user may have: a directory that a program stands in passes slowly.
const PASSING_USER_PART: usize = 8;

impl Table {
    /// Entries for which there is room, and none reserved.
    pub fn free(&self) -> usize {
        self.all().saturating_sub(self.listed.len() + self.reserved)
    }
    fn all(&self) -> usize {
        self.counts.len() * self.capacity
    }
    /// Whether a file of `uid` has room: one user's must not keep all others from removing theirs.
    pub fn has_room_for(&self, uid: u32) -> bool {
        let own = self.by_user.get(&uid).copied().unwrap_or(0);
        let passing: usize = self.passing.values().sum();
        let free = self.free().saturating_sub(self.kept().saturating_sub(passing));
        let users = free > self.all() / ROOT_PART && own < self.all().div_ceil(USER_PART);
        free > 0 && (uid == 0 || users)
    }
    /// The same for one that nobody has open, if it finds no room otherwise. All users but root together have no
    /// more than the places that are kept for it: the rest is root's.
    pub fn has_room_to_pass(&self, uid: u32) -> bool {
        let own = self.passing.get(&uid).copied().unwrap_or(0);
        let all: usize = self.passing.iter().filter(|(uid, _)| **uid != 0).map(|(_, n)| n).sum();
        let users = own < self.kept().div_ceil(PASSING_USER_PART) && all < self.kept();
        self.free() > 0 && (uid == 0 || users)
    }
    /// Places for what nobody has open.
    fn kept(&self) -> usize {
        self.all() / PASSING_PART
    }
    /// A file of `uid` takes or reserves a place.
    pub fn count(&mut self, uid: u32, is_passing: bool) {
        if uid != 0 {
            *self.by_user.entry(uid).or_default() += 1;
        }
        if is_passing {
            *self.passing.entry(uid).or_default() += 1;
        }
    }
    /// Its place is free again.
    pub fn uncount(&mut self, uid: u32, is_passing: bool) {
        uncount(&mut self.by_user, uid);
        if is_passing {
            uncount(&mut self.passing, uid);
        }
    }
}

fn uncount(counts: &mut HashMap<u32, usize>, uid: u32) {
    if let Some(own) = counts.get_mut(&uid) {
        *own = own.saturating_sub(1);
        if *own == 0 {
            counts.remove(&uid);
        }
    }
}

impl Orphans {
    /// An inode that nobody has open lost its last name, and this node's kernel refers to it.
    pub fn leaves(&self, ino: InodeNo) {
        self.kernel.lock().leaving.insert(ino, Instant::now());
    }
    /// The inode is deleted: threads that wait for its space can go on.
    pub fn has_gone(&self, ino: InodeNo) {
        if self.kernel.lock().leaving.remove(&ino).is_some() {
            self.gone.notify_all();
        }
    }
    /// Waits until what the kernel is about to give back is deleted, at most for `patience`. Returns
    /// whether anything was. The caller holds nothing that a deletion needs.
    pub fn await_leaving(&self, patience: Duration) -> bool {
        let _waits = tasks::wait(Awaited::Space);
        let until = Instant::now() + patience;
        let mut kernel = self.kernel.lock();
        let before = kernel.leaving.len();
        loop {
            let waited_for = kernel.leaving.values().any(|since| since.elapsed() < LEAVES_WITHIN);
            if !waited_for || self.gone.wait_until(&mut kernel, until).timed_out() {
                return kernel.leaving.len() < before;
            }
        }
    }
}

pub(crate) fn bad(block: BlockNo, what: &'static str) -> Error {
    Error::Inconsistent { block, what }
}

/// The inodes in a list's body.
pub(crate) fn decode(body: &[u8], block: BlockNo) -> Result<Vec<InodeNo>> {
    let (head, rest) =
        RawOrphans::read_from_prefix(body).map_err(|_| bad(block, "orphan list too short"))?;
    let bytes = usize::try_from(head.count.get())
        .ok()
        .and_then(|n| n.checked_mul(ENTRY))
        .and_then(|len| rest.get(..len))
        .ok_or_else(|| bad(block, "count of orphans"))?;
    Ok(bytes
        .chunks_exact(ENTRY)
        .filter_map(|c| c.try_into().ok())
        .map(|c| InodeNo(u64::from_le_bytes(c)))
        .collect())
}

/// Writes a list.
pub(crate) fn encode(body: &mut [u8], inos: &[InodeNo]) {
    let Some((head, rest)) = body.split_at_mut_checked(HEAD) else { return };
    if let Some(count) = head.get_mut(HEAD - ENTRY..) {
        count.copy_from_slice(&(inos.len() as u64).to_le_bytes());
    }
    rest.fill(0);
    for (to, ino) in rest.chunks_exact_mut(ENTRY).zip(inos) {
        to.copy_from_slice(&ino.get().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_encode_and_decode_and_refuse_nonsense() {
        let mut body = vec![0x5a_u8; 200];
        let inos: Vec<InodeNo> = (1..=10).map(InodeNo).collect();
        encode(&mut body, &inos);
        assert_eq!(decode(&body, BlockNo(9)).unwrap(), inos);
        assert!(body[HEAD + 80..].iter().all(|&b| b == 0));
        encode(&mut body, &[]);
        assert!(decode(&body, BlockNo(9)).unwrap().is_empty());
        body[HEAD - ENTRY..HEAD].fill(0xff);
        assert!(decode(&body, BlockNo(9)).is_err());
        assert!(decode(&body[..10], BlockNo(9)).is_err());
    }
}

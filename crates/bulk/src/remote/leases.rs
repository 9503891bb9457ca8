//! What is kept of inodes under leases that the server recalls: attributes, names, extended attributes, contents. No
//! I/O.
//!
//! Three things have to be so that something is kept: the reply that it is from grants leases; no drop of its inode was
//! heard since the request was sent, since that may have been of this lease; and no request of this mount is
//! changing the inode. What is kept is used while the leases stand: for as long as the server said, from when it was
//! last asked for recalls, by a clock that goes on while the machine is suspended.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use braid_format::InodeNo;
use braid_fs::{Answer, Attr, Errno};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// Most inodes of which something is kept.
const INODES_MAX: usize = 1 << 16;
/// The same for names and extended attributes.
const NAMES_MAX: usize = 1 << 18;
/// Bytes of contents that are kept, and pieces that are remembered.
const BYTES_MAX: usize = 64 << 20;
const PIECES_MAX: usize = 1 << 16;
/// Longer extended attributes are not kept.
const XATTR_MAX: usize = 4096;
/// So many drops are remembered one by one.
const RECENT_MAX: usize = 4096;

/// Since the machine was started.
pub type Moment = Duration;

/// Now.
pub fn now() -> Moment {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

thread_local! {
    static LAST: Cell<Last> = const { Cell::new(Last { granted: None, kept: Duration::ZERO }) };
}

/// The last request of a thread.
#[derive(Debug, Clone, Copy)]
struct Last {
    /// It granted leases, and was sent then.
    granted: Option<Mark>,
    /// For how long the attributes stay true that it returned.
    kept: Duration,
}

/// The program's request begins.
pub fn begin() {
    LAST.set(Last { granted: None, kept: Duration::ZERO });
}
/// A request of this thread was answered.
pub fn answered(granted: Option<Mark>) {
    LAST.set(Last { granted, kept: Duration::ZERO });
}
/// For how long the kernel may keep the attributes that the last call of this thread has returned.
pub fn attr_timeout() -> Duration {
    LAST.get().kept
}

/// A number of drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// What is kept of an inode.
#[derive(Debug, Default)]
struct Kept {
    generation: u64,
    attr: Option<Attr>,
    /// Names in a directory, those too that are not there.
    names: HashMap<Vec<u8>, Option<InodeNo>>,
    /// By name; the list of them under the empty one.
    xattrs: HashMap<Vec<u8>, Answer<Vec<u8>>>,
    /// Contents, in pieces.
    pieces: HashMap<u64, Arc<[u8]>>,
}

#[derive(Debug, Default)]
struct State {
    /// Leases stand until then.
    until: Moment,
    drops: u64,
    /// The last of them.
    recent: VecDeque<(u64, InodeNo)>,
    /// Those up to this number may have been of any inode.
    of_all: u64,
    /// Requests under way that change an inode.
    changes: HashMap<InodeNo, u32>,
    inodes: HashMap<InodeNo, Kept>,
    names: usize,
    /// Bytes of contents.
    bytes: usize,
    /// Pieces of contents, those that are kept for longest first; some are not any more.
    pieces: VecDeque<(InodeNo, u64)>,
}

impl State {
    fn stands(&self) -> bool {
        now() < self.until
    }
    fn drop_inode(&mut self, ino: InodeNo) {
        self.drops += 1;
        self.recent.push_back((self.drops, ino));
        if self.recent.len() > RECENT_MAX
            && let Some((number, _)) = self.recent.pop_front()
        {
            self.of_all = number;
        }
        if let Some(kept) = self.inodes.remove(&ino) {
            self.names -= kept.names.len() + kept.xattrs.len();
            self.bytes -= kept.pieces.values().map(|bytes| bytes.len()).sum::<usize>();
        }
    }
    /// Makes room for contents.
    fn shrink(&mut self) {
        while self.bytes > BYTES_MAX || self.pieces.len() > PIECES_MAX {
            let Some((ino, piece)) = self.pieces.pop_front() else { return };
            let kept = self.inodes.get_mut(&ino).and_then(|kept| kept.pieces.remove(&piece));
            self.bytes -= kept.map_or(0, |bytes| bytes.len());
        }
    }
    fn drop_all(&mut self) -> Vec<InodeNo> {
        self.drops += 1;
        self.of_all = self.drops;
        self.recent.clear();
        (self.names, self.bytes) = (0, 0);
        self.pieces.clear();
        self.inodes.drain().map(|(ino, _)| ino).collect()
    }
    fn may_keep(&self, since: Mark, ino: InodeNo) -> bool {
        let dropped = || self.recent.iter().rev().take_while(|(number, _)| *number > since.0);
        since.0 >= self.of_all
            && !self.changes.contains_key(&ino)
            && dropped().all(|(_, other)| *other != ino)
    }
    /// Where something of an inode is to be kept; `false`: it must not be.
    fn keep(
        &mut self,
        since: Mark,
        (ino, generation): (InodeNo, u64),
        put: impl FnOnce(&mut Kept),
    ) -> bool {
        if !self.may_keep(since, ino) {
            return false;
        }
        if self.inodes.len() >= INODES_MAX || self.names >= NAMES_MAX {
            // The server recalls all leases if it has given many.
            return false;
        }
        let kept = self.inodes.entry(ino).or_default();
        let size = |kept: &Kept| {
            let bytes: usize = kept.pieces.values().map(|bytes| bytes.len()).sum();
            (kept.names.len() + kept.xattrs.len(), bytes)
        };
        let before = size(kept);
        if kept.generation != generation {
            *kept = Kept { generation, ..Kept::default() };
        }
        put(kept);
        let now = size(kept);
        self.names = self.names + now.0 - before.0;
        self.bytes = self.bytes + now.1 - before.1;
        true
    }
    fn of(&self, ino: InodeNo, generation: u64) -> Option<&Kept> {
        self.inodes.get(&ino).filter(|kept| kept.generation == generation)
    }
}

/// What is kept under leases.
#[derive(Debug, Default)]
pub struct Leases {
    state: Mutex<State>,
    is_off: bool,
}

impl Leases {
    /// Nothing yet; `is_off`: and nothing ever.
    pub fn new(is_off: bool) -> Self {
        Self { is_off, ..Self::default() }
    }
    /// Whether nothing is ever kept.
    pub fn is_off(&self) -> bool {
        self.is_off
    }
    /// To be taken before a request is sent.
    pub fn mark(&self) -> Mark {
        Mark(self.state.lock().drops)
    }
    /// How many inodes something is kept of.
    pub fn len(&self) -> usize {
        self.state.lock().inodes.len()
    }

    /// Leases stand for `term` from `asked`.
    pub fn extend(&self, asked: Moment, term: Duration) {
        self.state.lock().until = asked + term;
    }
    /// Something of an inode has changed, or may change from now on.
    pub fn drop_inode(&self, ino: InodeNo) {
        self.state.lock().drop_inode(ino);
    }
    /// Everything may have changed; the inodes of which something was kept.
    pub fn drop_all(&self) -> Vec<InodeNo> {
        let mut state = self.state.lock();
        state.until = Moment::ZERO;
        state.drop_all()
    }

    /// A request that changes inodes is about to be sent; also those that `names` lead to, as far as they are known:
    /// all of them.
    pub fn change_begins(
        &self,
        mut inodes: Vec<InodeNo>,
        names: &[(InodeNo, Vec<u8>)],
    ) -> Vec<InodeNo> {
        let mut state = self.state.lock();
        let named = |(dir, name): &(InodeNo, Vec<u8>)| *state.inodes.get(dir)?.names.get(name)?;
        inodes.extend(names.iter().filter_map(named));
        for ino in &inodes {
            state.drop_inode(*ino);
            *state.changes.entry(*ino).or_default() += 1;
        }
        inodes
    }
    /// It was answered.
    pub fn change_ends(&self, inodes: &[InodeNo]) {
        let mut state = self.state.lock();
        for ino in inodes {
            // Whoever asked meanwhile may have been answered before the change was made.
            state.drop_inode(*ino);
            if let Some(count) = state.changes.get_mut(ino) {
                *count -= 1;
                if *count == 0 {
                    state.changes.remove(ino);
                }
            }
        }
    }

    fn keep(&self, inode: (InodeNo, u64), put: impl FnOnce(&mut Kept)) -> bool {
        let granted = LAST.get().granted.filter(|_| !self.is_off);
        granted.is_some_and(|since| self.state.lock().keep(since, inode, put))
    }
    /// Keeps attributes that this thread has just been given.
    pub fn keep_attr(&self, attr: &Attr) {
        let granted = LAST.get().granted;
        let is_kept = self.keep((attr.ino, attr.generation), |kept| kept.attr = Some(*attr));
        LAST.set(Last { granted, kept: if is_kept { self.left() } else { Duration::ZERO } });
    }
    /// Keeps what a name in a directory leads to.
    pub fn keep_name(&self, dir: (InodeNo, u64), name: &[u8], to: Option<InodeNo>) {
        self.keep(dir, |kept| {
            kept.names.insert(name.to_vec(), to);
        });
    }
    /// Keeps what a question for an extended attribute came to; an empty name: for the list of them.
    pub fn keep_xattr(&self, inode: (InodeNo, u64), name: &[u8], found: &Answer<Vec<u8>>) {
        let worth = match found {
            Ok(bytes) => bytes.len() <= XATTR_MAX,
            Err(errno) => *errno == Errno::NODATA,
        };
        if worth {
            self.keep(inode, |kept| {
                kept.xattrs.insert(name.to_vec(), found.clone());
            });
        }
    }
    /// Keeps a piece of the contents that this thread has just been given.
    pub fn keep_piece(&self, inode: (InodeNo, u64), piece: u64, bytes: Arc<[u8]>) {
        let is_kept = self.keep(inode, |kept| {
            kept.pieces.insert(piece, bytes);
        });
        if is_kept {
            let mut state = self.state.lock();
            state.pieces.push_back((inode.0, piece));
            state.shrink();
        }
    }
    /// Pieces of the contents, as they are at one moment; those up to one that the file ends in. Otherwise the first
    /// that is not kept.
    ///
    /// # Errors
    /// The number of that one.
    pub fn pieces(
        &self,
        (ino, generation): (InodeNo, u64),
        wanted: std::ops::RangeInclusive<u64>,
        full: usize,
    ) -> Result<Vec<Arc<[u8]>>, u64> {
        let first = *wanted.start();
        let find = |state: &State| {
            let kept = state.of(ino, generation)?;
            let mut found = Vec::new();
            for piece in wanted {
                let Some(bytes) = kept.pieces.get(&piece) else { return Some(Err(piece)) };
                found.push(Arc::clone(bytes));
                if bytes.len() < full {
                    break;
                }
            }
            Some(Ok(found))
        };
        self.look(find).unwrap_or(Err(first))
    }
    /// For how long leases stand.
    fn left(&self) -> Duration {
        self.state.lock().until.saturating_sub(now())
    }

    fn look<R>(&self, find: impl FnOnce(&State) -> Option<R>) -> Option<R> {
        let state = self.state.lock();
        if state.inodes.is_empty() || !state.stands() {
            return None;
        }
        find(&state)
    }
    fn is_kept(&self) {
        let kept = self.left();
        LAST.set(Last { granted: None, kept });
    }
    /// An inode's attributes.
    pub fn attr(&self, (ino, generation): (InodeNo, u64)) -> Option<Attr> {
        let found = self.look(|state| state.of(ino, generation)?.attr);
        found.inspect(|_| self.is_kept())
    }
    /// Attributes of what a name leads to, or that it leads nowhere.
    pub fn name(&self, (dir, generation): (InodeNo, u64), name: &[u8]) -> Option<Answer<Attr>> {
        let found = self.look(|state| match state.of(dir, generation)?.names.get(name)? {
            None => Some(Err(Errno::NOENT)),
            Some(ino) => state.inodes.get(ino)?.attr.map(Ok),
        });
        found.inspect(|_| self.is_kept())
    }
    /// An extended attribute.
    pub fn xattr(&self, (ino, generation): (InodeNo, u64), name: &[u8]) -> Option<Answer<Vec<u8>>> {
        self.look(|state| state.of(ino, generation)?.xattrs.get(name).cloned())
    }
}

//! Which inodes requests refer to, and which of them clients keep.
//!
//! A client names inodes by number and may keep or make up such numbers. So each request looks up the inode of
//! each number that it names ([`FileSystem::lookup_number`]), refers to it while it works, and then gives it back. The
//! file system asks here whether an inode is referred to, as it would ask the kernel.
//!
//! What it would have a kernel drop, it has recalled here from clients ([`Leases`]). While a thread does a request,
//! [`Work`] notes which inodes that is about.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use braid_format::InodeNo;
use braid_fs::{Answer, Attr, FileSystem, KernelCache};
use parking_lot::Mutex;

use super::leases::{Holder, LeaseCounts, Leases};
use super::looked_up::LookedUp;
use crate::wire::LeaseNote;

thread_local! {
    static WORK: RefCell<Option<Work>> = const { RefCell::new(None) };
}

/// The request that a thread does.
#[derive(Debug)]
struct Work {
    /// Who gets leases of what it finds.
    holder: Option<Holder>,
    /// Inodes that it names and may change: the client knows that.
    named: Vec<InodeNo>,
    /// Inodes that its reply may tell something of.
    touched: Vec<InodeNo>,
    /// Files of which it changes contents: nobody gets leases of them meanwhile.
    changing: Vec<InodeNo>,
    note: LeaseNote,
}

/// References of all requests under way, and leases. A file system that is served is mounted with it.
#[derive(Debug, Default)]
pub struct References {
    counts: Mutex<HashMap<InodeNo, u64>>,
    looked_up: LookedUp,
    leases: Leases,
}

impl References {
    /// Leases now, and how many there were.
    pub fn lease_counts(&self) -> LeaseCounts {
        self.leases.counts()
    }
    /// The leases.
    pub(super) fn leases(&self) -> &Leases {
        &self.leases
    }
    /// References to files that clients have looked up a moment ago.
    pub(super) fn looked_up(&self) -> &LookedUp {
        &self.looked_up
    }

    /// This thread does a request that changes these inodes, which it names by number, and gives leases to `holder`,
    /// until [`Self::end`].
    pub(super) fn begin(holder: Option<Holder>, named: Vec<InodeNo>) {
        let note = LeaseNote { granted: holder.is_some(), ..LeaseNote::default() };
        let (touched, changing) = (named.clone(), Vec::new());
        WORK.set(Some(Work { holder, named, touched, changing, note }));
    }
    /// The request names an inode by an open file. `changes`: it changes that one; `keep`: the client keeps what it
    /// gets.
    pub(super) fn names(&self, ino: InodeNo, (changes, keep): (bool, bool)) {
        with_work(|work| {
            work.touched.push(ino);
            if changes {
                work.named.push(ino);
                work.changing.push(ino);
            }
            if keep && let Some(holder) = work.holder {
                work.note.granted &= self.leases.grant(holder, ino);
            }
        });
        if changes {
            // Contents are read beside writes, and a write by a concurrent hold is told to nobody.
            self.leases.change(ino, true);
            self.changes(ino);
        }
    }
    /// It is done: waits until nobody else keeps what is older than what the reply tells.
    pub(super) fn end(&self) -> LeaseNote {
        let Some(Work { holder, touched, changing, mut note, .. }) = WORK.take() else {
            return LeaseNote::default();
        };
        for ino in changing {
            self.leases.change(ino, false);
        }
        self.leases.wait(Some(&touched), holder, None);
        // What the client itself has to drop and has not heard of is older than this reply.
        note.changed.extend(holder.into_iter().flat_map(|h| self.leases.unheard(h, &touched)));
        note
    }

    /// An inode changes, perhaps by this thread's request.
    fn changes(&self, ino: InodeNo) {
        let whose = with_work(|work| {
            work.touched.push(ino);
            (work.holder, work.named.contains(&ino))
        });
        let (holder, knows) = whose.unwrap_or_default();
        if self.leases.recall(ino, holder, knows) {
            with_work(|work| work.note.changed.push(ino));
        }
    }

    /// Gives references back.
    pub(super) fn release(
        &self,
        files: &impl FileSystem,
        inodes: impl IntoIterator<Item = InodeNo>,
    ) {
        for ino in inodes {
            if self.give_back(ino)
                && let Err(errno) = files.forget(ino)
            {
                tracing::warn!(%ino, %errno, "an inode without a name may stay");
            }
        }
    }

    /// Gives one reference back. Whether none is left.
    fn give_back(&self, ino: InodeNo) -> bool {
        match self.counts.lock().entry(ino) {
            Entry::Occupied(mut entry) if *entry.get() > 1 => {
                *entry.get_mut() -= 1;
                false
            }
            Entry::Occupied(entry) => {
                entry.remove();
                true
            }
            Entry::Vacant(_) => true,
        }
    }
}

/// What the thread's request is, if it does one.
fn with_work<R>(look: impl FnOnce(&mut Work) -> R) -> Option<R> {
    WORK.with_borrow_mut(|work| work.as_mut().map(look))
}

impl KernelCache for References {
    /// Returns when no client keeps anything of it, which may take `super::leases::TERM` and
    /// `super::leases::MARGIN`.
    fn invalidate_inode(&self, ino: InodeNo, _data: bool) {
        self.leases.recall(ino, None, false);
        self.leases.wait(Some(&[ino]), None, None);
    }
    /// Names go with the directory's inode.
    fn invalidate_entries(&self, _dir: InodeNo) {}
    fn attributes_changed(&self, ino: InodeNo) {
        self.changes(ino);
    }
    fn changed_as_asked(&self, ino: InodeNo) {
        self.changes(ino);
    }
    fn change_begins(&self, ino: InodeNo) {
        self.leases.change(ino, true);
        self.changes(ino);
    }
    fn change_ends(&self, ino: InodeNo) {
        self.changes(ino);
        self.leases.change(ino, false);
    }
    fn suspend(&self, _for_good: bool, within: Duration, _patience: Duration) {
        self.leases.suspend(Instant::now() + within);
    }
    fn resume(&self) {
        self.leases.resume();
    }
    fn handed_out(&self, ino: InodeNo) {
        *self.counts.lock().entry(ino).or_default() += 1;
        with_work(|work| {
            work.touched.push(ino);
            if let Some(holder) = work.holder {
                work.note.granted &= self.leases.grant(holder, ino);
            }
        });
    }
    fn kept_back(&self, ino: InodeNo) {
        self.give_back(ino);
    }
    fn refers(&self, ino: InodeNo) -> bool {
        self.counts.lock().contains_key(&ino)
    }
    /// A request that names a file may find it gone. But what a client has just looked up it is about to open.
    fn let_go(&self, ino: InodeNo) -> bool {
        self.looked_up.holds(ino)
    }
}

/// The inodes that one request refers to; given back when it is dropped.
pub struct Pins<'a, F: FileSystem> {
    files: &'a F,
    references: &'a References,
    inodes: Vec<InodeNo>,
}

impl<'a, F: FileSystem> Pins<'a, F> {
    /// None yet.
    pub fn new(files: &'a F, references: &'a References) -> Self {
        Self { files, references, inodes: Vec::new() }
    }
    /// Refers to an inode by the number that a client has given.
    ///
    /// # Errors
    /// There is none of that number.
    pub fn visit(&mut self, ino: InodeNo) -> Answer<Attr> {
        self.files.lookup_number(ino).inspect(|attr| self.note(attr))
    }
    /// Takes over the reference that came with attributes.
    pub fn note(&mut self, attr: &Attr) {
        self.inodes.push(attr.ino);
    }
    /// Hands a reference over to the caller, if there is one.
    pub fn hand_over(&mut self, ino: InodeNo) -> Option<InodeNo> {
        let at = self.inodes.iter().rposition(|own| *own == ino)?;
        Some(self.inodes.swap_remove(at))
    }
}

impl<F: FileSystem> Drop for Pins<'_, F> {
    fn drop(&mut self) {
        self.references.release(self.files, self.inodes.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_referred_to_until_all_references_are_back() {
        let (references, ino) = (References::default(), InodeNo(7));
        references.handed_out(ino);
        references.handed_out(ino);
        assert!(!references.give_back(ino) && references.refers(ino));
        assert!(references.give_back(ino) && !references.refers(ino));
    }
}

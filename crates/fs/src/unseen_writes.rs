//! Writes that the kernel's pages may not have seen.
//!
//! Programs write past the kernel's page cache; a program that has mapped the file stores into a page
//! of that cache. If the kernel fills the page just before a write to it takes effect, the page is
//! older than the write, and a store makes it dirty as a whole. Written back, it would bring the older
//! bytes back. So each write notes its range before it takes effect, under the file's lock. The note
//! stays until the kernel has dropped its pages of the range; then the program is told that the write
//! is done. (Where the kernel has no pages of a file, the note ends with the write.) While there is a
//! note, a page that is written back leaves its range as it is. Stores into those very bytes were made
//! while the write was under way, and count as made before it.
//!
//! A page that is filled after a write took effect has it, and ends its note for that page.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

/// Pieces of a file, ascending: mostly one.
pub(crate) type Pieces = SmallVec<[Range<u64>; 2]>;

/// Those of one file.
#[derive(Debug, Default)]
pub(crate) struct UnseenWrites(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    writes: SmallVec<[Entry; 1]>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    /// The write has taken effect: a page that is filled from now on has it.
    done: bool,
    /// What of it pages may not have.
    pieces: Pieces,
}

impl UnseenWrites {
    /// A write to `range` is about to take effect. The file's lock is held. What a page brings back may be
    /// on its way into the range already: the write waits for that, and goes over it.
    pub fn begin(&self, range: Range<u64>) -> UnseenWrite {
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        state.writes.push(Entry { number, done: false, pieces: smallvec![range] });
        drop(state);
        UnseenWrite { all: Arc::clone(&self.0), number }
    }
    /// The kernel is about to fill pages with these bytes of the file, read from now on.
    pub fn filled(&self, range: &Range<u64>) {
        for entry in self.0.lock().writes.iter_mut().filter(|w| w.done) {
            entry.pieces = without(&entry.pieces, range);
        }
    }
    /// What of `range` a page that is written back may change.
    pub fn may_change(&self, range: Range<u64>) -> Pieces {
        let state = self.0.lock();
        let taken = state.writes.iter().flat_map(|w| &w.pieces);
        taken.fold(smallvec![range], |left, piece| without(&left, piece))
    }
}

/// A write, from before it takes effect until this is dropped: once the kernel has no page of its range
/// any more that was filled before.
#[derive(Debug)]
pub struct UnseenWrite {
    all: Arc<Mutex<State>>,
    number: u64,
}

impl UnseenWrite {
    /// It has taken effect. The lock is still held, and page fills wait for the range if they may be under
    /// way beside it.
    pub(crate) fn done(&self) {
        for entry in self.all.lock().writes.iter_mut().filter(|w| w.number == self.number) {
            entry.done = true;
        }
    }
}

impl Drop for UnseenWrite {
    fn drop(&mut self) {
        self.all.lock().writes.retain(|w| w.number != self.number);
    }
}

/// `pieces` without what of them is in `range`.
fn without(pieces: &[Range<u64>], range: &Range<u64>) -> Pieces {
    let mut left = Pieces::new();
    for piece in pieces {
        let before = piece.start..piece.end.min(range.start);
        let after = piece.start.max(range.end)..piece.end;
        left.extend([before, after].into_iter().filter(|p| !p.is_empty()));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_taken_out_of_pieces() {
        let pieces = |ranges: &[Range<u64>]| Pieces::from(ranges.to_vec());
        let all = pieces(&[0..10, 20..30]);
        assert_eq!(without(&all, &(10..20)), all);
        assert_eq!(without(&all, &(5..25)), pieces(&[0..5, 25..30]));
        assert_eq!(without(&all, &(2..4)), pieces(&[0..2, 4..10, 20..30]));
        assert_eq!(without(&all, &(0..30)), pieces(&[]));
    }

    #[test]
    fn pages_change_nothing_that_a_write_has_just_changed_until_they_are_filled_anew() {
        let all = UnseenWrites::default();
        let left = |range| all.may_change(range).to_vec();
        let whole: Vec<_> = std::iter::once(0..8192).collect();
        assert_eq!(left(0..8192), whole);
        let write = all.begin(100..200);
        let other = all.begin(4000..5000);
        // A page that is filled before the write has taken effect may have what was before.
        all.filled(&(0..4096));
        assert_eq!(left(0..8192), [0..100, 200..4000, 5000..8192]);
        write.done();
        other.done();
        all.filled(&(0..4096));
        assert_eq!(left(0..8192), [0..4096, 5000..8192]);
        drop(other);
        assert_eq!(left(0..8192), whole);
        drop(write);
        assert_eq!(left(0..8192), whole);
    }
}

//! The inodes that a request names by number, as whoever makes it knows them.
//!
//! A number comes from a name that was looked up before. Meanwhile another node may have removed that inode, and made
//! another one of the same number. What tells them apart is the generation, and it is sure only under the inode's lock:
//! so it is compared there ([`crate::core::Core`]), and the request fails with [`crate::Error::Stale`].

use std::cell::Cell;
use std::marker::PhantomData;

use braid_format::InodeNo;

/// Most inodes that a request names by number.
const MOST: usize = 2;

type Named = [Option<(InodeNo, u64)>; MOST];

thread_local! {
    static NAMED: Cell<Named> = const { Cell::new([None; MOST]) };
}

/// The inodes that the request names which this thread carries out, as long as this lasts. One at a time on a thread.
#[derive(Debug)]
pub struct KeptNumbers {
    /// It is of this thread.
    of_thread: PhantomData<*const ()>,
}

impl KeptNumbers {
    /// None yet.
    #[must_use]
    pub fn none() -> Self {
        NAMED.set([None; MOST]);
        Self { of_thread: PhantomData }
    }
    /// The request names `ino`, and means the inode of that `generation` (see [`crate::Attr::generation`]): every
    /// call of this thread that takes its lock fails with [`crate::Error::Stale`] if the number is another inode's
    /// by then. More than two are not compared.
    pub fn add(&mut self, ino: InodeNo, generation: u64) {
        let mut named = NAMED.get();
        if let Some(free) = named.iter_mut().find(|n| n.is_none()) {
            *free = Some((ino, generation));
        }
        NAMED.set(named);
    }
}

impl Drop for KeptNumbers {
    fn drop(&mut self) {
        NAMED.set([None; MOST]);
    }
}

/// The generation that the request of this thread means by a number, if it names it.
pub(crate) fn generation_meant(ino: InodeNo) -> Option<u64> {
    NAMED
        .get()
        .into_iter()
        .flatten()
        .find(|(named, _)| *named == ino)
        .map(|(_, generation)| generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_names_is_known_as_long_as_it_lasts() {
        let ino = InodeNo;
        let mut kept = KeptNumbers::none();
        assert_eq!(generation_meant(ino(7)), None);
        kept.add(ino(7), 70);
        kept.add(ino(8), 80);
        kept.add(ino(9), 90);
        assert_eq!([7, 8, 9].map(|n| generation_meant(ino(n))), [Some(70), Some(80), None]);
        std::thread::spawn(move || assert_eq!(generation_meant(ino(7)), None)).join().unwrap();
        drop(kept);
        assert_eq!(generation_meant(ino(7)), None);
    }
}

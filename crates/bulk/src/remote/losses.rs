//! What was lost of files, and which open files were told of it. Pure.
//!
//! As the kernel does it (errseq): whoever asks for durability by an open file is told once of each loss, whoever else was
//! told before; each close says it until then. A file that is opened later is told only of what nobody was told of.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use braid_format::InodeNo;
use braid_fs::Errno;

#[derive(Debug)]
struct Loss {
    number: u64,
    why: Errno,
    is_told: bool,
}

/// The last loss of each file.
#[derive(Debug, Default)]
pub struct Losses {
    last: u64,
    of: HashMap<InodeNo, Loss>,
}

impl Losses {
    /// Something of a file is lost.
    pub fn note(&mut self, ino: InodeNo, why: Errno) {
        self.last += 1;
        self.of.insert(ino, Loss { number: self.last, why, is_told: false });
    }
    /// The number of the last loss of which a file that is opened now need not be told.
    pub fn at_open(&self, ino: InodeNo) -> u64 {
        self.of.get(&ino).map_or(0, |loss| loss.number - u64::from(!loss.is_told))
    }
    /// What an open file is to be told of, which was told of the loss of that number before. It was told then.
    pub fn tell(&mut self, ino: InodeNo, told: &AtomicU64) -> Option<Errno> {
        let why = self.tell_at_close(ino, told)?;
        told.fetch_max(self.of.get(&ino)?.number, Ordering::Relaxed);
        Some(why)
    }
    /// The same at a close: other descriptors of the open file may stay, and are told, too.
    pub fn tell_at_close(&mut self, ino: InodeNo, told: &AtomicU64) -> Option<Errno> {
        let loss = self.of.get_mut(&ino)?;
        let is_new = told.load(Ordering::Relaxed) < loss.number;
        loss.is_told |= is_new;
        is_new.then_some(loss.why)
    }
    /// A file is open no more.
    pub fn closed(&mut self, ino: InodeNo) {
        if self.of.get(&ino).is_some_and(|loss| loss.is_told) {
            self.of.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: InodeNo = InodeNo(7);

    #[test]
    fn each_open_file_is_told_once_whoever_was_told_before() {
        let mut losses = Losses::default();
        let open = |losses: &Losses| AtomicU64::new(losses.at_open(INO));
        let (a, b) = (open(&losses), open(&losses));
        losses.note(INO, Errno::IO);
        let c = open(&losses);
        assert_eq!(losses.tell_at_close(INO, &a), Some(Errno::IO));
        for told in [&a, &b, &c] {
            assert_eq!(losses.tell(INO, told), Some(Errno::IO));
            assert_eq!(losses.tell(INO, told), None);
        }
        assert_eq!(losses.tell(INO, &open(&losses)), None, "opened after somebody was told");
        losses.note(INO, Errno::STALE);
        assert_eq!(losses.tell(INO, &a), Some(Errno::STALE));
    }

    #[test]
    fn what_nobody_was_told_of_outlasts_the_last_close() {
        let mut losses = Losses::default();
        losses.note(INO, Errno::IO);
        losses.closed(INO);
        let later = AtomicU64::new(losses.at_open(INO));
        assert_eq!(losses.tell(INO, &later), Some(Errno::IO));
        losses.closed(INO);
        assert_eq!(losses.at_open(INO), 0);
    }
}

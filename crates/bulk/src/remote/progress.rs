//! How far a program has read a file, and what is to be read ahead of it. Pure.

/// Pieces that are read ahead of a program: at first, and at most.
const WINDOW: (u64, u64) = (2, 8);
/// Reads in order before anything is read ahead.
const ENOUGH: u32 = 2;
/// A read this many pieces away from where it was expected is in order: requests of one program overtake one another.
const NEAR: u64 = 4;
/// What could not be kept is not tried again for so many reads.
const DISCOURAGED: u32 = 32;

/// How far a program has read a file.
#[derive(Debug, Default)]
pub struct Progress {
    /// Where the next read in order begins.
    next: u64,
    /// Reads in order.
    streak: u32,
    window: u64,
    /// The first piece that nobody was asked for.
    ahead: u64,
    /// Reads for which nothing is tried.
    pause: u32,
}

impl Progress {
    /// A program reads `len` bytes at `offset`: the pieces that are to be read ahead. `None`: it does not read in
    /// order.
    pub fn reads(&mut self, offset: u64, len: u64, piece: u64) -> Option<std::ops::Range<u64>> {
        let end = offset.saturating_add(len);
        if offset.abs_diff(self.next) <= NEAR * piece
            && (offset == self.next || self.streak >= ENOUGH)
        {
            self.streak = self.streak.saturating_add(1);
            self.next = self.next.max(end);
        } else {
            let pause = self.pause;
            *self = Self { next: end, streak: 1, pause, ..Self::default() };
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        if self.streak < ENOUGH {
            return None;
        }
        self.window = (2 * self.window).clamp(WINDOW.0, WINDOW.1);
        let from = self.ahead.max(offset / piece);
        let until = self.next / piece + self.window;
        self.ahead = self.ahead.max(until);
        Some(from..until.max(from))
    }
    /// What was read ahead could not be kept.
    pub fn discourage(&mut self) {
        (self.window, self.pause) = (0, DISCOURAGED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_in_order_is_read_ahead() {
        let mut progress = Progress::default();
        assert_eq!(progress.reads(0, 10, 10), None);
        assert_eq!(progress.reads(10, 10, 10), Some(1..4));
        assert_eq!(progress.reads(20, 10, 10), Some(4..7));
        // One that has overtaken another, and that other.
        assert_eq!(progress.reads(40, 10, 10), Some(7..13));
        assert_eq!(progress.reads(30, 10, 10), Some(13..13));
        assert_eq!(progress.reads(50, 10, 10), Some(13..14));
        assert_eq!(progress.reads(1000, 10, 10), None, "elsewhere");
        assert_eq!(progress.reads(0, 10, 10), None);
        assert_eq!(progress.reads(10, 10, 10), Some(1..4));
        progress.discourage();
        assert!((0..DISCOURAGED).all(|n| progress.reads(20 + u64::from(n), 1, 10).is_none()));
        assert!(progress.reads(20 + u64::from(DISCOURAGED), 1, 10).is_some());
    }
}

//! A file as chunks, each done by whichever connection is free.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_device::AlignedBuf;
use parking_lot::Mutex;

use super::{CopyError, CopyOptions};
use crate::client::Client;

/// The smallest hole that the copy has, too: less costs more requests than it saves.
const HOLE_MIN: u64 = 64 << 10;

/// Bytes of a file that are copied in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Which.
    pub index: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Chunk {
    /// The byte behind its last one.
    pub fn end(self) -> u64 {
        self.offset + u64::from(self.len)
    }

    /// Those parts of it (bytes from, to; ascending) that are copied because the source has data there; the rest are
    /// holes. Holes of less than [`HOLE_MIN`] are copied as data. `next_data`: the first data at or behind a byte, if
    /// there is some; `next_hole`: the first hole, or the end of the file.
    ///
    /// # Errors
    /// Theirs.
    pub fn data<E>(
        self,
        next_data: impl Fn(u64) -> Result<Option<u64>, E>,
        next_hole: impl Fn(u64) -> Result<u64, E>,
    ) -> Result<Vec<(u64, u64)>, E> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut at = self.offset;
        while at < self.end()
            && let Some(from) = next_data(at)?.filter(|from| *from < self.end())
        {
            // The file may become another one meanwhile, which is found out at the end; and a server may say anything.
            let from = from.max(at);
            let to = next_hole(from)?.max(from + 1).min(self.end());
            match runs.last_mut() {
                Some(last) if from - last.1 < HOLE_MIN => last.1 = to,
                None if from - self.offset < HOLE_MIN => runs.push((self.offset, to)),
                _ => runs.push((from, to)),
            }
            at = to;
        }
        if let Some(last) = runs.last_mut().filter(|last| self.end() - last.1 < HOLE_MIN) {
            last.1 = self.end();
        }
        Ok(runs)
    }
}

/// The chunks of a file.
#[derive(Debug, Clone, Copy)]
pub struct Chunks {
    size: u64,
    chunk: u32,
}

impl Chunks {
    /// Of a file of `size` bytes.
    pub fn new(size: u64, client: &Client, options: &CopyOptions) -> Self {
        let most = client.data_max();
        let chunk = if options.chunk == 0 { most } else { options.chunk.min(most) };
        Self { size, chunk: chunk.max(1) }
    }
    /// How many.
    pub fn count(&self) -> usize {
        usize::try_from(self.size.div_ceil(self.chunk.into())).unwrap_or(usize::MAX)
    }
    /// The one of that number.
    pub fn get(&self, index: usize) -> Chunk {
        let offset = index as u64 * u64::from(self.chunk);
        let len = self.size.saturating_sub(offset).min(self.chunk.into());
        Chunk { index, offset, len: u32::try_from(len).expect("at most a chunk") }
    }

    /// Does `work` for each chunk that `wanted` says, by all connections at once: with the connection's number and
    /// memory for a chunk.
    ///
    /// # Errors
    /// The first one.
    pub fn each(
        &self,
        client: &Client,
        wanted: impl Fn(usize) -> bool + Sync,
        work: impl Fn(u16, Chunk, &mut [u8]) -> Result<(), CopyError> + Sync,
    ) -> Result<(), CopyError> {
        let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
        let first = Mutex::new(None);
        let one = |slot: u16| {
            let mut memory = AlignedBuf::zeroed(usize::try_from(self.chunk).unwrap_or(0));
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(index) = usize::try_from(index).ok().filter(|n| *n < self.count()) else {
                    return;
                };
                if !wanted(index) {
                    continue;
                }
                let chunk = self.get(index);
                let len = usize::try_from(chunk.len).unwrap_or(0);
                if let Err(error) = work(slot, chunk, memory.get_mut(..len).unwrap_or_default()) {
                    failed.store(true, Ordering::Relaxed);
                    first.lock().get_or_insert(error);
                }
            }
        };
        std::thread::scope(|scope| {
            let threads = usize::from(client.data_slots()).min(self.count());
            for slot in 1..=u16::try_from(threads).unwrap_or(u16::MAX) {
                let (one, thread) = (&one, std::thread::Builder::new());
                match thread.spawn_scoped(scope, move || one(slot)) {
                    Ok(_) => {}
                    Err(error) if slot == 1 => {
                        failed.store(true, Ordering::Relaxed);
                        first.lock().get_or_insert(CopyError::Local { what: "a thread", error });
                        break;
                    }
                    // Fewer threads do the same, more slowly.
                    Err(error) => {
                        tracing::warn!(%error, "fewer connections than were asked for are used");
                        break;
                    }
                }
            }
        });
        first.into_inner().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is copied of a chunk of 1 MiB, at 1 MiB, if these are the file's data.
    fn copied(data: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let next_data = |at: u64| {
            let next = data.iter().find(|d| d.1 > at).map(|d| d.0.max(at));
            Ok::<_, ()>(next)
        };
        let next_hole =
            |at: u64| Ok(data.iter().find(|d| d.0 <= at && at < d.1).map_or(at, |d| d.1));
        let chunk = Chunk { index: 1, offset: 1 << 20, len: 1 << 20 };
        chunk.data(next_data, next_hole).unwrap()
    }

    #[test]
    fn large_holes_are_left_out_and_small_ones_are_copied() {
        const M: u64 = 1 << 20;
        let whole = vec![(M, 2 * M)];
        assert_eq!(copied(&[]), []);
        assert_eq!(copied(&[(0, M), (2 * M, 3 * M)]), []);
        assert_eq!(copied(&[(0, 3 * M)]), whole);
        assert_eq!(copied(&[(M + HOLE_MIN - 1, 2 * M - HOLE_MIN + 1)]), whole);
        let inside = (M + HOLE_MIN, 2 * M - HOLE_MIN);
        assert_eq!(copied(&[inside]), [inside]);
        // Answers without sense have an end, too.
        let chunk = Chunk { index: 1, offset: M, len: 4 };
        let senseless = chunk.data(|_| Ok::<_, ()>(Some(0)), |_| Ok(0));
        assert_eq!(senseless.unwrap(), [(M, M + 4)]);
        let apart = [(M, M + 1), (M + 1 + HOLE_MIN, M + 2 + HOLE_MIN)];
        assert_eq!(copied(&apart), apart);
        assert_eq!(
            copied(&[(M, M + 1), (M + HOLE_MIN, M + 2 + HOLE_MIN)]),
            [(M, M + 2 + HOLE_MIN)]
        );
    }
}

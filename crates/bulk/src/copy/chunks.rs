//! A file as chunks, each done by whichever connection is free.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_device::AlignedBuf;
use parking_lot::Mutex;

use super::{CopyError, CopyOptions};
use crate::client::Client;

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

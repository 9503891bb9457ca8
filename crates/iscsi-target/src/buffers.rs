//! Memory for data, kept for the next command: fresh pages cost more than the copy into them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use braid_device::AlignedBuf;
use parking_lot::Mutex;

/// Most bytes that are kept while nobody uses them.
const KEPT_MAX: usize = 64 << 20;

/// Buffers that nobody uses, by their class: powers of two.
#[derive(Debug, Clone, Default)]
pub struct Buffers(Arc<Mutex<Free>>);

#[derive(Debug, Default)]
struct Free {
    bytes: usize,
    classes: [Vec<AlignedBuf>; 32],
}

/// A buffer of `len` bytes; what stands in it is whatever stood there.
#[derive(Debug)]
pub struct Buf {
    memory: Option<AlignedBuf>,
    len: usize,
    home: Buffers,
}

fn class(len: usize) -> usize {
    len.max(512).next_power_of_two().trailing_zeros() as usize
}

impl Buffers {
    /// A buffer whose bytes are not to be shown before they were written.
    pub fn take(&self, len: usize) -> Buf {
        let class = class(len);
        let found = {
            let mut free = self.0.lock();
            let found = free.classes.get_mut(class).and_then(Vec::pop);
            free.bytes -= found.as_ref().map_or(0, |f| f.len());
            found
        };
        let memory = found.unwrap_or_else(|| AlignedBuf::zeroed(1 << class));
        Buf { memory: Some(memory), len, home: self.clone() }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut free = self.home.0.lock();
        if free.bytes + memory.len() <= KEPT_MAX {
            free.bytes += memory.len();
            let class = class(memory.len());
            if let Some(list) = free.classes.get_mut(class) {
                list.push(memory);
            }
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |m| &m[..self.len])
    }
}
impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |m| &mut m[..self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_let_go_is_used_again() {
        let buffers = Buffers::default();
        let mut a = buffers.take(1000);
        a.fill(7);
        let at = a.as_ptr();
        drop(a);
        let b = buffers.take(1024);
        assert_eq!((b.as_ptr(), b.len()), (at, 1024));
        assert_eq!(buffers.take(0).len(), 0);
    }
}

//! Memory of one thread for the message that it reads and answers.

use std::io::IoSliceMut;
use std::sync::Arc;

use braid_device::AlignedBuf;
use braid_fs::lock::interrupt;

use crate::transport::payloads::{Payload, Payloads};
use crate::transport::request::{REQUEST_START, longest};

/// Memory of a thread's own. Messages that fit into it, such as writes of 8 KiB, need no other
/// memory. That many bytes of longer messages are copied once more.
const OWN: usize = 16 << 10;
/// Longest message in a thread's own memory.
const SHORT: usize = OWN - REQUEST_START;

/// Room for one message, laid out like [`crate::transport::request::RequestBuf`].
#[derive(Debug)]
pub(crate) struct Space {
    own: AlignedBuf,
    lent: Option<Payload>,
    /// Of the message.
    len: usize,
    max: usize,
}

impl Space {
    /// For requests with payloads of at most `max_write` bytes.
    pub fn new(max_write: usize) -> Self {
        let max = longest(max_write);
        Self { own: AlignedBuf::zeroed(OWN), lent: None, len: 0, max }
    }
    /// Gets ready for the next message, unless there is no memory to be lent.
    pub fn prepare(&mut self, payloads: &Arc<Payloads>) -> bool {
        if self.lent.is_none() {
            self.lent = payloads.lend();
        }
        self.lent.is_some()
    }
    /// The same; waits for it.
    pub fn prepare_waiting(&mut self, payloads: &Arc<Payloads>) {
        if self.lent.is_none() {
            self.lent = Some(payloads.wait());
        }
    }
    /// Where the device puts the next message.
    pub fn slices(&mut self) -> [IoSliceMut<'_>; 2] {
        let lent = self.lent.as_mut().map_or(&mut [][..], Payload::bytes_mut);
        let rest = lent.get_mut(OWN..REQUEST_START + self.max).unwrap_or_default();
        let own = self.own.get_mut(REQUEST_START..).unwrap_or_default();
        [IoSliceMut::new(own), IoSliceMut::new(rest)]
    }
    /// A message of `len` bytes is in [`Space::slices`]: puts it together.
    pub fn filled(&mut self, len: usize) {
        self.len = len;
        if len <= SHORT {
            self.lent = None;
        } else if let Some(lent) = &mut self.lent {
            if let Some(to) = lent.bytes_mut().get_mut(REQUEST_START..OWN) {
                to.copy_from_slice(&self.own[REQUEST_START..]);
            }
            lent.keep(len);
        }
    }
    /// The message.
    pub fn message(&self) -> &[u8] {
        let bytes = self.lent.as_ref().map_or(&*self.own, Payload::bytes);
        bytes.get(REQUEST_START..REQUEST_START + self.len).unwrap_or_default()
    }
    /// The message is answered, or somewhere else.
    pub fn clear(&mut self) {
        self.lent = None;
        self.len = 0;
    }
    /// Lets the message go to where it is kept.
    pub fn take(&mut self) -> Kept {
        match self.lent.take() {
            Some(payload) => Kept::Lent(payload, self.len),
            None => Kept::Short(self.message().into()),
        }
    }
    /// Takes a message from where it was kept.
    pub fn put(&mut self, message: Kept) {
        self.len = message.bytes().len();
        match message {
            Kept::Lent(payload, _) => self.lent = Some(payload),
            Kept::Short(bytes) => {
                self.lent = None;
                if let Some(to) = self.own.get_mut(REQUEST_START..REQUEST_START + bytes.len()) {
                    to.copy_from_slice(&bytes);
                }
            }
        }
    }
    /// Whether the message has memory that is lent.
    pub fn is_long(&self) -> bool {
        self.lent.is_some()
    }
    /// Calls `f` with the message. Waits for locks count if it has memory that others may want.
    pub fn with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        interrupt::count_waits(self.lent.is_some());
        let r = f(self.message());
        interrupt::count_waits(false);
        r
    }
}

/// A message that waits to be answered.
#[derive(Debug)]
pub(crate) enum Kept {
    /// A copy.
    Short(Box<[u8]>),
    /// In its memory.
    Lent(Payload, usize),
}

impl Kept {
    /// The message.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Lent(payload, len) => {
                payload.bytes().get(REQUEST_START..REQUEST_START + len).unwrap_or_default()
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn messages_of_every_length_come_whole_and_page_aligned() {
        let payloads = Payloads::new(longest(1 << 20));
        let mut space = Space::new(1 << 20);
        for len in [40, SHORT - 1, SHORT, SHORT + 1, longest(1 << 20)] {
            let bytes: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            assert!(space.prepare(&payloads));
            let [own, rest] = &mut space.slices();
            assert_eq!(own.len() + rest.len(), longest(1 << 20));
            let (first, second) = bytes.split_at(len.min(own.len()));
            own[..first.len()].copy_from_slice(first);
            rest[..second.len()].copy_from_slice(second);
            space.filled(len);
            assert_eq!(space.is_long(), len > SHORT);
            for _ in 0..2 {
                assert!(space.message() == bytes);
                let payload = space.message().as_ptr().addr() + 4096 - REQUEST_START;
                assert!(payload.is_multiple_of(4096));
                let kept = space.take();
                assert!(kept.bytes() == bytes);
                space.put(kept);
            }
            space.clear();
            assert!(space.message().is_empty() && !space.is_long());
        }
    }
}

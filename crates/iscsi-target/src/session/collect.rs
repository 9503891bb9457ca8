//! The data of a write on its way: in the command, unasked for, or asked for piece by piece.

use std::sync::Arc;

use crate::Broken;
use crate::buffers::{Buf, Buffers};
use crate::connection::Connection;
use crate::pdu::{CommandPdu, FINAL, Header, NO_TAG, Reader, op};
use crate::tasks::Task;

/// Data of a command, as far as it has come.
#[derive(Debug)]
pub(crate) struct Input {
    buf: Buf,
    len: usize,
}

impl Input {
    /// A command without any.
    pub fn none(buffers: &Buffers) -> Self {
        Self::new(buffers, 0)
    }
    /// Room for `len` bytes.
    pub fn new(buffers: &Buffers, len: usize) -> Self {
        Self { buf: buffers.take(len), len: 0 }
    }
    /// What has come.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }
    /// Where the next `len` bytes go; no more than there is room for.
    pub fn next(&mut self, len: usize) -> &mut [u8] {
        let end = (self.len + len).min(self.buf.len());
        &mut self.buf[self.len..end]
    }
    /// They have come.
    pub fn got(&mut self, len: usize) {
        self.len = (self.len + len).min(self.buf.len());
    }
}

/// A command that waits for data.
#[derive(Debug)]
pub(crate) struct Collect {
    pub task: Arc<Task>,
    pub pdu: CommandPdu,
    pub input: Input,
    /// More comes unasked.
    unsolicited: bool,
    /// Where what was asked for last ends.
    asked_to: usize,
    /// Number of the next Data-Out of this burst.
    data_sn: u32,
    /// Number of the next R2T, and its tag.
    r2t: u32,
}

impl Collect {
    pub fn new(task: Arc<Task>, pdu: CommandPdu, input: Input, last: bool) -> Self {
        let asked_to = 0;
        Self { task, pdu, input, unsolicited: !last, asked_to, data_sn: 0, r2t: 0 }
    }
    /// Whether more is to come; asks for it if nobody has.
    pub fn wants_more(&mut self, conn: &Connection) -> Result<bool, Broken> {
        let (have, all) = (self.input.len, self.pdu.expected);
        if have >= all {
            return Ok(false);
        }
        if self.unsolicited {
            if conn.params.initial_r2t || have >= conn.params.first_burst as usize {
                return Err(Broken::Protocol("more unsolicited data than was agreed on"));
            }
            return Ok(true);
        }
        if have >= self.asked_to {
            let len = (all - have).min(conn.params.burst as usize);
            self.asked_to = have + len;
            self.data_sn = 0;
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            let h = Header::new(op::R2T, FINAL)
                .with(16, self.pdu.tag)
                .with(20, self.r2t)
                .with(36, self.r2t)
                .with(40, number(have))
                .with(44, number(len));
            self.r2t += 1;
            conn.request_data(h)?;
        }
        Ok(true)
    }
    /// Takes a Data-Out in.
    pub fn take(&mut self, header: &Header, reader: &mut Reader) -> Result<(), Broken> {
        let (len, at) = (header.data_len(), header.word(40) as usize);
        let limit = if self.unsolicited { self.pdu.expected } else { self.asked_to };
        let wanted = if self.unsolicited { NO_TAG } else { self.r2t.wrapping_sub(1) };
        if header.word(36) != self.data_sn || at != self.input.len || header.word(20) != wanted {
            return Err(Broken::Protocol("Data-Out out of order"));
        }
        if at + len > limit {
            return Err(Broken::Protocol("more Data-Out than was asked for"));
        }
        reader.data_into(self.input.next(len))?;
        self.input.got(len);
        self.data_sn = self.data_sn.wrapping_add(1);
        let last = header.flags() & FINAL != 0;
        if last && self.unsolicited {
            self.unsolicited = false;
        } else if last && self.input.len < self.asked_to {
            return Err(Broken::Protocol("less Data-Out than was asked for"));
        }
        Ok(())
    }
}

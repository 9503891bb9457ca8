//! A connection that has logged in: the numbers of its commands and responses, and what goes back
//! (Data-In, SCSI responses, R2T, rejects).
//!
//! Whoever has an answer sends it, whole, in one call; response numbers are given out under the same lock.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::Broken;
use crate::limits::WINDOW;
use crate::login::Login;
use crate::negotiate::Params;
use crate::nexus::Nexus;
use crate::outcome::{DataIn, Outcome, Refusal, status};
use crate::pdu::{Cdb, CommandPdu, FINAL, Header, NO_TAG, Outgoing, Writer, op};
use crate::sense::Sense;

/// Underflow and overflow bits of responses.
const UNDERFLOW: u8 = 0x02;
const OVERFLOW: u8 = 0x04;
/// Of Data-In: the status stands in it.
const STATUS_HERE: u8 = 0x01;

/// Why a PDU is refused (RFC 7143, section 11.17.1).
#[derive(Debug, Clone, Copy)]
pub enum Reason {
    /// Not known here.
    NotSupported = 0x05,
    /// One immediate command too many.
    TooManyImmediate = 0x06,
}

/// How a command ended, ready to be sent.
#[derive(Debug)]
pub struct Answer {
    status: u8,
    sense: Option<Sense>,
    data: DataIn,
    /// Too much (`true`) or too little, and by how many bytes.
    residual: Option<(bool, u32)>,
}

fn residual(expected: usize, actual: usize) -> Option<(bool, u32)> {
    let by = u32::try_from(expected.abs_diff(actual)).unwrap_or(u32::MAX);
    (by != 0).then_some((actual > expected, by))
}

impl Answer {
    /// That of an outcome.
    pub fn of(outcome: Outcome, command: &CommandPdu) -> Self {
        let failed = |status, sense| {
            let residual = residual(command.expected, 0);
            Self { status, sense, data: DataIn::None, residual }
        };
        match outcome {
            Ok(done) => {
                let moved = done.data.bytes().len().max(done.wanted);
                let residual = residual(command.expected, moved);
                let data = if command.reads { done.data } else { DataIn::None };
                Self { status: status::GOOD, sense: None, data, residual }
            }
            Err(Refusal::Sense(sense)) => failed(status::CHECK, Some(sense)),
            Err(Refusal::Conflict) => failed(status::CONFLICT, None),
            Err(Refusal::Aborted) => failed(status::ABORTED, None),
        }
    }
    /// Somebody else ended it.
    pub fn aborted() -> Self {
        Self { status: status::ABORTED, sense: None, data: DataIn::None, residual: None }
    }
    fn put_residual(&self, h: &mut Header) {
        if let Some((over, by)) = self.residual {
            h.0[1] |= if over { OVERFLOW } else { UNDERFLOW };
            h.set_word(44, by);
        }
    }
}

/// A connection, which is one session.
#[derive(Debug)]
pub struct Connection {
    nexus: Nexus,
    /// The session's handle.
    pub tsih: u16,
    /// What was agreed on.
    pub params: Params,
    /// The session may only ask which targets there are.
    pub discovery: bool,
    out: Mutex<Out>,
    /// To end it from outside.
    stream: TcpStream,
    exp_cmd_sn: AtomicU32,
    max_cmd_sn: AtomicU32,
}

#[derive(Debug)]
struct Out {
    writer: Writer,
    stat_sn: u32,
}

/// Whether `a` comes after `b` in serial arithmetic.
fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

impl Connection {
    /// That of a session that has just logged in.
    pub fn new(login: &Login, tsih: u16, stream: TcpStream, mut writer: Writer) -> Arc<Self> {
        writer.digests = login.params.digests;
        Arc::new(Self {
            nexus: Nexus::new(&login.initiator, login.isid),
            tsih,
            params: login.params,
            discovery: login.discovery,
            out: Mutex::new(Out { writer, stat_sn: login.stat_sn }),
            stream,
            exp_cmd_sn: AtomicU32::new(login.cmd_sn),
            max_cmd_sn: AtomicU32::new(login.cmd_sn.wrapping_add(WINDOW - 1)),
        })
    }
    /// The initiator's port.
    pub fn nexus(&self) -> &Nexus {
        &self.nexus
    }
    /// The portal by which it came.
    pub fn portal(&self) -> std::io::Result<SocketAddr> {
        self.stream.local_addr()
    }
    /// Ends the connection; its reader finds out.
    pub fn cut(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
    /// Whether it is the next command; if so the one after is expected.
    pub fn in_order(&self, header: &Header) -> bool {
        if header.immediate() {
            return true;
        }
        let number = header.word(24);
        let next = self.exp_cmd_sn.load(Ordering::Acquire);
        let last = self.max_cmd_sn.load(Ordering::Acquire);
        // One connection keeps the order: a gap is none of ours to fill.
        if number != next || is_after(number, last) {
            return false;
        }
        self.exp_cmd_sn.store(next.wrapping_add(1), Ordering::Release);
        true
    }
    /// One command less is under way: the initiator may send one more, unless this one took no
    /// number of the window.
    pub fn widen_window(&self, unnumbered: bool) {
        if !unnumbered {
            self.max_cmd_sn.fetch_add(1, Ordering::AcqRel);
        }
    }
    fn put_numbers(&self, h: &mut Header) {
        h.set_word(28, self.exp_cmd_sn.load(Ordering::Acquire));
        h.set_word(32, self.max_cmd_sn.load(Ordering::Acquire));
    }
    /// Sends a response that has a number of its own.
    pub fn respond(&self, mut h: Header, data: &[u8]) -> Result<(), Broken> {
        self.put_numbers(&mut h);
        let mut out = self.out.lock();
        h.set_word(24, out.stat_sn);
        out.stat_sn = out.stat_sn.wrapping_add(1);
        let ready = [out.writer.ready(h, data)];
        Ok(out.writer.send(&ready)?)
    }
    /// Sends an R2T: it shows the next response's number, and takes none.
    pub fn request_data(&self, mut h: Header) -> Result<(), Broken> {
        self.put_numbers(&mut h);
        let mut out = self.out.lock();
        h.set_word(24, out.stat_sn);
        let ready = [out.writer.ready(h, &[])];
        Ok(out.writer.send(&ready)?)
    }
    /// Refuses a PDU, with the header in question. `numbered`: its kind takes a number of the
    /// window, unless it is immediate.
    pub fn reject(&self, header: &Header, why: Reason, numbered: bool) -> Result<(), Broken> {
        self.widen_window(!numbered || header.immediate());
        let mut h = Header::new(op::REJECT, FINAL).with(16, NO_TAG);
        h.0[2] = why as u8;
        self.respond(h, &header.0)
    }
    /// Sends data and status; the status stands in the last Data-In if all is well.
    fn answer(&self, command: &CommandPdu, answer: &Answer) -> Result<(), Broken> {
        let data = answer.data.bytes();
        let data = &data[..data.len().min(command.expected)];
        let in_data = !data.is_empty() && answer.status == status::GOOD;
        let mut out = self.out.lock();
        let number = out.stat_sn;
        out.stat_sn = number.wrapping_add(1);
        let mut pdus: Vec<Outgoing<'_>> = Vec::with_capacity(data.len() / (64 << 10) + 2);
        let segment = self.params.send_max.min(self.params.burst as usize).max(512) & !3;
        let (mut at, mut burst, mut data_sn) = (0, 0, 0);
        while at < data.len() {
            let left = self.params.burst as usize - burst;
            let len = (data.len() - at).min(segment).min(left);
            let last = at + len == data.len();
            let ends = last || burst + len == self.params.burst as usize;
            let mut h = Header::new(op::DATA_IN, if ends { FINAL } else { 0 })
                .with(16, command.tag)
                .with(20, NO_TAG)
                .with(36, data_sn)
                .with(40, u32::try_from(at).unwrap_or(u32::MAX));
            self.put_numbers(&mut h);
            if last && in_data {
                h.0[1] |= STATUS_HERE;
                h.0[3] = answer.status;
                h.set_word(24, number);
                answer.put_residual(&mut h);
            }
            pdus.push(out.writer.ready(h, &data[at..at + len]));
            (at, data_sn) = (at + len, data_sn + 1);
            burst = if ends { 0 } else { burst + len };
        }
        let sense = answer.sense.map(|s| {
            let bytes = s.bytes();
            let mut data = vec![0, u8::try_from(bytes.len()).unwrap_or(0)];
            data.extend(bytes);
            data
        });
        if !in_data {
            let mut h = Header::new(op::RESPONSE, FINAL)
                .with(16, command.tag)
                .with(24, number)
                .with(36, data_sn);
            h.0[3] = answer.status;
            self.put_numbers(&mut h);
            answer.put_residual(&mut h);
            pdus.push(out.writer.ready(h, sense.as_deref().unwrap_or_default()));
        }
        Ok(out.writer.send(&pdus)?)
    }
    /// TASK ABORTED for a command that had not begun.
    pub fn answer_aborted(&self, tag: u32, immediate: bool) {
        // It ran nothing; how much it was to move is not looked at any more.
        let cdb = Cdb::default();
        let command = CommandPdu { tag, cdb, expected: 0, reads: false, writes: false, immediate };
        self.widen_window(immediate);
        self.answer_or_cut(&command, &Answer::aborted());
    }
    /// Answers; an initiator that cannot be answered has no session any more.
    pub fn answer_or_cut(&self, command: &CommandPdu, answer: &Answer) {
        if let Err(error) = self.answer(command, answer) {
            tracing::debug!(%error, "an answer was not sent");
            self.cut();
        }
    }
}

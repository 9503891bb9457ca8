//! The full feature phase of one connection, which is one session.
//!
//! One thread reads. It runs what is short itself; what may wait for a disk, or moves much, goes to
//! the workers, so that the next command can come. Answers are sent by whoever has them, whole, in
//! one call each; response numbers are given out under the same lock.
//!
//! ```text
//! command --(all data there?)--> run
//!    |  no: immediate data, then unsolicited Data-Out, then R2T by R2T
//!    +--> Collect, until its data is complete --> run
//! ```

mod answer;
mod collect;
mod manage;

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::faults::Action;
use crate::login::Login;
use crate::lun::{Lun, Nexus};
use crate::negotiate::Params;
use crate::pdu::{FINAL, Header, NO_TAG, Reader, Writer, op};
use crate::scsi::{self, Cdb, Refusal, Sense};
use crate::server::Shared;
use crate::tasks::{Abort, Task};
use crate::text;
use crate::{Broken, COMMANDS_MAX, WINDOW};

pub(crate) use answer::Answer;
use answer::Reason;
use collect::{Collect, Input};

/// One connection, logged in.
#[derive(Debug)]
pub struct Conn {
    shared: Arc<Shared>,
    nexus: Nexus,
    /// The session's handle.
    pub tsih: u16,
    params: Params,
    discovery: bool,
    out: Mutex<Out>,
    /// To end it from outside.
    stream: TcpStream,
    exp_cmd_sn: AtomicU32,
    max_cmd_sn: AtomicU32,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Out {
    writer: Writer,
    stat_sn: u32,
}

/// What a command's own PDU says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub tag: u32,
    pub cdb: Cdb,
    /// Bytes that the initiator means to move.
    pub expected: usize,
    pub reads: bool,
    pub writes: bool,
    pub immediate: bool,
}

/// What `number` of serial arithmetic comes after.
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

impl Conn {
    /// A session that has just logged in.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        login: &Login,
        tsih: u16,
        stream: TcpStream,
        mut writer: Writer,
    ) -> Arc<Self> {
        writer.digests = login.params.digests;
        Arc::new(Self {
            shared: shared.clone(),
            nexus: Nexus::new(&login.initiator, login.isid),
            tsih,
            params: login.params,
            discovery: login.discovery,
            out: Mutex::new(Out { writer, stat_sn: login.stat_sn }),
            stream,
            exp_cmd_sn: AtomicU32::new(login.cmd_sn),
            max_cmd_sn: AtomicU32::new(login.cmd_sn.wrapping_add(WINDOW - 1)),
            closed: AtomicBool::new(false),
        })
    }
    /// Whose it is.
    pub fn nexus(&self) -> &Nexus {
        &self.nexus
    }
    /// The units behind it.
    pub fn luns(&self) -> &[Arc<Lun>] {
        &self.shared.luns
    }
    /// The target's name.
    pub fn target_name(&self) -> &str {
        &self.shared.name
    }
    /// Aborts commands of any session; see [`crate::tasks::Tasks::abort`]. Those that had not begun
    /// and that somebody else ended are answered, by a worker.
    pub fn abort(&self, why: Abort, on_behalf: Option<&Task>, which: impl Fn(&Task) -> bool) {
        for task in self.shared.tasks.abort(why, on_behalf, which) {
            if why == Abort::Other {
                self.shared.workers.run(Box::new(move || task.conn.answer_aborted(&task)));
            } else {
                task.conn.widen(task.immediate);
            }
        }
    }
    /// Ends the connection; its reader finds out.
    pub fn cut(&self) {
        self.closed.store(true, Ordering::Release);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
    /// One command less is under way: the initiator may send one more, unless this one took no
    /// number of the window.
    fn widen(&self, unnumbered: bool) {
        if !unnumbered {
            self.max_cmd_sn.fetch_add(1, Ordering::AcqRel);
        }
    }
    fn lun(&self, field: [u8; 8]) -> Option<&Arc<Lun>> {
        let [method, low, rest @ ..] = field;
        // Peripheral or flat addressing; nothing below.
        let number = match method >> 6 {
            0 if method == 0 => u16::from(low),
            1 => u16::from(method & 0x3f) << 8 | u16::from(low),
            _ => return None,
        };
        self.shared.luns.get(usize::from(number)).filter(|_| rest == [0; 6])
    }
}

/// Reads a connection until it ends.
pub(crate) struct Feature {
    conn: Arc<Conn>,
    reader: Reader,
    /// Commands whose data is not there yet, by tag.
    collecting: HashMap<u32, Collect>,
}

impl Feature {
    pub fn new(conn: Arc<Conn>, mut reader: Reader) -> Self {
        reader.digests = conn.params.digests;
        Self { conn, reader, collecting: HashMap::new() }
    }
    /// Serves until the connection ends; says why.
    pub fn serve(&mut self) -> Broken {
        loop {
            if let Err(why) = self.step() {
                return why;
            }
        }
    }
    fn step(&mut self) -> Result<(), Broken> {
        let header = self.reader.header()?;
        let numbered = !matches!(header.opcode(), op::DATA_OUT | 0x10);
        if numbered && !self.in_order(&header) {
            // Outside the window: as if it had never come.
            self.reader.data(&header)?;
            return Ok(());
        }
        match header.opcode() {
            op::COMMAND if !self.conn.discovery => self.command(&header),
            op::DATA_OUT => self.data_out(&header),
            op::NOP_OUT => self.nop(&header),
            op::MANAGE if !self.conn.discovery => manage::manage(&self.conn, &header),
            op::TEXT => self.text(&header),
            op::LOGOUT => self.logout(&header),
            _ => {
                self.reader.data(&header)?;
                self.conn.reject(&header, Reason::NotSupported, numbered)
            }
        }
    }
    /// Whether it is the next command; if so the one after is expected.
    fn in_order(&self, header: &Header) -> bool {
        if header.immediate() {
            return true;
        }
        let (number, conn) = (header.word(24), &self.conn);
        let next = conn.exp_cmd_sn.load(Ordering::Acquire);
        let last = conn.max_cmd_sn.load(Ordering::Acquire);
        // One connection keeps the order: a gap is none of ours to fill.
        if number != next || after(number, last) {
            return false;
        }
        conn.exp_cmd_sn.store(next.wrapping_add(1), Ordering::Release);
        true
    }
    fn command(&mut self, header: &Header) -> Result<(), Broken> {
        let (flags, conn) = (header.flags(), &self.conn);
        // The window does not bound these.
        if header.immediate() && conn.shared.tasks.count_of(conn) >= COMMANDS_MAX {
            self.reader.data(header)?;
            return self.conn.reject(header, Reason::TooManyImmediate, true);
        }
        let asked = Asked {
            tag: header.tag(),
            cdb: header.0[32..48].try_into().unwrap_or_default(),
            expected: header.word(20) as usize,
            reads: flags & 0x40 != 0,
            writes: flags & 0x20 != 0,
            immediate: header.immediate(),
        };
        if self.collecting.get(&asked.tag).is_some_and(|c| !c.task.aborted()) {
            return Err(Broken::Protocol("a tag that is in use"));
        }
        let lun = self.conn.lun(header.lun()).map(|l| l.number);
        let task = self.conn.shared.tasks.begin(&self.conn, &asked, lun);
        let immediate = header.data_len();
        if !asked.writes || asked.expected == 0 || asked.expected > crate::TRANSFER_MAX {
            self.reader.data(header)?;
            let input = Input::none(&self.conn.shared.buffers);
            self.run(task, asked, input);
            return Ok(());
        }
        let mut input = Input::new(&self.conn.shared.buffers, asked.expected);
        if immediate > asked.expected || immediate != 0 && !self.conn.params.immediate {
            return Err(Broken::Protocol("immediate data that was not agreed on"));
        }
        self.reader.data_into(input.next(immediate))?;
        input.got(immediate);
        let mut collect = Collect::new(task, asked, input, flags & FINAL != 0);
        if collect.wants_more(&self.conn)? {
            if self.collecting.len() >= WINDOW as usize {
                // Of commands that somebody ended no more data may come.
                self.collecting.retain(|_, c| !c.task.aborted());
            }
            self.collecting.insert(asked.tag, collect);
        } else {
            self.run(collect.task, asked, collect.input);
        }
        Ok(())
    }
    fn data_out(&mut self, header: &Header) -> Result<(), Broken> {
        let Some(mut collect) = self.collecting.remove(&header.tag()) else {
            // Of a command that was aborted or refused.
            self.reader.data(header)?;
            return Ok(());
        };
        collect.take(header, &mut self.reader)?;
        if collect.wants_more(&self.conn)? {
            self.collecting.insert(header.tag(), collect);
        } else {
            self.run(collect.task, collect.asked, collect.input);
        }
        Ok(())
    }
    /// Runs a command whose data is there, here or on a worker.
    fn run(&self, task: Arc<Task>, asked: Asked, input: Input) {
        let conn = self.conn.clone();
        let shared = &conn.shared;
        let kind = scsi::kind(&asked.cdb);
        let fault = shared.faults.meet(kind, task.lun, conn.nexus.name());
        let lun = task.lun.and_then(|n| shared.luns.get(usize::from(n)));
        let short = lun.is_none_or(|l| scsi::is_short(l, &asked.cdb, asked.expected));
        match fault {
            None if short && !self.reader.more_waits() => conn.perform(&task, &asked, &input),
            None => {
                let workers = shared.workers.clone();
                let job = Box::new(move || conn.perform(&task, &asked, &input));
                // All workers may be sending to an initiator that has stopped: whoever takes its
                // right to write away must not wait for them.
                if scsi::is_reservation(&asked.cdb) {
                    workers.run_apart(job);
                } else {
                    workers.run(job);
                }
            }
            Some(fault) => {
                if matches!(fault, Action::Late(_) | Action::LateFail(_)) {
                    task.will_be_late();
                }
                if !task.start() {
                    return;
                }
                let workers = shared.workers.clone();
                let perform = move || conn.perform_faulty(&task, &asked, &input, fault);
                workers.run_apart(Box::new(perform));
            }
        }
    }
    fn nop(&mut self, header: &Header) -> Result<(), Broken> {
        let data = self.reader.data(header)?;
        if header.tag() == NO_TAG {
            return Ok(());
        }
        self.conn.widen(header.immediate());
        let mut h = Header::new(op::NOP_IN, FINAL).with(16, header.tag()).with(20, NO_TAG);
        h.0[8..16].copy_from_slice(&header.lun());
        self.conn.respond(h, &data[..data.len().min(self.conn.params.send_max)])
    }
    /// SendTargets; other keys are negotiated at login.
    fn text(&mut self, header: &Header) -> Result<(), Broken> {
        let data = self.reader.data(header)?;
        self.conn.widen(header.immediate());
        let mut answers = Vec::new();
        for (key, value) in text::parse(&data)? {
            let name = self.conn.target_name();
            let mine = value == "All" || value.is_empty() || value == name;
            if key != "SendTargets" {
                answers.push((key, "NotUnderstood".to_owned()));
            } else if mine {
                answers.push(("TargetName".to_owned(), name.to_owned()));
                if let Ok(at) = self.conn.stream.local_addr() {
                    answers.push(("TargetAddress".to_owned(), format!("{at},1")));
                }
            }
        }
        let h = Header::new(op::TEXT_RESPONSE, FINAL).with(16, header.tag()).with(20, NO_TAG);
        self.conn.respond(h, &text::encode(&answers))
    }
    fn logout(&mut self, header: &Header) -> Result<(), Broken> {
        self.reader.data(header)?;
        let conn = &self.conn;
        conn.abort(Abort::Own, None, |t| t.conn.tsih == conn.tsih);
        self.collecting.clear();
        conn.respond(Header::new(op::LOGOUT_RESPONSE, FINAL).with(16, header.tag()), &[])?;
        Err(Broken::LoggedOut)
    }
}

impl Conn {
    /// Runs a command and answers it.
    fn perform(self: &Arc<Self>, task: &Task, asked: &Asked, input: &Input) {
        if !task.start() {
            return;
        }
        let answer = self.execute(task, asked, input);
        self.conclude(task, asked, Some(answer));
    }
    fn execute(&self, task: &Task, asked: &Asked, input: &Input) -> Answer {
        let shared = &self.shared;
        let lun = task.lun.and_then(|n| shared.luns.get(usize::from(n)));
        let outcome = match lun {
            _ if asked.writes && asked.expected > crate::TRANSFER_MAX => {
                Err(Sense::field(if asked.cdb[0] >> 5 == 4 { 10 } else { 7 }).into())
            }
            Some(lun) => scsi::execute(&scsi::Command {
                lun,
                nexus: &self.nexus,
                cdb: &asked.cdb,
                data: input.bytes(),
                task,
                buffers: &shared.buffers,
            }),
            None => scsi::execute_nowhere(&asked.cdb, &shared.luns),
        };
        Answer::of(outcome, asked)
    }
    /// The I/O has ended: says so, then answers unless somebody aborted it.
    fn conclude(&self, task: &Task, asked: &Asked, answer: Option<Answer>) {
        let aborted = task.end();
        self.widen(asked.immediate);
        let answer = match aborted {
            None => answer,
            Some(Abort::Other) => answer.is_some().then(Answer::aborted),
            Some(Abort::Own | Abort::Lost) => None,
        };
        if let Some(answer) = answer {
            self.answer_or_cut(asked, &answer);
        }
        self.shared.tasks.gone(task);
    }
    /// TASK ABORTED for a command that had not begun.
    fn answer_aborted(&self, task: &Task) {
        // It ran nothing; how much it was to move is not looked at any more.
        let (tag, cdb, immediate) = (task.tag, Cdb::default(), task.immediate);
        let asked = Asked { tag, cdb, expected: 0, reads: false, writes: false, immediate };
        self.widen(immediate);
        self.answer_or_cut(&asked, &Answer::aborted());
    }
    /// Answers; an initiator that cannot be answered has no session any more.
    fn answer_or_cut(&self, asked: &Asked, answer: &Answer) {
        if let Err(error) = self.answer(asked, answer) {
            tracing::debug!(%error, "an answer was not sent");
            self.cut();
        }
    }
    /// A command that has been started, with what is to happen to it.
    fn perform_faulty(self: &Arc<Self>, task: &Task, asked: &Asked, input: &Input, fault: Action) {
        let failure = || Answer::of(Err(Refusal::Sense(Sense::INTERNAL)), asked);
        let answer = match fault {
            Action::Delay(time) if task.pause(time) => Some(self.execute(task, asked, input)),
            // Somebody has ended it: that is answered.
            Action::Delay(_) => Some(Answer::aborted()),
            Action::Drop => {
                // The initiator's window stays the narrower for it.
                return self.shared.tasks.gone(task);
            }
            Action::Mute => {
                self.execute(task, asked, input);
                None
            }
            Action::Fail => Some(failure()),
            Action::Late(time) | Action::LateFail(time) => {
                if matches!(fault, Action::LateFail(_)) {
                    self.answer_or_cut(asked, &failure());
                }
                if task.pause(time) {
                    self.execute(task, asked, input);
                }
                None
            }
            Action::Cut => {
                self.cut();
                None
            }
            Action::CutAfter => {
                self.execute(task, asked, input);
                self.cut();
                None
            }
        };
        self.conclude(task, asked, answer);
    }
}

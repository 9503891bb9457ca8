//! Reads a connection that has logged in: which command comes, and whether its data is there.

use std::collections::HashMap;
use std::sync::Arc;

use super::collect::{Collect, Input};
use super::execute::Session;
use super::manage;
use crate::Broken;
use crate::connection::Reason;
use crate::faults::Action;
use crate::limits::{COMMANDS_MAX, TRANSFER_MAX, WINDOW};
use crate::pdu::{CommandPdu, FINAL, Header, NO_TAG, Reader, op};
use crate::scsi;
use crate::tasks::{Abort, Task};
use crate::text;

/// Reads a connection until it ends.
pub(crate) struct FullFeature {
    session: Session,
    reader: Reader,
    /// Commands whose data is not there yet, by tag.
    collecting: HashMap<u32, Collect>,
}

impl FullFeature {
    pub fn new(session: Session, mut reader: Reader) -> Self {
        reader.digests = session.conn.params.digests;
        Self { session, reader, collecting: HashMap::new() }
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
        if numbered && !self.session.conn.in_order(&header) {
            // Outside the window: as if it had never come.
            self.reader.data(&header)?;
            return Ok(());
        }
        match header.opcode() {
            op::COMMAND if !self.session.conn.discovery => self.command(&header),
            op::DATA_OUT => self.data_out(&header),
            op::NOP_OUT => self.nop(&header),
            op::MANAGE if !self.session.conn.discovery => manage::manage(&self.session, &header),
            op::TEXT => self.text(&header),
            op::LOGOUT => self.logout(&header),
            _ => {
                self.reader.data(&header)?;
                self.session.conn.reject(&header, Reason::NotSupported, numbered)
            }
        }
    }
    fn command(&mut self, header: &Header) -> Result<(), Broken> {
        let Session { target, conn } = &self.session;
        // The window does not bound these.
        if header.immediate() && target.tasks.count_of(conn) >= COMMANDS_MAX {
            self.reader.data(header)?;
            return conn.reject(header, Reason::TooManyImmediate, true);
        }
        let pdu = CommandPdu::of(header);
        if self.collecting.get(&pdu.tag).is_some_and(|c| !c.task.aborted()) {
            return Err(Broken::Protocol("a tag that is in use"));
        }
        let lun = self.session.lun(header.lun()).map(|l| l.number);
        let task = target.tasks.begin(conn, &pdu, lun);
        let immediate = header.data_len();
        if !pdu.writes || pdu.expected == 0 || pdu.expected > TRANSFER_MAX {
            self.reader.data(header)?;
            let input = Input::none(&target.buffers);
            self.run(task, pdu, input);
            return Ok(());
        }
        let mut input = Input::new(&target.buffers, pdu.expected);
        if immediate > pdu.expected || immediate != 0 && !conn.params.immediate {
            return Err(Broken::Protocol("immediate data that was not agreed on"));
        }
        self.reader.data_into(input.next(immediate))?;
        input.got(immediate);
        let mut collect = Collect::new(task, pdu, input, header.flags() & FINAL != 0);
        if collect.wants_more(conn)? {
            if self.collecting.len() >= WINDOW as usize {
                // Of commands that somebody ended no more data may come.
                self.collecting.retain(|_, c| !c.task.aborted());
            }
            self.collecting.insert(pdu.tag, collect);
        } else {
            self.run(collect.task, pdu, collect.input);
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
        if collect.wants_more(&self.session.conn)? {
            self.collecting.insert(header.tag(), collect);
        } else {
            self.run(collect.task, collect.pdu, collect.input);
        }
        Ok(())
    }
    /// Runs a command whose data is there, here or on a worker.
    fn run(&self, task: Arc<Task>, pdu: CommandPdu, input: Input) {
        let session = self.session.clone();
        let target = &session.target;
        let kind = scsi::kind(&pdu.cdb);
        let fault = target.faults.meet(kind, task.lun, session.conn.nexus().name());
        let lun = task.lun.and_then(|n| target.luns.get(usize::from(n)));
        let short = lun.is_none_or(|l| scsi::is_short(l, &pdu.cdb, pdu.expected));
        match fault {
            None if short && !self.reader.more_waits() => session.perform(&task, &pdu, &input),
            None => {
                let workers = target.workers.clone();
                let job = Box::new(move || session.perform(&task, &pdu, &input));
                // All workers may be sending to an initiator that has stopped: whoever takes its
                // right to write away must not wait for them.
                if scsi::is_reservation(&pdu.cdb) {
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
                let workers = target.workers.clone();
                let perform = move || session.perform_faulty(&task, &pdu, &input, fault);
                workers.run_apart(Box::new(perform));
            }
        }
    }
    fn nop(&mut self, header: &Header) -> Result<(), Broken> {
        let data = self.reader.data(header)?;
        if header.tag() == NO_TAG {
            return Ok(());
        }
        let conn = &self.session.conn;
        conn.widen_window(header.immediate());
        let mut h = Header::new(op::NOP_IN, FINAL).with(16, header.tag()).with(20, NO_TAG);
        h.0[8..16].copy_from_slice(&header.lun());
        conn.respond(h, &data[..data.len().min(conn.params.send_max)])
    }
    /// SendTargets; other keys are negotiated at login.
    fn text(&mut self, header: &Header) -> Result<(), Broken> {
        let data = self.reader.data(header)?;
        self.session.conn.widen_window(header.immediate());
        let mut answers = Vec::new();
        for (key, value) in text::parse(&data)? {
            let name = self.session.target.name.as_str();
            let mine = value == "All" || value.is_empty() || value == name;
            if key != "SendTargets" {
                answers.push((key, "NotUnderstood".to_owned()));
            } else if mine {
                answers.push(("TargetName".to_owned(), name.to_owned()));
                if let Ok(at) = self.session.conn.portal() {
                    answers.push(("TargetAddress".to_owned(), format!("{at},1")));
                }
            }
        }
        let h = Header::new(op::TEXT_RESPONSE, FINAL).with(16, header.tag()).with(20, NO_TAG);
        self.session.conn.respond(h, &text::encode(&answers))
    }
    fn logout(&mut self, header: &Header) -> Result<(), Broken> {
        self.reader.data(header)?;
        let Session { target, conn } = &self.session;
        target.abort(Abort::Own, None, |t| t.conn.tsih == conn.tsih);
        self.collecting.clear();
        conn.respond(Header::new(op::LOGOUT_RESPONSE, FINAL).with(16, header.tag()), &[])?;
        Err(Broken::LoggedOut)
    }
}

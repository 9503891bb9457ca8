//! Task management: aborts and resets (RFC 7143, section 11.5; SAM-5, section 7).
//!
//! Each is answered when the I/O of every command that it ends has ended.

use super::execute::Session;
use crate::Broken;
use crate::nexus::UnitAttention;
use crate::pdu::{FINAL, Header, op};
use crate::tasks::{Abort, Task};

mod function {
    pub const ABORT_TASK: u8 = 1;
    pub const ABORT_TASK_SET: u8 = 2;
    pub const CLEAR_TASK_SET: u8 = 4;
    pub const UNIT_RESET: u8 = 5;
    pub const WARM_RESET: u8 = 6;
    pub const COLD_RESET: u8 = 7;
}

mod response {
    pub const COMPLETE: u8 = 0;
    pub const NO_TASK: u8 = 1;
    pub const NO_UNIT: u8 = 2;
    pub const NOT_SUPPORTED: u8 = 5;
}

/// Does what a task management request says, and answers it.
pub(super) fn manage(session: &Session, header: &Header) -> Result<(), Broken> {
    let result = perform(session, header);
    session.conn.widen_window(header.immediate());
    let mut h = Header::new(op::MANAGED, FINAL).with(16, header.tag());
    h.0[2] = result;
    session.conn.respond(h, &[])?;
    if header.flags() & 0x7f == function::COLD_RESET {
        session.target.sessions.cut_all();
    }
    Ok(())
}

fn perform(session: &Session, header: &Header) -> u8 {
    let lun = session.lun(header.lun()).map(|l| l.number);
    let mine = |t: &Task| t.conn.tsih == session.conn.tsih;
    match header.flags() & 0x7f {
        function::WARM_RESET | function::COLD_RESET => {
            for lun in &session.target.luns {
                reset(session, lun.number, UnitAttention::TARGET_RESET);
            }
            response::COMPLETE
        }
        function::ABORT_TASK
        | function::ABORT_TASK_SET
        | function::CLEAR_TASK_SET
        | function::UNIT_RESET
            if lun.is_none() =>
        {
            response::NO_UNIT
        }
        function::ABORT_TASK => {
            let tag = header.word(20);
            let known = session.target.tasks.any(|t| mine(t) && t.tag == tag);
            session.target.abort(Abort::Own, None, |t| mine(t) && t.tag == tag);
            if known { response::COMPLETE } else { response::NO_TASK }
        }
        function::ABORT_TASK_SET => {
            session.target.abort(Abort::Own, None, |t| mine(t) && t.lun == lun);
            response::COMPLETE
        }
        function::CLEAR_TASK_SET => {
            others(session, lun.unwrap_or(0), UnitAttention::CLEARED);
            response::COMPLETE
        }
        function::UNIT_RESET => {
            reset(session, lun.unwrap_or(0), UnitAttention::UNIT_RESET);
            response::COMPLETE
        }
        _ => response::NOT_SUPPORTED,
    }
}

/// Ends every command on a unit; others whose commands ended so are told.
fn others(session: &Session, lun: u16, what: UnitAttention) {
    let on = |t: &Task| t.lun == Some(lun);
    session.target.abort(Abort::Own, None, |t| on(t) && t.conn.tsih == session.conn.tsih);
    session.target.abort(Abort::Other, None, |t| on(t) && t.conn.tsih != session.conn.tsih);
    if let Some(unit) = session.target.luns.get(usize::from(lun)) {
        for nexus in session.target.sessions.nexuses().iter().filter(|n| *n != session.conn.nexus())
        {
            unit.establish_attention(nexus, what);
        }
    }
}

/// As [`others`]; everybody is told, the initiator too.
fn reset(session: &Session, lun: u16, what: UnitAttention) {
    others(session, lun, what);
    if let Some(unit) = session.target.luns.get(usize::from(lun)) {
        unit.establish_attention(session.conn.nexus(), what);
    }
}

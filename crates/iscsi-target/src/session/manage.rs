//! Task management: aborts and resets (RFC 7143, section 11.5; SAM-5, section 7).
//!
//! Each is answered when the I/O of every command that it ends has ended.

use std::sync::Arc;

use super::Conn;
use crate::Broken;
use crate::lun::Attention;
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
pub(super) fn manage(conn: &Arc<Conn>, header: &Header) -> Result<(), Broken> {
    let result = perform(conn, header);
    conn.widen(header.immediate());
    let mut h = Header::new(op::MANAGED, FINAL).with(16, header.tag());
    h.0[2] = result;
    conn.respond(h, &[])?;
    if header.flags() & 0x7f == function::COLD_RESET {
        conn.shared.cut_all();
    }
    Ok(())
}

fn perform(conn: &Arc<Conn>, header: &Header) -> u8 {
    let lun = conn.lun(header.lun()).map(|l| l.number);
    let mine = |t: &Task| t.conn.tsih == conn.tsih;
    match header.flags() & 0x7f {
        function::WARM_RESET | function::COLD_RESET => {
            for lun in conn.luns() {
                reset(conn, lun.number, Attention::TARGET_RESET);
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
            let known = conn.shared.tasks.any(|t| mine(t) && t.tag == tag);
            conn.abort(Abort::Own, None, |t| mine(t) && t.tag == tag);
            if known { response::COMPLETE } else { response::NO_TASK }
        }
        function::ABORT_TASK_SET => {
            conn.abort(Abort::Own, None, |t| mine(t) && t.lun == lun);
            response::COMPLETE
        }
        function::CLEAR_TASK_SET => {
            others(conn, lun.unwrap_or(0), Attention::CLEARED);
            response::COMPLETE
        }
        function::UNIT_RESET => {
            reset(conn, lun.unwrap_or(0), Attention::UNIT_RESET);
            response::COMPLETE
        }
        _ => response::NOT_SUPPORTED,
    }
}

/// Ends every command on a unit; others whose commands ended so are told.
fn others(conn: &Arc<Conn>, lun: u16, what: Attention) {
    let on = |t: &Task| t.lun == Some(lun);
    conn.abort(Abort::Own, None, |t| on(t) && t.conn.tsih == conn.tsih);
    conn.abort(Abort::Other, None, |t| on(t) && t.conn.tsih != conn.tsih);
    if let Some(unit) = conn.luns().get(usize::from(lun)) {
        for nexus in conn.shared.nexuses().iter().filter(|n| *n != conn.nexus()) {
            unit.attend(nexus, what);
        }
    }
}

/// As [`others`]; everybody is told, the initiator too.
fn reset(conn: &Arc<Conn>, lun: u16, what: Attention) {
    others(conn, lun, what);
    if let Some(unit) = conn.luns().get(usize::from(lun)) {
        unit.attend(conn.nexus(), what);
    }
}

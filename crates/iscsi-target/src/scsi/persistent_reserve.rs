//! PERSISTENT RESERVE IN and OUT on the wire (SPC-4, sections 6.13 and 6.14).

#![expect(clippy::unnecessary_wraps, reason = "rows of the table of commands are alike")]

use braid_device::ReservationKind as Kind;

use super::command::{Command, be16, be32, be64};
use crate::nexus::{self, Nexus, UnitAttention};
use crate::outcome::{Done, Outcome, Refusal};
use crate::reservations::Effects;
use crate::sense::Sense;
use crate::tasks::Abort;

/// Bytes of the usual parameter list.
const LIST: usize = 24;

fn limit(c: &Command<'_>) -> usize {
    usize::from(be16(c.cdb, 7))
}

fn len32(n: usize) -> [u8; 4] {
    u32::try_from(n).unwrap_or(0).to_be_bytes()
}

/// PERSISTENT RESERVE IN, READ KEYS.
pub(super) fn read_keys(c: &Command<'_>) -> Outcome {
    let all = c.lun.reservations.lock();
    let mut bytes = all.generation().to_be_bytes().to_vec();
    bytes.extend(len32(all.registered().len() * 8));
    all.registered().iter().for_each(|(_, key)| bytes.extend(key.to_be_bytes()));
    Ok(Done::small(bytes, limit(c)))
}

/// PERSISTENT RESERVE IN, READ RESERVATION.
pub(super) fn read_reservation(c: &Command<'_>) -> Outcome {
    let all = c.lun.reservations.lock();
    let mut bytes = all.generation().to_be_bytes().to_vec();
    match all.held() {
        None => bytes.extend(len32(0)),
        Some((held, key)) => {
            bytes.extend(len32(16));
            bytes.extend(key.to_be_bytes());
            bytes.extend([0, 0, 0, 0, 0, held.kind as u8, 0, 0]);
        }
    }
    Ok(Done::small(bytes, limit(c)))
}

/// PERSISTENT RESERVE IN, REPORT CAPABILITIES.
pub(super) fn capabilities(c: &Command<'_>) -> Outcome {
    let (kept, can_keep) = c.lun.reservations.lock().persistence();
    // All six types.
    let bytes = [0, 8, u8::from(can_keep), 0x80 | u8::from(kept), 0xea, 0x01, 0, 0];
    Ok(Done::small(bytes.to_vec(), limit(c)))
}

/// `NAME,i,0xISID`, ended and padded with zeros.
fn transport_id(nexus: &Nexus) -> Vec<u8> {
    let isid = nexus.isid().iter().fold(0, |all, b| all << 8 | u64::from(*b));
    let mut name = format!("{},i,0x{isid:012x}\0", nexus.name()).into_bytes();
    name.resize(name.len().next_multiple_of(4).max(20), 0);
    let mut bytes = vec![0x45, 0];
    bytes.extend(u16::try_from(name.len()).unwrap_or(0).to_be_bytes());
    bytes.extend(name);
    bytes
}

/// PERSISTENT RESERVE IN, READ FULL STATUS.
pub(super) fn full_status(c: &Command<'_>) -> Outcome {
    let all = c.lun.reservations.lock();
    let mut list = Vec::new();
    for (nexus, key) in all.registered() {
        let holds = all.holds(nexus);
        let kind = all.held().filter(|_| holds).map_or(0, |(h, _)| h.kind as u8);
        list.extend(key.to_be_bytes());
        list.extend([0, 0, 0, 0, u8::from(holds), kind, 0, 0, 0, 0, 0, 1]);
        let id = transport_id(nexus);
        list.extend(len32(id.len()));
        list.extend(id);
    }
    let mut bytes = all.generation().to_be_bytes().to_vec();
    bytes.extend(len32(list.len()));
    bytes.extend(list);
    Ok(Done::small(bytes, limit(c)))
}

/// The service actions of PERSISTENT RESERVE OUT.
mod action {
    pub const REGISTER: u8 = 0;
    pub const RESERVE: u8 = 1;
    pub const RELEASE: u8 = 2;
    pub const CLEAR: u8 = 3;
    pub const PREEMPT: u8 = 4;
    pub const PREEMPT_AND_ABORT: u8 = 5;
    pub const REGISTER_ANYHOW: u8 = 6;
    pub const MOVE: u8 = 7;
}

/// PERSISTENT RESERVE OUT.
pub(super) fn out(c: &Command<'_>) -> Outcome {
    let what = c.cdb[1] & 0x1f;
    let wanted = be32(c.cdb, 5) as usize;
    let Some(list) = c.data.get(..wanted).filter(|l| l.len() >= LIST) else {
        return Err(Sense::LIST_LENGTH.into());
    };
    // Only moving a reservation has more to say.
    if list.len() != LIST && what != action::MOVE {
        return Err(Sense::LIST_LENGTH.into());
    }
    let effects = change(c, what, list)?;
    for (nexus, attention) in &effects.attentions {
        c.lun.establish_attention(nexus, *attention);
    }
    if what == action::PREEMPT_AND_ABORT {
        drain(c, &effects.preempted)?;
    }
    Ok(Done::took(wanted))
}

fn change(c: &Command<'_>, what: u8, list: &[u8]) -> Result<Effects, Refusal> {
    let keys = (be64(list, 0), be64(list, 8));
    let (scope, kind) = (c.cdb[2] >> 4, Kind::of(c.cdb[2] & 0x0f));
    // Only whole units are reserved.
    let typed = || if scope == 0 { kind.ok_or(Sense::field(2)) } else { Err(Sense::field(2)) };
    let (persistent, named) = (list[20] & 1 != 0, list[20] & 8 != 0);
    let mut all = c.lun.reservations.lock();
    let effects = match what {
        action::REGISTER | action::REGISTER_ANYHOW if named => {
            return Err(Sense::LIST_FIELD.into());
        }
        action::REGISTER => all.register(c.nexus, keys, false, persistent)?,
        action::REGISTER_ANYHOW => all.register(c.nexus, keys, true, persistent)?,
        action::RESERVE => all.reserve(c.nexus, keys.0, typed()?)?,
        action::RELEASE => all.release(c.nexus, keys.0, typed()?)?,
        action::CLEAR => all.clear(c.nexus, keys.0)?,
        action::PREEMPT | action::PREEMPT_AND_ABORT => {
            let kind = kind.filter(|_| scope == 0);
            all.preempt(c.nexus, keys, kind)?
        }
        action::MOVE => {
            let to = moved_to(list).ok_or(Sense::LIST_FIELD)?;
            all.register_and_move(c.nexus, keys, to, list[17] & 2 != 0)?
        }
        _ => return Err(Sense::field(1).into()),
    };
    all.keep()?;
    Ok(effects)
}

/// The port that a moved reservation goes to.
fn moved_to(list: &[u8]) -> Option<Nexus> {
    let id = list.get(24..24 + be32(list, 20) as usize)?;
    if id.first()? & 0xcf != 0x45 {
        return None;
    }
    let name = id.get(4..4 + usize::from(be16(id, 2)))?;
    let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
    let (name, isid) =
        name.split_once(",i,0x").filter(|(name, _)| nexus::is_initiator_name(name))?;
    let isid = u64::from_str_radix(isid, 16).ok()?.to_be_bytes();
    Some(Nexus::new(name, isid[2..].try_into().ok()?))
}

/// Every command of those who were preempted has ended: what they had under way stands on the
/// device by now, or never will.
fn drain(c: &Command<'_>, preempted: &[Nexus]) -> Result<(), Refusal> {
    let lun = Some(c.lun.number);
    c.target
        .abort(Abort::Other, Some(c.task), |t| t.lun == lun && preempted.contains(t.conn.nexus()));
    for nexus in preempted {
        c.lun.establish_attention(nexus, UnitAttention::CLEARED);
    }
    if c.task.aborted() { Err(Refusal::Aborted) } else { Ok(()) }
}

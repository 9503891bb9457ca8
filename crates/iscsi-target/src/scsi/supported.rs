//! REPORT SUPPORTED OPERATION CODES: the table of commands, shown.

use super::command::{Command, Spec, be16, be32};
use crate::outcome::{Done, Outcome};
use crate::sense::Sense;

/// How long commands take is not known: the descriptor says so.
const TIMEOUTS: [u8; 12] = [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn len16(n: usize) -> [u8; 2] {
    u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes()
}

/// REPORT SUPPORTED OPERATION CODES.
pub(super) fn report(c: &Command<'_>, commands: &[Spec]) -> Outcome {
    let timeouts = c.cdb[2] & 0x80 != 0;
    let (opcode, service) = (c.cdb[3], be16(c.cdb, 4));
    let of_opcode = || commands.iter().filter(move |s| s.opcode == opcode);
    let serves = |s: &Spec| s.service.map(u16::from) == Some(service);
    let bytes = match c.cdb[2] & 7 {
        0 => all(commands, timeouts),
        1 => {
            if of_opcode().any(|s| s.service.is_some()) {
                return Err(Sense::field(2).into());
            }
            one(of_opcode().next(), timeouts)
        }
        2 => {
            if of_opcode().any(|s| s.service.is_none()) {
                return Err(Sense::field(2).into());
            }
            one(of_opcode().find(|s| serves(s)), timeouts)
        }
        3 => one(of_opcode().find(|s| s.service.is_none() || serves(s)), timeouts),
        _ => return Err(Sense::field(2).into()),
    };
    Ok(Done::small(bytes, be32(c.cdb, 6) as usize))
}

fn all(commands: &[Spec], timeouts: bool) -> Vec<u8> {
    let mut list = Vec::new();
    for s in commands {
        let flags = u8::from(s.service.is_some()) | if timeouts { 2 } else { 0 };
        list.extend([s.opcode, 0, 0, s.service.unwrap_or(0), 0, flags]);
        list.extend(len16(s.usage.len()));
        if timeouts {
            list.extend(TIMEOUTS);
        }
    }
    let mut bytes = u32::try_from(list.len()).unwrap_or(0).to_be_bytes().to_vec();
    bytes.extend(list);
    bytes
}

fn one(found: Option<&Spec>, timeouts: bool) -> Vec<u8> {
    let Some(s) = found else { return vec![0, 1, 0, 0] };
    let mut bytes = vec![0, if timeouts { 0x83 } else { 3 }];
    bytes.extend(len16(s.usage.len()));
    bytes.extend(s.usage);
    if let (Some(service), Some(byte)) = (s.service, bytes.get_mut(5)) {
        *byte = service;
    }
    if timeouts {
        bytes.extend(TIMEOUTS);
    }
    bytes
}

//! An initiator's port (an I_T nexus), and the unit attentions that it may have to be told.

use std::sync::Arc;

/// Longest name of an initiator: RFC 7143, section 4.2.7.2.
const NAME_MAX: usize = 223;

/// Whether an initiator may have this name. It is kept in lines of a file, and shown in lines.
pub fn is_initiator_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.chars().any(char::is_control)
}

/// Whether a target may have this name: in lower case, as names are compared (RFC 7143, section 4.2.7).
pub fn is_target_name(name: &str) -> bool {
    let known = ["iqn.", "eui.", "naa."].iter().any(|p| name.starts_with(p));
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
    known && name.len() <= NAME_MAX && name.chars().all(fits)
}

/// An initiator's port as a unit sees it: a name and a session identifier. Outlives its sessions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nexus {
    name: Arc<str>,
    isid: [u8; 6],
}

impl Nexus {
    /// The port of a session.
    pub fn new(name: &str, isid: [u8; 6]) -> Self {
        Self { name: name.into(), isid }
    }
    /// The initiator's name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Its session identifier.
    pub fn isid(&self) -> [u8; 6] {
        self.isid
    }
}

/// Something that happened to a unit behind an initiator's back: code and qualifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitAttention(pub u8, pub u8);

impl UnitAttention {
    /// A new session, or a restart.
    pub const POWER_ON: Self = Self(0x29, 0x00);
    /// The target was reset.
    pub const TARGET_RESET: Self = Self(0x29, 0x02);
    /// The unit was reset.
    pub const UNIT_RESET: Self = Self(0x29, 0x03);
    /// Another initiator took the reservation.
    pub const RESERVATIONS_PREEMPTED: Self = Self(0x2a, 0x03);
    /// Another initiator released it.
    pub const RESERVATIONS_RELEASED: Self = Self(0x2a, 0x04);
    /// Another initiator removed the registration.
    pub const REGISTRATIONS_PREEMPTED: Self = Self(0x2a, 0x05);
    /// Another initiator cleared the commands.
    pub const CLEARED: Self = Self(0x2f, 0x00);
}

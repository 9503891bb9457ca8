//! Sense data: why a command was not done (SPC-4, section 4.5), in fixed format.

/// A sense key, a code and its qualifier, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// Key.
    pub key: u8,
    /// Additional code.
    pub code: u8,
    /// Its qualifier.
    pub qualifier: u8,
    /// The information field.
    pub information: Option<u32>,
    /// The byte of the CDB that is wrong.
    pub field: Option<u16>,
}

impl Sense {
    const fn of(key: u8, code: u8, qualifier: u8) -> Self {
        Self { key, code, qualifier, information: None, field: None }
    }
    /// Nothing to report.
    pub const NONE: Self = Self::of(0, 0, 0);
    /// A read failed.
    pub const READ_ERROR: Self = Self::of(3, 0x11, 0);
    /// A write failed.
    pub const WRITE_ERROR: Self = Self::of(3, 0x0c, 0);
    /// The target itself failed.
    pub const INTERNAL: Self = Self::of(4, 0x44, 0);
    /// A parameter list of the wrong length.
    pub const LIST_LENGTH: Self = Self::of(5, 0x1a, 0);
    /// No such command.
    pub const OPCODE: Self = Self::of(5, 0x20, 0);
    /// Blocks beyond the last.
    pub const OUT_OF_RANGE: Self = Self::of(5, 0x21, 0);
    /// No such unit.
    pub const NO_UNIT: Self = Self::of(5, 0x25, 0);
    /// A field of the parameter list.
    pub const LIST_FIELD: Self = Self::of(5, 0x26, 0);
    /// The reservation is of another type.
    pub const INVALID_RELEASE: Self = Self::of(5, 0x26, 4);
    /// No room for a registration.
    pub const REGISTRATIONS: Self = Self::of(5, 0x55, 4);
    /// Opened for reading only.
    pub const WRITE_PROTECTED: Self = Self::of(7, 0x27, 0);

    /// A field of the CDB, by its byte.
    pub const fn field(byte: u16) -> Self {
        let mut sense = Self::of(5, 0x24, 0);
        sense.field = Some(byte);
        sense
    }
    /// The bytes compared differ, first at `offset`.
    pub fn miscompare(offset: usize) -> Self {
        let information = u32::try_from(offset).ok();
        Self { information, ..Self::of(0x0e, 0x1d, 0) }
    }
    /// Something happened behind the initiator's back.
    pub const fn attention(code: u8, qualifier: u8) -> Self {
        Self::of(6, code, qualifier)
    }
    /// Fixed format, as current.
    pub fn bytes(&self) -> [u8; 18] {
        let mut bytes = [0; 18];
        bytes[0] = 0x70;
        bytes[2] = self.key;
        if let Some(information) = self.information {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = 10;
        bytes[12] = self.code;
        bytes[13] = self.qualifier;
        if let Some(field) = self.field {
            bytes[15] = 0xc0;
            bytes[16..18].copy_from_slice(&field.to_be_bytes());
        }
        bytes
    }
}

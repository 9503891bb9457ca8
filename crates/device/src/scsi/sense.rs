//! Sense data (SPC-4, section 4.5), in both formats: why a command was not done.

/// What sense data say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sense {
    /// Key.
    pub key: u8,
    /// Additional code and its qualifier.
    pub code: u16,
    /// The information field: of a miscompare, the offset of the first byte that differs.
    pub information: Option<u64>,
}

/// Whether a sense key and code say what [`Sense::is_power_on`] asks.
pub fn is_power_on(key: u8, code: u16) -> bool {
    key == Sense::ATTENTION && matches!(code, 0x2900 | 0x2901)
}

impl Sense {
    /// Something happened behind the initiator's back; the command did not run.
    pub const ATTENTION: u8 = 0x06;
    /// What was compared differs.
    pub const MISCOMPARE: u8 = 0x0e;

    /// Whether it says that the unit has lost power since it was asked last, or may have (power on;
    /// power on or reset, whichever it was): what stood in a volatile cache is gone. A reset that says
    /// that it is one keeps the cache.
    pub fn is_power_on(&self) -> bool {
        is_power_on(self.key, self.code)
    }
    /// Reads sense data; `None` if they are of no known format. A descriptor that is cut off is not
    /// there.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let byte = |at: usize| bytes.get(at).copied();
        match byte(0)? & 0x7f {
            0x70 | 0x71 => {
                let valid = byte(0)? & 0x80 != 0;
                let word = bytes.get(3..7).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
                let told = usize::from(byte(7).unwrap_or(0)) + 8;
                let code = |at: usize| if at < told { byte(at).unwrap_or(0) } else { 0 };
                Some(Self {
                    key: byte(2)? & 0x0f,
                    code: u16::from_be_bytes([code(12), code(13)]),
                    information: word.filter(|_| valid).map(u64::from),
                })
            }
            0x72 | 0x73 => Some(Self {
                key: byte(1)? & 0x0f,
                code: u16::from_be_bytes([byte(2)?, byte(3)?]),
                information: bytes.get(8..).and_then(information),
            }),
            _ => None,
        }
    }
}

/// The information in a list of descriptors, if one has it and it is valid.
fn information(mut list: &[u8]) -> Option<u64> {
    while let [kind, len, rest @ ..] = list {
        let (body, tail) = rest.split_at_checked(usize::from(*len))?;
        if *kind == 0 && body.first().is_some_and(|b| b & 0x80 != 0) {
            return body.get(2..10).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
        }
        list = tail;
    }
    None
}

impl std::fmt::Display for Sense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [code, qualifier] = self.code.to_be_bytes();
        write!(f, "sense key {:#x}, code {code:#04x}/{qualifier:02x}", self.key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_formats_say_the_same() {
        let fixed = [0xf0, 0, 0x0e, 0, 0, 0, 17, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0, 0, 0];
        let described = [0x72, 0x0e, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 17];
        let expected = Sense { key: Sense::MISCOMPARE, code: 0x1d00, information: Some(17) };
        assert_eq!(Sense::decode(&fixed), Some(expected));
        assert_eq!(Sense::decode(&described), Some(expected));
        // Deferred errors have formats of their own; without the valid bit there is no information.
        let deferred = [&[0x71][..], &fixed[1..]].concat();
        assert_eq!(Sense::decode(&deferred), Some(Sense { information: None, ..expected }));
        let attention = [0x73, 6, 0x29, 0, 0, 0, 0, 0];
        let expected = Sense { key: Sense::ATTENTION, code: 0x2900, information: None };
        assert_eq!(Sense::decode(&attention), Some(expected));
    }

    #[test]
    fn what_is_cut_off_is_not_there() {
        for bytes in [&[][..], &[0x70], &[0x72, 6], &[0x7f, 0, 0, 0], &[0, 0, 0, 0]] {
            assert_eq!(Sense::decode(bytes), None, "{bytes:?}");
        }
        let short = [0x70, 0, 5, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9];
        assert_eq!(Sense::decode(&short).unwrap().code, 0, "beyond the length told");
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Sense::decode(&bytes);
        }
    }
}

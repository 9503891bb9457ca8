//! Characters of names and texts that people give to things, and that a terminal gets later.

/// Format characters (category Cf of Unicode), and those that end a line or a paragraph: they are not seen, but
/// change how what stands beside them is shown, or make two names look alike. The first and the last of each run.
const FORMAT: [(u32, u32); 19] = [
    (0xad, 0xad),
    (0x600, 0x605),
    (0x61c, 0x61c),
    (0x6dd, 0x6dd),
    (0x70f, 0x70f),
    (0x890, 0x891),
    (0x8e2, 0x8e2),
    (0x180e, 0x180e),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x206f),
    (0xfeff, 0xfeff),
    (0xfff9, 0xfffb),
    (0x1_10bd, 0x1_10bd),
    (0x1_10cd, 0x1_10cd),
    (0x1_3430, 0x1_343f),
    (0x1_bca0, 0x1_bca3),
    (0x1_d173, 0x1_d17a),
    (0xe_0000, 0xe_00ff),
];

/// Whether a character shows as what it is: neither a control character nor a format character. Names that are given
/// have no others; where names from elsewhere are shown, others are escaped.
pub fn shows(c: char) -> bool {
    let number = u32::from(c);
    !c.is_control() && !FORMAT.iter().any(|(first, last)| (*first..=*last).contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_does_not_show() {
        for c in "aÄ中🦀 -'\"\u{301}\u{a0}\u{2010}\u{fe0f}".chars() {
            assert!(shows(c), "{c:?}");
        }
        for c in
            "\0\n\t\u{1b}\u{7f}\u{9b}\u{ad}\u{200b}\u{200d}\u{200e}\u{202a}\u{202e}\u{2028}\u{2029}\
                  \u{2060}\u{2066}\u{2069}\u{feff}\u{fffb}\u{e0001}\u{e0041}\u{e007f}"
                .chars()
        {
            assert!(!shows(c), "{c:?}");
        }
    }
}

//! `key=value` texts of login and discovery (RFC 7143, section 6), and the binary values in them.

use crate::Broken;

/// Longest text that is taken, over all PDUs it is continued in.
pub const TEXT_MAX: usize = 64 << 10;
/// Most keys of one text.
const KEYS_MAX: usize = 256;

/// Pairs in the order of the text.
pub type Pairs = Vec<(String, String)>;

/// Splits a text at its zero bytes and equals signs.
///
/// # Errors
/// [`Broken::Protocol`] for what is no such text.
pub fn parse(bytes: &[u8]) -> Result<Pairs, Broken> {
    let text = std::str::from_utf8(bytes).map_err(|_| Broken::Protocol("a text is not UTF-8"))?;
    let words = text.split('\0').filter(|w| !w.is_empty());
    let pairs = words.map(|word| {
        let (key, value) = word.split_once('=').ok_or(Broken::Protocol("a text without '='"))?;
        Ok((key.to_owned(), value.to_owned()))
    });
    let pairs = pairs.take(KEYS_MAX).collect::<Result<Pairs, Broken>>()?;
    Ok(pairs)
}

/// The bytes of a text.
pub fn encode(pairs: &[(String, String)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in pairs {
        bytes.extend_from_slice(key.as_bytes());
        bytes.push(b'=');
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
    }
    bytes
}

/// `0x...`
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold("0x".to_owned(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

/// A binary value: `0x` and hexadecimal, or `0b` and base64.
pub fn binary(value: &str) -> Option<Vec<u8>> {
    let (kind, digits) = value.split_at_checked(2)?;
    match kind {
        "0x" | "0X" => from_hex(digits),
        "0b" | "0B" => from_base64(digits),
        _ => None,
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let nibbles = digits.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()));
    let mut nibbles = nibbles.collect::<Option<Vec<u8>>>()?;
    if nibbles.len() % 2 == 1 {
        nibbles.insert(0, 0);
    }
    Some(nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn from_base64(digits: &str) -> Option<Vec<u8>> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0_u32);
    for c in digits.trim_end_matches('=').bytes() {
        let value = ALPHABET.iter().position(|a| *a == c)?;
        bits = bits << 6 | u32::try_from(value).ok()?;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xff).ok()?);
            bits &= (1 << held) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_and_garbage_is_refused() {
        let pairs = parse(b"A=1\0B=x=y\0\0").unwrap();
        assert_eq!(pairs, [("A".into(), "1".into()), ("B".into(), "x=y".into())]);
        assert_eq!(encode(&pairs), b"A=1\0B=x=y\0");
        assert!(parse(b"word\0").is_err());
        assert!(parse(&[0xff, b'=']).is_err());
    }

    #[test]
    fn binary_values_in_both_alphabets() {
        assert_eq!(binary("0x0aFF").unwrap(), [0x0a, 0xff]);
        assert_eq!(binary("0xaff").unwrap(), [0x0a, 0xff]);
        assert_eq!(binary("0bQUJDRA==").unwrap(), b"ABCD");
        assert_eq!(hex(&[1, 0xab]), "0x01ab");
        for bad in ["", "0", "0xg0", "0b*", "12"] {
            assert_eq!(binary(bad), None, "{bad}");
        }
    }
}

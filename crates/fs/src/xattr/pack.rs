//! Attributes packed one after the other. Pure; bytes may be hostile.

use braid_format::xattr::RawXattr;
use zerocopy::{FromBytes, IntoBytes};

const HEAD: usize = size_of::<RawXattr>();

/// An attribute in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attribute {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
}

/// Bytes that an attribute takes.
pub(super) fn len_of(name: usize, value: usize) -> usize {
    (HEAD + name + value).next_multiple_of(8)
}

/// All attributes in `area`, which holds nothing else.
///
/// # Errors
/// What is wrong with the bytes.
pub(super) fn decode(area: &[u8]) -> Result<Vec<Attribute>, &'static str> {
    let mut out = Vec::new();
    let mut rest = area;
    while !rest.is_empty() {
        let (head, after) =
            RawXattr::ref_from_prefix(rest).map_err(|_| "attribute beyond its area")?;
        let (name, value) = (usize::from(head.name_len.get()), usize::from(head.value_len.get()));
        let len = usize::from(head.record_len.get());
        if name == 0 || name > super::NAME_MAX || len != len_of(name, value) {
            return Err("length of an attribute");
        }
        let bytes = after.get(..name + value).ok_or("attribute beyond its area")?;
        let (name, value) = bytes.split_at(name);
        out.push(Attribute { name: name.to_vec(), value: value.to_vec() });
        rest = rest.get(len..).ok_or("attribute beyond its area")?;
    }
    Ok(out)
}

/// Bytes that attributes take together.
pub(super) fn total(attributes: &[Attribute]) -> usize {
    attributes.iter().map(|a| len_of(a.name.len(), a.value.len())).sum()
}

/// The reverse of [`decode`]. Names and values fit their length fields: the caller has checked
/// the total against a block.
pub(super) fn encode(attributes: &[Attribute]) -> Vec<u8> {
    let mut out = Vec::with_capacity(total(attributes));
    for a in attributes {
        let len = len_of(a.name.len(), a.value.len());
        let head = RawXattr {
            record_len: u16::try_from(len).unwrap_or(0).into(),
            name_len: u16::try_from(a.name.len()).unwrap_or(0).into(),
            value_len: u16::try_from(a.value.len()).unwrap_or(0).into(),
            flags: 0.into(),
        };
        let end = out.len() + len;
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&a.name);
        out.extend_from_slice(&a.value);
        out.resize(end, 0);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Vec<Attribute> {
        (0..5_usize)
            .map(|i| Attribute { name: format!("user.{i}").into_bytes(), value: vec![7; i * 9] })
            .collect()
    }

    #[test]
    fn packs_and_unpacks() {
        let all = some();
        let bytes = encode(&all);
        assert_eq!(bytes.len(), total(&all));
        assert_eq!(bytes.len() % 8, 0);
        assert_eq!(decode(&bytes).unwrap(), all);
        assert!(decode(&[]).unwrap().is_empty());
    }

    #[test]
    fn hostile_bytes_are_refused_without_panic() {
        let bytes = encode(&some());
        for cut in 1..bytes.len() {
            if let Ok(found) = decode(&bytes[..cut]) {
                assert!(found.len() < 5, "cut at {cut}");
            }
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut broken = bytes.clone();
                broken[at] ^= 1 << bit;
                let _ = decode(&broken);
            }
        }
        assert!(decode(&[0; 16]).is_err());
        assert!(decode(&[0xff; 64]).is_err());
    }
}

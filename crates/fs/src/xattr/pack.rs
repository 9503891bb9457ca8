//! Attributes packed one after the other. Pure; bytes may be hostile.

use braid_format::BlockNo;
use braid_format::xattr::{RawXattr, RawXattrValue};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// Longest name.
pub(super) const NAME_MAX: usize = 255;

/// Largest value that the kernel passes on (`XATTR_SIZE_MAX`).
pub(super) const VALUE_MAX: usize = 65_536;

const HEAD: usize = size_of::<RawXattr>();
const ADDRESS: usize = size_of::<U64>();

/// Where a value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// Beside the name.
    Short(Vec<u8>),
    /// In blocks of its own.
    Long {
        /// Bytes.
        len: usize,
        /// As many as they take.
        blocks: Vec<BlockNo>,
    },
}

impl Value {
    /// Bytes in the value.
    pub fn len(&self) -> usize {
        match self {
            Self::Short(bytes) => bytes.len(),
            Self::Long { len, .. } => *len,
        }
    }
    /// Its own blocks.
    pub fn blocks(&self) -> &[BlockNo] {
        match self {
            Self::Short(_) => &[],
            Self::Long { blocks, .. } => blocks,
        }
    }
}

/// An attribute in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub name: Vec<u8>,
    pub value: Value,
}

impl Attribute {
    /// Bytes that it takes in place.
    pub fn room(&self) -> usize {
        let beside = match &self.value {
            Value::Short(bytes) => bytes.len(),
            Value::Long { blocks, .. } => blocks.len() * ADDRESS,
        };
        len_of(self.name.len(), beside)
    }
}

/// An attribute in place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub name: &'a [u8],
    /// The value, or the addresses of its blocks.
    beside: &'a [u8],
    /// Bytes in a value that is long.
    long: Option<usize>,
}

impl Record<'_> {
    /// Its value, or where that is.
    pub fn value(&self) -> Value {
        let Some(len) = self.long else { return Value::Short(self.beside.to_vec()) };
        let (addresses, _) = self.beside.as_chunks::<ADDRESS>();
        let blocks = addresses.iter().map(|a| BlockNo(u64::from_le_bytes(*a))).collect();
        Value::Long { len, blocks }
    }
    /// A copy.
    pub fn to_attribute(self) -> Attribute {
        Attribute { name: self.name.to_vec(), value: self.value() }
    }
}

/// Bytes that an attribute takes with `beside` bytes beside its name.
pub(super) fn len_of(name: usize, beside: usize) -> usize {
    (HEAD + name + beside).next_multiple_of(8)
}

/// Blocks that a long value takes.
pub(super) fn blocks_for(len: usize, body_len: usize) -> usize {
    len.div_ceil(RawXattrValue::capacity(body_len).max(1))
}

/// All attributes in `area`, which holds nothing else, of an inode in bodies of `body_len`. After an
/// error nothing follows.
///
/// # Errors
/// What is wrong with the bytes.
pub(crate) fn records(
    area: &[u8],
    body_len: usize,
) -> impl Iterator<Item = Result<Record<'_>, &'static str>> {
    let mut rest = area;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let next = first(rest, body_len);
        rest = next.as_ref().map_or(&[], |(_, rest)| rest);
        Some(next.map(|(record, _)| record))
    })
}

/// The first attribute, and what follows it.
fn first(area: &[u8], body_len: usize) -> Result<(Record<'_>, &[u8]), &'static str> {
    const BEYOND: &str = "attribute beyond its area";
    let (head, after) = RawXattr::ref_from_prefix(area).map_err(|_| BEYOND)?;
    let name = usize::from(head.name_len);
    let value = usize::try_from(head.value_len.get()).map_err(|_| "length of an attribute")?;
    let (beside, long) = match head.flags {
        0 => (value, None),
        RawXattr::LONG => (blocks_for(value, body_len) * ADDRESS, Some(value)),
        _ => return Err("flags of an attribute"),
    };
    let len = usize::from(head.record_len.get());
    if name == 0 || value > VALUE_MAX || long == Some(0) || len != len_of(name, beside) {
        return Err("length of an attribute");
    }
    let bytes = after.get(..name + beside).ok_or(BEYOND)?;
    let (name, beside) = bytes.split_at(name);
    Ok((Record { name, beside, long }, area.get(len..).ok_or(BEYOND)?))
}

/// Copies of what [`records`] shows.
///
/// # Errors
/// What is wrong with the bytes.
pub(crate) fn decode(area: &[u8], body_len: usize) -> Result<Vec<Attribute>, &'static str> {
    records(area, body_len).map(|r| r.map(Record::to_attribute)).collect()
}

/// Bytes that attributes take together.
pub(super) fn total(attributes: &[Attribute]) -> usize {
    attributes.iter().map(Attribute::room).sum()
}

/// The reverse of [`records`].
///
/// # Errors
/// When a name, a value or the attribute is longer than its field can say.
pub(crate) fn encode(attributes: &[Attribute]) -> Result<Vec<u8>, &'static str> {
    const LONG: &str = "attribute longer than its record can say";
    let mut out = Vec::with_capacity(total(attributes));
    for a in attributes {
        if a.name.is_empty() || a.name.len() > NAME_MAX || a.value.len() > VALUE_MAX {
            return Err(LONG);
        }
        let len = a.room();
        let flags = if matches!(a.value, Value::Long { .. }) { RawXattr::LONG } else { 0 };
        let head = RawXattr {
            record_len: u16::try_from(len).map_err(|_| LONG)?.into(),
            name_len: u8::try_from(a.name.len()).map_err(|_| LONG)?,
            flags,
            value_len: u32::try_from(a.value.len()).map_err(|_| LONG)?.into(),
        };
        let end = out.len() + len;
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&a.name);
        match &a.value {
            Value::Short(bytes) => out.extend_from_slice(bytes),
            Value::Long { blocks, .. } => {
                for block in blocks {
                    out.extend_from_slice(&block.get().to_le_bytes());
                }
            }
        }
        out.resize(end, 0);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: usize = 3584;

    fn some() -> Vec<Attribute> {
        let short = (0..5_usize).map(|i| Attribute {
            name: format!("user.{i}").into_bytes(),
            value: Value::Short(vec![7; i * 9]),
        });
        let long = [1, 3536, 3537, VALUE_MAX].map(|len| Attribute {
            name: format!("user.long.{len}").into_bytes(),
            value: Value::Long {
                len,
                blocks: (0..blocks_for(len, BODY) as u64).map(|n| BlockNo(n << 40 | 5)).collect(),
            },
        });
        short.chain(long).collect()
    }
    fn decode(bytes: &[u8]) -> Result<Vec<Attribute>, &'static str> {
        super::decode(bytes, BODY)
    }

    #[test]
    fn packs_and_unpacks() {
        let all = some();
        let bytes = encode(&all).unwrap();
        assert_eq!(bytes.len(), total(&all));
        assert_eq!(bytes.len() % 8, 0);
        assert_eq!(decode(&bytes).unwrap(), all);
        assert!(decode(&[]).unwrap().is_empty());
        assert_eq!(blocks_for(VALUE_MAX, BODY), 19);
    }

    #[test]
    fn what_no_record_can_say_is_refused() {
        for (name, len) in [(0, 1), (NAME_MAX + 1, 1), (5, VALUE_MAX + 1), (5, 65_530)] {
            let one = Attribute { name: vec![b'n'; name], value: Value::Short(vec![0; len]) };
            assert!(encode(&[one]).is_err(), "name {name}, value {len}");
        }
    }

    #[test]
    fn hostile_bytes_are_refused_without_panic() {
        let all = some().len();
        let bytes = encode(&some()).unwrap();
        for cut in 1..bytes.len() {
            if let Ok(found) = decode(&bytes[..cut]) {
                assert!(found.len() < all, "cut at {cut}");
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

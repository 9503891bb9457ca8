//! Arguments of a message: fields one behind the other, little-endian, byte strings behind their length.

use braid_format::InodeNo;

/// Longest name of a file, a pool or a client, bytes.
pub const NAME_MAX: usize = 255;

/// Writes arguments.
#[derive(Debug, Default)]
pub struct FieldWriter(Vec<u8>);

impl FieldWriter {
    /// What was written.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }
    /// Two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.fixed(&value.to_le_bytes())
    }
    /// Four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.fixed(&value.to_le_bytes())
    }
    /// Eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.fixed(&value.to_le_bytes())
    }
    /// Bytes whose number both sides know.
    pub fn fixed(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
    /// A byte string: its length in two bytes, then the bytes.
    ///
    /// # Panics
    /// It is longer than 65,535 bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u16(u16::try_from(bytes.len()).expect("a short string")).fixed(bytes)
    }
}

/// Reads arguments. `None`: they end too early, or a value is none of the field's.
#[derive(Debug)]
pub struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    /// Of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
    /// What is left.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
    /// Nothing may be left.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }
    /// Two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    /// `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }
    /// A byte string of at most `most` bytes.
    pub fn bytes(&mut self, most: usize) -> Option<&'a [u8]> {
        let len = usize::from(self.u16()?);
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        (len <= most).then_some(bytes)
    }
}

/// An inode's number.
pub fn ino(from: &mut FieldReader<'_>) -> Option<InodeNo> {
    from.u64().map(InodeNo)
}

/// A name that a directory can hold.
pub fn name(from: &mut FieldReader<'_>) -> Option<Vec<u8>> {
    let name = from.bytes(NAME_MAX)?;
    let dots = matches!(name, b"" | b"." | b"..");
    let good = !dots && !name.contains(&b'/') && !name.contains(&0);
    good.then(|| name.to_vec())
}

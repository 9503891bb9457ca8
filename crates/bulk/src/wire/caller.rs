//! Who asks: the user at a client for whom a mount sends a request.

use super::fields::{FieldReader, FieldWriter};
use super::header::{FrameError, Header};

/// Most groups of a user, besides the first.
pub const GROUPS_MAX: usize = 64;

/// The user for whom a client asks, and which inodes he means. It stands before the arguments of a request whose
/// header says so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Generations of the inodes that the request names, in its order. 0: any.
    pub generations: [u64; 2],
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The other groups.
    pub groups: Vec<u32>,
}

impl Caller {
    /// As it stands before the arguments. Groups that are too many are left out.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = FieldWriter::default();
        let groups = self.groups.get(..GROUPS_MAX).unwrap_or(&self.groups);
        to.u64(self.generations[0]).u64(self.generations[1]).u32(self.uid).u32(self.gid);
        to.u8(u8::try_from(groups.len()).unwrap_or(u8::MAX));
        for group in groups {
            to.u32(*group);
        }
        to.finish()
    }

    /// Takes it off the arguments of a message, if it is there: who asks, and the rest.
    ///
    /// # Errors
    /// It should be there, and is not.
    pub fn split<'a>(
        header: &Header,
        args: &'a [u8],
    ) -> Result<(Option<Self>, &'a [u8]), FrameError> {
        if !header.prefixed {
            return Ok((None, args));
        }
        let mut from = FieldReader::new(args);
        let caller = Self::read(&mut from).ok_or(FrameError::Arguments { op: header.op })?;
        Ok((Some(caller), from.rest()))
    }

    fn read(from: &mut FieldReader<'_>) -> Option<Self> {
        let generations = [from.u64()?, from.u64()?];
        let (uid, gid, count) = (from.u32()?, from.u32()?, usize::from(from.u8()?));
        if count > GROUPS_MAX {
            return None;
        }
        let groups = (0..count).map(|_| from.u32()).collect::<Option<_>>()?;
        Some(Self { generations, uid, gid, groups })
    }
}

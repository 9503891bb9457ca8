//! Which node of a pool serves. Pure.

use braid_format::lock_record::Life;
use braid_format::{Incarnation, NodeId};

use super::fields::{FieldReader, FieldWriter};

/// A node of a pool from when it joins until it leaves or dies. No two are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerLife {
    /// The file system's own number.
    pub pool: [u8; 16],
    /// The node's slot and which of its lives.
    pub life: Life,
}

impl ServerLife {
    /// 22 bytes.
    pub fn put(&self, to: &mut FieldWriter) {
        to.fixed(&self.pool).u16(self.life.slot.0).u32(self.life.incarnation.0);
    }
    /// Reads one.
    pub fn take(from: &mut FieldReader<'_>) -> Option<Self> {
        let pool = from.array()?;
        let life = Life { slot: NodeId(from.u16()?), incarnation: Incarnation(from.u32()?) };
        Some(Self { pool, life })
    }
}

//! A member of a pool, as an order names it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A member, by its place when it was named and by its identity, because places change when members come and go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberId {
    /// Its place in the pool.
    pub place: u16,
    /// Its identity.
    pub uuid: String,
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

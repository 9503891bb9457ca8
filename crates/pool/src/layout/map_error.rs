//! Why a topology cannot be compiled to a map.

use thiserror::Error;

/// Why a topology cannot be mapped.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MapError {
    /// A kind of node that this version does not serve.
    #[error(
        "the pool's topology has a {what}; this version of braid cannot serve it, use a newer one"
    )]
    Unsupported {
        /// What it is.
        what: &'static str,
    },
    /// A node that is not in the table (a label that was not verified).
    #[error("topology node {node} does not exist")]
    NoSuchNode {
        /// Its index.
        node: u16,
    },
}

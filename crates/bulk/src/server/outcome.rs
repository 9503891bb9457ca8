//! What a request comes to.

use braid_fs::Answer;

use crate::wire::{Reply, Status};

/// A reply, and how many bytes of the buffer go with it.
pub type Outcome = Result<(Reply, usize), Status>;

/// What the client is told of an answer of the file system.
pub fn seen<T>(answer: Answer<T>) -> Result<T, Status> {
    answer.map_err(Status::of)
}

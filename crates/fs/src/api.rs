//! The facade: every call that fronts may make.

use std::sync::Arc;

use crate::core::Core;

/// A mounted file system. Cheap to clone; thread-safe; calls block.
#[derive(Clone)]
pub struct Fs {
    core: Arc<Core>,
}

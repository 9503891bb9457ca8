//! Why a device operation failed.

use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};
use thiserror::Error;

/// A device operation that failed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The system refused or failed the operation.
    #[error("{device}: {operation} at {at}: {source}")]
    Io {
        /// Device.
        device: Arc<str>,
        /// What was tried.
        operation: &'static str,
        /// Where.
        at: ByteOffset,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// Offset or length is not a multiple of the sector.
    #[error("{device}: {len} bytes at {at} are not whole sectors")]
    Unaligned {
        /// Device.
        device: Arc<str>,
        /// Where.
        at: ByteOffset,
        /// How many.
        len: Bytes,
    },
    /// The range ends beyond the device.
    #[error("{device}: {len} bytes at {at} end beyond the device")]
    OutOfRange {
        /// Device.
        device: Arc<str>,
        /// Where.
        at: ByteOffset,
        /// How many.
        len: Bytes,
    },
    /// A flush failed before: what was written may be lost.
    #[error("{device}: a flush failed earlier; nothing written since can be trusted")]
    Poisoned {
        /// Device.
        device: Arc<str>,
    },
}

//! What the kernel and this process agreed on in the greeting.

use braid_format::Bytes;

/// What kernel and transport agreed on.
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Minor version in use.
    pub minor: u32,
    /// `init::*` in use.
    pub flags: u64,
    /// Largest payload of a WRITE.
    pub max_write: Bytes,
    /// The kernel may cache attributes.
    pub cache_attributes: bool,
    /// The kernel may cache names: see [`crate::options::CacheNames`]. [`crate::session::Session::serve`] knows whether the file
    /// system has a single node only.
    pub cache_names: bool,
    /// Contents are cached by the kernel.
    pub cache_data: bool,
    /// Pages of mapped files stay from one open to the next.
    pub keep_pages: bool,
}

//! One system call: what the kernel is asked to do, and how many calls it may have at once.

/// Transfers in flight per engine; more wait their turn. Deep enough for a stripe of 256 members
/// to stay busy, small enough for the memory-lock limits of old kernels.
pub(crate) const DEPTH: usize = 256;

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
}

/// One system call's worth of a transfer. Its memory must stay valid until the engine reports the
/// call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub kind: Kind,
    pub fd: i32,
    pub at: u64,
    pub memory: Memory,
}

/// Where the bytes of a call are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Memory {
    /// In one place, so many.
    Plain(*mut u8, u32),
    /// In so many places, one after the other.
    Vectors(*const libc::iovec, u32),
}

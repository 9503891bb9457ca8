//! Bounds of what a connection may take.

/// Most bytes that one command moves.
pub const TRANSFER_MAX: usize = 4 << 20;
/// Most commands of one session under way.
pub const WINDOW: u32 = 64;
/// Most of them, those outside the order of commands (immediate ones) counted.
pub const COMMANDS_MAX: usize = 128;

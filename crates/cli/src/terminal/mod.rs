//! What the user sees: sizes and tables, progress, output that nobody reads any more.

pub mod broken_pipe;
pub mod size;
pub mod ui;

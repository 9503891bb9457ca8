//! What the user sees: sizes and tables, progress, output that nobody reads any more.

pub mod lost_output;
pub mod size;
pub mod ui;

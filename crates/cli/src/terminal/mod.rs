//! What the user sees: answers for people and for programs, sizes and tables, progress, output that nobody reads any more.

pub mod answer;
pub mod lost_output;
pub mod size;
pub mod ui;

//! From the words of a command line to a pool: its name or devices, and the shape it shall have.

pub mod properties;
pub mod shape;
pub mod sources;
pub mod subpools;
pub mod topology;

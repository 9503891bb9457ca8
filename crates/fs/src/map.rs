//! A file's extents: which pool blocks hold which file blocks.

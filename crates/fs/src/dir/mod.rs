//! Directories: entries in the dinode's tail, or in a tree of leaves keyed by cookie.

//! Index nodes of the B+trees whose root stands in a dinode's tail: extents keyed by file block,
//! directory entries keyed by cookie.
//!
//! `tree_height` 0: the tail holds the leaf's contents itself. `tree_height` h > 0: the tail holds
//! `tail_count` index entries whose children are of level h-1; leaves are level 0.

//! A node's journal: the ring of sealed records. Written by [`crate::meta`], read by
//! [`crate::replay`].

//! What requests are answered by: the file system as a trait ([`files`]), the real one ([`braid`]), and its
//! values in the kernel's form ([`wire`]).

mod braid;
pub(crate) mod files;
pub(crate) mod wire;

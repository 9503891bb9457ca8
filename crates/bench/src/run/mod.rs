//! How a mode is run: in rounds until the result is known well enough, with a known cache state, with the load
//! of other programs noticed and the machine recorded.

pub(crate) mod cache;
pub(crate) mod environment;
pub(crate) mod journal;
pub(crate) mod load;
pub(crate) mod names;
pub(crate) mod repeat;

//! How it is run: rounds in turn until it is known well enough, caches in a known state, load of
//! others noticed, the machine written down.

pub(crate) mod cache;
pub(crate) mod cpu;
pub(crate) mod environment;
pub(crate) mod load;
pub(crate) mod names;
pub(crate) mod repeat;

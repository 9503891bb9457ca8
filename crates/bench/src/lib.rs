//! The measuring kit: what storage does, layer by layer, in one run on the same devices.
//!
//! Honest by construction: compared systems are measured in turn within one run, repeated, and
//! reported as median with spread and as ratio to the raw devices; data goes past the page cache
//! unless a row says otherwise; CPU time is the whole machine's, so that work done by kernel
//! threads and servers is counted too.

#![forbid(unsafe_code)]

mod buffered;
pub mod cli;
mod cpu;
mod ladder;
mod memory;
mod meta;
mod report;
mod rig;
mod stats;
mod streams;

//! The measuring kit: what storage does, layer by layer, in one run on the same devices.
//!
//! Honest by construction: compared systems are measured in turn within one run, repeated until it is
//! known well enough or the budget is used up, and reported as median with spread and as ratio to
//! the first of them; the state of the cache is brought about and said; CPU time is the whole
//! machine's, so that work done by kernel threads and servers is counted too.
//!
//! | folder | what it does | never |
//! |---|---|---|
//! | `engine` | issues requests and times them | knows what is compared |
//! | `run` | rounds, intervals, caches, load of others, environment | issues a request |
//! | `live` | what is shown meanwhile, and how a run is stopped | decides what is measured |
//! | `modes` | one file for each thing that can be measured | draws |
//! | `front` | command lines of lmbench's lmdd and of xdd | |
//! | `report` | results as JSON, tables, gates, pages | measures |
//! | `rig` | backing files, loop devices, mounts that a mode makes for itself | |

#![forbid(unsafe_code)]

pub mod cli;
mod engine;
pub mod front;
mod live;
mod modes;
mod report;
mod rig;
mod run;

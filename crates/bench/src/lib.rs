//! The measuring kit: what storage does, layer by layer, in one run on the same devices.
//!
//! Honest by construction: compared systems are measured in turn within one run, repeated until it is
//! known well enough or the budget is used up, and reported as median with spread and as ratio to
//! the first of them; the state of the cache is brought about and said; CPU time is the whole
//! machine's, so that work done by kernel threads and servers is counted too.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  statistics  samples, intervals, and how numbers are written
//!  progress    what is shown while it runs, and how a run is stopped
//!  run         rounds, caches, load of others, environment: issues no request
//!  engine      issues requests and times them: knows nothing of what is compared
//!  report      results as JSON, tables, gates, pages: measures nothing
//!  arguments   what several modes take on the command line
//!  testbed     backing files, loop devices and mounts that a mode makes for itself
//!  compat      command lines of lmbench's lmdd and of xdd
//!  modes       one file for each thing that can be measured
//!  cli         the command line
//! ```

#![forbid(unsafe_code)]

mod arguments;
pub mod cli;
pub mod compat;
mod engine;
mod modes;
mod progress;
mod report;
mod run;
mod statistics;
mod testbed;

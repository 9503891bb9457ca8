//! The benchmark: what storage does, layer by layer, in one run on the same devices.
//!
//! How it keeps comparisons honest: all systems are measured in turn within one run. Rounds repeat until
//! the result is known well enough or the budget is used up. Results are medians with their spread, and
//! ratios to the first system. The cache state is brought about and labelled. CPU time is that of the whole
//! machine, so that the work of kernel threads and servers counts.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  statistics  samples, confidence intervals, how numbers are printed
//!  progress    what is shown while it runs, and how a run is stopped
//!  run         rounds, cache states, load of other programs, the machine: issues no request
//!  engine      issues requests and times them: knows nothing of what is compared
//!  report      results as JSON, tables, verdicts, pages: measures nothing
//!  arguments   options that several modes have
//!  testbed     backing files, loop devices and mounts that a mode makes for itself
//!  compat      command lines of lmbench's lmdd and of xdd
//!  modes       one file for each kind of measurement
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

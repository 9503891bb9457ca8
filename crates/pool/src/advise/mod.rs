//! Advice on the shape of a pool, from measurement: which stripe unit, width, request size and order
//! of members, how many disks a controller carries, and what a present layout costs.
//!
//! `measure` asks a [`Bench`] how fast members are alone and together; [`rules`] and [`classes`] are
//! pure functions of what it said. The guidelines are those of the documents in which striping file systems were
//! first measured; each piece of advice quotes its own.

pub mod bench;
pub mod classes;
pub mod measure;
pub mod rules;

pub use bench::DeviceBench;
pub use measure::{Bench, Measurements, Run, Shared, measure};
pub use rules::{Advice, Finding, Guideline, advise, judge};

#[cfg(test)]
mod tests;

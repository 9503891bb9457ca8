//! What tests of several crates share, and the runner of all tests. No crate that ships uses it, and it uses
//! none of them. Devices for tests (`ScriptedDevice` and others) are in `braid-device`, whose own tests use them.

#![forbid(unsafe_code)]

mod pattern;
mod sample;
mod skip;
mod wait;

pub use pattern::pattern;
pub use sample::{ALL_PLACES, places};
pub use skip::{REQUIRE_ALL, SKIPPED, skip, skip_without_network};
pub use wait::{PATIENCE, wait_until};

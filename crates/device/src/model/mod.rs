//! Disk models: what a request would take on disks and buses that are not there.
//!
//! A [`ModelDevice`](crate::modelled::ModelDevice) keeps its bytes on another device and takes the time
//! of a [`DiskModel`] on a [`Bus`], both driven by a [`ModelClock`] in virtual or in real time. The same inputs give the same
//! nanoseconds, on every machine: there is no randomness and no floating-point number.
//!
//! | part | module | what it is |
//! |---|---|---|
//! | parameters | `disk`, `bus`, [`presets`] | numbers of data sheets |
//! | mechanism | `mechanism` | pure: access and time in, time out |
//! | machine | `machine` | pure: requests in, completions out; queues, controllers, buses, caches |
//! | driver | `clock` | virtual or real time |
//!
//! Above it [`crate::modelled`] has the device, and closed-loop clients.
//!
//! # Closed forms
//!
//! With `T` bytes in a track, rotation `R`, media rate `m = T / R`, switch `h` between tracks and `c`
//! between cylinders of `H` tracks, command overhead `o`, bus rate `b`, command time on the bus `q`:
//!
//! * **sequential, queued** (something always waits): `H T / (H R + (H - 1) h + c)`
//!   ([`DiskModel::sequential_rate`]); the skew hides switches, no rotation is lost.
//! * **sequential, one request of `L` at a time**: the next request comes `o` after its sector
//!   passed and waits for it. Without switches: `L / (L / m + R)`, whatever `o` is, as long as
//!   `0 < o <= R`. With `L = n T` that is `n / (n + 1)` of `m`. Every part of a rotation of which
//!   `o` is more costs a rotation more: `ceil(o / R)`.
//! * **read-ahead**: the same reads run at the sequential rate while `o` and the bus take less
//!   than the reading.
//! * **random, one at a time**: `L / (o + seek + R / 2 + L / m)` on average.
//! * **several disks on a bus**: `min(n m, L / (L / b + q))` ([`Bus::shared_rate`]); without disconnect
//!   the disks of a bus take turns, so that `n` of them are as fast as one.
//! * **stripe of `n`, request of `k` units at a time**: `k` disks work, so a request takes as long as
//!   one of a full row: `k / n` of its rate where the service time of a unit does not
//!   depend on when it begins (no rotation, or random places).
//!
//! What is left out: zones of different density (take the model of the zone in question), bad
//! sectors, thermal recalibration, spindles that are not in step (the first byte of all disks is
//! under the head at time 0), and limits of the disk's buffer.

mod bus;
mod clock;
mod disk;
mod machine;
mod mechanism;
pub mod presets;
mod time;

pub use bus::{Bus, BusStats};
pub use clock::{ModelBus, ModelClock, Ticket};
pub use disk::{DiskModel, ModelError, Order, Seek};
pub use machine::DiskStats;
pub(crate) use machine::Work;
pub use mechanism::{Access, Mechanism, MechanismStats};
pub use time::{Rate, Time};

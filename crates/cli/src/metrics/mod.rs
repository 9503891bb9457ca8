//! Metrics of a mounted node over HTTP, for Prometheus and whatever else reads its formats.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  families   what there is: names, units, labels, meanings; docs/metrics.md is made of it
//!  samples    values of these, gathered from a node when somebody asks
//!  text       samples in OpenMetrics' text format, or in Prometheus' older one
//!  address    where the option says that they are served
//!  serve      HTTP
//! ```

mod address;
mod families;
mod samples;
mod serve;
mod text;

pub use address::Address;
pub use serve::{Server, Socket};

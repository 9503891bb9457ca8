//! One storage device: read, write, flush, compare-and-write.

mod buffer;
mod error;
mod file;
mod memory;
mod run;
mod traits;

pub use buffer::AlignedBuf;
pub use error::DeviceError;
pub use file::{Direct, FileDevice, OpenOptions, default_engine, in_use};
pub use memory::MemoryDevice;
pub use run::{IoQueue, Op, OwnedOp, Part, Request, run};
pub use traits::{ByteLockGuard, Capabilities, CawOutcome, Device, DeviceInfo};

//! One storage device: read, write, flush, compare-and-write.
//!
//! [`Device`] is what the layers above see. [`FileDevice`] is the real one (a file or a block device),
//! [`IscsiDevice`] a unit of a target in the network; [`open()`] takes either's name. [`MemoryDevice`],
//! [`FaultyDevice`] and [`RecordingDevice`] are for tests, [`model::ModelDevice`] takes the time of a
//! disk that is not there. [`run()`] puts many requests on many devices in flight at once; [`IoQueue`] is
//! a sliding window of them.
//!
//! Invariants:
//! * memory given to the kernel is neither freed nor reused before the kernel has given it back,
//!   whatever panics or ends in between;
//! * a request in flight has no timeout: it ends when the device ends it;
//! * a completed write is not durable before a later flush succeeds, and after a failed flush the
//!   device takes no more writes;
//! * this is the only crate with `unsafe` code: the buffers, the engines, a few ioctls.
//!
//! Map, bottom up (a module uses only those above it):
//! ```text
//!  moment              a clock that goes on while the host is suspended
//!  random, processors  numbers from a seed; on which processors a thread runs
//!  huge, buffer        memory for I/O
//!  mount_table         the mounts that a process sees
//!  own_mount           walks in a file system that this process serves
//!  error               why a device operation failed
//!  traffic             counts and sizes of requests
//!  traits              what a device is
//!  request             one request, and what is checked before and said after it
//!  block, host_locks   block devices under this kernel; locks that all of this host see
//!  backing             the bytes that a name stands for: loop devices, and what is under them
//!  in_use              whether somebody uses a device
//!  signature           what else may be on a device: other people's file systems, volume managers, tables
//!  memory, recording, faulty  devices for tests
//!  model               what a request would take on disks and buses that are not there
//!  command             commands by io_uring to a descriptor that the kernel keeps
//!  engine              how transfers reach the kernel
//!  scsi                commands and sense data; the kernel's way to a disk
//!  file                files and block devices
//!  iscsi               units of iSCSI targets
//!  run                 many requests on many devices at once
//!  queue               a sliding window of requests
//!  counted, pass_on, scratch  devices over another one
//!  open                from a name to a device
//! ```

mod backing;
mod block;
mod buffer;
mod command;
mod counted;
mod engine;
mod error;
mod faulty;
mod file;
mod host_locks;
mod huge;
mod in_use;
mod iscsi;
mod memory;
pub mod model;
mod moment;
mod mount_table;
mod open;
pub mod own_mount;
#[doc(hidden)]
pub mod pass_on;
pub mod processors;
mod queue;
mod random;
mod recording;
mod request;
mod run;
mod scratch;
pub mod scsi;
mod signature;
mod traffic;
mod traits;

pub use backing::Backing;
pub use buffer::AlignedBuf;
pub use command::CommandRing;
pub use counted::CountedDevice;
pub use engine::default_engine;
pub use error::DeviceError;
pub use faulty::{Counts, Fault, FaultKind, FaultPlan, FaultyDevice, On};
pub use file::{Direct, FileDevice, OpenOptions};
pub use huge::{HugeBuf, HugePages, fit_memory, fitting, memory_part};
pub use in_use::{InUse, in_use};
pub use iscsi::{IscsiDevice, UnitName, redacted, without_secrets};
pub use memory::MemoryDevice;
pub use moment::Moment;
pub use mount_table::{MountTable, TableEntry};
pub use open::{exists, open};
pub use queue::{IoQueue, OwnedOp, Part};
pub use recording::{Event, RecordingDevice, Replay};
pub use request::{Op, Request};
pub use run::run;
pub use scratch::ScratchDevice;
pub use scsi::{Reservation, ReservationKind};
pub use signature::{Foreign, probe};
pub use traffic::{IoCounters, Issued, SIZE_CLASSES, Traffic};
pub use traits::{
    ByteLockGuard, CAW_MAX, CHANGE_BYTE, Capabilities, CawOutcome, Device, DeviceInfo,
    Reservations, RingTarget,
};

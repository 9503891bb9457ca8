//! One storage device: read, write, flush, compare-and-write.
//!
//! [`Device`] is what the layers above see: it does a [`Command`] at a time, and has [`Abilities`] besides. [`FileDevice`] is the real one (a file or a block device),
//! [`IscsiDevice`] a unit of a target in the network; [`open()`] takes either's name. [`MemoryDevice`],
//! [`FaultyDevice`], [`RecordingDevice`] and [`ScriptedDevice`] are for tests, [`modelled::ModelDevice`] takes the time of a
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
//!  command_ring        commands by io_uring to a descriptor that the kernel keeps
//!  mount_table         the mounts that a process sees
//!  own_mount           walks in a file system that this process serves
//!  user_dir            where the processes of one user find one another
//!  options             how a device is opened
//!  error               why a device operation failed
//!  command             what a device is asked to do, and what comes of it
//!  times               how long things took, in classes
//!  traffic             counts and sizes of requests
//!  info                what a device is
//!  abilities           what only some devices can do
//!  tasks               what threads are doing, and what they wait for
//!  freeze_gate         changes that wait for a while
//!  block, host_locks   block devices under this kernel; locks that all of this host see
//!  lock_holder         the process that holds one of those locks
//!  backing             the bytes that a name stands for: loop devices, and what is under them
//!  hold                keeps other programs from a block device that nodes of this host share
//!  in_use              whether somebody uses a device
//!  scsi                commands and sense data; the kernel's way to a disk
//!  iscsi               units of iSCSI targets
//!  model               what a request would take on disks and buses that are not there
//!  traits              what a device does
//!  request             one request of a batch
//!  engine              how transfers reach the kernel
//!  memory, recording, faulty, scripted  devices for tests
//!  file, iscsi_device, modelled  devices that are there, or take the time of one
//!  signature           what else may be on a device: other people's file systems, volume managers, tables
//!  bounded             disks and files that are given up when they answer nothing
//!  run                 many requests on many devices at once
//!  queue               a sliding window of requests
//!  counted, scratch    devices over another one
//!  answers             whether devices answer, found out by a process that may hang
//!  open                from a name to a device
//! ```

mod abilities;
pub mod answers;
mod backing;
mod block;
pub mod bounded;
mod buffer;
mod command;
mod command_ring;
mod counted;
mod engine;
mod error;
mod faulty;
mod file;
mod freeze_gate;
mod hold;
mod host_locks;
mod huge;
mod in_use;
mod info;
mod iscsi;
mod iscsi_device;
mod lock_holder;
mod memory;
pub mod model;
pub mod modelled;
mod moment;
mod mount_table;
mod open;
mod options;
pub mod own_mount;
pub mod processors;
mod queue;
mod random;
mod recording;
mod request;
mod run;
mod scratch;
mod scripted;
pub mod scsi;
mod signature;
pub mod tasks;
mod times;
mod traffic;
mod traits;
mod user_dir;

pub use abilities::{
    Abilities, AnswerBound, ByteLockGuard, CHANGE_BYTE, LivenessLocks, Reservation,
    ReservationKind, Reservations, Session,
};
pub use backing::Backing;
pub use bounded::BoundedDevice;
pub use buffer::AlignedBuf;
pub use command::{CawOutcome, Command, CommandKind, Completion, Op};
pub use command_ring::CommandRing;
pub use counted::CountedDevice;
pub use engine::default_engine;
pub use error::{DeviceError, Silent};
pub use faulty::{Counts, Fault, FaultKind, FaultPlan, FaultyDevice, On};
pub use file::FileDevice;
pub use freeze_gate::{Change, FreezeGate};
pub use hold::{Hold, Holding};
pub use host_locks::liveness_byte;
pub use huge::{HugeBuf, HugePages, fit_memory, fitting, memory_part};
pub use in_use::{InUse, file_systems_under, in_use};
pub use info::{CAW_MAX, Capabilities, DeviceInfo};
pub use iscsi::{IscsiDevice, Portal, UnitList, UnitName, UnitNumber, redacted, without_secrets};
pub use lock_holder::LockHolder;
pub use memory::MemoryDevice;
pub use moment::Moment;
pub use mount_table::{MountTable, TableEntry};
pub use open::{exists, open};
pub use options::{Direct, OpenOptions};
pub use queue::{IoQueue, OwnedOp, Part};
pub use recording::{Event, RecordingDevice, Replay};
pub use request::Request;
pub use run::run;
pub use scratch::ScratchDevice;
pub use scripted::{Noted, Power, Rule, ScriptedDevice};
pub use signature::{Foreign, probe};
pub use times::{TimeCounters, Times};
pub use traffic::{IoCounters, Issued, SIZE_CLASSES, Traffic};
pub use traits::{BufferedTarget, Device, Intact, RingTarget, Route, Threaded, Timed, UnderWay};
pub use user_dir::{in_user_dir, user_dir};

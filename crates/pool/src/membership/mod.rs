//! Which devices and which nodes take part in a pool, agreed by all nodes: changes of the epoch.
//!
//! [`epoch`] is where to begin. A change is claimed ([`claims`]), devices join in it ([`joining`]), the
//! labels are written, and the redundancy log is written to its replicas in the new epoch
//! ([`log_replicas`]). Members that fail are taken out ([`fail_members`]), a move whose successor has
//! missed something ends ([`migration`]), labels that are damaged are healed ([`heal`]), a change that a dead
//! node began is completed ([`unfinished_epoch`]), and a change that failed is taken back
//! ([`epoch_rollback`]). What changes is told to the pool's history ([`history`]).

pub(crate) mod claims;
pub(crate) mod device_checks;
pub(crate) mod epoch;
mod epoch_rollback;
mod events;
mod fail_members;
pub(crate) mod fencing;
mod history;
pub(crate) mod joining;
mod label_repair;
pub(crate) mod liveness;
pub(crate) mod log_replicas;
mod migration;
pub(crate) mod selector;
pub(crate) mod sharing;
pub(crate) mod unfinished_epoch;

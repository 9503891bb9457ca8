//! Making a pool, putting one together from its members, and bringing back labels that are lost.

pub mod assemble;
pub mod create;
mod lost_labels;
pub mod member_verify;
pub mod restore;

pub(crate) use assemble::one_pool;
pub(crate) use create::check_name;

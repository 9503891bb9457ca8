//! Requests that wait, and what ends their waits.
//!
//! ```text
//!  handle_lookups  lookups by file handle: so many at once
//!  interrupts      waits that a signal may end
//!  killed          requests of killed programs: their waits end
//!  lock_owners     whose locks came through which file
//!  lock_waits      requests that wait for a lock of another program
//!  user_shares     how many threads the requests of one user keep busy
//! ```

pub(crate) mod handle_lookups;
pub(crate) mod interrupts;
pub(crate) mod killed_programs;
pub(crate) mod lock_owners;
pub(crate) mod lock_waits;
pub(crate) mod user_shares;

//! How messages come from the kernel and answers go back: by the device, or by io_uring.
//!
//! ```text
//!  request          a message, checked
//!  reply            answers and notifications: one writev each, or what a ring entry gives back
//!  ring             an entry of a queue that requests come by through io_uring
//!  payloads, space  memory for large messages, bounded; that of a thread for one message
//!  queue            requests that wait while all threads are busy
//!  poller           waiting for the next request
//!  cpu_latency      how deep idle processors sleep meanwhile
//! ```

pub(crate) mod cpu_latency;
pub(crate) mod payloads;
pub(crate) mod poller;
pub(crate) mod queue;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod ring;
pub(crate) mod space;

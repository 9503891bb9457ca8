//! What can go wrong.

use std::io;

use braid_fs::Errno;
use thiserror::Error;

use crate::wire::{FrameError, Status};

/// Why a connection is of no use any more.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The other side has closed it, and no message had begun.
    #[error("the other side has closed the connection")]
    Closed,
    /// It ended inside a message.
    #[error("the connection was cut inside a message")]
    Cut,
    /// Nothing was asked for in the time that a connection may be idle.
    #[error("the connection was idle for too long")]
    Idle,
    /// The server has as many clients or connections as it allows.
    #[error("the server has as many clients or connections as it allows")]
    Full,
    /// A message did not go on.
    #[error("the other side takes or sends too few bytes")]
    Slow,
    /// Bytes that are no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The system's.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why a request has come to nothing.
#[derive(Debug, Error)]
pub enum Error {
    /// The file system's answer.
    #[error("{}", io::Error::from(*.0))]
    Errno(Errno),
    /// The server does not take the request.
    #[error("{0}")]
    Refused(Status),
    /// The server speaks another version.
    #[error("the server speaks version {0} of the protocol, this program version {ours}", ours = crate::wire::VERSION)]
    Version(u32),
    /// The server answers something that is no answer.
    #[error("the server's answer makes no sense: {0}")]
    Answer(FrameError),
    /// The server was started anew, or has forgotten the client, after it was asked for something that must
    /// not be done twice: nobody knows whether it was done.
    #[error("the server has forgotten whether it did what it was asked for")]
    Ambiguous,
    /// The session in which a file was opened is over.
    #[error("the server has begun anew")]
    Session,
    /// No server answered for as long as the client tries.
    #[error("no answer from {server} for {seconds} s: {last}")]
    Unreachable {
        /// Its name.
        server: String,
        /// How long it was tried.
        seconds: u64,
        /// What came of the last try.
        last: LinkError,
    },
    /// The file is another one than was opened: it was deleted meanwhile.
    #[error("the file was deleted on the server")]
    Gone,
}

impl Error {
    /// The file system's error, if it is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Errno(errno) => Some(*errno),
            _ => None,
        }
    }
}

//! What ends a connection, a login, or a target.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a target does not start, or cannot do what it was told.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// No name of RFC 7143, section 4.2.7.
    #[error("'{name}' is no iSCSI name: iqn.YYYY-MM.DOMAIN:WORD in lower case")]
    BadName {
        /// It.
        name: String,
    },
    /// No such fault.
    #[error("fault '{spec}': {why}")]
    BadFault {
        /// What was said.
        spec: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No such command of the control socket.
    #[error("'{command}' is not known: add FAULT, clear, list, sessions, cut [NAME]")]
    BadCommand {
        /// It.
        command: String,
    },
    /// The file that keeps reservations over a restart says what cannot be.
    #[error("{}: line {line}: not a reservation's", path.display())]
    BadReservations {
        /// The file.
        path: PathBuf,
        /// Which line.
        line: usize,
    },
    /// More than a target has numbers for.
    #[error("{count} devices; a target has at most 256 logical units, and at least one")]
    LunCount {
        /// How many.
        count: usize,
    },
}

impl TargetError {
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}

/// Why a connection ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Broken {
    /// The stream did.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A digest did not match.
    #[error("a digest does not match")]
    Digest,
    /// More data than was agreed on.
    #[error("{len} bytes of data in one PDU")]
    TooLong {
        /// How many.
        len: usize,
    },
    /// What no initiator may send.
    #[error("{0}")]
    Protocol(&'static str),
    /// The login was refused.
    #[error("login of '{initiator}' refused: {why}")]
    Login {
        /// Who, by its own word.
        initiator: String,
        /// Why.
        why: Refused,
    },
    /// The initiator left.
    #[error("logged out")]
    LoggedOut,
}

/// Why a login is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// An error of the initiator.
    #[error("the request is not understood")]
    Initiator,
    /// It did not prove who it is.
    #[error("not authenticated")]
    Authentication,
    /// Another target's name.
    #[error("no such target")]
    NoSuchTarget,
    /// Another version of the protocol.
    #[error("unknown version")]
    Version,
    /// A second connection of one session.
    #[error("one connection a session")]
    TooManyConnections,
    /// A name that must be said was not.
    #[error("a parameter is missing")]
    MissingParameter,
    /// No more sessions.
    #[error("too many sessions")]
    Full,
}

impl Refused {
    /// Status class and detail of the login response.
    pub(crate) fn code(self) -> (u8, u8) {
        match self {
            Self::Initiator => (2, 0),
            Self::Authentication => (2, 1),
            Self::NoSuchTarget => (2, 3),
            Self::Version => (2, 5),
            Self::TooManyConnections => (2, 6),
            Self::MissingParameter => (2, 7),
            Self::Full => (3, 2),
        }
    }
}

//! What came of a request.

use std::fmt;

use braid_fs::Errno;

/// The status of a reply: 0, the number of an error of Linux (1 to 4095), or one of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Done.
    pub const OK: Self = Self(0);
    /// The server speaks another version; its reply says which.
    pub const VERSION: Self = Self(0x1_0001);
    /// The server does not know the session (any more): none of its requests is under way.
    pub const NO_SESSION: Self = Self(0x1_0002);
    /// Neither the next request of the slot nor the last one again.
    pub const SEQUENCE: Self = Self(0x1_0003);
    /// The operation is not known, or its arguments are not.
    pub const REQUEST: Self = Self(0x1_0004);
    /// The handle is not known in the session.
    pub const HANDLE: Self = Self(0x1_0005);
    /// The server has as many connections, sessions or open files as it allows.
    pub const LIMIT: Self = Self(0x1_0006);
    /// Another pool is served.
    pub const POOL: Self = Self(0x1_0007);
    /// More bytes were asked for than the server gives at a time.
    pub const TOO_LONG: Self = Self(0x1_0008);
    /// The server wants TLS and a certificate.
    pub const WANTS_TLS: Self = Self(0x1_0009);
    /// The server speaks without TLS.
    pub const NO_TLS: Self = Self(0x1_000A);
    /// The client's certificate is revoked.
    pub const REVOKED: Self = Self(0x1_000B);
    /// The session is that of another client.
    pub const FOREIGN: Self = Self(0x1_000C);

    /// The server with which the client's former session was lives, or nobody knows yet that it does not.
    pub const FORMER_LIVES: Self = Self(0x1_000D);

    /// An error of the file system.
    pub fn of(errno: Errno) -> Self {
        Self(u32::try_from(errno.raw_os_error()).unwrap_or(5))
    }

    /// The error of the file system, if it is one.
    pub fn errno(self) -> Option<Errno> {
        let raw = i32::try_from(self.0).ok()?;
        (1..4096).contains(&raw).then(|| Errno::from_raw_os_error(raw))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::OK => "done",
            Self::VERSION => "the server speaks another version of the protocol",
            Self::NO_SESSION => "the server does not know the session",
            Self::SEQUENCE => "the request is not the next one of its slot",
            Self::REQUEST => "the server does not know the request",
            Self::HANDLE => "the file is not open",
            Self::LIMIT => "the server has as many connections or open files as it allows",
            Self::POOL => "the server serves another pool",
            Self::TOO_LONG => "more bytes than the server gives at a time",
            Self::WANTS_TLS => "the server wants TLS and an identity: leave --insecure out",
            Self::NO_TLS => "the server speaks without TLS (`braid serve --insecure`)",
            Self::REVOKED => {
                "the server has revoked this identity (`braid serve revoke`): ask for another one"
            }
            Self::FOREIGN => "the session is that of another client",
            Self::FORMER_LIVES => "the client's former server lives, as far as this one knows",
            other => match other.errno() {
                Some(errno) => return write!(f, "{}", std::io::Error::from(errno)),
                None => return write!(f, "unknown status {:#x}", other.0),
            },
        };
        f.write_str(text)
    }
}

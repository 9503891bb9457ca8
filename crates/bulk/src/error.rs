//! What can go wrong.

use std::io;
use std::path::PathBuf;

use braid_fs::Errno;
use rustls::AlertDescription as Alert;
use rustls::CertificateError as Flaw;
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
    /// It was not heard of for a while.
    #[error("nothing was heard of it for some seconds")]
    Silent,
    /// A server waits until the one before it is known to be dead.
    #[error("{}", crate::wire::Status::FORMER_LIVES)]
    FormerLives,
    /// A server cannot be used in the place of another one.
    #[error(
        "it speaks an older version of the protocol than the server before, or has fewer connections for a client"
    )]
    Older,
    /// A server refuses the client, which has others.
    #[error("it refuses this client")]
    Refuses,
    /// A message did not go on.
    #[error("the other side takes or sends too few bytes")]
    Slow,
    /// It ended before both sides knew each other.
    #[error("the other side has closed the connection in the middle of the TLS handshake")]
    Handshake,
    /// The other side speaks without TLS.
    #[error("the other side speaks without TLS")]
    Plain,
    /// Inside TLS, something else than this protocol is spoken.
    #[error("the other side does not speak the bulk service's protocol in TLS")]
    Protocol,
    /// TLS has refused the other side, or was refused by it.
    #[error("{}", of_tls(.0))]
    Tls(#[from] rustls::Error),
    /// Bytes that are no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The system's.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl LinkError {
    /// Whether another try is of no use: one of both is not whom the other trusts.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Plain | Self::Protocol | Self::Tls(rustls::Error::InvalidCertificate(_)) => true,
            Self::Tls(rustls::Error::AlertReceived(alert)) => matches!(
                alert,
                Alert::CertificateExpired
                    | Alert::UnknownCA
                    | Alert::BadCertificate
                    | Alert::UnsupportedCertificate
                    | Alert::CertificateUnknown
                    | Alert::CertificateRequired
                    | Alert::DecryptError
                    | Alert::HandshakeFailure
                    | Alert::ProtocolVersion
                    | Alert::NoApplicationProtocol
            ),
            _ => false,
        }
    }
}

/// A moment as people write it, in UTC.
pub fn moment(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_second(seconds);
    time.map_or_else(|_| "a time beyond the calendar".into(), |time| time.to_string())
}

/// What TLS says, in words that say what to do.
fn of_tls(error: &rustls::Error) -> String {
    const CLOCK: &str = "if that is not so, the clock of one of both hosts is wrong";
    let other = |flaw: &Flaw| {
        match flaw {
        Flaw::ExpiredContext { time, not_after } => format!(
            "the other side's certificate expired at {}, and it is {} here: {CLOCK}",
            moment(not_after.as_secs()),
            moment(time.as_secs())
        ),
        Flaw::NotValidYetContext { time, not_before } => format!(
            "the other side's certificate is valid from {} on, and it is {} here: {CLOCK}",
            moment(not_before.as_secs()),
            moment(time.as_secs())
        ),
        Flaw::UnknownIssuer | Flaw::BadSignature => {
            "the other side's certificate is not of this pool's authority: it serves another pool, or the authority \
             was made anew (`braid serve init --force`), after which clients must be invited again"
                .to_owned()
        }
        flaw => format!("the other side's certificate is not good: {flaw:?}"),
    }
    };
    match error {
        rustls::Error::InvalidCertificate(flaw) => other(flaw),
        rustls::Error::NoCertificatesPresented => "the other side shows no certificate".to_owned(),
        rustls::Error::AlertReceived(alert) => match alert {
            Alert::CertificateExpired => {
                format!("the other side takes this certificate for expired: {CLOCK}")
            }
            Alert::UnknownCA | Alert::DecryptError => {
                "the other side does not trust this certificate: it is of another pool, or the authority was made anew \
                 (`braid serve init --force`), after which clients must be invited again"
                    .to_owned()
            }
            alert => format!("the other side refuses TLS: {alert:?}"),
        },
        error => format!("TLS: {error}"),
    }
}

/// Why certificates, or an identity, are of no use.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A name that nobody may have.
    #[error(
        "{name:?}: a name is 1 to 64 letters, digits, `.`, `_` or `-`, and does not begin with `-`"
    )]
    Name {
        /// Which.
        name: String,
    },
    /// A number that no certificate has.
    #[error("{serial:?}: not the number of a certificate; `braid serve clients` shows them")]
    Serial {
        /// Which.
        serial: String,
    },
    /// Not an identity.
    #[error("this is no identity of a client: {why}")]
    Identity {
        /// What is wrong.
        why: String,
    },
    /// It was valid once.
    #[error(
        "the certificate of {name} expired at {until}, and it is {now} here: another one is made by \
         `braid serve {how}`; if that is not the time, set this host's clock"
    )]
    Expired {
        /// Whose.
        name: String,
        /// Valid until then.
        until: String,
        /// By this host's clock.
        now: String,
        /// What makes another one.
        how: &'static str,
    },
    /// It is not valid yet.
    #[error(
        "the certificate of {name} is valid from {from} on, and it is {now} here: set this host's clock"
    )]
    Early {
        /// Whose.
        name: String,
        /// Valid from then on.
        from: String,
        /// By this host's clock.
        now: String,
    },
    /// A pool without certificates.
    #[error("{pool}: no certificates in {}: make them with `braid serve init {pool}`", base.display())]
    NoFolder {
        /// Which.
        pool: String,
        /// Where they would be.
        base: PathBuf,
    },
    /// Pools of one name.
    #[error("{pool}: several pools of that name in {}: name it by its UUID", base.display())]
    Several {
        /// The name.
        pool: String,
        /// Where they are.
        base: PathBuf,
    },
    /// It would be replaced.
    #[error("{} exists: with --force it is made anew, and all clients must be invited again", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// Only one host can make certificates.
    #[error(
        "{} has no ca.key: certificates are made on the host where `braid serve init` was run",
        path.display()
    )]
    NoAuthority {
        /// The folder.
        path: PathBuf,
    },
    /// Nobody of that name was invited.
    #[error("{name}: nobody of that name was invited; `braid serve clients` lists them")]
    NoClient {
        /// The name.
        name: String,
    },
    /// A file that cannot be understood.
    #[error("{}: {why}", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The system's.
    #[error("{}: {source}", path.display())]
    Io {
        /// Of which file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// A certificate cannot be made.
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    /// Certificate and key are of no use for TLS.
    #[error("TLS cannot use this certificate: {0}")]
    Tls(#[from] rustls::Error),
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
    #[error("the server speaks version {0} of the protocol, this program versions {least} (to copy files), and {mount} (to mount) to {newest}", least = crate::wire::VERSION, mount = crate::wire::MOUNT_VERSION, newest = crate::wire::NEWEST_VERSION)]
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
    /// This client and the server do not trust each other.
    #[error("{server}: {why}")]
    Untrusted {
        /// The server's name.
        server: String,
        /// Why.
        why: LinkError,
    },
    /// The identity that this client has is of no use.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The program that waits was killed.
    #[error("the wait for the server was interrupted")]
    Interrupted,
    /// Nobody waits for answers any more.
    #[error("the mount is gone")]
    Closed,
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
    /// Whether a server refuses this client: another try is of no use.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Version(_) | Self::Untrusted { .. })
    }
}

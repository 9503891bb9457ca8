//! Where metrics are served.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// At this address of the host.
    Tcp(SocketAddr),
    /// At this socket.
    Unix(PathBuf),
}

impl Address {
    /// From the value of the option.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            if !path.starts_with('/') {
                bail!("option metrics: {text}: the path of a socket is absolute");
            }
            return Ok(Self::Unix(path.into()));
        }
        let address = text.parse().with_context(|| {
            format!(
                "option metrics: {text}: not ADDRESS:PORT (an IPv6 address in []) or unix:/PATH"
            )
        })?;
        Ok(Self::Tcp(address))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}/metrics"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_sockets_are_told_apart() {
        let parsed = |text| Address::parse(text).map_err(|e| e.to_string());
        assert_eq!(parsed("127.0.0.1:9750").unwrap().to_string(), "http://127.0.0.1:9750/metrics");
        assert_eq!(parsed("[::1]:9750").unwrap().to_string(), "http://[::1]:9750/metrics");
        assert_eq!(parsed("unix:/run/x").unwrap(), Address::Unix("/run/x".into()));
        for wrong in ["", "9750", "localhost:9750", "::1:9750", "unix:run/x", "unix:", "1.2.3.4"] {
            assert!(parsed(wrong).unwrap_err().contains("option metrics"), "{wrong}");
        }
    }
}

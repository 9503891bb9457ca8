//! What is exported, to whom, and by which server.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Which users of clients count as nobody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Squash {
    /// Root
    #[default]
    Root,
    /// Everybody
    All,
    /// None: a client's root is root here, too
    None,
}

/// How clients show who they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// They are believed
    #[default]
    Sys,
    /// By Kerberos, and all is encrypted
    Krb5p,
}

/// One exported directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// In the pool: `/` or `/DIR/DIR`.
    pub subtree: String,
    /// Addresses, networks and names of hosts that may mount it. None: all may.
    pub clients: Vec<String>,
    /// Nobody may change anything.
    pub read_only: bool,
    /// Users that count as nobody.
    pub squash: Squash,
    /// How clients show who they are.
    pub security: Security,
}

impl Export {
    /// Under which path clients mount it: `/POOL` or `/POOL/DIR/DIR`.
    pub fn path(&self, pool: &str) -> String {
        format!("/{pool}{}", self.subtree.trim_end_matches('/'))
    }
}

/// The server of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Under which the pool keeps the server's state.
    pub name: String,
    /// The pool.
    pub pool: String,
    /// The pool's identity.
    #[serde(with = "as_text")]
    pub uuid: Uuid,
    /// Where this host has it mounted.
    pub mount_point: PathBuf,
    /// The address that it listens on. None: all.
    pub listen: Option<IpAddr>,
    /// Of NFS.
    pub port: u16,
    /// Of the protocol by which NFSv3 clients ask for the first handle.
    pub mount_port: u16,
}

impl Server {
    /// An address by which this host reaches it.
    pub fn address(&self) -> IpAddr {
        self.listen.unwrap_or(Ipv4Addr::LOCALHOST.into())
    }
    /// Where an exported directory is on this host.
    pub fn directory(&self, export: &Export) -> PathBuf {
        match export.subtree.trim_start_matches('/') {
            "" => self.mount_point.clone(),
            subtree => self.mount_point.join(subtree),
        }
    }
}

/// An identity as text.
mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use uuid::Uuid;

    pub fn serialize<S: Serializer>(uuid: &Uuid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(uuid)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        Uuid::parse_str(&String::deserialize(from)?).map_err(Error::custom)
    }
}

/// Whether a text can stand between quotes in Ganesha's configuration, and in a mount table.
pub fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() || matches!(c, '"' | '\\' | '\''))
}

/// Looks at the words of `--clients`.
///
/// # Errors
/// One is no address, network or known host. Ganesha would leave it out, and nobody would know why that host
/// cannot mount.
pub fn check_client(word: &str) -> Result<()> {
    let network = |(address, bits): (&str, &str)| {
        let most = match address.parse() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        bits.parse::<u8>().is_ok_and(|bits| bits <= most)
    };
    let is_address = word.parse::<IpAddr>().is_ok() || word.split_once('/').is_some_and(network);
    let is_name = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphanumeric())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
    };
    if is_address {
        return Ok(());
    }
    if !is_name(word) {
        bail!("--clients {word}: not an address, a network (10.0.0.0/8) or the name of a host");
    }
    if (word, 0).to_socket_addrs().is_ok_and(|mut found| found.next().is_some()) {
        return Ok(());
    }
    bail!("--clients {word}: no host of that name is known")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_addresses_networks_and_known_hosts() {
        for good in ["10.0.0.0/8", "192.168.1.7", "fd00::/64", "::1", "localhost"] {
            check_client(good).unwrap();
        }
        for bad in ["10.0.0.0/33", "fd00::/129", "a b", "", "x\";}", "no-such-host.invalid", "-a"] {
            let said = check_client(bad).unwrap_err().to_string();
            assert!(said.contains("--clients"), "{said}");
        }
    }
}

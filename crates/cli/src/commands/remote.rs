//! Places on servers of the bulk service, as users name them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, bail};
use braid_bulk::client::PORT;

/// A file or a directory on a server, or on any of several: `braid://HOST[:PORT][,HOST[:PORT]...]/POOL/PATH`.
#[derive(Debug, PartialEq, Eq)]
pub struct Remote {
    /// Each with a port.
    pub servers: Vec<String>,
    pub pool: String,
    /// Names from the root on.
    pub path: Vec<Vec<u8>>,
    /// A directory is meant.
    pub is_dir: bool,
}

/// Most servers of a place.
const SERVERS_MAX: usize = 16;

/// A host with the usual port, unless it has one. `None`: it is none.
fn with_port(host: &str) -> Option<String> {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    // An address of IPv6 is in brackets.
    let is_name = match name.strip_prefix('[') {
        Some(address) => address.strip_suffix(']').is_some_and(|a| a.contains(':')),
        None => !name.is_empty() && !name.contains([':', ']']),
    };
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    (is_name && is_port).then(|| format!("{name}:{}", port.unwrap_or(&PORT.to_string())))
}

impl Remote {
    /// `None`: it is a local file.
    ///
    /// # Errors
    /// It names no place on a server.
    pub fn parse(word: &OsStr) -> Result<Option<Self>> {
        const SCHEME: &[u8] = b"braid://";
        let Some(rest) = word.as_bytes().strip_prefix(SCHEME) else { return Ok(None) };
        let bad =
            || format!("{}: not braid://HOST[:PORT][,HOST[:PORT]...]/POOL/PATH", word.display());
        let mut parts = rest.split(|b| *b == b'/');
        let mut text = || {
            let part = parts.next().filter(|part| !part.is_empty()).with_context(bad)?;
            str::from_utf8(part).with_context(bad)
        };
        let (hosts, pool) = (text()?.to_owned(), text()?.to_owned());
        let mut servers = Vec::new();
        for host in hosts.split(',') {
            let server = with_port(host).with_context(bad)?;
            if servers.contains(&server) {
                bail!("{}: {server} is named twice", word.display());
            }
            servers.push(server);
        }
        if servers.len() > SERVERS_MAX {
            bail!("{}: {SERVERS_MAX} servers at most", word.display());
        }
        let mut path: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
        let is_dir = path.last().is_none_or(Vec::is_empty);
        path.retain(|name| !name.is_empty() && name != b".");
        if path.iter().any(|name| name == b"..") {
            bail!("{}: name the file by its path in the pool, without ..", word.display());
        }
        Ok(Some(Self { servers, pool, path, is_dir }))
    }

    /// This host and process, as the server shows them.
    pub fn client_name() -> String {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("{host}, process {}", std::process::id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_pools_and_paths_are_told_apart() {
        let parse = |word: &str| Remote::parse(OsStr::new(word));
        let is = |word, servers: &str, path: &[&str], is_dir| {
            let path = path.iter().map(|name| name.as_bytes().to_vec()).collect();
            let servers = servers.split(' ').map(str::to_owned).collect();
            let pool = "safe".to_owned();
            let remote = Remote { servers, pool, path, is_dir };
            assert_eq!(parse(word).unwrap(), Some(remote), "{word}");
        };
        is("braid://host/safe/a/b", "host:7420", &["a", "b"], false);
        is("braid://host:99/safe//a/./b/", "host:99", &["a", "b"], true);
        is("braid://[::1]/safe", "[::1]:7420", &[], true);
        is("braid://[::1]:99/safe/", "[::1]:99", &[], true);
        is(
            "braid://a,b:99,[::1],[fe80::1%2]:7/safe",
            "a:7420 b:99 [::1]:7420 [fe80::1%2]:7",
            &[],
            true,
        );
        for bad in [
            "braid://",
            "braid://host",
            "braid://host/",
            "braid:///safe",
            "braid://h/safe/../a",
            "braid://a,/safe",
            "braid://,a/safe",
            "braid://a,b,a:7420/safe",
            "braid://::1/safe",
            "braid://[::1/safe",
            "braid://a:0/safe",
            "braid://a:port/safe",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let many: Vec<String> = (0..17).map(|n| format!("host{n}")).collect();
        assert!(parse(&format!("braid://{}/safe", many.join(","))).is_err());
        assert!(parse(&format!("braid://{}/safe", many[1..].join(","))).is_ok());
        assert_eq!(parse("/braid://host").unwrap(), None);
    }
}

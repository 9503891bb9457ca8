//! Places on a server of the bulk service, as users name them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, bail};
use braid_bulk::client::PORT;

/// A file or a directory on a server: `braid://HOST[:PORT]/POOL/PATH`.
#[derive(Debug, PartialEq, Eq)]
pub struct Remote {
    /// With a port.
    pub server: String,
    pub pool: String,
    /// Names from the root on.
    pub path: Vec<Vec<u8>>,
    /// A directory is meant.
    pub is_dir: bool,
}

impl Remote {
    /// `None`: it is a local file.
    ///
    /// # Errors
    /// It names no place on a server.
    pub fn parse(word: &OsStr) -> Result<Option<Self>> {
        const SCHEME: &[u8] = b"braid://";
        let Some(rest) = word.as_bytes().strip_prefix(SCHEME) else { return Ok(None) };
        let bad = || format!("{}: not braid://HOST[:PORT]/POOL/PATH", word.display());
        let mut parts = rest.split(|b| *b == b'/');
        let mut text = || {
            let part = parts.next().filter(|part| !part.is_empty()).with_context(bad)?;
            str::from_utf8(part).with_context(bad)
        };
        let (host, pool) = (text()?.to_owned(), text()?.to_owned());
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let server = if has_port { host } else { format!("{host}:{PORT}") };
        let mut path: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
        let is_dir = path.last().is_none_or(Vec::is_empty);
        path.retain(|name| !name.is_empty() && name != b".");
        if path.iter().any(|name| name == b"..") {
            bail!("{}: name the file by its path in the pool, without ..", word.display());
        }
        Ok(Some(Self { server, pool, path, is_dir }))
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
        let is = |word, server: &str, path: &[&str], is_dir| {
            let path = path.iter().map(|name| name.as_bytes().to_vec()).collect();
            let (server, pool) = (server.to_owned(), "safe".to_owned());
            assert_eq!(parse(word).unwrap(), Some(Remote { server, pool, path, is_dir }), "{word}");
        };
        is("braid://host/safe/a/b", "host:7420", &["a", "b"], false);
        is("braid://host:99/safe//a/./b/", "host:99", &["a", "b"], true);
        is("braid://[::1]/safe", "[::1]:7420", &[], true);
        is("braid://[::1]:99/safe/", "[::1]:99", &[], true);
        for bad in
            ["braid://", "braid://host", "braid://host/", "braid:///safe", "braid://h/safe/../a"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse("/braid://host").unwrap(), None);
    }
}

//! Where in which etcd: `etcd://host[:port][,host[:port]...]/prefix`.

use std::fmt;
use std::str::FromStr;

use super::EtcdError;

/// Members of an etcd cluster and the prefix of all keys of one file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    hosts: Vec<String>,
    prefix: String,
}

impl EtcdAddress {
    /// How such an address begins.
    pub const SCHEME: &str = "etcd://";
    /// Port of a host that names none.
    const PORT: u16 = 2379;
    /// Most hosts.
    const HOSTS_MAX: usize = 9;

    /// Host and port of each member.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }
    /// What all keys begin with: `/` and a name, no `/` at the end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl FromStr for EtcdAddress {
    type Err = EtcdError;

    fn from_str(text: &str) -> Result<Self, EtcdError> {
        let bad = |why| EtcdError::Address { given: text.into(), why };
        let rest = text.strip_prefix(Self::SCHEME).ok_or_else(|| bad("it begins with etcd://"))?;
        let (hosts, prefix) = rest.split_once('/').ok_or_else(|| bad("a /prefix is missing"))?;
        let prefix = prefix.trim_end_matches('/');
        if prefix.is_empty() {
            return Err(bad("a prefix is missing: take /braid/ and the pool's name"));
        }
        if !prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b)) {
            return Err(bad("a prefix is made of letters, digits and - _ . /"));
        }
        let hosts: Vec<String> = hosts
            .split(',')
            .map(with_port)
            .collect::<Option<_>>()
            .ok_or_else(|| bad("hosts are names or addresses, each with :PORT or without"))?;
        if hosts.len() > Self::HOSTS_MAX {
            return Err(bad("there are too many hosts: name at most 9"));
        }
        Ok(Self { hosts, prefix: format!("/{prefix}") })
    }
}

/// `host` or `[v6]`, with a port; `None` if it is neither.
fn with_port(host: &str) -> Option<String> {
    let (name, port) = match host.rsplit_once(':') {
        // The last colon of a bare address in brackets is not a port's.
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()?),
        _ => (host, EtcdAddress::PORT),
    };
    let inner = name.strip_prefix('[').map_or(Some(name), |v6| v6.strip_suffix(']'))?;
    let colons = inner.contains(':');
    let may = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.' || (b == b':' && colons);
    let bracketed = name.starts_with('[');
    (!inner.is_empty() && inner.bytes().all(may) && colons == bracketed && port != 0)
        .then(|| format!("{name}:{port}"))
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", Self::SCHEME, self.hosts.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (given, shown) in [
            ("etcd://a/p", "etcd://a:2379/p"),
            ("etcd://a:1,b.c:22,[::1]:333/x/y/", "etcd://a:1,b.c:22,[::1]:333/x/y"),
            ("etcd://[fe80::1]/p", "etcd://[fe80::1]:2379/p"),
        ] {
            let address: EtcdAddress = given.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse::<EtcdAddress>().unwrap(), address);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for given in [
            "",
            "etcd://",
            "etcd://a",
            "etcd://a/",
            "etcd://a//",
            "etcd:///p",
            "etcd://a,/p",
            "etcd://a:/p",
            "etcd://a:0/p",
            "etcd://a:70000/p",
            "etcd://::1/p",
            "etcd://[::1/p",
            "etcd://user@a/p",
            "etcd://a/p q",
            "http://a/p",
        ] {
            assert!(given.parse::<EtcdAddress>().is_err(), "{given}");
        }
    }
}

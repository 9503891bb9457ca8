//! TCP ports of this host: which are free, and who has one.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Result, bail};

/// In `/proc/net/tcp`: the state of a socket that waits for connections.
const LISTENS: &str = "0A";

fn bind(listen: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let addresses = listen.map_or_else(|| any.to_vec(), |listen| vec![listen]);
    let addresses: Vec<_> = addresses.into_iter().map(|a| SocketAddr::new(a, port)).collect();
    TcpListener::bind(addresses.as_slice())
}

/// That a port can be listened on.
///
/// # Errors
/// Who has it, or what the system says.
pub fn check_free(listen: Option<IpAddr>, port: u16) -> Result<()> {
    match bind(listen, port) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            let holder = holder(port);
            bail!(
                "port {port} is in use by {holder}: stop that, or choose another port with --port"
            )
        }
        Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => {
            bail!(
                "--listen {}: this host has no such address",
                listen.map_or_else(String::new, |l| l.to_string())
            )
        }
        Err(e) => bail!("cannot listen on port {port}: {e}"),
    }
}

/// `wanted`, if it is free; else any port that is.
///
/// # Errors
/// None is.
pub fn free(listen: Option<IpAddr>, wanted: Option<u16>) -> io::Result<u16> {
    let bound = wanted.and_then(|wanted| bind(listen, wanted).ok());
    let bound = bound.map_or_else(|| bind(listen, 0), Ok)?;
    Ok(bound.local_addr()?.port())
}

/// Who listens on a port, for a message.
fn holder(port: u16) -> String {
    let inodes: HashSet<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .flat_map(|table| listeners(&table, port))
        .collect();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_number =
        |name: &std::ffi::OsStr| name.to_str().is_some_and(|n| n.parse::<u32>().is_ok());
    for process in processes.filter(|e| is_number(&e.file_name())).map(|e| e.path()) {
        let fds = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut names = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        if names.any(|name| socket(&name).is_some_and(|inode| inodes.contains(inode))) {
            return describe(&process);
        }
    }
    if inodes.is_empty() {
        return "another program".to_owned();
    }
    // The kernel's sockets belong to no process.
    "this host's kernel (its own NFS server: `systemctl disable --now nfs-server`)".to_owned()
}

fn describe(process: &Path) -> String {
    let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
    let name = name.trim().escape_debug().to_string();
    let pid = process.file_name().unwrap_or_default().display();
    let hint = if name == "ganesha.nfsd" {
        " (`braid export --list` shows it if it serves a pool; Debian's own: `systemctl disable --now nfs-ganesha`)"
    } else {
        ""
    };
    format!("{name}, process {pid}{hint}")
}

/// `socket:[INODE]`
fn socket(link: &Path) -> Option<&str> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')
}

/// Inodes of the sockets that listen on a port, from `/proc/net/tcp`.
fn listeners(table: &str, port: u16) -> Vec<String> {
    let port = format!(":{port:04X}");
    let lines = table.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
    let here = lines.filter(|w| {
        w.get(1).is_some_and(|local| local.ends_with(&port)) && w.get(3) == Some(&LISTENS)
    });
    here.filter_map(|w| w.get(9).map(|inode| (*inode).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_port_is_named() {
        let listen = Some(Ipv4Addr::LOCALHOST.into());
        let held = bind(listen, 0).unwrap();
        let port = held.local_addr().unwrap().port();
        let said = check_free(listen, port).unwrap_err().to_string();
        let own = format!("process {}", std::process::id());
        assert!(said.contains(&own) && said.contains(&format!("port {port}")), "{said}");
        assert_ne!(free(listen, Some(port)).unwrap(), port);
        let said = check_free(Some("192.0.2.1".parse().unwrap()), 0).unwrap_err().to_string();
        assert!(said.contains("no such address"), "{said}");
    }
}

//! Hosts of their own on this one: network namespaces that a bridge joins, each link of which can
//! be cut. Nothing of this host's own network is touched.

use std::path::Path;
use std::process::{Command, Stdio};

use super::sh;

/// A switch and what hangs on it: hosts 0, 1, ... with addresses 10.77.0.1, 10.77.0.2, ...
pub struct Net {
    name: String,
    hosts: usize,
}

impl Net {
    /// Needs root, iproute2 and nsenter. `None`, said loudly, where it cannot be.
    pub fn new(hosts: usize) -> Option<Self> {
        let name = format!("braid{}", std::process::id());
        let there = |program: &str| {
            let mut command = Command::new(program);
            command.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|s| s.success())
        };
        if !there("ip") || !there("nsenter") {
            braid_testkit::skip("network namespaces need ip (iproute2) and nsenter (util-linux)");
            return None;
        }
        let out = Command::new("ip").args(["netns", "add", &format!("{name}-sw")]).output();
        if !out.as_ref().is_ok_and(|o| o.status.success()) {
            braid_testkit::skip(&format!("no network namespaces here: {out:?}"));
            return None;
        }
        let net = Self { name, hosts };
        let sw = &net.switch();
        sh(&format!("ip -n {sw} link add br0 type bridge; ip -n {sw} link set br0 up"));
        for host in 0..hosts {
            let ns = net.namespace(host);
            sh(&format!(
                "ip netns add {ns}
                 ip link add p{host} netns {sw} type veth peer name eth0 netns {ns}
                 ip -n {sw} link set p{host} master br0 up
                 ip -n {ns} addr add {}/24 dev eth0
                 ip -n {ns} link set lo up; ip -n {ns} link set eth0 up",
                Self::address(host)
            ));
        }
        Some(net)
    }
    fn switch(&self) -> String {
        format!("{}-sw", self.name)
    }
    fn namespace(&self, host: usize) -> String {
        format!("{}-{host}", self.name)
    }
    pub fn address(host: usize) -> String {
        format!("10.77.0.{}", host + 1)
    }
    /// A program on a host. Only its network is the host's own: mounts that it makes everybody sees.
    pub fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let path = Path::new("/run/netns").join(self.namespace(host));
        command.arg(format!("--net={}", path.display())).arg("--").arg(program);
        command
    }
    /// Pulls a host's cable, or puts it back.
    pub fn link(&self, host: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        sh(&format!("ip -n {} link set p{host} {state}", self.switch()));
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let hosts = (0..self.hosts).map(|h| self.namespace(h));
        for ns in hosts.chain([self.switch()]) {
            Command::new("ip").args(["netns", "del", &ns]).output().ok();
        }
    }
}

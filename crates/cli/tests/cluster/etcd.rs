//! etcd on one of the hosts: a process of its own, ended by its process id.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::common::net::Net;

/// How long it may take to begin.
const BEGIN: Duration = Duration::from_mins(1);

pub struct Etcd {
    dir: PathBuf,
    child: Option<Child>,
}

impl Etcd {
    /// With its data in `dir`; `None` (said) where etcd is not installed.
    pub fn start(net: &Net, host: usize, dir: &Path) -> Option<Self> {
        let mut etcd = Self { dir: dir.to_owned(), child: None };
        let mut there = std::process::Command::new("etcd");
        if !there.arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success()) {
            braid_testkit::skip("no etcd (Debian: etcd-server)");
            return None;
        }
        etcd.run(net, host).then_some(etcd)
    }
    /// Starts it, and waits until it answers.
    pub fn run(&mut self, net: &Net, host: usize) -> bool {
        let at = Net::address(host);
        let [client, peer] = [2379, 2380].map(|port| format!("http://{at}:{port}"));
        let mut command = net.command(host, "etcd");
        command
            .arg("--data-dir")
            .arg(&self.dir)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(command.spawn().expect("etcd was there"));
        let ask = format!(
            "exec 3<>/dev/tcp/{at}/2379 && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
        );
        let began = Instant::now();
        while began.elapsed() < BEGIN {
            let mut asks = net.command(host, "timeout");
            asks.args(["5", "bash", "-c", &ask]).stderr(Stdio::null());
            let said = asks.output().map(|o| o.stdout).unwrap_or_default();
            if String::from_utf8_lossy(&said).contains("\"health\":\"true\"") {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
    /// SIGKILL: nothing is put in order.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

//! A server of etcd for a test: a process of its own on free ports of the loopback, its data in a
//! temporary directory. Ended by its process id.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long it may take to begin.
const BEGIN: Duration = Duration::from_mins(1);

/// A port of this server alone: of those that no kernel hands out by itself (it begins at 32768), or
/// somebody might be given it before the server is there, or while it is not.
fn port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut ports = (0..COUNT).map(|_| {
        let n = std::process::id() * 16 + NEXT.fetch_add(1, Ordering::Relaxed);
        u16::try_from(FIRST + n % COUNT).unwrap()
    });
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a port is free")
}

/// A folder with all that is in it.
#[allow(dead_code, reason = "not every test that includes this file")]
fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(done.success());
}

pub struct Server {
    dir: tempfile::TempDir,
    client: u16,
    peer: u16,
    child: Option<Child>,
}

impl Server {
    /// A new one, or `None` (said) where etcd is not installed.
    pub fn start() -> Option<Self> {
        let shm = Path::new("/dev/shm");
        let root = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("braid-etcd").tempdir_in(root).unwrap();
        let [client, peer] = [(); 2].map(|()| port());
        let mut server = Self { dir, client, peer, child: None };
        server.run().then_some(server)
    }

    /// Starts it where it is not running; whether there is such a program.
    pub fn run(&mut self) -> bool {
        let [client, peer] = [self.client, self.peer].map(|p| format!("http://127.0.0.1:{p}"));
        let spawned = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.dir.path().join("log")).unwrap())
            .spawn();
        match spawned {
            Ok(child) => self.child = Some(child),
            Err(e) => {
                braid_testkit::skip(&format!("no etcd (Debian package etcd-server): {e}"));
                return false;
            }
        }
        let began = Instant::now();
        while !self.is_healthy() {
            assert!(began.elapsed() < BEGIN, "etcd does not begin: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    fn is_healthy(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.client))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok::<_, std::io::Error>(answer)
        };
        ask().is_ok_and(|answer| answer.contains("\"health\":\"true\""))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// SIGKILL: nothing is put in order.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Loses everything.
    #[allow(dead_code, reason = "not every test that includes this file")]
    pub fn empty(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.dir.path().join("data")).unwrap();
        assert!(self.run());
    }

    /// Keeps a copy of its data, as it is now.
    #[allow(dead_code, reason = "not every test that includes this file")]
    pub fn keep(&mut self) {
        self.kill();
        copy(&self.dir.path().join("data"), &self.dir.path().join("kept"));
        assert!(self.run());
    }

    /// Has the data of that copy again.
    #[allow(dead_code, reason = "not every test that includes this file")]
    pub fn put_back(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.dir.path().join("data")).unwrap();
        copy(&self.dir.path().join("kept"), &self.dir.path().join("data"));
        assert!(self.run());
    }

    /// An address of keys here.
    pub fn address(&self, prefix: &str) -> String {
        format!("etcd://127.0.0.1:{}/{prefix}", self.client)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

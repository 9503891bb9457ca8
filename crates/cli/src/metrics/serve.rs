//! HTTP: `GET /metrics`, a request for each connection.
//!
//! Bounded in all: connections at a time, of which the oldest that has not asked makes room for the next (of the
//! address that has most); the length of a request; the time that a caller may take. Gathering
//! takes no lock for longer than `braid status` does; if it hangs all the same, later callers are refused, and
//! what Prometheus calls `up` is 0.

use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

use super::address::Address;
use super::samples::{Sample, gather};
use super::text::{Format, encode};
use crate::control::Node;

/// Callers that are answered at a time.
const ANSWERED_MAX: usize = 8;
/// Callers that have not asked yet.
const SILENT_MAX: usize = 64;
/// Longest request line and headers.
const REQUEST_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// A caller that has not asked after so long is let go.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where callers come, before there is something to tell them.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    address: Address,
    socket: Option<Socket>,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A socket in the file system, which goes with the server.
#[derive(Debug)]
pub struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

impl Server {
    /// Takes the address. What a dead process has left of a socket is removed.
    ///
    /// # Errors
    /// Something else is there.
    pub fn bind(address: &Address) -> Result<Self> {
        let failed = || format!("option metrics: cannot serve {address}");
        let (listener, socket) = match address {
            Address::Tcp(at) => (Listener::Tcp(TcpListener::bind(at).with_context(failed)?), None),
            Address::Unix(path) => {
                clear(path).with_context(failed)?;
                let listener = UnixListener::bind(path).with_context(failed)?;
                let socket = Socket(path.clone());
                std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
                (Listener::Unix(listener), Some(socket))
            }
        };
        Ok(Self { listener, address: address.clone(), socket })
    }
    /// Answers callers as long as the process runs. What is returned is kept until the mount ends.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve(self, node: &Node) -> Result<Option<Socket>> {
        let Self { listener, address, socket } = self;
        // With the port that was taken if any was wanted.
        let at = match &listener {
            Listener::Tcp(tcp) => tcp.local_addr()?.to_string(),
            Listener::Unix(_) => address.to_string(),
        };
        let node = node.clone();
        let thread = std::thread::Builder::new().name("metrics".into());
        thread.spawn(move || listen(&listener, &node)).context("cannot start a thread")?;
        tracing::info!(address = at, "metrics are served");
        Ok(socket)
    }
}

/// Removes a socket at which nobody answers.
fn clear(path: &Path) -> Result<()> {
    let Ok(there) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !there.file_type().is_socket() {
        bail!("something that is not a socket is there");
    }
    if UnixStream::connect(path).is_ok() {
        bail!("another process serves it");
    }
    Ok(std::fs::remove_file(path)?)
}

/// A connection.
#[derive(Debug)]
enum Caller {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Caller {
    /// `None`: it is of this host, by a socket in the file system.
    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(tcp) => tcp.peer_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => None,
        }
    }
    fn set_times(&self) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => {
                tcp.set_read_timeout(Some(PATIENCE))?;
                tcp.set_write_timeout(Some(PATIENCE))
            }
            Self::Unix(unix) => {
                unix.set_read_timeout(Some(PATIENCE))?;
                unix.set_write_timeout(Some(PATIENCE))
            }
        }
    }
    /// Ends it: who waits for its request waits no longer.
    fn cut(&self) {
        // It may have ended by itself.
        let _ = match self {
            Self::Tcp(tcp) => tcp.shutdown(Shutdown::Both),
            Self::Unix(unix) => unix.shutdown(Shutdown::Both),
        };
    }
}
impl Read for &Caller {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Caller::Tcp(tcp) => (&mut &*tcp).read(buf),
            Caller::Unix(unix) => (&mut &*unix).read(buf),
        }
    }
}
impl Write for &Caller {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Caller::Tcp(tcp) => (&mut &*tcp).write(buf),
            Caller::Unix(unix) => (&mut &*unix).write(buf),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Those that are being served.
#[derive(Debug, Default)]
struct Callers {
    /// Those that have asked.
    answered: usize,
    /// Those that have not asked yet, from the oldest on.
    silent: Vec<Arc<Caller>>,
}

impl Callers {
    /// Takes one more. If there are too many that have not asked, the oldest of the address that has most of them
    /// makes room: who only holds connections keeps nobody else out.
    fn admit(&mut self, caller: &Arc<Caller>) {
        if self.silent.len() >= SILENT_MAX {
            let of = |address| self.silent.iter().filter(|c| c.address() == address).count();
            let most = self.silent.iter().map(|c| c.address()).max_by_key(|address| of(*address));
            let oldest = self.silent.iter().position(|c| Some(c.address()) == most);
            oldest.map(|at| self.silent.remove(at)).inspect(|oldest| oldest.cut());
        }
        self.silent.push(caller.clone());
    }
    /// It has asked; whether it may be answered.
    fn asks(&mut self, caller: &Arc<Caller>) -> bool {
        self.silent.retain(|c| !Arc::ptr_eq(c, caller));
        let room = self.answered < ANSWERED_MAX;
        self.answered += usize::from(room);
        room
    }
}

/// One that is served, as long as this lives.
struct Served {
    caller: Arc<Caller>,
    callers: Arc<Mutex<Callers>>,
    answered: bool,
}

impl Served {
    fn may_be_answered(&mut self) -> bool {
        self.answered = self.callers.lock().asks(&self.caller);
        self.answered
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let mut callers = self.callers.lock();
        callers.silent.retain(|c| !Arc::ptr_eq(c, &self.caller));
        callers.answered -= usize::from(self.answered);
    }
}

fn listen(listener: &Listener, node: &Node) {
    let callers = Arc::default();
    loop {
        let caller = match listener {
            Listener::Tcp(tcp) => tcp.accept().map(|(s, _)| Caller::Tcp(s)),
            Listener::Unix(unix) => unix.accept().map(|(s, _)| Caller::Unix(s)),
        };
        let node = node.clone();
        let taken = caller.and_then(|caller| take(caller, &callers, move || gather(&node)));
        if let Err(error) = taken
            && error.kind() != io::ErrorKind::Interrupted
        {
            tracing::debug!(%error, "a caller of the metrics is not served");
            // Out of descriptors or threads, as likely as not.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn take(
    caller: Caller,
    callers: &Arc<Mutex<Callers>>,
    gather: impl FnOnce() -> Vec<Sample> + Send + 'static,
) -> io::Result<()> {
    caller.set_times()?;
    let caller = Arc::new(caller);
    callers.lock().admit(&caller);
    let mut served = Served { caller: caller.clone(), callers: callers.clone(), answered: false };
    let thread = std::thread::Builder::new().name("metrics".into());
    thread.spawn(move || {
        let gather = || served.may_be_answered().then(gather);
        if let Err(error) = answer(&mut &*caller, gather) {
            tracing::debug!(%error, "a caller of the metrics");
        }
    })?;
    Ok(())
}

/// An answer.
struct Reply {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Reply {
    fn refused(status: &'static str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: format!("{status}\n") }
    }
    fn bytes(&self, with_body: bool) -> Vec<u8> {
        let Self { status, content_type, body } = self;
        let body_sent = if with_body { body } else { "" };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body_sent}",
            body.len()
        )
        .into_bytes()
    }
}

/// Reads one request and answers it.
fn answer(
    caller: &mut (impl Read + Write + ?Sized),
    gather: impl FnOnce() -> Option<Vec<Sample>>,
) -> io::Result<()> {
    let (begun, mut got) = (Instant::now(), Vec::new());
    let mut part = [0; 1024];
    loop {
        let n = caller.read(&mut part)?;
        got.extend_from_slice(part.get(..n).unwrap_or_default());
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let reply = match request.parse(&got) {
            Ok(httparse::Status::Complete(_)) => reply(&request, gather),
            Ok(httparse::Status::Partial) if n == 0 => return Ok(()),
            Ok(httparse::Status::Partial)
                if got.len() < REQUEST_MAX && begun.elapsed() < PATIENCE =>
            {
                continue;
            }
            Ok(httparse::Status::Partial) => Reply::refused("431 Request Header Fields Too Large"),
            Err(_) => Reply::refused("400 Bad Request"),
        };
        return caller.write_all(&reply.bytes(request.method != Some("HEAD")));
    }
}

fn reply(
    request: &httparse::Request<'_, '_>,
    gather: impl FnOnce() -> Option<Vec<Sample>>,
) -> Reply {
    if !matches!(request.method, Some("GET" | "HEAD")) {
        return Reply::refused("405 Method Not Allowed");
    }
    let path = request.path.unwrap_or_default();
    if path.split('?').next() != Some("/metrics") {
        return Reply {
            body: "the metrics are at /metrics\n".into(),
            ..Reply::refused("404 Not Found")
        };
    }
    let accepted = request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case("accept"));
    let wants = |h: &httparse::Header<'_>| {
        String::from_utf8_lossy(h.value).contains("application/openmetrics-text")
    };
    let format =
        if accepted.into_iter().any(wants) { Format::OpenMetrics } else { Format::Prometheus };
    let Some(samples) = gather() else { return Reply::refused("503 Service Unavailable") };
    match encode(samples, format) {
        Ok(body) => Reply { status: "200 OK", content_type: format.content_type(), body },
        Err(_) => Reply::refused("500 Internal Server Error"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::families::LOCK_POLLS;
    use super::super::samples::Value;
    use super::*;

    /// What a caller gets that says this.
    fn said(request: &str) -> String {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.write_all(request.as_bytes()).unwrap();
        near.shutdown(std::net::Shutdown::Write).unwrap();
        let polls =
            || Some(vec![Sample { family: &LOCK_POLLS, labels: vec![], value: Value::Whole(7) }]);
        answer(&mut far, polls).unwrap();
        drop(far);
        let mut got = String::new();
        near.read_to_string(&mut got).unwrap();
        got
    }

    #[test]
    fn the_format_is_the_one_that_is_asked_for() {
        let got = said("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = got.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("version=0.0.4"), "{got}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{got}");
        assert!(body.ends_with("braid_lock_polls_total 7\n"), "{got}");
        let accept =
            "aCCept: application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5\r\n";
        let got = said(&format!("GET /metrics?x=1 HTTP/1.1\r\n{accept}\r\n"));
        assert!(
            got.contains("openmetrics-text; version=1.0.0") && got.ends_with("# EOF\n"),
            "{got}"
        );
        let head = said("HEAD /metrics HTTP/1.0\r\n\r\n");
        assert!(head.ends_with("\r\n\r\n") && head.contains("200 OK"), "{head}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut many = format!("GET /metrics HTTP/1.1\r\nX: {}", "y".repeat(REQUEST_MAX));
        // What is not read would break the connection before the answer is.
        many.truncate(REQUEST_MAX);
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metricsx HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("\0\0\0\r\n\r\n", "400"),
            (&many, "431"),
        ] {
            let got = said(request);
            assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {got}");
        }
        // It has gone without asking.
        assert_eq!(said("GET /metr"), "");
    }

    #[test]
    fn who_only_holds_connections_keeps_nobody_out() {
        let callers = Arc::<Mutex<Callers>>::default();
        let polls = || vec![Sample { family: &LOCK_POLLS, labels: vec![], value: Value::Whole(7) }];
        let call = |gather: Box<dyn FnOnce() -> Vec<Sample> + Send>| {
            let (near, far) = UnixStream::pair().unwrap();
            take(Caller::Unix(far), &callers, gather).unwrap();
            near
        };
        let mut silent: Vec<_> = (0..SILENT_MAX + 3).map(|_| call(Box::new(polls))).collect();
        let mut said = String::new();
        // The oldest has made room.
        assert_eq!(silent[0].read_to_string(&mut said).unwrap(), 0);
        let ask = |mut caller: UnixStream| {
            caller.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            caller
        };
        let mut said = String::new();
        ask(call(Box::new(polls))).read_to_string(&mut said).unwrap();
        assert!(said.ends_with("braid_lock_polls_total 7\n"), "{said}");
        drop(silent);
        // Those that have asked are answered first, however long that takes.
        let (go, gate) = std::sync::mpsc::sync_channel::<()>(ANSWERED_MAX);
        let gate = Arc::new(Mutex::new(gate));
        let (began, begun) = std::sync::mpsc::channel();
        while !callers.lock().silent.is_empty() || callers.lock().answered > 0 {
            std::thread::yield_now();
        }
        let slow: Vec<_> = (0..ANSWERED_MAX)
            .map(|_| {
                let (gate, began) = (gate.clone(), began.clone());
                ask(call(Box::new(move || {
                    began.send(()).unwrap();
                    gate.lock().recv().unwrap();
                    Vec::new()
                })))
            })
            .collect();
        slow.iter().for_each(|_| begun.recv().unwrap());
        let mut said = String::new();
        ask(call(Box::new(polls))).read_to_string(&mut said).unwrap();
        assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
        slow.iter().for_each(|_| go.send(()).unwrap());
        for mut caller in slow {
            let mut said = String::new();
            caller.read_to_string(&mut said).unwrap();
            assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
        }
    }

    #[test]
    fn a_socket_is_taken_from_the_dead_and_from_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let address = Address::Unix(path.clone());
        // Nobody listens any more, and it is still there.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let server = Server::bind(&address).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = format!("{:#}", Server::bind(&address).unwrap_err());
        assert!(
            refused.contains("option metrics") && refused.contains("another process"),
            "{refused}"
        );
        drop(server);
        assert!(!path.exists());
        std::fs::write(&path, "x").unwrap();
        assert!(Server::bind(&address).is_err() && path.exists());
    }
}

//! The server: takes connections and serves a file system by them.

mod connection;
mod operations;
mod options;
mod references;
mod session;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use braid_fs::FileSystem;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use connection::Shared;
use operations::Served;
pub use options::ServerOptions;
pub use references::References;
use session::Sessions;

use crate::wire::DATA_MAX;

/// Between two looks at whether the server ends.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// Between two looks at clients that are gone. Without a descriptor for a connection, it is tried again after so
/// long.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that live, by the address that they are from.
#[derive(Debug, Default)]
struct Connections {
    all: Mutex<HashMap<IpAddr, usize>>,
    ended: Condvar,
}

impl Connections {
    /// One more, if it may be.
    fn enter(&self, from: IpAddr, options: &ServerOptions) -> bool {
        let mut all = self.all.lock();
        let total: usize = all.values().sum();
        let own = all.get(&from).copied().unwrap_or(0);
        let may = total < options.connections_max && own < options.connections_from_one;
        if may {
            all.insert(from, own + 1);
        }
        may
    }
    fn leave(&self, from: IpAddr) {
        let mut all = self.all.lock();
        if let Some(own) = all.get_mut(&from) {
            *own -= 1;
            if *own == 0 {
                all.remove(&from);
            }
        }
        self.ended.notify_all();
    }
    fn wait(&self) {
        let mut all = self.all.lock();
        self.ended.wait_while(&mut all, |all| all.values().any(|n| *n > 0));
    }
}

/// A file system that is being served. Ends when it is dropped.
pub struct Server<F: FileSystem> {
    shared: Arc<Shared<F>>,
    connections: Arc<Connections>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl<F: FileSystem> Server<F> {
    /// Begins to serve `files` at `listener`. The file system knows `references`: it was mounted with them.
    ///
    /// # Errors
    /// No thread can be started.
    ///
    /// # Panics
    /// `options.data_max` is 0, or more than a message may have.
    pub fn start(
        listener: TcpListener,
        files: F,
        references: Arc<References>,
        options: ServerOptions,
    ) -> io::Result<Self> {
        assert!((1..=DATA_MAX).contains(&options.data_max), "data_max");
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let verifier = uuid::Uuid::new_v4().as_u64_pair().0 | 1;
        let sessions = Sessions::new(options.sessions_max, options.slots);
        let owners = AtomicU64::new(uuid::Uuid::new_v4().as_u64_pair().0);
        let served = Served { files, references, options, verifier, owners };
        let shared = Arc::new(Shared { served, sessions, ending: AtomicBool::new(false) });
        let connections = Arc::<Connections>::default();
        let mut server = Self { shared, connections, address, threads: Vec::new() };
        let (shared, connections) = (Arc::clone(&server.shared), Arc::clone(&server.connections));
        server.spawn(move || accept(&shared, &connections, &listener))?;
        let shared = Arc::clone(&server.shared);
        server.spawn(move || expire(&shared))?;
        Ok(server)
    }

    fn spawn(&mut self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("bulk".into()).spawn(work)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The file system.
    pub fn files(&self) -> &F {
        &self.shared.served.files
    }

    /// Names of clients, and files that each has open.
    pub fn clients(&self) -> Vec<(String, usize)> {
        self.shared.sessions.list()
    }

    /// Ends all connections. On return no request is under way, and no file open.
    pub fn stop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
        self.shared.sessions.end_all(&self.shared.served.files);
        self.connections.wait();
    }
}

impl<F: FileSystem> Drop for Server<F> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Takes connections until the server ends.
fn accept<F: FileSystem>(
    shared: &Arc<Shared<F>>,
    connections: &Arc<Connections>,
    listener: &TcpListener,
) {
    while !shared.ending.load(Ordering::Relaxed) {
        poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&LOOK)).ok();
        match listener.accept() {
            Ok((stream, from)) => begin(shared, connections, stream, from),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(%error, "a client is not served");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Forgets clients that are gone, until the server ends. Closing their files may take a while.
fn expire<F: FileSystem>(shared: &Shared<F>) {
    while !shared.ending.load(Ordering::Relaxed) {
        shared.sessions.expire(&shared.served.files, shared.served.options.session_time);
        std::thread::sleep(PAUSE);
    }
}

/// Starts the thread of a connection, which is closed if there are too many.
fn begin<F: FileSystem>(
    shared: &Arc<Shared<F>>,
    connections: &Arc<Connections>,
    stream: TcpStream,
    from: SocketAddr,
) {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    if !connections.enter(from.ip(), &shared.served.options) {
        tracing::warn!(%from, "too many connections: this one is closed");
        return;
    }
    let (shared, others) = (Arc::clone(shared), Arc::clone(connections));
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let work = move || {
        let broken = Broken;
        if let Err(error) = stream
            .set_nonblocking(false)
            .map_err(Into::into)
            .and_then(|()| shared.serve(number, stream))
        {
            tracing::info!(%from, %error, "a connection has ended");
        }
        std::mem::forget(broken);
        others.leave(from.ip());
    };
    let thread = std::thread::Builder::new().name("bulk".into()).spawn(work);
    if let Err(error) = thread {
        tracing::warn!(%from, %error, "a client is not served");
        connections.leave(from.ip());
    }
}

/// Dropped by a panic only: an invariant of the file system is broken, which ends the process.
struct Broken;
impl Drop for Broken {
    fn drop(&mut self) {
        std::process::abort();
    }
}

//! The server: takes connections and serves a file system by them.

mod connection;
mod counts;
mod events;
mod held_locks;
mod id_map;
mod leases;
mod locks;
mod looked_up;
mod mounted;
mod names;
mod open_files;
mod operations;
mod options;
mod outcome;
mod permissions;
mod references;
mod refused_connections;
mod served;
mod session;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_fs::FileSystem;
use braid_fs::lock::AbortOnPanic;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use connection::Shared;
use counts::Counters;
pub use counts::{ClientView, Counts, Operation, RequestCounts};
pub use id_map::{IdMap, IdMapError, IdRule, NOBODY};
pub use leases::LeaseCounts;
use leases::{MARGIN, TERM};
pub use options::{ServerOptions, Squash};
pub use references::References;
use refused_connections::RefusedConnections;
use served::Served;
use session::{Session, Sessions};

use crate::link::Cutter;
use crate::wire::DATA_MAX;

/// Between two looks at whether the server ends.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// Between two looks at clients that are gone. Without a descriptor for a connection, it is tried again after so
/// long.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections that live.
#[derive(Debug, Default)]
struct Connections {
    state: Mutex<ConnectionsState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct ConnectionsState {
    /// Where each is from, by its number.
    live: HashMap<u64, IpAddr>,
    /// Those whose clients are not known yet, the oldest first. Without TLS there are none.
    unidentified: VecDeque<(u64, Cutter)>,
    /// Threads of connections, also of those that were cut in favour of others.
    threads: usize,
}

impl Connections {
    /// One more, if there is a place. With a `cutter` its client is not known yet. If there is no place, the oldest
    /// connection of such a client (of the same address, if that has too many) is cut for it: a client that has a
    /// certificate is known within milliseconds.
    fn enter(
        &self,
        (number, from): (u64, IpAddr),
        options: &ServerOptions,
        cutter: Option<Cutter>,
    ) -> bool {
        let mut state = self.state.lock();
        let ConnectionsState { live, unidentified, threads } = &mut *state;
        let own = live.values().filter(|ip| **ip == from).count();
        let crowded = own >= options.connections_from_one;
        if crowded || live.len() >= options.connections_max {
            let is_in_the_way =
                |(n, _): &(u64, Cutter)| !crowded || live.get(n).is_some_and(|ip| *ip == from);
            let oldest = unidentified.iter().position(is_in_the_way).filter(|_| cutter.is_some());
            let Some((oldest, former)) = oldest.and_then(|at| unidentified.remove(at)) else {
                return false;
            };
            former.cut();
            live.remove(&oldest);
        }
        live.insert(number, from);
        unidentified.extend(cutter.map(|cutter| (number, cutter)));
        *threads += 1;
        true
    }
    /// The client of a connection is known.
    fn know(&self, number: u64) {
        self.state.lock().unidentified.retain(|(n, _)| *n != number);
    }
    fn leave(&self, number: u64) {
        let mut state = self.state.lock();
        state.live.remove(&number);
        state.unidentified.retain(|(n, _)| *n != number);
        state.threads -= 1;
        self.ended.notify_all();
    }
    fn wait(&self) {
        let mut state = self.state.lock();
        self.ended.wait_while(&mut state, |state| state.threads > 0);
    }
    /// Cuts those whose clients are not known yet.
    fn cut_unidentified(&self) {
        self.state.lock().unidentified.iter().for_each(|(_, cutter)| cutter.cut());
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
        let begun = Instant::now();
        let counters = Counters::default();
        let served = Served { files, references, options, verifier, begun, owners, counters };
        let (ending, refused) = (AtomicBool::new(false), RefusedConnections::default());
        let shared = Arc::new(Shared { served, sessions, ending, refused });
        let connections = Arc::<Connections>::default();
        let mut server = Self { shared, connections, address, threads: Vec::new() };
        let (shared, connections) = (Arc::clone(&server.shared), Arc::clone(&server.connections));
        server.spawn(move || accept(&shared, &connections, &listener))?;
        let shared = Arc::clone(&server.shared);
        server.spawn(move || expire(&shared))?;
        let shared = Arc::clone(&server.shared);
        server.spawn(move || give_looked_up_back(&shared))?;
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

    /// For those who look at it, also after it has ended.
    pub fn observer(&self) -> Observer<F> {
        Observer(Arc::clone(&self.shared))
    }

    /// Ends all connections. On return no request is under way, and no file open.
    pub fn stop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
        let served = &self.shared.served;
        // Nobody is to keep anything when this node leaves the pool.
        served.references.leases().suspend(Instant::now() + TERM + MARGIN);
        let ended = self.shared.sessions.end_if(&served.files, |_| true);
        served.are_gone(&ended);
        self.connections.cut_unidentified();
        self.connections.wait();
        served.release(served.references.looked_up().take_all());
        served.references.leases().resume();
    }
}

/// Sees what a server does. No I/O.
pub struct Observer<F>(Arc<Shared<F>>);

impl<F> Clone for Observer<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
impl<F> std::fmt::Debug for Observer<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

impl<F: FileSystem> Observer<F> {
    /// The clients, by their names.
    pub fn clients(&self) -> Vec<ClientView> {
        let mut clients = self.0.sessions.views(self.0.served.references.leases());
        clients.sort_by(|a, b| (&a.name, b.age).cmp(&(&b.name, a.age)));
        clients
    }
    /// What all clients have asked for since the server began, those that are gone, too.
    pub fn counts(&self) -> Counts {
        self.0.served.counters.now()
    }
    /// What clients keep.
    pub fn leases(&self) -> LeaseCounts {
        self.0.served.references.lease_counts()
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

/// Forgets clients that are gone or revoked, until the server ends. Closing their files may take a while.
fn expire<F: FileSystem>(shared: &Shared<F>) {
    while !shared.ending.load(Ordering::Relaxed) {
        if let Some(tls) = &shared.served.options.tls {
            let is_revoked = |session: &Session| {
                let revoked = session.peer.as_ref().is_some_and(|peer| tls.is_revoked(peer));
                if revoked {
                    tracing::warn!(client = session.client, "a client is revoked: it is cut");
                }
                revoked
            };
            let revoked = shared.sessions.end_if(&shared.served.files, is_revoked);
            shared.served.are_gone(&revoked);
        }
        let time = shared.served.options.session_time;
        let gone = shared.sessions.expire(&shared.served.files, time);
        shared.served.are_gone(&gone);
        shared.served.references.leases().tend();
        std::thread::sleep(PAUSE);
    }
}

/// Gives inodes back that clients have looked up a while ago, until the server ends. A thread of its own, because it may
/// have to free a large file.
fn give_looked_up_back<F: FileSystem>(shared: &Shared<F>) {
    while !shared.ending.load(Ordering::Relaxed) {
        shared.served.release(shared.served.references.looked_up().take_old(Instant::now()));
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
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let options = &shared.served.options;
    let cutter = match options.tls.as_ref().map(|_| Cutter::of(&stream)).transpose() {
        Ok(cutter) => cutter,
        Err(error) => {
            tracing::warn!(%from, %error, "a client is not served");
            return;
        }
    };
    if !connections.enter((number, from.ip()), options, cutter) {
        shared.refused.turned_away(from, &"there are too many");
        return;
    }
    let (shared, others) = (Arc::clone(shared), Arc::clone(connections));
    let work = move || {
        let _abort = AbortOnPanic;
        match stream.set_nonblocking(false) {
            Ok(()) => shared.serve((number, from), stream, || others.know(number)),
            Err(error) => tracing::warn!(%from, %error, "a client is not served"),
        }
        others.leave(number);
    };
    let thread = std::thread::Builder::new().name("bulk".into()).spawn(work);
    if let Err(error) = thread {
        tracing::warn!(%from, %error, "a client is not served");
        connections.leave(number);
    }
}

//! A pool in memory that is served over loopback, and a way to it that can be cut.

#![allow(clippy::unwrap_used, clippy::cast_possible_wrap, reason = "tests")]
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(missing_docs, reason = "test support")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use braid_bulk::client::{Client, ClientOptions};
use braid_bulk::server::{References, Server, ServerOptions};
use braid_device::{Device, MemoryDevice};
use braid_format::Bytes;
use braid_fs::check::{CheckOptions, check};
use braid_fs::make::{MakeOptions, make};
use braid_fs::{Fs, MountOptions, NoKernelCache};
use braid_pool::{CreateOptions, Pool};
use parking_lot::Mutex;

/// A mounted pool in memory.
pub struct Host {
    devices: Vec<Arc<dyn Device>>,
    pub fs: Fs,
    references: Arc<References>,
}

impl Host {
    pub fn new(mib: u64) -> Self {
        let device = |n: u16| MemoryDevice::new(&n.to_string(), Bytes(mib << 20), Bytes(512));
        let devices: Vec<Arc<dyn Device>> = (0..2).map(|n| device(n) as Arc<dyn Device>).collect();
        let options = CreateOptions { log_slots: 2, ..CreateOptions::new("test") };
        let pool = Pool::create(devices.clone(), &options).unwrap();
        let journal_size = Some(4 << 20);
        let options = MakeOptions { nodes: Some(2), journal_size, ..MakeOptions::default() };
        make(&pool, &options, &mut |_, _| {}).unwrap();
        let references = Arc::<References>::default();
        let pool = Pool::assemble(devices.clone()).unwrap();
        let fs = Fs::mount(pool, MountOptions::default(), references.clone()).unwrap();
        Self { devices, fs, references }
    }
    /// Another node.
    pub fn second(&self) -> Fs {
        let pool = Pool::assemble(self.devices.clone()).unwrap();
        Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap()
    }
    /// Another node, which can be served, too.
    pub fn beside(&self) -> Self {
        let references = Arc::<References>::default();
        let pool = Pool::assemble(self.devices.clone()).unwrap();
        let options = MountOptions { serves: true, ..MountOptions::default() };
        let fs = Fs::mount(pool, options, references.clone()).unwrap();
        Self { devices: self.devices.clone(), fs, references }
    }
    /// The node leaves the pool.
    pub fn leave(self) {
        self.fs.unmount().unwrap();
    }
    pub fn references(&self) -> &References {
        &self.references
    }
    pub fn options() -> ServerOptions {
        let session_time = Duration::from_secs(2);
        let grace = Duration::from_secs(1);
        ServerOptions { session_time, grace, ..ServerOptions::new("test") }
    }
    pub fn serve_with(&self, options: ServerOptions) -> Server<Fs> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Server::start(listener, self.fs.clone(), self.references.clone(), options).unwrap()
    }
    pub fn serve(&self) -> Server<Fs> {
        self.serve_with(Self::options())
    }
    /// A server that begins anew, which clients reach by `proxy`, as the one before.
    pub fn restart(&self, server: Server<Fs>, proxy: &Proxy) -> Server<Fs> {
        proxy.close();
        drop(server);
        let server = self.serve();
        proxy.open_to(server.address());
        server
    }
    /// Unmounts; the check finds nothing.
    pub fn finish(self) {
        self.fs.unmount().unwrap();
        let pool = Pool::assemble(self.devices).unwrap();
        let report = check(pool, CheckOptions { repair: false }, &mut |_, _| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }
}

pub fn client_options(address: SocketAddr) -> ClientOptions {
    let options = ClientOptions::new(&address.to_string(), "test");
    ClientOptions { name: "test client".into(), connections: 4, ..options }
}

pub fn connect(address: SocketAddr) -> Client {
    Client::connect(client_options(address)).unwrap()
}

/// Bytes that differ from place to place.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; len];
    for piece in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        piece.copy_from_slice(&state.to_le_bytes()[..piece.len()]);
    }
    bytes
}

/// What the proxy still lets through in a direction, bytes; then it cuts the connection.
#[derive(Default)]
struct Rules {
    /// To the server, and back; below 0: everything.
    budget: [AtomicI64; 2],
    /// Nothing comes back from the server, by whatever connection.
    mute: AtomicBool,
    /// Nothing passes, and nobody hears of it.
    silent: AtomicBool,
    /// No connection is made at all.
    closed: AtomicBool,
    /// With the connection that is cut, all others are, and no other one is made.
    closes: AtomicBool,
}

/// A way to a server. It can be cut, and lead to another server.
pub struct Proxy {
    pub address: SocketAddr,
    rules: Arc<Rules>,
    target: Arc<Mutex<SocketAddr>>,
    live: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let rules = Arc::<Rules>::default();
        let target = Arc::new(Mutex::new(target));
        let live = Arc::<Mutex<Vec<TcpStream>>>::default();
        let proxy = Self { address, rules, target, live };
        proxy.no_cut();
        let (rules, target, live) = (proxy.rules.clone(), proxy.target.clone(), proxy.live.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                if rules.closed.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(*target.lock()) else { continue };
                live.lock().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                for (n, (from, to)) in
                    [(&client, &server), (&server, &client)].into_iter().enumerate()
                {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (rules, live) = (rules.clone(), live.clone());
                    std::thread::spawn(move || forward(from, to, (&rules, &live), n));
                }
            }
        });
        proxy
    }
    /// Cuts a connection once after so many more bytes in a direction (0: to the server).
    pub fn cut_after(&self, direction: usize, bytes: i64) {
        self.rules.budget[direction].store(bytes, Ordering::SeqCst);
    }
    /// The same, and nothing passes after that.
    pub fn close_after(&self, direction: usize, bytes: i64) {
        self.rules.closes.store(true, Ordering::SeqCst);
        self.cut_after(direction, bytes);
    }
    /// No reply arrives any more, also none that is asked for again by another connection.
    pub fn lose_replies(&self) {
        self.rules.mute.store(true, Ordering::SeqCst);
    }
    /// Nothing passes any more by the connections that there are, which stay, whatever the server does.
    pub fn silence(&self) {
        self.rules.silent.store(true, Ordering::SeqCst);
    }
    /// Everything passes again.
    pub fn no_cut(&self) {
        self.rules.mute.store(false, Ordering::SeqCst);
        self.rules.closes.store(false, Ordering::SeqCst);
        self.cut_after(0, i64::MIN);
        self.cut_after(1, i64::MIN);
    }
    /// Whether the cut that was asked for has come.
    pub fn has_cut(&self, direction: usize) -> bool {
        self.rules.budget[direction].load(Ordering::SeqCst) == i64::MIN
    }
    /// Cuts everything; nothing passes until it is opened.
    pub fn close(&self) {
        close(&self.rules, &self.live);
    }
    pub fn open_to(&self, target: SocketAddr) {
        *self.target.lock() = target;
        self.rules.closed.store(false, Ordering::SeqCst);
    }
}

fn close(rules: &Rules, live: &Mutex<Vec<TcpStream>>) {
    rules.closed.store(true, Ordering::SeqCst);
    for stream in live.lock().drain(..) {
        stream.shutdown(Shutdown::Both).ok();
    }
}

fn forward(
    mut from: TcpStream,
    mut to: TcpStream,
    (rules, live): (&Rules, &Mutex<Vec<TcpStream>>),
    direction: usize,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer);
        while rules.silent.load(Ordering::SeqCst) && !rules.closed.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let n = match read {
            Ok(n) if n > 0 => n,
            _ => break,
        };
        if direction == 1 && rules.mute.load(Ordering::SeqCst) {
            continue;
        }
        // Below zero: whoever takes the last byte cuts.
        let budget = &rules.budget[direction];
        let mut pass = n;
        let taken = budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            if left < 0 {
                return None;
            }
            let rest = left - n as i64;
            Some(if rest < 0 { i64::MIN } else { rest })
        });
        let mut cut = false;
        if let Ok(left) = taken
            && left < n as i64
        {
            pass = usize::try_from(left).unwrap();
            cut = true;
        }
        if cut && rules.closes.load(Ordering::SeqCst) {
            to.write_all(&buffer[..pass]).ok();
            close(rules, live);
            break;
        } else if to.write_all(&buffer[..pass]).is_err() || cut {
            break;
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

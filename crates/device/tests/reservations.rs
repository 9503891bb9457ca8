//! Persistent reservations on a real target: by sessions of their own, and by a path that the nodes of
//! a host share, as by a kernel's disk. One suite for both.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(clippy::needless_pass_by_value, reason = "what a call returned is checked and done with")]

use std::fs::File;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use braid_device::scsi::{Answer, Data, PathReservations, Sense, Transport, Unit};
use braid_device::{
    Device, DeviceError, IscsiDevice, MemoryDevice, OpenOptions, Reservation, ReservationKind,
    Reservations,
};
use braid_format::{ByteOffset, Bytes};
use braid_iscsi_target::{Chap, LunOptions, Target, TargetOptions};

const NAME: &str = "iqn.2026-11.org.braid:reservations";
const KIND: ReservationKind = ReservationKind::WriteExclusiveAll;

fn serve() -> Target {
    let device = MemoryDevice::new("unit", Bytes(8 << 20), Bytes(512));
    let luns = vec![LunOptions { device, identity: None, reservations: None }];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = TargetOptions { name: NAME.into(), luns, chap: Chap::default() };
    Target::start(listener, options).unwrap()
}

/// A path to the unit that before every second command says that it did not run.
#[derive(Debug)]
struct Moody(Arc<IscsiDevice>, AtomicU32);

impl Transport for Moody {
    fn command(&self, cdb: &[u8], data: Data<'_>) -> std::io::Result<Answer> {
        let attention = Some(Sense { key: 6, code: 0x2a03, information: None });
        match self.1.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => Ok(Answer { status: 2, sense: attention, missing: 0 }),
            2 => Ok(Answer { status: 8, sense: None, missing: 0 }),
            _ => self.0.command(cdb, data),
        }
    }
    fn reset(&self) -> std::io::Result<()> {
        Transport::reset(&*self.0)
    }
}

/// A host: its one path to the unit, and the node of the disk that its processes lock.
struct Host {
    path: Arc<IscsiDevice>,
    node: tempfile::NamedTempFile,
}

/// Who has the unit open.
struct Node {
    unit: Arc<IscsiDevice>,
    shared: Option<PathReservations<Moody>>,
}

impl Host {
    fn new(target: &Target) -> Self {
        let name = format!("iscsi://{}/{NAME}/0", target.address());
        let path = IscsiDevice::open(&name, OpenOptions::default()).unwrap();
        Self { path, node: tempfile::NamedTempFile::new().unwrap() }
    }
    /// A node of this host, that shares its path.
    fn node(&self) -> Node {
        let moody = Moody(self.path.clone(), AtomicU32::new(0));
        let unit = Arc::new(Unit::probe(moody).unwrap().unwrap());
        let file = File::options().read(true).write(true).open(self.node.path()).unwrap();
        let shared = PathReservations::find(unit, "disk", Arc::new(file)).unwrap();
        assert!(shared.is_some());
        Node { unit: self.path.clone(), shared }
    }
}

impl Node {
    fn reservations(&self) -> &dyn Reservations {
        match &self.shared {
            Some(shared) => shared,
            None => self.unit.abilities().reservations.unwrap(),
        }
    }
    fn write(&self, byte: u8) -> Result<(), DeviceError> {
        self.unit.write(ByteOffset(4096), &[byte; 512])
    }
    fn stands(&self) -> u8 {
        let mut now = [0; 512];
        self.unit.read(ByteOffset(4096), &mut now).unwrap();
        now[0]
    }
}

fn fenced<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
    assert!(matches!(result, Err(DeviceError::Fenced { .. })), "{result:?}");
}

/// Three nodes of three hosts.
fn everything(target: &Target, [a, b, stranger]: [&Node; 3]) {
    let [of_a, of_b, of_stranger] = [a, b, stranger].map(Node::reservations);
    assert_eq!((of_a.keys().unwrap(), of_a.reservation().unwrap()), (vec![], None));
    // The bytes of keys and of the list are not to be turned around.
    const A: u64 = 0x8102_0304_0506_0708;
    of_a.register(0, A).unwrap();
    assert_eq!(of_b.register_anyhow(0xb).unwrap(), 0xb);
    assert_eq!((of_a.registered(), of_b.registered(), of_stranger.registered()), (A, 0xb, 0));
    fenced(of_stranger.register(7, 8));
    fenced(of_b.register(7, 8));
    let mut keys = of_stranger.keys().unwrap();
    keys.sort_unstable();
    assert_eq!(keys, [0xb, A]);
    of_a.reserve(A, KIND).unwrap();
    of_a.reserve(A, KIND).unwrap();
    assert_eq!(of_b.reservation().unwrap(), Some(Reservation { key: 0, kind: KIND }));
    fenced(of_stranger.reserve(7, KIND));
    fenced(of_b.reserve(0xb, ReservationKind::ExclusiveAccess));
    a.write(1).unwrap();
    b.write(2).unwrap();
    fenced(stranger.write(9));
    // A write that would land in ten minutes, of somebody who is fenced at once.
    target.faults().add("write delay=600000 times=1").unwrap();
    std::thread::scope(|s| {
        let under_way = s.spawn(|| a.write(7));
        while target.running() == 0 {
            std::thread::yield_now();
        }
        of_b.preempt_and_abort(0xb, A, KIND).unwrap();
        assert_eq!(b.stands(), 2);
        // What was aborted is issued again, and refused.
        fenced(under_way.join().unwrap());
        assert_eq!((target.running(), b.stands()), (0, 2));
    });
    fenced(a.write(7));
    fenced(a.unit.compare_and_write(ByteOffset(4096), &[2; 512], &[7; 512]));
    fenced(of_a.register(A, 0xc));
    fenced(of_b.preempt_and_abort(0xb, A, KIND));
    assert_eq!(of_b.keys().unwrap(), [0xb]);
    b.write(3).unwrap();
    of_b.reset().unwrap();
    b.write(4).unwrap();
    fenced(of_a.register(A, 0));
    // The last one's leaving ends the reservation.
    of_b.register(0xb, 0).unwrap();
    assert_eq!((of_b.registered(), of_b.keys().unwrap()), (0, vec![]));
    stranger.write(5).unwrap();
    of_b.register(0, 0xb).unwrap();
    of_b.reserve(0xb, ReservationKind::WriteExclusiveRegistrants).unwrap();
    fenced(stranger.write(9));
    of_b.clear(0xb).unwrap();
    assert_eq!((of_b.keys().unwrap(), of_b.reservation().unwrap()), (vec![], None));
    stranger.write(6).unwrap();
    assert_eq!(b.stands(), 6);
}

#[test]
fn sessions_of_their_own_reserve() {
    let target = serve();
    let nodes = [0, 1, 2].map(|_| Node { unit: Host::new(&target).path, shared: None });
    everything(&target, nodes.each_ref());
}

#[test]
fn paths_that_are_shared_reserve() {
    let target = serve();
    let hosts = [0, 1, 2].map(|_| Host::new(&target));
    let nodes = hosts.each_ref().map(Host::node);
    everything(&target, nodes.each_ref());
}

#[test]
fn the_nodes_of_a_host_have_one_key_and_the_last_gives_it_back() {
    let target = serve();
    let (host, other) = (Host::new(&target), Host::new(&target));
    let ([a, b], c) = ([(); 2].map(|()| host.node()), other.node());
    let [of_a, of_b, of_c] = [&a, &b, &c].map(Node::reservations);
    assert!(of_a.shares_path() && !host.path.abilities().reservations.unwrap().shares_path());
    assert_eq!(of_c.register_anyhow(0xc).unwrap(), 0xc);
    assert_eq!(of_a.register_anyhow(0xa).unwrap(), 0xa);
    of_a.reserve(0xa, KIND).unwrap();
    assert_eq!(of_b.register_anyhow(0xb).unwrap(), 0xa);
    assert_eq!((of_b.registered(), of_c.keys().unwrap()), (0xa, vec![0xc, 0xa]));
    assert_eq!(of_a.register_anyhow(0xd).unwrap(), 0xa, "it has one");
    // Nobody's alone to change.
    fenced(of_a.register(0xa, 0xd));
    fenced(of_b.register(0xb, 0));
    of_a.register(0xa, 0).unwrap();
    assert_eq!((of_a.registered(), of_c.keys().unwrap()), (0, vec![0xc, 0xa]));
    // Who uses it no more does not end it for who does.
    fenced(of_a.register(0xa, 0));
    b.write(1).unwrap();
    of_b.register(0xa, 0).unwrap();
    assert_eq!(of_c.keys().unwrap(), [0xc]);
    fenced(b.write(2));
}

#[test]
fn what_a_dead_node_leaves_is_taken_on() {
    let target = serve();
    let host = Host::new(&target);
    let (dead, other) = (host.node(), Host::new(&target).node());
    dead.reservations().register_anyhow(0xa).unwrap();
    drop(dead);
    let b = host.node();
    assert_eq!(b.reservations().register_anyhow(0xb).unwrap(), 0xa);
    b.reservations().reserve(0xa, KIND).unwrap();
    b.write(1).unwrap();
    // As its key always was its host's, whoever fences the dead one by it fences all that live there.
    other.reservations().register_anyhow(0xc).unwrap();
    other.reservations().preempt_and_abort(0xc, 0xa, KIND).unwrap();
    fenced(b.write(2));
    drop(b);
    let c = host.node();
    assert_eq!(c.reservations().register_anyhow(0xd).unwrap(), 0xd);
    c.reservations().register(0xd, 0).unwrap();
    assert_eq!(other.reservations().keys().unwrap(), [0xc]);
}

/// What they have in the kernel would come through by a new key.
#[test]
fn nobody_registers_anew_while_a_fenced_node_of_the_host_is_open() {
    let target = serve();
    let (host, other) = (Host::new(&target), Host::new(&target).node());
    let ([a, b], late) = ([(); 2].map(|()| host.node()), host.node());
    for node in [&a, &b] {
        assert_eq!(node.reservations().register_anyhow(0xa).unwrap(), 0xa);
    }
    let of_other = other.reservations();
    of_other.register_anyhow(0xc).unwrap();
    of_other.reserve(0xc, KIND).unwrap();
    of_other.preempt_and_abort(0xc, 0xa, KIND).unwrap();
    fenced(a.write(1));
    fenced(b.write(1));
    fenced(a.reservations().register_anyhow(0xd));
    let refused = |node: &Node| {
        let refused = node.reservations().register_anyhow(0xd);
        assert!(matches!(refused, Err(DeviceError::HostFenced { .. })), "{refused:?}");
    };
    refused(&late);
    drop(a);
    refused(&late);
    assert_eq!(of_other.keys().unwrap(), [0xc]);
    // It gives up: that ends its use, though the unit knows its key no more.
    fenced(b.reservations().register(0xa, 0));
    assert_eq!(b.reservations().registered(), 0);
    assert_eq!(late.reservations().register_anyhow(0xd).unwrap(), 0xd);
    late.write(1).unwrap();
}

#[test]
fn who_comes_and_goes_at_once_takes_no_key_from_another() {
    let target = serve();
    let host = Host::new(&target);
    std::thread::scope(|s| {
        for n in 1..=6_u64 {
            let node = host.node();
            s.spawn(move || {
                for _ in 0..25 {
                    let key = node.reservations().register_anyhow(n).unwrap();
                    assert!(node.reservations().keys().unwrap() == [key]);
                    node.reservations().register(key, 0).unwrap();
                }
            });
        }
    });
    assert_eq!(host.node().reservations().keys().unwrap(), []);
}

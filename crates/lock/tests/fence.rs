//! Fences by reservation on a real target: what a fenced node has under way, and what comes between.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use braid_device::scsi::{PathReservations, Unit};
use braid_device::{
    Abilities, Command, Completion, Device, DeviceError, DeviceInfo, IscsiDevice, MemoryDevice,
    OpenOptions, ReservationKind,
};
use braid_format::{ByteOffset, Bytes, Epoch, MemberIndex};
use braid_iscsi_target::{Chap, LunOptions, Target, TargetOptions};
use braid_pool::{AddOptions, CreateOptions, Destination, FenceHow, Pool, PoolError, Reservable};

const PROVE: FenceHow = FenceHow { prove: true, reset: false, epoch_seen: Epoch(u64::MAX) };
const NAME: &str = "iqn.2026-11.org.braid:fence-test";

fn target(units: usize) -> Target {
    let unit = |n: usize| LunOptions {
        device: MemoryDevice::new(&format!("unit {n}"), Bytes(16 << 20), Bytes(512)),
        identity: None,
        reservations: None,
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let luns = (0..units).map(unit).collect();
    let options = TargetOptions { name: NAME.into(), luns, chap: Chap::default() };
    Target::start(listener, options).unwrap()
}

fn open(target: &Target, units: usize) -> Vec<Arc<dyn Device>> {
    let name = |n| format!("iscsi://{}/{NAME}/{n}", target.address());
    let open = |n| braid_device::open(Path::new(&name(n)), OpenOptions::default()).unwrap();
    (0..units).map(open).collect()
}

/// A pool over two units, as two nodes have it open, with the keys 1 and 2.
fn two() -> (Target, Pool, Pool) {
    let target = target(2);
    drop(Pool::create(open(&target, 2), &CreateOptions::new("fenced")).unwrap());
    let [a, b] = [1, 2].map(|key| {
        let pool = Pool::assemble(open(&target, 2)).unwrap();
        assert_eq!(pool.reservable(), Reservable::All);
        pool.register(key).unwrap();
        pool
    });
    (target, a, b)
}

fn keys(pool: &Pool) -> Vec<Vec<u64>> {
    let of = |d: &Arc<dyn Device>| {
        let mut keys = d.abilities().reservations.unwrap().keys().unwrap();
        keys.sort_unstable();
        keys
    };
    pool.devices().iter().map(of).collect()
}

const AT: ByteOffset = ByteOffset(0);
const LEN: usize = 512;

fn stands(pool: &Pool) -> u8 {
    let mut now = [0; LEN];
    pool.read(AT, &mut now).unwrap();
    assert!(now.iter().all(|b| *b == now[0]));
    now[0]
}

#[test]
fn a_late_write_does_not_land_after_the_fence() {
    let (target, a, b) = two();
    a.write(AT, &[1; LEN]).unwrap();
    target.faults().add("write late=600000 times=1").unwrap();
    std::thread::scope(|s| {
        let under_way = s.spawn(|| a.write(AT, &[7; LEN]));
        while target.running() == 0 {
            std::thread::yield_now();
        }
        b.fence(1, PROVE).unwrap();
        assert_eq!((target.running(), stands(&b)), (0, 1));
        b.write(AT, &[2; LEN]).unwrap();
        // Nobody answers it.
        a.sever();
        assert!(under_way.join().unwrap().is_err());
    });
    assert_eq!(stands(&b), 2);
    assert_eq!(keys(&b), [[2], [2]]);
}

#[test]
fn who_is_fenced_is_refused_everything_and_its_members_are_not_to_blame() {
    let (_target, a, b) = two();
    b.fence(1, PROVE).unwrap();
    let refused = a.write(AT, &[7; LEN]);
    assert!(refused.as_ref().is_err_and(PoolError::is_fenced), "{refused:?}");
    assert!(a.uphold().is_err_and(|e| e.is_fenced()) && b.uphold().is_ok());
    // Nor does it fence anybody.
    assert!(a.fence(2, PROVE).is_err_and(|e| e.is_fenced()));
    assert!(b.label().members.iter().all(|m| m.state == braid_format::label::MemberState::Active));
    b.unregister();
    assert_eq!(keys(&b), [[], []]);
}

/// Its key is gone, and perhaps nobody has seen to it that what it had under way is ended.
#[test]
fn a_key_that_is_gone_is_no_proof() {
    let (target, a, b) = two();
    b.write(AT, &[1; LEN]).unwrap();
    target.faults().add("write late=600000 times=1").unwrap();
    std::thread::scope(|s| {
        let under_way = s.spawn(|| a.write(AT, &[7; LEN]));
        while target.running() == 0 {
            std::thread::yield_now();
        }
        a.unregister();
        assert_eq!((keys(&b), target.running()), (vec![vec![2], vec![2]], 1));
        // It is known to be dead: nothing needs to be ended.
        b.fence(1, FenceHow { prove: false, reset: false, epoch_seen: Epoch(u64::MAX) }).unwrap();
        assert_eq!(target.running(), 1);
        b.fence(1, PROVE).unwrap();
        assert_eq!((target.running(), stands(&b)), (0, 1));
        a.sever();
        assert!(under_way.join().unwrap().is_err());
    });
}

/// What others have under way while a member is reset is issued again.
#[test]
fn a_reset_costs_the_living_nothing() {
    let (target, a, b) = two();
    target.faults().add("write delay=600000 times=1").unwrap();
    std::thread::scope(|s| {
        let under_way = s.spawn(|| a.write(AT, &[3; LEN]));
        while target.running() == 0 {
            std::thread::yield_now();
        }
        b.fence(99, FenceHow { prove: true, reset: true, epoch_seen: Epoch(u64::MAX) }).unwrap();
        under_way.join().unwrap().unwrap();
    });
    assert_eq!(stands(&b), 3);
    assert_eq!(keys(&b), [[1, 2], [1, 2]]);
}

#[test]
fn the_reservation_outlasts_who_made_it_and_strangers_are_refused() {
    let (target, a, b) = two();
    let stranger = Pool::assemble(open(&target, 2)).unwrap();
    let refused = |p: &Pool| p.write(AT, &[9; LEN]).is_err_and(|e| e.is_fenced());
    assert!(refused(&stranger));
    a.unregister();
    assert!(refused(&stranger) && refused(&a));
    b.write(AT, &[2; LEN]).unwrap();
    // Somebody clears it all: it is made again, but not by who has no key any more.
    let third = Pool::assemble(open(&target, 2)).unwrap();
    third.register(3).unwrap();
    third.devices()[0].abilities().reservations.unwrap().clear(3).unwrap();
    assert!(b.uphold().is_err_and(|e| e.is_fenced()));
}

#[test]
fn a_pool_of_which_some_members_cannot_is_not_fenced_so() {
    let target = target(1);
    let mut devices = open(&target, 1);
    devices.push(MemoryDevice::new("memory", Bytes(16 << 20), Bytes(512)));
    let pool = Pool::create(devices, &CreateOptions::new("mixed")).unwrap();
    assert_eq!(pool.reservable(), Reservable::Some(vec!["memory".to_owned()]));
    let refused = pool.register(1);
    assert!(matches!(refused, Err(PoolError::NotReservable { .. })), "{refused:?}");
    assert!(pool.devices()[0].abilities().reservations.unwrap().keys().unwrap().is_empty());
    assert_eq!(pool.registered(), 0);
}

/// What a member is moved from, and what to: both say who may write.
#[test]
fn while_a_member_is_moved_nodes_register_and_are_fenced() {
    let target = target(3);
    let mut devices = open(&target, 3);
    let device = devices.pop().unwrap();
    drop(Pool::create(devices, &CreateOptions::new("moved")).unwrap());
    let [a, b] = [1, 2].map(|key| {
        let pool = Pool::assemble(open(&target, 2)).unwrap();
        pool.register(key).unwrap();
        pool
    });
    a.begin_evacuation(MemberIndex(0), Destination::Device { device, force: false }).unwrap();
    // Nobody shares it here.
    let c = Pool::assemble(open(&target, 3)).unwrap();
    assert_eq!((a.reservable(), c.reservable()), (Reservable::All, Reservable::All));
    c.register(3).unwrap();
    a.fence(2, PROVE).unwrap();
    assert_eq!(keys(&a), [[1, 3], [1, 3], [1, 3]]);
    let refused = |p: &Pool| p.write(AT, &[7; LEN]).is_err_and(|e| e.is_fenced());
    assert!(refused(&b) && !refused(&c));
    // The next time it is in the way of nobody.
    a.uphold().unwrap();
    a.unregister();
    c.unregister();
    assert_eq!(keys(&a), vec![Vec::<u64>::new(); 3]);
}

/// A unit as it was before it had grown.
#[derive(Debug)]
struct Small(Arc<dyn Device>, DeviceInfo);

impl Device for Small {
    fn info(&self) -> &DeviceInfo {
        &self.1
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        if matches!(command, Command::Read(_)) {
            self.1.check(at, command.len())?;
        }
        self.0.submit(at, command)
    }
    fn abilities(&self) -> Abilities<'_> {
        self.0.abilities()
    }
}

fn small(target: &Target, units: usize) -> Vec<Arc<dyn Device>> {
    let small = |d: Arc<dyn Device>| -> Arc<dyn Device> {
        let info = DeviceInfo { size: Bytes(8 << 20), ..d.info().clone() };
        Arc::new(Small(d, info))
    };
    open(target, units).into_iter().map(small).collect()
}

fn reopen(path: &str) -> Result<Arc<dyn Device>, PoolError> {
    Ok(braid_device::open(Path::new(path), OpenOptions::default())?)
}

/// A device that has grown is opened anew, as a port that nobody has registered yet.
#[test]
fn a_pool_grows_whose_members_are_reserved() {
    for units in [1, 2] {
        let target = target(units);
        drop(Pool::create(small(&target, units), &CreateOptions::new("grows")).unwrap());
        let [a, b, c] = [1, 2, 3].map(|key| {
            let pool = Pool::assemble(small(&target, units)).unwrap();
            pool.register(key).unwrap();
            pool
        });
        a.fence(3, PROVE).unwrap();
        let before = a.info().size;
        a.grow(&reopen).unwrap();
        assert!(a.info().size.get() > before.get() * 3 / 2);
        assert_eq!(keys(&a), vec![vec![1, 2]; units]);
        assert!(b.follow().unwrap());
        assert_eq!(b.info().size, a.info().size);
        for (pool, with) in [(&a, 4), (&b, 5)] {
            pool.write(ByteOffset(before.get()), &[with; LEN]).unwrap();
            pool.write(AT, &[with; LEN]).unwrap();
            pool.uphold().unwrap();
        }
        // All its devices are opened anew, and it is still fenced.
        let followed = c.follow();
        assert!(followed.as_ref().is_err_and(PoolError::is_fenced), "{followed:?}");
        assert_eq!(keys(&a), vec![vec![1, 2]; units]);
        b.fence(1, PROVE).unwrap();
        assert!(a.write(AT, &[6; LEN]).is_err_and(|e| e.is_fenced()));
        b.unregister();
        assert_eq!(keys(&b), vec![Vec::<u64>::new(); units]);
    }
}

/// What a change that failed has registered is not in the way of the next.
#[test]
fn a_device_that_could_not_be_added_is_added_the_next_time() {
    let target = target(2);
    let mut devices = open(&target, 2);
    let new = devices.pop().unwrap();
    let pool = Pool::create(devices, &CreateOptions::new("added")).unwrap();
    pool.register(1).unwrap();
    let add = || pool.add(std::slice::from_ref(&new), &AddOptions::default());
    // It is wiped at both ends, and then written.
    target.faults().add("write fail lun=1 every=3 times=1").unwrap();
    let refused = add();
    assert!(matches!(refused, Err(PoolError::Device { .. })), "{:?}", refused.err());
    assert!(new.abilities().reservations.unwrap().keys().unwrap().is_empty());
    add().unwrap();
    assert_eq!(keys(&pool), [[1], [1]]);
}

/// A disk of the kernel, as one of a host's nodes has it open: the way to it is the host's.
#[derive(Debug)]
struct Disk {
    info: DeviceInfo,
    path: Arc<IscsiDevice>,
    reservations: PathReservations<Arc<IscsiDevice>>,
}

impl Device for Disk {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn submit(&self, at: ByteOffset, command: Command<'_>) -> Result<Completion, DeviceError> {
        self.path.submit(at, command)
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities { reservations: Some(&self.reservations), ..Abilities::only(&*self.path) }
    }
}

/// A host with its paths to the units, and the nodes in its `/dev`.
struct Host {
    paths: Vec<Arc<IscsiDevice>>,
    dev: tempfile::TempDir,
}

impl Host {
    fn new(target: &Target, units: usize) -> Self {
        let name = |n| format!("iscsi://{}/{NAME}/{n}", target.address());
        let open = |n| IscsiDevice::open(&name(n), OpenOptions::default()).unwrap();
        Self { paths: (0..units).map(open).collect(), dev: tempfile::tempdir().unwrap() }
    }
    fn open(&self) -> Vec<Arc<dyn Device>> {
        self.disks(None)
    }
    /// As they were before they had grown.
    fn small(&self) -> Vec<Arc<dyn Device>> {
        self.disks(Some(Bytes(8 << 20)))
    }
    fn disks(&self, size: Option<Bytes>) -> Vec<Arc<dyn Device>> {
        let open = |(n, path): (usize, &Arc<IscsiDevice>)| {
            let node = self.dev.path().join(n.to_string());
            let mut options = std::fs::File::options();
            let file = options.read(true).write(true).create(true).truncate(false).open(node);
            let unit = Arc::new(Unit::probe(path.clone()).unwrap().unwrap());
            let found = PathReservations::find(unit, "disk", Arc::new(file.unwrap())).unwrap();
            let mut info = path.info().clone();
            info.size = size.unwrap_or(info.size);
            let path = path.clone();
            Arc::new(Disk { info, path, reservations: found.unwrap() }) as Arc<dyn Device>
        };
        self.paths.iter().enumerate().map(open).collect()
    }
    fn pool(&self) -> Pool {
        Pool::assemble(self.open()).unwrap()
    }
}

/// Hosts with kernel disks, and a pool over two of those.
fn hosts<const N: usize>(units: usize) -> (Target, [Host; N]) {
    let target = target(units);
    let hosts = [(); N].map(|()| Host::new(&target, units));
    drop(Pool::create(hosts[0].open(), &CreateOptions::new("disks")).unwrap());
    (target, hosts)
}

#[test]
fn nodes_of_a_host_on_kernel_disks_are_fenced_together() {
    let (_target, [one, two]) = hosts(2);
    let [a, b, c] = [&one, &one, &two].map(Host::pool);
    assert_eq!(a.reservable(), Reservable::All);
    assert_eq!([a.register(1), b.register(2), c.register(3)].map(Result::unwrap), [1, 1, 3]);
    assert_eq!((b.registered(), keys(&c)), (1, vec![vec![1, 3]; 2]));
    // The first leaves, the second goes on.
    a.unregister();
    assert_eq!(keys(&c), [[1, 3], [1, 3]]);
    b.write(AT, &[1; LEN]).unwrap();
    b.uphold().unwrap();
    let again = one.pool();
    assert_eq!(again.register(4).unwrap(), 1);
    // None of them can take the host's key without being fenced itself.
    let refused = again.fence(1, PROVE);
    assert!(matches!(refused, Err(PoolError::OwnKey { .. })), "{refused:?}");
    c.fence(1, PROVE).unwrap();
    for fenced in [&b, &again] {
        assert!(fenced.write(AT, &[7; LEN]).is_err_and(|e| e.is_fenced()));
        assert!(fenced.uphold().is_err_and(|e| e.is_fenced()));
    }
    // Not before both are gone is there a new key.
    let late = one.pool();
    let refused = late.register(5);
    assert!(refused.as_ref().is_err_and(PoolError::is_fenced), "{refused:?}");
    again.unregister();
    assert!(late.register(5).is_err_and(|e| e.is_fenced()));
    drop(b);
    assert_eq!(late.register(5).unwrap(), 5);
    late.write(AT, &[2; LEN]).unwrap();
    late.unregister();
    c.unregister();
    assert_eq!(keys(&c), [[], []]);
}

/// A node died on a host while another fenced it member by member, and stopped between two.
#[test]
fn a_host_has_one_key_on_all_members() {
    let (_target, [one, two]) = hosts(3);
    let [dead, c] = [&one, &two].map(Host::pool);
    dead.register(1).unwrap();
    c.register(3).unwrap();
    let first = c.devices()[0].clone();
    let kind = ReservationKind::WriteExclusiveAll;
    first.abilities().reservations.unwrap().preempt_and_abort(3, 1, kind).unwrap();
    // Who has it open, and is registered, counts as one who uses it.
    drop((dead, first));
    assert_eq!(keys(&c), [vec![3], vec![1, 3], vec![1, 3]]);
    let next = one.pool();
    let key = next.register(2).unwrap();
    assert!([1, 2].contains(&key));
    let mut all = vec![key, 3];
    all.sort_unstable();
    assert_eq!(keys(&c), vec![all; 3]);
    next.write(AT, &[1; LEN]).unwrap();
    // Nobody lives: a check takes all of them over, and gives them back.
    drop((next, c));
    let check = two.pool();
    let taken_over = check.take_over().unwrap();
    check.write(AT, &[2; LEN]).unwrap();
    drop(taken_over);
    assert_eq!(keys(&check), [[], [], []]);
}

/// Each of a host's nodes registers the host's key with what is new, and what is opened anew has it.
#[test]
fn a_new_member_is_registered_with_the_hosts_key() {
    let target = target(3);
    let one = Host::new(&target, 3);
    let mut members = one.small();
    let new = members.pop().unwrap();
    let a = Pool::create(members, &CreateOptions::new("disks")).unwrap();
    a.register(1).unwrap();
    a.add(std::slice::from_ref(&new), &AddOptions::default()).unwrap();
    assert_eq!(keys(&a), [[1], [1], [1]]);
    let b = Pool::assemble(one.small()).unwrap();
    assert_eq!(b.register(2).unwrap(), 1);
    // Its devices are opened anew by the path that is registered, once.
    let before = a.info().size;
    let disk = |path: &str| {
        let again = one.open().into_iter().find(|d| d.info().name == path);
        Ok(again.expect("a disk of this host"))
    };
    a.grow(&disk).unwrap();
    assert!(a.info().size.get() > before.get() * 3 / 2);
    a.write(ByteOffset(before.get()), &[1; LEN]).unwrap();
    a.uphold().unwrap();
    assert_eq!(keys(&a), [[1], [1], [1]]);
    b.unregister();
    assert_eq!(keys(&a), [[1], [1], [1]]);
    a.unregister();
    assert_eq!(keys(&a), [[], [], []]);
}

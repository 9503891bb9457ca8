//! What locks cost: cached, taken from the device, handed between two nodes of one host, and many
//! at once. `cargo run --release -p braid-lock --example lock_speed [DIRECTORY|DEVICE...]`; the
//! directory holds the devices (default `/dev/shm`), or these devices are used, which are overwritten
//! (units of a target, say). `BRAID_HINTS` is how the nodes hear hints: `unix` (usual), `tcp` (over
//! loopback, as if they were of two hosts), `none`. `BRAID_SECTOR=4096`: with records for 674 nodes.
//!
//! The two nodes have their own open devices, slots, hint sockets and threads, as two processes
//! would.

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_device::{Device, OpenOptions};
use braid_format::lock_record::LockRecord;
use braid_format::{BlockNo, BlockSize, Bytes, LockNo};
use braid_lock::{
    DemoteFailed, Demoted, Demoting, DeviceStore, GlockOps, HintsBy, HostIdentity, JoinOptions,
    Life, Local, LockManager, LockStore, ManagerOptions, Membership, Mode, NodeAreas, NotRecovered,
    PoolNodes, Recover,
};
use braid_pool::{CreateOptions, Pool};

type Any = Box<dyn Error + Send + Sync>;

struct Clean;
impl GlockOps for Clean {
    fn demote(&self, _: &Demoting<'_>) -> Result<Demoted, DemoteFailed> {
        Ok(Demoted::default())
    }
}
impl Recover for Clean {
    fn recover(&self, _: Life, _: Life) -> Result<(), NotRecovered> {
        Ok(())
    }
}

/// Bytes in a lock's record: 512, or 4096 by `BRAID_SECTOR`.
fn sector() -> Bytes {
    match std::env::var("BRAID_SECTOR").as_deref() {
        Ok("4096") => Bytes(4096),
        _ => Bytes(512),
    }
}
const FIRST: u64 = 1024;
const LOCKS: u64 = 20_000;

fn open(names: &[PathBuf]) -> Result<Vec<Arc<dyn Device>>, Any> {
    names.iter().map(|name| Ok(braid_device::open(name, OpenOptions::default())?)).collect()
}

fn areas() -> NodeAreas {
    NodeAreas {
        block_size: BlockSize::DEFAULT,
        lock_sector: sector(),
        node_slots: 64,
        slot_area: BlockNo(256),
        heartbeat_area: BlockNo(384),
        fs_uuid: uuid::Uuid::new_v4(),
    }
}

fn format(pool: &Pool, areas: &NodeAreas) -> Result<(), Any> {
    let mut slots = vec![0; usize::from(areas.node_slots) * sector().to_usize()];
    areas.encode_free_slots(&mut slots);
    pool.write(areas.block_size.offset_of(areas.slot_area), &slots)?;
    let mut sector = vec![0; sector().to_usize()];
    for lock in (FIRST..FIRST + LOCKS + 64).map(LockNo) {
        LockRecord::unlocked(lock, 0).encode(&mut sector);
        pool.write(areas.block_size.offset_of(BlockNo::from(lock)), &sector)?;
    }
    Ok(())
}

struct Node {
    member: Arc<Membership>,
    store: DeviceStore,
    manager: Arc<LockManager>,
}

/// How hints are heard, and whether both nodes are of one host.
fn ways() -> (HintsBy, bool) {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    match std::env::var("BRAID_HINTS").as_deref() {
        Ok("none") => (HintsBy::None, true),
        Ok("tcp") => (HintsBy::Tcp(loopback), false),
        _ => (HintsBy::Unix, true),
    }
}

fn node(names: &[PathBuf], areas: NodeAreas, host: &str) -> Result<Node, Any> {
    let pool = Pool::assemble(open(names)?)?;
    let store = Arc::new(PoolNodes::new(pool.clone(), areas));
    let (hints, one_host) = ways();
    let id = uuid::Uuid::new_v4().into_bytes();
    let elsewhere = HostIdentity { boot_id: id, machine_id: id, host: host.to_owned() };
    let identity = (!one_host).then_some(elsewhere);
    let options = JoinOptions { hints, identity, ..JoinOptions::default() };
    let member = Membership::join(store, options, Arc::new(Clean))?;
    let store = DeviceStore::new(pool, areas.block_size, sector());
    let manager = LockManager::new(
        member.me(),
        Arc::new(store.clone()),
        member.clone(),
        Arc::new(Clean),
        ManagerOptions { fresh_nonce: Some(0), ..ManagerOptions::default() },
    )?;
    member.attach(&manager)?;
    Ok(Node { member, store, manager })
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    println!(
        "{what}: p50 {:?}, p90 {:?}, p99 {:?} ({} times)",
        at(50),
        at(90),
        at(99),
        times.len()
    );
}

fn cached(node: &Node) {
    const ROUNDS: u32 = 1_000_000;
    for threads in [1_u32, 2] {
        for (what, spread) in [("one lock", 0), ("a lock each", 1), ("1,000 locks each", 1000)] {
            let began = Instant::now();
            std::thread::scope(|s| {
                for t in 0..threads {
                    let first = FIRST + u64::from(t) * spread;
                    s.spawn(move || {
                        for n in 0..ROUNDS {
                            let lock = LockNo(first + u64::from(n) % spread.max(1));
                            drop(node.manager.acquire(lock, Mode::Shared, Local::Shared));
                        }
                    });
                }
            });
            println!("cached, {threads} threads, {what}: {:?} per pair", began.elapsed() / ROUNDS);
        }
    }
}

fn uncontended(node: &Node) -> Result<(), Any> {
    // The node's own: nobody else may write units that have reservations.
    let store = &node.store;
    let lock = LockNo(FIRST + LOCKS + 1);
    let mut old = store.read(lock)?;
    let (mut bare, mut free) = (Vec::new(), Vec::new());
    // In turn: what else the processors do, and how deep they sleep, meets both alike.
    for n in 0..2000 {
        let mut new = vec![0; sector().to_usize()];
        LockRecord::unlocked(lock, n + 1).encode(&mut new);
        let began = Instant::now();
        store.compare_and_write(lock, &old, &new)?;
        bare.push(began.elapsed());
        old = new;
        let began = Instant::now();
        let guard = node.manager.acquire(LockNo(FIRST + n), Mode::Exclusive, Local::Shared)?;
        free.push(began.elapsed());
        drop(guard);
    }
    let median = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    };
    let ratio = median(&free) / median(&bare);
    show("bare compare-and-write", bare);
    show("first acquire of a free lock", free);
    println!("first acquire over bare, medians: {ratio:.2}");
    println!("of these, guessed right: {}", 2000 - node.manager.stats().reads.min(2000));
    Ok(())
}

fn hand_over(a: &Node, b: &Node) -> Result<(), Any> {
    let lock = LockNo(FIRST + LOCKS + 2);
    let mut times = Vec::new();
    let until = Instant::now() + Duration::from_secs(5);
    for _ in (0..3000).take_while(|_| Instant::now() < until) {
        for node in [a, b] {
            let began = Instant::now();
            drop(node.manager.acquire(lock, Mode::Exclusive, Local::Exclusive)?);
            times.push(began.elapsed());
        }
    }
    show("hand-over of a clean lock, exclusive to exclusive", times);
    let mut times = Vec::new();
    let until = Instant::now() + Duration::from_secs(5);
    for _ in (0..3000).take_while(|_| Instant::now() < until) {
        let began = Instant::now();
        drop(a.manager.acquire(lock, Mode::Exclusive, Local::Exclusive)?);
        drop(b.manager.acquire(lock, Mode::Shared, Local::Shared)?);
        times.push(began.elapsed());
    }
    show("write on A, then read on B (two hand-overs)", times);
    Ok(())
}

/// Both nodes in a tight loop: whether a lock stays long enough to be worth its way.
fn contend(a: &Node, b: &Node) {
    const TIME: Duration = Duration::from_secs(1);
    let lock = LockNo(FIRST + LOCKS + 3);
    let before = a.manager.stats().demotions + b.manager.stats().demotions;
    let began = Instant::now();
    let mut counts = Vec::new();
    std::thread::scope(|s| {
        let work = |node: &Node| {
            let mut n = 0_u64;
            while began.elapsed() < TIME {
                drop(node.manager.acquire(lock, Mode::Exclusive, Local::Exclusive));
                n += 1;
            }
            n
        };
        let threads = [s.spawn(move || work(a)), s.spawn(move || work(b))];
        counts.extend(threads.into_iter().map(|t| t.join().unwrap_or(0)));
    });
    let moves = a.manager.stats().demotions + b.manager.stats().demotions - before;
    println!("both nodes in a tight loop, 1 s: {counts:?} acquires, {moves} hand-overs");
}

fn scan(a: &Node, b: &Node) -> Result<(), Any> {
    for lock in (FIRST..FIRST + LOCKS).map(LockNo) {
        drop(a.manager.acquire(lock, Mode::Exclusive, Local::Shared)?);
    }
    for threads in [1, 4] {
        let (from, to) = if threads == 1 { (a, b) } else { (b, a) };
        let held =
            (FIRST..FIRST + LOCKS).filter(|l| from.manager.held(LockNo(*l)) > Mode::Unlocked);
        let held = held.count();
        let began = Instant::now();
        std::thread::scope(|s| {
            for t in 0..threads {
                s.spawn(move || {
                    for lock in (FIRST..FIRST + LOCKS).filter(|l| l % threads == t) {
                        drop(to.manager.acquire(LockNo(lock), Mode::Exclusive, Local::Shared));
                    }
                });
            }
        });
        let took = began.elapsed();
        let rate = u128::from(LOCKS) * 1_000_000 / took.as_micros().max(1);
        println!("scan of {held} exclusive locks of the other node, {threads} threads: {rate}/s");
    }
    Ok(())
}

/// The devices: those named, or two files in the directory named.
fn devices(dir: &Path) -> Result<Vec<PathBuf>, Any> {
    let named: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if !named.is_empty() && named.iter().all(|n| !n.is_dir()) {
        return Ok(named);
    }
    let files: Vec<PathBuf> = (0..2).map(|n| dir.join(format!("member{n}"))).collect();
    for file in &files {
        std::fs::File::create(file)?.set_len(256 << 20)?;
    }
    Ok(files)
}

fn main() -> Result<(), Any> {
    let named = std::env::args_os().nth(1).map(PathBuf::from).filter(|n| n.is_dir());
    let root = named.unwrap_or_else(|| "/dev/shm".into());
    let dir = tempfile::Builder::new().prefix("braid-lock-speed").tempdir_in(root)?;
    let names = devices(dir.path())?;
    let areas = areas();
    let lock_sector = Some(sector());
    let options = CreateOptions { force: true, lock_sector, ..CreateOptions::new("speed") };
    format(&Pool::create(open(&names)?, &options)?, &areas)?;
    let (a, b) = (node(&names, areas, "a")?, node(&names, areas, "b")?);
    cached(&a);
    uncontended(&a)?;
    hand_over(&a, &b)?;
    contend(&a, &b);
    if ways().0 != HintsBy::None {
        scan(&a, &b)?;
    }
    for node in [a, b] {
        println!("{:?}", node.manager.stats());
        node.manager.shutdown()?;
        node.member.leave()?;
    }
    Ok(())
}

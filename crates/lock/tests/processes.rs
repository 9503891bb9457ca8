//! Real processes on real files: kernel locks, hint sockets, SIGKILL. Each process is this test
//! program again, told by its environment to be a node.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use braid_device::{Device, MemoryDevice, OpenOptions};
use braid_format::lock_record::LockRecord;
use braid_format::{BlockNo, BlockSize, Bytes, LockNo};
use braid_iscsi_target::{Chap, LunOptions, Target, TargetOptions};
use braid_lock::{
    DemoteFailed, Demoted, Demoting, DeviceStore, GlockOps, JoinOptions, Life, Local, LockManager,
    ManagerOptions, Membership, Mode, NodeAreas, NotRecovered, PoolNodes, Recover,
};
use braid_pool::{CreateOptions, Pool};

const SECTOR: Bytes = Bytes(512);
const LOCKS: std::ops::Range<u64> = 512..516;
const CHILD: &str = "BRAID_LOCK_TEST_CHILD";
const ROUNDS: u64 = 100;

/// Counts recoveries; caches nothing.
#[derive(Default)]
struct Ops {
    recovered: AtomicU32,
}
impl GlockOps for Ops {
    fn demote(&self, _: &Demoting<'_>) -> Result<Demoted, DemoteFailed> {
        Ok(Demoted::default())
    }
}
impl Recover for Ops {
    fn recover(&self, _: Life, _: Life) -> Result<(), NotRecovered> {
        self.recovered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn areas(dir: &Path) -> NodeAreas {
    let name = dir.as_os_str().as_encoded_bytes();
    let tail = name.iter().rev().take(16).fold(0, |all, b| all << 8 | u128::from(*b));
    NodeAreas {
        block_size: BlockSize::DEFAULT,
        lock_sector: SECTOR,
        node_slots: 8,
        slot_area: BlockNo(256),
        heartbeat_area: BlockNo(258),
        fs_uuid: uuid::Uuid::from_u128(tail),
    }
}

/// Members are files, or what the file `units` names.
fn open(dir: &Path) -> Vec<Arc<dyn Device>> {
    let files = || (0..2).map(|n| dir.join(format!("member{n}"))).collect();
    let names: Vec<PathBuf> = std::fs::read_to_string(dir.join("units"))
        .map_or_else(|_| files(), |units| units.lines().map(PathBuf::from).collect());
    names.iter().map(|n| braid_device::open(n, OpenOptions::default()).unwrap()).collect()
}

fn directory() -> tempfile::TempDir {
    let root =
        if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("braid-lock").tempdir_in(root).unwrap()
}

/// A pool on two files.
fn make() -> tempfile::TempDir {
    let dir = directory();
    for n in 0..2 {
        let file = std::fs::File::create(dir.path().join(format!("member{n}"))).unwrap();
        file.set_len(16 << 20).unwrap();
    }
    fill(&dir);
    dir
}

/// A pool on two units of a target.
fn make_on_target() -> (Target, tempfile::TempDir) {
    let name = "iqn.2026-11.org.braid:processes";
    let unit = |n| {
        let device = MemoryDevice::new(n, Bytes(16 << 20), SECTOR);
        LunOptions { device, identity: None, reservations: None }
    };
    let luns = ["unit 0", "unit 1"].map(unit).into();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = TargetOptions { name: name.into(), luns, chap: Chap::default() };
    let target = Target::start(listener, options).unwrap();
    let dir = directory();
    let at = target.address();
    let units = format!("iscsi://{at}/{name}/0\niscsi://{at}/{name}/1\n");
    std::fs::write(dir.path().join("units"), units).unwrap();
    fill(&dir);
    (target, dir)
}

fn fill(dir: &tempfile::TempDir) {
    let pool = Pool::create(open(dir.path()), &CreateOptions::new("processes")).unwrap();
    let areas = areas(dir.path());
    let mut slots = vec![0; usize::from(areas.node_slots) * SECTOR.to_usize()];
    areas.encode_free_slots(&mut slots);
    pool.write(areas.block_size.offset_of(areas.slot_area), &slots).unwrap();
    for lock in LOCKS.map(LockNo) {
        let mut block = vec![0; 4096];
        LockRecord::unlocked(lock, 0).encode(&mut block[..512]);
        pool.write(BlockSize::DEFAULT.offset_of(BlockNo::from(lock)), &block).unwrap();
    }
}

struct Node {
    pool: Pool,
    member: Arc<Membership>,
    manager: Arc<LockManager>,
    ops: Arc<Ops>,
}
impl Node {
    fn join(dir: &Path) -> Self {
        let pool = Pool::assemble(open(dir)).unwrap();
        let ops = Arc::new(Ops::default());
        let nodes = Arc::new(PoolNodes::new(pool.clone(), areas(dir)));
        let member = Membership::join(nodes, JoinOptions::default(), ops.clone()).unwrap();
        let store = Arc::new(DeviceStore::new(pool.clone(), BlockSize::DEFAULT, SECTOR));
        let options = ManagerOptions::default();
        let manager =
            LockManager::new(member.me(), store, member.clone(), ops.clone(), options).unwrap();
        member.attach(&manager).unwrap();
        Self { pool, member, manager, ops }
    }
    fn counter(&self, lock: LockNo) -> u64 {
        let mut sector = [0; 512];
        self.pool.read(Self::counter_at(lock), &mut sector).unwrap();
        u64::from_le_bytes(sector[..8].try_into().unwrap())
    }
    fn counter_at(lock: LockNo) -> braid_format::ByteOffset {
        BlockSize::DEFAULT.offset_of(BlockNo::from(lock)) + Bytes(2048)
    }
    fn increment(&self, lock: LockNo) {
        let guard = self.manager.acquire(lock, Mode::Exclusive, Local::Exclusive).unwrap();
        let mut sector = [0; 512];
        sector[..8].copy_from_slice(&(self.counter(lock) + 1).to_le_bytes());
        self.pool.write(Self::counter_at(lock), &sector).unwrap();
        drop(guard);
    }
    fn leave(self) {
        self.manager.shutdown().unwrap();
        self.member.leave().unwrap();
    }
}

/// The node that a process is when the environment says so; otherwise nothing.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let node = Node::join(&PathBuf::from(dir));
    if std::env::var("BRAID_LOCK_TEST_TASK").is_ok_and(|task| task == "hold") {
        let _guard =
            node.manager.acquire(LockNo(LOCKS.start), Mode::Exclusive, Local::Shared).unwrap();
        println!("\nready");
        std::thread::sleep(Duration::from_mins(1));
    } else {
        for n in 0..ROUNDS {
            node.increment(LockNo(LOCKS.start + n % 2));
        }
        println!("\nready");
        node.leave();
    }
}

fn spawn(dir: &Path, task: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(CHILD, dir)
        .env("BRAID_LOCK_TEST_TASK", task)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the child's word; its output must stay open until it has ended.
#[must_use]
fn wait_ready(child: &mut Child) -> impl Sized + use<> {
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(out.any(|line| line.trim() == "ready"), "the child ended early");
    out
}

#[test]
fn four_processes_count_exactly() {
    count_exactly(&make());
}

#[test]
fn four_processes_count_exactly_on_a_target() {
    let (_target, dir) = make_on_target();
    count_exactly(&dir);
}

fn count_exactly(dir: &tempfile::TempDir) {
    let mut children: Vec<Child> = (0..4).map(|_| spawn(dir.path(), "count")).collect();
    for child in &mut children {
        let _output = wait_ready(child);
        assert!(child.wait().unwrap().success());
    }
    let node = Node::join(dir.path());
    let counted: Vec<u64> = LOCKS.map(|l| node.counter(LockNo(l))).collect();
    assert_eq!(counted, [ROUNDS * 2, ROUNDS * 2, 0, 0]);
    assert_eq!(node.ops.recovered.load(Ordering::Relaxed), 0, "they left in good order");
    node.leave();
}

#[test]
fn a_killed_process_is_recovered_long_before_it_is_missed() {
    recovered(&make());
}

#[test]
fn a_killed_process_is_recovered_long_before_it_is_missed_on_a_target() {
    let (_target, dir) = make_on_target();
    recovered(&dir);
}

fn recovered(dir: &tempfile::TempDir) {
    let node = Node::join(dir.path());
    let mut child = spawn(dir.path(), "hold");
    let _output = wait_ready(&mut child);
    let lock = LockNo(LOCKS.start);
    assert!(node.manager.try_acquire(lock, Mode::Shared, Local::Shared).is_none());
    let began = Instant::now();
    child.kill().unwrap();
    drop(node.manager.acquire(lock, Mode::Exclusive, Local::Exclusive).unwrap());
    let took = began.elapsed();
    println!("killed, fenced, recovered, lock taken after {took:?}");
    child.wait().unwrap();
    // Half a second, or more where the machine does much else; who is missed is so after 12 s.
    assert!(took < Duration::from_secs(11), "{took:?}");
    assert_eq!(node.ops.recovered.load(Ordering::Relaxed), 1);
    node.leave();
}

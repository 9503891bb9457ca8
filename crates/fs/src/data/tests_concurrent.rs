//! Several nodes that write into one file at the same time.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use braid_format::{Bytes, InodeNo};
use braid_lock::Mode;
use braid_pool::device::{Device, MemoryDevice};
use braid_pool::{CreateOptions, Pool};

use crate::ReadRange;
use crate::attr::{Cred, Fh, KernelCache, NoKernelCache, SetAttr, Time, TimeSet, WriteFlags};
use crate::make::{MakeOptions, make};
use crate::{Fs, MountOptions};

const O_RDWR: i32 = 2;
const BLOCK: usize = 4096;
/// Blocks of the file.
const LEN: u64 = 256;

/// Nodes, each with its own pool, and a file of `LEN` written blocks that all have open.
fn nodes<const N: usize>() -> ([Fs; N], InodeNo, [Fh; N]) {
    nodes_with(&[(); N].map(|()| Arc::new(NoKernelCache) as Arc<dyn KernelCache>))
}

fn nodes_with<const N: usize>(kernels: &[Arc<dyn KernelCache>; N]) -> ([Fs; N], InodeNo, [Fh; N]) {
    let device = MemoryDevice::new("disk", Bytes(96 << 20), Bytes(512));
    let all = || vec![device.clone() as Arc<dyn Device>];
    let pool = Pool::create(all(), &CreateOptions::new("test")).unwrap();
    let options =
        MakeOptions { nodes: Some(4), journal_size: Some(4 << 20), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    drop(pool);
    let nodes = std::array::from_fn(|n| {
        let pool = Pool::assemble(all()).unwrap();
        Fs::mount(pool, MountOptions::default(), kernels[n].clone()).unwrap()
    });
    let (attr, fh) =
        nodes[0].create(nodes[0].root(), b"f", 0o644, O_RDWR, &Cred::default()).unwrap();
    write(&nodes[0], fh, 0, &vec![0xee; BLOCK * usize::try_from(LEN).unwrap()]);
    nodes[0].release(fh).unwrap();
    let handles = std::array::from_fn(|n| nodes[n].open(attr.ino, O_RDWR).unwrap());
    (nodes, attr.ino, handles)
}

fn write(fs: &Fs, fh: Fh, offset: u64, data: &[u8]) {
    assert_eq!(fs.write(fh, offset, data, WriteFlags::default()).unwrap(), data.len());
}

fn block(n: u64, by: u8) -> Vec<u8> {
    let mut all = vec![by; BLOCK];
    all[..8].copy_from_slice(&n.to_le_bytes());
    all
}

fn read(fs: &Fs, fh: Fh, n: u64) -> Vec<u8> {
    let at = n * BLOCK as u64;
    fs.read_reply(
        fh,
        ReadRange { offset: at, len: u32::try_from(BLOCK).unwrap(), fill: false },
        <[u8]>::to_vec,
    )
    .unwrap()
}

fn mode(fs: &Fs, ino: InodeNo) -> Mode {
    fs.core().locks.held(ino.into())
}

/// Both nodes come to hold the file concurrently.
fn made_concurrent([a, b]: &[Fs; 2], ino: InodeNo, [fa, fb]: [Fh; 2]) {
    for n in 0..4 {
        write(a, fa, 0, &block(n, 1));
        write(b, fb, BLOCK as u64, &block(n, 2));
    }
    assert_eq!((mode(a, ino), mode(b, ino)), (Mode::Concurrent, Mode::Concurrent));
}

#[test]
fn writers_of_parts_of_their_own_do_not_wait_for_each_other() {
    const ROUNDS: u64 = 20;
    let (nodes, ino, handles) = nodes::<3>();
    let before: u64 = nodes.iter().map(|n| n.core().locks.stats().demotions).sum();
    std::thread::scope(|scope| {
        for (n, (fs, fh)) in nodes.iter().zip(handles).enumerate() {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    for at in (n as u64..LEN).step_by(3) {
                        write(fs, fh, at * BLOCK as u64, &block(round, u8::try_from(n).unwrap()));
                    }
                }
            });
        }
    });
    let writes = ROUNDS * LEN;
    let demotions: u64 =
        nodes.iter().map(|n| n.core().locks.stats().demotions).sum::<u64>() - before;
    assert!(demotions < writes / 50, "{demotions} demotions for {writes} writes");
    for at in 0..LEN {
        let expected = block(ROUNDS - 1, u8::try_from(at % 3).unwrap());
        for (fs, fh) in nodes.iter().zip(handles) {
            assert!(read(fs, fh, at) == expected, "block {at}");
        }
    }
    assert!(nodes.iter().all(|fs| mode(fs, ino) != Mode::Exclusive));
}

#[test]
fn what_one_has_written_the_other_reads_at_once() {
    let (nodes, ino, handles) = nodes();
    made_concurrent(&nodes, ino, handles);
    let ([a, b], [fa, fb]) = (&nodes, handles);
    for n in 0..50 {
        write(a, fa, 7 * BLOCK as u64, &block(n, 3));
        assert!(read(b, fb, 7) == block(n, 3));
        write(b, fb, 7 * BLOCK as u64, &block(n, 4));
        assert!(read(a, fa, 7) == block(n, 4));
    }
    assert_eq!((mode(a, ino), mode(b, ino)), (Mode::Concurrent, Mode::Concurrent));
}

/// A kernel that writes a block when it is told to drop the file.
#[derive(Default)]
struct Writes {
    file: Mutex<Option<(Fs, Fh)>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}
impl KernelCache for Writes {
    fn invalidate_inode(&self, _: InodeNo, _: bool) {
        let Some((fs, fh)) = self.file.lock().unwrap().take() else { return };
        let thread = std::thread::spawn(move || write(&fs, fh, 0, &block(2, 2)));
        // If the write can enter during the demotion, it does so within this time.
        let began = Instant::now();
        while !thread.is_finished() && began.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(1));
        }
        *self.thread.lock().unwrap() = Some(thread);
    }
    fn invalidate_entries(&self, _: InodeNo) {}
}

#[test]
fn older_bytes_that_were_dirty_do_not_come_after_newer_ones() {
    let kernel = Arc::new(Writes::default());
    let (nodes, ino, [fa, fb]) = nodes_with(&[kernel.clone(), Arc::new(NoKernelCache)]);
    let [a, b] = &nodes;
    made_concurrent(&nodes, ino, [fa, fb]);
    write(a, fa, 1, b"dirty");
    assert_eq!((mode(a, ino), mode(b, ino)), (Mode::Exclusive, Mode::Unlocked));
    *kernel.file.lock().unwrap() = Some((a.clone(), fa));
    // B knows that A has it, and asks for it beside A.
    write(b, fb, BLOCK as u64, &block(9, 1));
    kernel.thread.lock().unwrap().take().expect("a demotion").join().unwrap();
    assert!(read(b, fb, 0) == block(2, 2));
    assert!(read(a, fa, 0) == block(2, 2));
}

#[test]
fn what_changes_more_than_contents_is_done_alone() {
    let (nodes, ino, handles) = nodes();
    let ([a, b], [fa, fb]) = (&nodes, handles);
    // Bytes of a block: read, changed and written back by one node alone.
    made_concurrent(&nodes, ino, handles);
    write(a, fa, 5 * BLOCK as u64 + 1, b"x");
    assert_eq!((mode(a, ino), mode(b, ino)), (Mode::Exclusive, Mode::Unlocked));
    assert!(read(b, fb, 5).starts_with(b"\xeex\xee"));
    // A longer file.
    made_concurrent(&nodes, ino, handles);
    write(b, fb, (LEN + 3) * BLOCK as u64, &block(9, 9));
    assert_eq!(mode(b, ino), Mode::Exclusive);
    assert_eq!(a.getattr(ino).unwrap().size, (LEN + 4) * BLOCK as u64);
    assert!(read(a, fa, LEN + 1) == [0; BLOCK], "a hole");
    // A hole in the middle.
    made_concurrent(&nodes, ino, handles);
    write(a, fa, (LEN + 1) * BLOCK as u64, &block(8, 8));
    assert!(read(b, fb, LEN + 1) == block(8, 8));
    assert!(read(b, fb, LEN + 2) == [0; BLOCK]);
    // A shorter one.
    made_concurrent(&nodes, ino, handles);
    a.setattr(ino, &SetAttr { size: Some(BLOCK as u64), ..SetAttr::default() }, None).unwrap();
    assert!(read(b, fb, 1).is_empty());
    assert!(read(b, fb, 0) == block(3, 1));
}

#[test]
fn the_time_of_a_change_is_seen_by_all_and_kept() {
    let ([a, b], ino, [fa, fb]) = nodes::<2>();
    let both = [a.clone(), b.clone()];
    let old = Time { sec: 1_000_000, nsec: 5 };
    let set = SetAttr { mtime: Some(TimeSet::At(old)), ..SetAttr::default() };
    made_concurrent(&both, ino, [fa, fb]);
    a.setattr(ino, &set, None).unwrap();
    assert_eq!(b.getattr(ino).unwrap().mtime, old, "one that was set is not overtaken");
    made_concurrent(&both, ino, [fa, fb]);
    let first = b.getattr(ino).unwrap();
    assert!(first.mtime > old && first.ctime >= first.mtime);
    std::thread::sleep(Duration::from_millis(20));
    made_concurrent(&both, ino, [fa, fb]);
    std::thread::sleep(Duration::from_millis(20));
    write(&b, fb, 0, &block(1, 1));
    // Both orders of leaving; the one that wrote last does not have the last word by chance.
    let seen = a.getattr(ino).unwrap();
    assert!(seen.mtime > first.mtime, "{seen:?} after {first:?}");
    made_concurrent(&both, ino, [fa, fb]);
    write(&a, fa, 0, &block(2, 1));
    // Nobody asks before both are gone.
    a.release(fa).unwrap();
    b.release(fb).unwrap();
    b.unmount().unwrap();
    a.unmount().unwrap();
    let pool = a.pool().clone();
    drop((both, a, b));
    let again = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
    let kept = again.getattr(ino).unwrap();
    assert!(kept.mtime > seen.mtime, "{kept:?} after {seen:?}");
    again.unmount().unwrap();
}

#[test]
fn a_node_that_dies_beside_others_takes_nothing_with_it() {
    let (nodes, ino, handles) = nodes();
    made_concurrent(&nodes, ino, handles);
    let ([a, b], [fa, fb]) = (&nodes, handles);
    write(a, fa, 9 * BLOCK as u64, &block(77, 7));
    a.core().withdraw(&crate::Error::NotPermitted);
    assert!(read(b, fb, 9) == block(77, 7));
    // The lock comes as soon as the dead one is recovered.
    write(b, fb, 9 * BLOCK as u64 + 100, b"alone");
    assert_eq!(mode(b, ino), Mode::Exclusive);
    let now = read(b, fb, 9);
    assert!(now[..100] == block(77, 7)[..100] && now[100..].starts_with(b"alone"));
    b.release(fb).unwrap();
    b.unmount().unwrap();
}

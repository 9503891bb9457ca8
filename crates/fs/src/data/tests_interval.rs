//! What nobody syncs is durable soon after the commit interval, however it was written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_format::{Bytes, InodeNo};
use braid_lock::Mode;
use braid_pool::device::{AlignedBuf, Device, Event, MemoryDevice, RecordingDevice};
use braid_pool::{CreateOptions, Pool};

use super::tests_inflight::Early;
use crate::attr::{Cred, Fh, NoKernelCache, Write, WriteFlags};
use crate::make::{MakeOptions, make};
use crate::{Fs, MountOptions};

const O_RDWR: i32 = 2;
const BLOCK: usize = 4096;
const INTERVAL: Duration = Duration::from_millis(500);
/// Many intervals: a machine may be busy. What is never flushed is not flushed then either.
const PATIENCE: Duration = Duration::from_secs(40);

struct World {
    device: Arc<RecordingDevice>,
    nodes: [Fs; 2],
}

impl World {
    fn new() -> Self {
        let inner = MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512));
        let pool = Pool::create(vec![inner.clone()], &CreateOptions::new("test")).unwrap();
        let options =
            MakeOptions { nodes: Some(2), journal_size: Some(4 << 20), ..MakeOptions::default() };
        make(&pool, &options, &mut |_, _| {}).unwrap();
        drop(pool);
        let device = RecordingDevice::new(inner).unwrap();
        let nodes = std::array::from_fn(|_| {
            let pool = Pool::assemble(vec![device.clone() as Arc<dyn Device>]).unwrap();
            let options = MountOptions { commit_interval: INTERVAL, ..MountOptions::default() };
            Fs::mount(pool, options, Arc::new(NoKernelCache)).unwrap()
        });
        Self { device, nodes }
    }

    fn create(&self, name: &[u8], len: usize) -> (InodeNo, Fh) {
        let a = &self.nodes[0];
        let (attr, fh) = a.create(a.root(), name, 0o644, O_RDWR, &Cred::default()).unwrap();
        a.write(fh, 0, &vec![1; len], WriteFlags::default()).unwrap();
        a.fsync(fh, false).unwrap();
        (attr.ino, fh)
    }

    /// Waits until nothing is flushed for some intervals: no flush for something else is to come.
    fn quiet(&self) {
        let flushes = || self.device.events().iter().filter(|e| matches!(e, Event::Flush)).count();
        let until = Instant::now() + PATIENCE;
        let (mut last, mut since) = (flushes(), Instant::now());
        while since.elapsed() < 3 * INTERVAL && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            let now = flushes();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }

    /// Waits until a run of this byte, written last, has been flushed, with nobody asking for it.
    fn comes_to_stand(&self, byte: u8, how: &str) {
        let until = Instant::now() + PATIENCE;
        let holds = |data: &[u8]| data.chunks(64).any(|c| c.iter().all(|b| *b == byte));
        loop {
            let events = self.device.events();
            let written =
                events.iter().rposition(|e| matches!(e, Event::Write { data, .. } if holds(data)));
            let later = written.map_or(&[][..], |n| &events[n..]);
            if later.contains(&Event::Flush) {
                return;
            }
            assert!(
                Instant::now() < until,
                "{how}: {}",
                match written {
                    Some(_) => "written, and never flushed",
                    None => "never written",
                }
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn whatever_is_written_is_durable_after_the_interval() {
    let world = World::new();
    let [a, b] = &world.nodes;
    let plain = WriteFlags::default();

    let (_, small) = world.create(b"small", 10);
    a.write(small, 10, &[2; 200], plain).unwrap();
    world.comes_to_stand(2, "small");

    let (_, cached) = world.create(b"cached", 4 * BLOCK);
    a.write(cached, 100, &[3; BLOCK], plain).unwrap();
    world.comes_to_stand(3, "cached");

    let (_, direct) = world.create(b"direct", 4 * BLOCK);
    let flags = WriteFlags { direct: true, ..plain };
    a.write(direct, 0, &[4; BLOCK], flags).unwrap();
    world.comes_to_stand(4, "direct");

    let (_, behind) = world.create(b"behind", BLOCK);
    let mut bytes = AlignedBuf::zeroed(512 << 10);
    bytes.fill(5);
    let mut answered = false;
    let what = Write { offset: 0, bytes: &bytes, flags: plain };
    a.write_behind(behind, what, &mut Early(|| answered = true)).unwrap();
    assert!(answered, "a large write is answered before it is written");
    world.comes_to_stand(5, "behind");

    let (_, mapped) = world.create(b"mapped", 4 * BLOCK);
    let flags = WriteFlags { from_page_cache: true, ..plain };
    a.write(mapped, 0, &[6; BLOCK], flags).unwrap();
    world.comes_to_stand(6, "mapped");

    let (ino, fa) = world.create(b"concurrent", 4 * BLOCK);
    let fb = b.open(ino, O_RDWR).unwrap();
    for _ in 0..4 {
        a.write(fa, 0, &[7; BLOCK], plain).unwrap();
        b.write(fb, BLOCK as u64, &[8; BLOCK], plain).unwrap();
    }
    assert_eq!(a.core().locks.held(ino.into()), Mode::Concurrent);
    world.quiet();
    a.write(fa, 0, &[9; BLOCK], plain).unwrap();
    assert_eq!(a.core().locks.held(ino.into()), Mode::Concurrent);
    world.comes_to_stand(9, "concurrent");
    for fh in [small, cached, direct, behind, mapped, fa] {
        a.release(fh).unwrap();
    }
    b.release(fb).unwrap();
    b.unmount().unwrap();
    a.unmount().unwrap();
}

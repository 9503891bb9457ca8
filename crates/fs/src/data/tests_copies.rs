//! Several nodes that write the same block of a mirror at the same time.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use braid_format::{ByteOffset, Bytes};
use braid_pool::device::{AlignedBuf, Device, MemoryDevice, Rule, ScriptedDevice};
use braid_pool::layout::Redundancy;
use braid_pool::{CreateOptions, Pool};

use crate::attr::{Cred, Fh, NoKernelCache, WriteFlags};
use crate::make::{MakeOptions, make};
use crate::{Fs, MountOptions};

const O_RDWR: i32 = 2;
const BLOCK: usize = 4096;
const ROUNDS: u8 = 10;

/// A device that is slow with blocks full of this byte's multiples: the writer `1 + n % 2` of a round.
fn late(inner: Arc<MemoryDevice>, writer: u8) -> Arc<dyn Device> {
    let device = ScriptedDevice::over(inner);
    let own = move |bytes: &[u8]| {
        let of = bytes.len() == BLOCK && bytes[0] >= 100 && bytes.iter().all(|b| *b == bytes[0]);
        of && bytes[0] % 2 == writer % 2
    };
    device.add(Rule::all().writing(own).delays(Duration::from_millis(30)));
    device
}

/// Where `device` has a block full of `byte`.
fn find(device: &MemoryDevice, byte: u8) -> ByteOffset {
    let mut piece = AlignedBuf::zeroed(1 << 20);
    for at in (0..device.info().size.get()).step_by(1 << 20) {
        device.read(ByteOffset(at), &mut piece).unwrap();
        let mut blocks = piece.chunks(BLOCK).enumerate();
        if let Some((n, _)) = blocks.find(|(_, b)| b.iter().all(|x| *x == byte)) {
            return ByteOffset(at) + Bytes::from(n * BLOCK);
        }
    }
    panic!("no block full of {byte}");
}

fn write(fs: &Fs, fh: Fh, block: u64, byte: u8) {
    let data = vec![byte; BLOCK];
    let n = fs.write(fh, block * BLOCK as u64, &data, WriteFlags::default()).unwrap();
    assert_eq!(n, BLOCK);
}

/// Two nodes, and a file of four blocks, full of 77, that both hold concurrently.
fn two(devices: &[Arc<dyn Device>]) -> ([Fs; 2], [Fh; 2]) {
    let redundancy = Redundancy::Mirror(u16::try_from(devices.len()).unwrap());
    let options = CreateOptions { redundancy, log_slots: 4, ..CreateOptions::new("test") };
    let pool = Pool::create(devices.to_vec(), &options).unwrap();
    let options =
        MakeOptions { nodes: Some(2), journal_size: Some(4 << 20), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    drop(pool);
    let nodes: [Fs; 2] = std::array::from_fn(|_| {
        let pool = Pool::assemble(devices.to_vec()).unwrap();
        Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap()
    });
    let [a, b] = &nodes;
    let (attr, fa) = a.create(a.root(), b"f", 0o644, O_RDWR, &Cred::default()).unwrap();
    a.write(fa, 0, &[77; 4 * BLOCK], WriteFlags::default()).unwrap();
    a.fsync(fa, false).unwrap();
    let fb = b.open(attr.ino, O_RDWR).unwrap();
    for _ in 0..4 {
        write(a, fa, 1, 78);
        write(b, fb, 2, 79);
    }
    a.fsync(fa, false).unwrap();
    b.fsync(fb, false).unwrap();
    (nodes, [fa, fb])
}

/// Each copy gets the writes in another order: without more, each round leaves them different.
fn copies_after_two_fsyncs(copies: usize) {
    let inner: Vec<Arc<MemoryDevice>> = (0..copies)
        .map(|n| MemoryDevice::new(&n.to_string(), Bytes(64 << 20), Bytes(512)))
        .collect();
    let devices: Vec<Arc<dyn Device>> =
        (0_u8..).zip(&inner).map(|(n, inner)| late(inner.clone(), n)).collect();
    let (nodes, handles) = two(&devices);
    let places: Vec<ByteOffset> = inner.iter().map(|d| find(d, 77)).collect();
    for round in 0..ROUNDS {
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            for (n, (fs, fh)) in (0_u8..).zip(nodes.iter().zip(handles)) {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    write(fs, fh, 0, 100 + 2 * round + n);
                    fs.fsync(fh, false).unwrap();
                });
            }
        });
        let held: Vec<AlignedBuf> = inner
            .iter()
            .zip(&places)
            .map(|(device, at)| {
                let mut bytes = AlignedBuf::zeroed(BLOCK);
                device.read(*at, &mut bytes).unwrap();
                bytes
            })
            .collect();
        let first = held[0][0];
        assert!(first == 100 + 2 * round || first == 101 + 2 * round, "{first} in round {round}");
        for copy in &held {
            assert!(copy.iter().all(|b| *b == first), "round {round}: {} and {first}", copy[0]);
        }
    }
    let [a, b] = nodes;
    let demotions = |fs: &Fs| fs.core().locks.stats().demotions;
    assert!(demotions(&a) + demotions(&b) < u64::from(ROUNDS), "they never met");
    b.unmount().unwrap();
    a.unmount().unwrap();
}

#[test]
fn copies_of_a_block_that_two_nodes_write_at_once_are_the_same() {
    copies_after_two_fsyncs(2);
}

#[test]
fn three_copies_of_a_block_that_two_nodes_write_at_once_are_the_same() {
    copies_after_two_fsyncs(3);
}

//! Pools of many shapes over unequal members hold every byte, put together again from their labels,
//! and with as many members gone as the shape says.

#![expect(clippy::unwrap_used, reason = "a failing step is a failing test")]

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};
use braid_pool::device::{
    AlignedBuf, Device, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On, Traffic,
};
use braid_pool::layout::{Facts, Weights, parse};
use braid_pool::{CreateOptions, Hint, Pool, PoolOp, PoolQueue};

const MIB: u64 = 1 << 20;

/// Devices of so many MiB of data each.
fn devices(sizes: &[u64]) -> Vec<Arc<FaultyDevice>> {
    let one = |(i, mib): (usize, &u64)| {
        let size = Bytes((mib + 2) * MIB);
        let memory = MemoryDevice::new(&format!("m{i}"), size, Bytes(512));
        FaultyDevice::new(memory as Arc<dyn Device>, FaultPlan::default())
    };
    sizes.iter().enumerate().map(one).collect()
}

fn dynamic(devices: &[Arc<FaultyDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect()
}

/// Each eight bytes say where they stand.
fn stamp(at: u64, len: u64) -> Vec<u8> {
    (at / 8..(at + len) / 8).flat_map(|n| (n ^ 0x5a5a_0000_0000_0000).to_le_bytes()).collect()
}

fn holds(pool: &Pool, text: &str) {
    let size = pool.info().size.0;
    // A prime number of sectors: every seam is crossed in the middle of a request too.
    let step = 1009 * 512;
    let mut at = 0;
    while at < size {
        let len = step.min(size - at);
        let mut buf = vec![0; usize::try_from(len).unwrap()];
        pool.read(ByteOffset(at), &mut buf).unwrap();
        assert!(buf == stamp(at, len), "{text}: {len} bytes from {at}");
        at += len;
    }
}

fn holds_what_was_written(text: &str, sizes: &[u64]) {
    let devices = devices(sizes);
    let layout = parse::layout(text, &BTreeMap::new()).unwrap();
    let hint = |i: u16| Hint {
        bus: i % 3,
        bytes_per_second: Bytes(100_000_000 * (1 + u64::from(i % 2))),
        ..Hint::default()
    };
    let options = CreateOptions {
        layout: Some(layout),
        weights: Weights::Speed,
        hints: (0..u16::try_from(sizes.len()).unwrap()).map(hint).collect(),
        ..CreateOptions::new("p").stripe_unit(Bytes(64 << 10)).unwrap()
    };
    let pool = Pool::create(dynamic(&devices), &options).unwrap();
    let size = pool.info().size.0;
    let step = 1511 * 512;
    let mut at = 0;
    while at < size {
        let len = step.min(size - at);
        pool.write(ByteOffset(at), &stamp(at, len)).unwrap();
        at += len;
    }
    pool.flush().unwrap();
    holds(&pool, text);
    let label = pool.label();
    drop(pool);

    let mut found = dynamic(&devices);
    found.reverse();
    let pool = Pool::assemble(found).unwrap();
    assert_eq!(pool.label().nodes, label.nodes);
    holds(&pool, text);
    for i in 0..usize::from(Facts::of(&label).tolerates) {
        devices[i * 2].arm(On::Read, 0, FaultKind::Gone);
        holds(&pool, text);
    }
}

#[test]
fn every_shape_holds_every_byte() {
    for (text, sizes) in [
        ("m0", &[8][..]),
        ("stripe(all)", &[8, 5, 9]),
        ("stripe/12K(m0*3, m1, m2*2)", &[8, 5, 9]),
        ("concat(m0, stripe(m1, m2))", &[8, 5, 9]),
        ("stripe(concat(m0, m1), concat(m2, m3))", &[8, 5, 9, 4]),
        ("mirror(all)", &[8, 5, 9]),
        ("mirror+1(all)", &[8, 5, 9]),
        ("mirror+1(all)", &[6, 6, 6, 6, 6]),
        ("mirror+2(all)", &[8, 5, 9, 7]),
        ("stripe(mirror(0,1), mirror(2,3), m4)", &[8, 5, 9, 4, 3]),
        ("mirror(concat(0,1), 2)", &[4, 5, 9]),
        ("parity+1(all)", &[8, 8, 12]),
        ("parity+2(all)", &[12, 12, 10, 9]),
        ("stripe(parity+1(0-2), parity+1/16K(3-6))", &[8, 8, 9, 8, 11, 12, 8]),
        (
            "metadata = mirror+1(0-2[2M]); data = concat(parity+1(0-2), mirror(3,4))",
            &[8, 8, 9, 8, 7],
        ),
        ("metadata = m0[1M]; journal = m1[1M]; data = stripe(all)", &[8, 7]),
    ] {
        holds_what_was_written(text, sizes);
    }
}

/// What a pool of this shape over four devices issues for a write of a whole row of 1 MiB, or less.
fn issued(layout: &str, queued: bool, len: usize) -> Vec<(u64, u64)> {
    let devices = dynamic(&devices(&[32; 4]));
    let layout = parse::layout(layout, &BTreeMap::new()).unwrap();
    let options = CreateOptions { layout: Some(layout), ..CreateOptions::new("p") };
    let pool = Pool::create(devices, &options).unwrap();
    let before = pool.issued();
    if queued {
        let mut queue = PoolQueue::new(pool.clone(), 1).unwrap();
        queue.submit(0, ByteOffset(0), PoolOp::Write(AlignedBuf::zeroed(len))).unwrap();
        queue.complete().2.unwrap();
    } else {
        pool.write(ByteOffset(0), &vec![0; len]).unwrap();
    }
    let since =
        pool.issued().into_iter().zip(before).map(|(now, before)| now.since(&before).writes);
    // Redundancy logs have their own, smaller ones.
    let units = |t: Traffic| {
        let large = t.classes().filter(|(from, _)| from.0 >= 256 << 10);
        (large.map(|(_, n)| n).sum(), t.bytes.0 >> 18)
    };
    since.map(units).collect()
}

#[test]
fn requests_are_counted_on_each_member_of_every_shape() {
    for queued in [false, true] {
        assert_eq!(issued("stripe(all)", queued, 1 << 20), [(1, 1); 4], "queued: {queued}");
        let one = [(1, 1), (0, 0), (0, 0), (0, 0)];
        assert_eq!(issued("stripe(all)", queued, 256 << 10), one, "queued: {queued}");
        let mirrors = issued("stripe(mirror(0,1), mirror(2,3))", queued, 512 << 10);
        assert_eq!(mirrors, [(1, 1); 4], "queued: {queued}");
    }
}

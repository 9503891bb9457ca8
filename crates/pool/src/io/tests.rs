use braid_device::{AlignedBuf, FaultKind, FaultPlan, MemoryDevice, On};
use braid_format::StripeUnit;
use braid_format::label::{Child, NodeKind, Segment, TreeNode};
use proptest::prelude::*;

use super::*;
use crate::assembly::create::CreateOptions;
use crate::layout::Redundancy;
use crate::redundancy::tests::devices;
use crate::{BackgroundIo, PoolOp, PoolQueue};

fn pool(sizes_mib: &[u64], unit: u64) -> Pool {
    let devices = sizes_mib
        .iter()
        .enumerate()
        .map(|(i, mib)| {
            let name = format!("memory{i}");
            MemoryDevice::new(&name, Bytes((mib + 2) << 20), Bytes(512)) as Arc<dyn Device>
        })
        .collect();
    let stripe_unit = StripeUnit::new(Bytes(unit)).unwrap();
    Pool::create(devices, &CreateOptions { stripe_unit, ..CreateOptions::new("io") }).unwrap()
}

/// Bytes that say where they belong.
fn pattern(at: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (((at + i) / 512 * 31 + (at + i)) % 251).to_le_bytes()[0]).collect()
}

#[test]
fn what_is_written_is_read_whatever_the_cut() {
    for n in [1, 2, 3, 4, 7, 17] {
        let sizes: Vec<u64> = (0..n).map(|i| 1 + i % 3).collect();
        let pool = pool(&sizes, 64 << 10);
        let size = pool.info().size.to_usize();
        assert_eq!(size as u64, sizes.iter().sum::<u64>() << 20);
        let all = pattern(0, size);
        for (i, chunk) in all.chunks(300 * 512).enumerate() {
            pool.write(ByteOffset((i * 300 * 512) as u64), chunk).unwrap();
        }
        let mut back = vec![0; size];
        pool.read(ByteOffset(0), &mut back).unwrap();
        assert!(back == all, "{n} members");
        // On the devices: each byte where the map says.
        for (i, unit) in all.chunks(64 << 10).enumerate().step_by(5) {
            let at = ByteOffset((i << 16) as u64);
            let p = pool.map().pieces(at, Bytes(4096)).next().unwrap();
            let Place::Member(MemberIndex(member)) = p.place else { panic!("no groups here") };
            let mut raw = vec![0; 4096];
            pool.devices()[usize::from(member)].read(p.at, &mut raw).unwrap();
            assert!(raw == unit[..4096], "unit {i} of {n} members");
        }
    }
}

#[test]
fn the_labels_survive_a_pool_written_from_end_to_end() {
    let pool = pool(&[2, 3], 64 << 10);
    let ones = vec![0xff; pool.info().size.to_usize()];
    pool.write(ByteOffset(0), &ones).unwrap();
    let again = Pool::assemble(pool.devices()).unwrap();
    assert_eq!(again.info().uuid, pool.info().uuid);
}

#[test]
fn a_batch_mixes_requests_and_each_has_its_own_result() {
    let pool = pool(&[4, 4], 64 << 10);
    let data = pattern(7, 1 << 20);
    let mut back = vec![0; 1 << 20];
    pool.write(ByteOffset(0), &data).unwrap();
    let mut requests = [
        PoolRequest::read(ByteOffset(0), &mut back),
        PoolRequest::write(ByteOffset(4 << 20), &data),
        PoolRequest::write(ByteOffset(100), &data),
        PoolRequest::write(pool.info().size.to_usize().wrapping_sub(512).into_offset(), &data),
        PoolRequest::flush(),
    ];
    pool.run(&mut requests);
    let [read, write, crooked, past, flush] = requests;
    assert!(read.result.is_ok() && write.result.is_ok() && flush.result.is_ok());
    assert!(matches!(crooked.result, Err(PoolError::Misaligned { at: ByteOffset(100), .. })));
    assert!(matches!(past.result, Err(PoolError::PastEnd { .. })));
    assert!(back == data);
}

trait IntoOffset {
    fn into_offset(self) -> ByteOffset;
}
impl IntoOffset for usize {
    fn into_offset(self) -> ByteOffset {
        ByteOffset(self as u64)
    }
}

#[test]
fn requests_that_are_no_whole_sectors_are_refused() {
    let pool = pool(&[1], 64 << 10);
    let mut buf = [0; 100];
    assert!(matches!(pool.read(ByteOffset(0), &mut buf), Err(PoolError::Misaligned { .. })));
    assert!(matches!(pool.write(ByteOffset(1), &[0; 512]), Err(PoolError::Misaligned { .. })));
    let last = ByteOffset(u64::MAX - 511);
    assert!(matches!(pool.write(last, &[0; 512]), Err(PoolError::PastEnd { .. })));
    pool.write(ByteOffset(0), &[]).unwrap();
}

#[test]
fn compare_and_write_reaches_the_right_sector() {
    let pool = pool(&[1, 2, 1], 4096);
    for i in (0..pool.info().size.0).step_by(37 * 512) {
        let at = ByteOffset(i);
        let new = pattern(i, 512);
        assert_eq!(pool.compare_and_write(at, &[0; 512], &new).unwrap(), CawOutcome::Written);
        assert_eq!(
            pool.compare_and_write(at, &[0; 512], &[1; 512]).unwrap(),
            CawOutcome::Mismatch(new.clone())
        );
        let mut back = [0; 512];
        pool.read(at, &mut back).unwrap();
        assert_eq!(back[..], new);
    }
    let wrong = pool.compare_and_write(ByteOffset(0), &[0; 1024], &[0; 1024]);
    assert!(matches!(wrong, Err(PoolError::Misaligned { .. })));
    let wrong = pool.compare_and_write(ByteOffset(100), &[0; 512], &[0; 512]);
    assert!(matches!(wrong, Err(PoolError::Misaligned { .. })));
}

#[test]
fn zeroes_reach_exactly_their_range() {
    let pool = pool(&[2, 3, 5], 8192);
    let size = pool.info().size.to_usize();
    let mut expected = pattern(3, size);
    pool.write(ByteOffset(0), &expected).unwrap();
    let (from, to) = (3 * 512, size - 5 * 512);
    pool.write_zeroes(ByteOffset(from as u64), Bytes::from(to - from)).unwrap();
    expected[from..to].fill(0);
    let mut back = vec![1; size];
    pool.read(ByteOffset(0), &mut back).unwrap();
    assert!(back == expected);
    pool.discard(ByteOffset(0), Bytes::from(size)).unwrap();
    assert!(pool.discard(ByteOffset(512), Bytes::from(size)).is_err());
}

#[test]
fn runs_are_one_per_member_and_zone() {
    let pool = pool(&[4, 4, 6], 8192);
    let calls = std::cell::RefCell::new(Vec::new());
    pool.each_run(
        ByteOffset(0),
        pool.info().size,
        |d, at, len| {
            calls.borrow_mut().push((d.info().name.clone(), at.0 >> 20, len.0 >> 20));
            Ok(())
        },
        |_, _| panic!("no groups here"),
    )
    .unwrap();
    let mut calls = calls.into_inner();
    calls.sort();
    let expected = [("memory0", 1, 4), ("memory1", 1, 4), ("memory2", 1, 6)];
    assert_eq!(calls, expected.map(|(n, a, l)| (n.to_owned(), a, l)));
}

#[test]
fn a_queue_gives_back_every_request() {
    for sizes in [&[8][..], &[4, 4], &[2, 3, 4]] {
        let pool = pool(sizes, 64 << 10);
        let count = pool.info().size.0 >> 18;
        let mut queue = PoolQueue::new(pool.clone(), 4).unwrap();
        let (mut next, mut seen) = (0, Vec::new());
        while seen.len() < usize::try_from(count).unwrap() {
            while next < count && !queue.is_full() {
                let mut buf = AlignedBuf::zeroed(1 << 18);
                buf.copy_from_slice(&pattern(next << 18, 1 << 18));
                queue.submit(next, ByteOffset(next << 18), PoolOp::Write(buf)).unwrap();
                next += 1;
            }
            let (token, _, result) = queue.complete();
            result.unwrap();
            seen.push(token);
        }
        assert_eq!(queue.in_flight(), 0);
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..count));
        let buf = AlignedBuf::zeroed(1 << 20);
        queue.submit(9, ByteOffset(0), PoolOp::Read(buf)).unwrap();
        let (token, buf, result) = queue.complete();
        result.unwrap();
        assert!(token == 9 && buf[..] == pattern(0, 1 << 20)[..]);
        let past = queue.submit(1, pool_end(&pool), PoolOp::Read(AlignedBuf::zeroed(512)));
        assert!(matches!(past, Err(PoolError::PastEnd { .. })));
    }
}

fn pool_end(pool: &Pool) -> ByteOffset {
    ByteOffset(pool.info().size.0)
}

#[test]
fn a_pool_for_tests_has_its_size() {
    let pool = Pool::for_tests(3, Bytes(4 << 20));
    assert_eq!(pool.info().size, Bytes(12 << 20));
    assert_eq!(pool.info().stripe_width, Bytes(768 << 10));
    let (member, at) = pool.locate(ByteOffset(256 << 10)).unwrap();
    assert_eq!((member.index, at), (MemberIndex(1), ByteOffset(1 << 20)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any writes, in any batches, leave the pool as they would leave plain memory.
    #[test]
    fn a_pool_is_memory(
        sizes in proptest::collection::vec(1_u64..4, 1..5),
        unit in 1_u64..40,
        batches in proptest::collection::vec(
            proptest::collection::vec((0_usize..8000, 1_usize..600, any::<u8>()), 1..5), 1..6),
    ) {
        let pool = pool(&sizes, unit * 4096);
        let size = pool.info().size.to_usize();
        let mut model = vec![0; size];
        for batch in batches {
            let mut claimed = Vec::new();
            let mut buffers = Vec::new();
            for (at, len, fill) in batch {
                let at = at * 512 % size;
                let len = (len * 512).min(size - at);
                // Requests of one batch have no order: they must not overlap.
                if claimed.iter().any(|(a, l): &(usize, usize)| at < a + l && *a < at + len) {
                    continue;
                }
                claimed.push((at, len));
                buffers.push((at, vec![fill; len]));
                model[at..at + len].fill(fill);
            }
            let mut requests: Vec<_> = buffers
                .iter()
                .map(|(at, b)| PoolRequest::write(ByteOffset(*at as u64), b))
                .collect();
            pool.run(&mut requests);
            for r in requests {
                prop_assert!(r.result.is_ok());
            }
        }
        let mut back = vec![9; size];
        pool.read(ByteOffset(0), &mut back).unwrap();
        prop_assert!(back == model);
    }
}

#[test]
fn runs_with_a_gap_between_them_are_not_merged() {
    let device = MemoryDevice::new("m", Bytes(18 << 20), Bytes(512)) as Arc<dyn Device>;
    let whole = Pool::create(vec![device.clone()], &CreateOptions::new("gap")).unwrap();
    let mut label = whole.label().clone();
    let slice = |start: u64, len: u64| TreeNode {
        len: Bytes(len << 20),
        kind: NodeKind::Slice { member: MemberIndex(0), start: ByteOffset(start << 20) },
    };
    let children = (0..2).map(|node| Child { node, weight: 1 }).collect();
    let kind = NodeKind::Concat { children };
    label.nodes = vec![slice(8, 4), slice(2, 3), TreeNode { len: Bytes(7 << 20), kind }];
    label.segments[0] = Segment { node: 2, len: Bytes(7 << 20), ..label.segments[0] };
    let pool = Pool::open(vec![device.clone()], label).unwrap();
    device.write(ByteOffset(0), &vec![7; 18 << 20]).unwrap();
    pool.write_zeroes(ByteOffset(1 << 20), Bytes(5 << 20)).unwrap();
    let mut bytes = vec![0; 18 << 20];
    device.read(ByteOffset(0), &mut bytes).unwrap();
    let zero: Vec<usize> = (0..18).filter(|m| bytes[*m << 20] == 0).collect();
    assert_eq!(zero, [3, 4, 10, 11, 12]);
    assert_eq!(bytes.iter().filter(|b| **b == 0).count(), 5 << 20);
}

#[test]
fn a_closed_handle_changes_nothing_any_more_and_waits_for_what_is_under_way() {
    let pool = Pool::for_tests(2, Bytes::MIB);
    let (mine, other) = (pool.clone().gated(), pool.gated());
    let clone = mine.clone();
    let pass = clone.1.pass().unwrap();
    std::thread::scope(|s| {
        let closes = s.spawn(|| mine.close());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!closes.is_finished(), "a change was under way");
        drop(pass);
        closes.join().unwrap();
    });
    let at = ByteOffset(0);
    let mut sector = [0; 512];
    assert!(matches!(clone.write(at, &[1; 512]), Err(PoolError::Closed)));
    assert!(matches!(clone.flush(), Err(PoolError::Closed)));
    assert!(matches!(clone.discard(at, Bytes(512)), Err(PoolError::Closed)));
    assert!(matches!(clone.compare_and_write(at, &[0; 512], &[1; 512]), Err(PoolError::Closed)));
    clone.read(at, &mut sector).unwrap();
    other.write(at, &[1; 512]).unwrap();
    clone.read(at, &mut sector).unwrap();
    assert_eq!(sector, [1; 512]);
}

/// Labels that cannot be made to stay, on a member that cannot be spared: nothing is changed then, and
/// what is read is what is there.
#[test]
fn reads_do_not_depend_on_labels_that_cannot_be_written() {
    let all = devices(2, |_| FaultPlan::default());
    let of = all.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let redundancy = Redundancy::Mirror(2);
    let options = CreateOptions { redundancy, ..CreateOptions::new("mirror") };
    let pool = Pool::create(of, &options).unwrap();
    pool.attach(0).unwrap();
    let page = pattern(1 << 20, 8192);
    pool.write(ByteOffset(1 << 20), &page).unwrap();
    pool.fail_member(MemberIndex(1)).unwrap();
    pool.0.epochs.read().durable.store(false, Ordering::Release);
    (0..100).for_each(|n| all[0].arm(On::Flush, n, FaultKind::Fails));
    let mut back = vec![0; page.len()];
    pool.read(ByteOffset(1 << 20), &mut back).unwrap();
    assert!(back == page, "what was not read is said to be");
    assert!(pool.write(ByteOffset(0), &page).is_err());
    let mut batch = [PoolRequest::read(ByteOffset(1 << 20), &mut back)];
    pool.run(&mut batch);
    assert!(batch[0].result.is_ok());
    assert!(!pool.0.epochs.read().durable.load(Ordering::Acquire), "it was not before either");
}

#[test]
fn own_work_is_no_use() {
    let device =
        |i| -> Arc<dyn Device> { MemoryDevice::new(&format!("m{i}"), Bytes(24 << 20), Bytes(512)) };
    let options = CreateOptions { redundancy: Redundancy::Mirror(2), ..CreateOptions::new("p") };
    let pool = Pool::create(vec![device(0), device(1)], &options).unwrap();
    let work = || {
        let before = pool.requests();
        pool.write(ByteOffset(0), &[1; 4096]).unwrap();
        pool.read(ByteOffset(0), &mut [0; 4096]).unwrap();
        pool.flush().unwrap();
        pool.requests() - before
    };
    assert_eq!(work(), 3);
    {
        let _outer = BackgroundIo::begin();
        {
            let _inner = BackgroundIo::begin();
            assert_eq!(work(), 0);
        }
        assert_eq!(work(), 0);
        let other = std::thread::scope(|s| s.spawn(work).join().unwrap());
        assert_eq!(other, 3, "of another thread");
    }
    let to = crate::Destination::Device { device: device(2), force: false };
    pool.begin_evacuation(MemberIndex(0), to).unwrap();
    assert!(work() > 3);
    let _own = BackgroundIo::begin();
    assert_eq!(work(), 0, "on a member that is being moved");
}

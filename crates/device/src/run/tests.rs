#![expect(clippy::cast_possible_truncation, reason = "small numbers as test data")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use braid_format::ByteOffset;
use braid_testkit::pattern;

use super::*;
use crate::engine::{DEPTH, EngineKind};
use crate::{
    AlignedBuf, CountedDevice, Device, DeviceError, Direct, FileDevice, IoQueue, MemoryDevice,
    OpenOptions, OwnedOp, Part, Rule, ScriptedDevice,
};

const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Pread];
const SIZE: u64 = 8 << 20;

/// The directories that stand for the two ways files do direct I/O: really, and by copying.
fn places() -> Vec<&'static str> {
    ["/var/tmp", "/dev/shm"].into_iter().filter(|p| std::path::Path::new(p).is_dir()).collect()
}
struct Fixture {
    _dir: tempfile::TempDir,
    devices: Vec<Arc<FileDevice>>,
}
fn fixture(place: &str, devices: usize, options: OpenOptions) -> Fixture {
    let dir = tempfile::tempdir_in(place).unwrap();
    let open = |n: usize| {
        let path = dir.path().join(format!("d{n}"));
        std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
        FileDevice::open(&path, options).unwrap()
    };
    let devices = (0..devices).map(open).collect();
    Fixture { _dir: dir, devices }
}
fn request<'a>(device: &'a dyn Device, at: u64, op: Op<'a>) -> Request<'a> {
    Request { device, at: ByteOffset(at), op, result: Ok(()) }
}

#[test]
fn both_engines_move_the_same_bytes() {
    for place in places() {
        for direct in [Direct::Auto, Direct::No] {
            for kind in ENGINES {
                same_bytes(place, direct, kind);
            }
        }
    }
}
fn same_bytes(place: &str, direct: Direct, kind: EngineKind) {
    let fixture = fixture(place, 3, OpenOptions { direct, ..OpenOptions::default() });
    let memory = MemoryDevice::new("m", Bytes(SIZE), Bytes(512));
    let mut devices: Vec<&dyn Device> =
        fixture.devices.iter().map(|d| &**d as &dyn Device).collect();
    devices.push(&*memory);
    // More requests than the ring holds, sectors to a MiB, aligned memory and not.
    let grain = fixture.devices[0].info().sector.get();
    let lens: Vec<usize> = (0..DEPTH + 90)
        .map(|i| if i % 50 == 0 { 1 << 20 } else { (grain * (1 + i as u64 % 9)) as usize })
        .collect();
    let mut places_of = Vec::new();
    let mut next = vec![0_u64; devices.len()];
    for (i, len) in lens.iter().enumerate() {
        let d = i % devices.len();
        places_of.push((d, next[d]));
        next[d] += *len as u64;
    }
    let data: Vec<(Vec<u8>, usize)> =
        lens.iter().enumerate().map(|(i, len)| (pattern(i as u64, len + 1), i % 2)).collect();
    let mut flight = Flight::new(kind);
    let mut writes: Vec<Request<'_>> = data
        .iter()
        .zip(&places_of)
        .zip(&lens)
        .map(|(((bytes, skip), (d, at)), len)| {
            request(devices[*d], *at, Op::Write(&bytes[*skip..skip + len]))
        })
        .collect();
    run_on(&mut flight, &mut writes);
    assert!(writes.iter().all(|w| w.result.is_ok()), "{:?}", writes[0].result);
    let mut flushes: Vec<Request<'_>> = devices.iter().map(|d| request(*d, 0, Op::Flush)).collect();
    run_on(&mut flight, &mut flushes);
    assert!(flushes.iter().all(|f| f.result.is_ok()));
    // Once by the batch, once by the device's own method.
    let mut back: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; len + 1]).collect();
    let mut reads: Vec<Request<'_>> = back
        .iter_mut()
        .zip(&places_of)
        .enumerate()
        .map(|(i, (buf, (d, at)))| {
            let (from, to) = (i % 3 % 2, buf.len() - 1 + i % 3 % 2);
            request(devices[*d], *at, Op::Read(&mut buf[from..to]))
        })
        .collect();
    run_on(&mut flight, &mut reads);
    for (i, r) in reads.iter().enumerate() {
        assert!(r.result.is_ok(), "{:?}", r.result);
        let Op::Read(bytes) = &r.op else { panic!("a read") };
        let (wrote, skip) = &data[i];
        assert!(bytes[..] == wrote[*skip..skip + lens[i]], "{place} {kind:?} request {i}");
        let mut alone = vec![0; lens[i]];
        r.device.read(r.at, &mut alone).unwrap();
        assert!(bytes[..] == alone[..]);
    }
    assert_eq!(flight.pending(), 0);
}

#[test]
fn the_public_batch_uses_the_default_engine_in_every_thread() {
    let fixture = fixture("/var/tmp", 2, OpenOptions::default());
    std::thread::scope(|s| {
        for t in 0..4_u64 {
            let devices = &fixture.devices;
            s.spawn(move || {
                let data = [t as u8 + 1; 4096];
                for _ in 0..20 {
                    let mut buf = [0; 4096];
                    let mut w: Vec<_> =
                        devices.iter().map(|d| request(&**d, t * 4096, Op::Write(&data))).collect();
                    run(&mut w);
                    assert!(w.iter().all(|w| w.result.is_ok()));
                    let other = &mut [0; 4096];
                    let mut r = [
                        request(&*devices[0], t * 4096, Op::Read(&mut buf)),
                        request(&*devices[1], t * 4096, Op::Read(other)),
                    ];
                    run(&mut r);
                    assert_eq!((&buf, &*other), (&data, &data));
                }
            });
        }
    });
}

#[test]
fn what_is_wrong_with_one_request_does_not_touch_the_others() {
    for kind in ENGINES {
        let fixture = fixture("/var/tmp", 1, OpenOptions::default());
        let d: &dyn Device = &*fixture.devices[0];
        let good = [7; 4096];
        let mut requests = [
            request(d, 1, Op::Write(&good)),
            request(d, SIZE, Op::Write(&good)),
            request(d, 0, Op::Write(&good)),
        ];
        run_on(&mut Flight::new(kind), &mut requests);
        assert!(matches!(requests[0].result, Err(DeviceError::Unaligned { .. })));
        assert!(matches!(requests[1].result, Err(DeviceError::OutOfRange { .. })));
        assert!(requests[2].result.is_ok());
    }
}

#[test]
fn a_device_that_shrank_fails_a_read_and_does_not_loop() {
    for kind in ENGINES {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("d");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(SIZE).unwrap();
        let d = FileDevice::open(&path, OpenOptions::default()).unwrap();
        file.set_len(SIZE / 2 + 8192).unwrap();
        let mut a = AlignedBuf::zeroed(1 << 20);
        let mut b = AlignedBuf::zeroed(4096);
        let mut requests =
            [request(&*d, SIZE / 2, Op::Read(&mut a)), request(&*d, SIZE - 4096, Op::Read(&mut b))];
        run_on(&mut Flight::new(kind), &mut requests);
        for r in &requests {
            let Err(DeviceError::Io { source, .. }) = &r.result else { panic!("{:?}", r.result) };
            assert_eq!(source.kind(), io::ErrorKind::UnexpectedEof);
        }
        let own = d.read(ByteOffset(SIZE - 4096), &mut a[..4096]).unwrap_err();
        assert!(matches!(own, DeviceError::Io { .. }));
    }
}

#[test]
fn what_follows_on_a_device_goes_to_it_together_and_fails_apart() {
    const UNIT: u64 = 65536;
    for (place, kind) in places().into_iter().flat_map(|p| ENGINES.map(|kind| (p, kind))) {
        let fixture = fixture(place, 2, OpenOptions::default());
        let counted = fixture.devices.iter().map(|d| CountedDevice::over(d.clone()));
        let devices: Vec<_> = counted.collect();
        // Six units of a stripe of two, their memory one after the other.
        let mut data = AlignedBuf::zeroed(6 * UNIT as usize);
        data.copy_from_slice(&pattern(3, 6 * UNIT as usize));
        let place_of = |n: u64| (&*devices[(n % 2) as usize], SIZE / 2 + n / 2 * UNIT);
        let units = data.chunks(UNIT as usize).zip(0_u64..);
        let mut writes: Vec<_> = units
            .map(|(bytes, n)| request(place_of(n).0, place_of(n).1, Op::Write(bytes)))
            .collect();
        run_on(&mut Flight::new(kind), &mut writes);
        assert!(writes.iter().all(|r| r.result.is_ok()));
        for d in &devices {
            let issued = d.abilities().counters.unwrap().now().writes;
            assert_eq!((issued.requests(), issued.bytes.0), (1, 3 * UNIT), "{place} {kind:?}");
        }
        // The last unit of the first device is gone: the two before it are read all the same.
        std::fs::File::options()
            .write(true)
            .open(&devices[0].info().name)
            .and_then(|f| f.set_len(SIZE / 2 + 2 * UNIT))
            .unwrap();
        let mut back = AlignedBuf::zeroed(data.len());
        let units = back.chunks_mut(UNIT as usize).zip(0_u64..);
        let mut reads: Vec<_> =
            units.map(|(buf, n)| request(place_of(n).0, place_of(n).1, Op::Read(buf))).collect();
        run_on(&mut Flight::new(kind), &mut reads);
        let good: Vec<_> = reads.iter().map(|r| r.result.is_ok()).collect();
        assert_eq!(good, [true, true, true, true, false, true], "{place} {kind:?}");
        let lost = 4 * UNIT as usize..5 * UNIT as usize;
        back[lost.clone()].copy_from_slice(&data[lost]);
        assert!(back[..] == data[..]);
    }
}

/// A device that panics whatever it is asked.
fn bomb() -> Arc<ScriptedDevice> {
    let device = ScriptedDevice::over(MemoryDevice::new("bomb", Bytes(SIZE), Bytes(512)));
    device.add(Rule::all().calls(|at, command| panic!("bomb: {command:?} at {at}")));
    device
}

#[test]
fn a_panic_waits_for_the_kernel_before_it_unwinds() {
    for kind in ENGINES {
        let fixture = fixture("/var/tmp", 2, OpenOptions::default());
        let bomb = bomb();
        let written = pattern(1, 4 << 20);
        fixture.devices[0].write(ByteOffset(0), &written).unwrap();
        let mut flight = Flight::new(kind);
        let mut buf = AlignedBuf::zeroed(4 << 20);
        let fell = catch_unwind(AssertUnwindSafe(|| {
            let mut requests = [
                request(&*fixture.devices[0], 0, Op::Read(&mut buf)),
                request(&*fixture.devices[1], 0, Op::Write(&written)),
                request(&*bomb, 0, Op::Flush),
            ];
            run_on(&mut flight, &mut requests);
        }));
        assert!(fell.is_err());
        // Everything is back and done, and the engine still works.
        assert_eq!(flight.pending(), 0);
        assert!(buf[..] == written[..]);
        let mut again = AlignedBuf::zeroed(4 << 20);
        let mut requests = [
            request(&*fixture.devices[1], 0, Op::Read(&mut again)),
            request(&*fixture.devices[0], 0, Op::Flush),
        ];
        run_on(&mut flight, &mut requests);
        assert!(again[..] == written[..]);
    }
}

#[test]
fn the_thread_survives_a_panic_in_the_public_batch() {
    let fixture = fixture("/var/tmp", 1, OpenOptions::default());
    let bomb = bomb();
    let data = [3; 4096];
    for _ in 0..3 {
        let fell = catch_unwind(AssertUnwindSafe(|| {
            run(&mut [
                request(&*fixture.devices[0], 0, Op::Write(&data)),
                request(&*bomb, 0, Op::Flush),
            ]);
        }));
        assert!(fell.is_err());
    }
    let mut buf = [0; 4096];
    run(&mut [
        request(&*fixture.devices[0], 0, Op::Read(&mut buf)),
        request(&*fixture.devices[0], 0, Op::Flush),
    ]);
    assert_eq!(buf, data);
}

#[test]
fn a_window_slides_on_both_engines() {
    for kind in ENGINES {
        let fixture = fixture("/var/tmp", 2, OpenOptions::default());
        let mut queue = IoQueue::with_engine(4, kind);
        let device = |n: u64| fixture.devices[(n % 2) as usize].clone() as Arc<dyn Device>;
        let total = 64;
        for write in [true, false] {
            let mut seen = vec![false; total as usize];
            let mut submitted = 0;
            while seen.contains(&false) {
                while queue.in_flight() < 4 && submitted < total {
                    let mut buf = AlignedBuf::zeroed(65536);
                    let op = if write {
                        buf.fill(submitted as u8 + 1);
                        OwnedOp::Write(buf)
                    } else {
                        OwnedOp::Read(buf)
                    };
                    let at = ByteOffset(submitted / 2 * 65536);
                    queue.submit(submitted, device(submitted), at, op).unwrap();
                    submitted += 1;
                }
                let (token, buf, result) = queue.complete();
                result.unwrap();
                assert!(!std::mem::replace(&mut seen[token as usize], true));
                assert!(buf.iter().all(|b| *b == token as u8 + 1));
            }
            assert_eq!(queue.in_flight(), 0);
        }
    }
}

#[test]
fn a_queued_request_may_have_parts_and_one_may_fail() {
    for kind in ENGINES {
        let fixture = fixture("/var/tmp", 2, OpenOptions::default());
        let memory = MemoryDevice::new("m", Bytes(SIZE), Bytes(512));
        let devices: [Arc<dyn Device>; 3] =
            [fixture.devices[0].clone(), memory, fixture.devices[1].clone()];
        let parts: Vec<Part> = (0..300_usize)
            .map(|i| Part {
                device: devices[i % 3].clone(),
                at: ByteOffset((i / 3 * 4096) as u64),
                len: Bytes(4096),
            })
            .collect();
        let mut queue = IoQueue::with_engine(2, kind);
        let mut buf = AlignedBuf::zeroed(300 * 4096);
        buf.copy_from_slice(&pattern(8, 300 * 4096));
        queue.submit_parts(1, OwnedOp::Write(buf.clone()), &parts).unwrap();
        assert!(matches!(queue.complete(), (1, _, Ok(()))));
        queue.submit_parts(2, OwnedOp::Read(AlignedBuf::zeroed(buf.len())), &parts).unwrap();
        let (token, back, result) = queue.complete();
        assert!(token == 2 && result.is_ok() && back[..] == buf[..]);
        let mut bad = parts.clone();
        bad[7].at = ByteOffset(SIZE);
        queue.submit_parts(3, OwnedOp::Write(buf), &bad).unwrap();
        let (token, _, result) = queue.complete();
        assert!(token == 3 && matches!(result, Err(DeviceError::OutOfRange { .. })));
        // Dropped with requests in flight: waits.
        queue.submit_parts(4, OwnedOp::Read(AlignedBuf::zeroed(300 * 4096)), &parts).unwrap();
    }
}

#[test]
fn a_reservation_conflict_of_the_kernels_is_a_fence() {
    let device = MemoryDevice::new("d", Bytes(4096), Bytes(512));
    let errno = |e| device.info().io_error("write", ByteOffset(0), io::Error::from_raw_os_error(e));
    assert!(matches!(errno(libc::EBADE), DeviceError::Fenced { .. }));
    assert!(matches!(errno(libc::EIO), DeviceError::Io { .. }));
}

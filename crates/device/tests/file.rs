//! The file device, seen from outside: ranges, zeroing, claims, and locks in one process.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use braid_device::{
    AlignedBuf, CawOutcome, Device, DeviceError, Direct, FileDevice, InUse, Op, OpenOptions,
    OwnedOp, Request, run,
};
use braid_format::{ByteOffset, Bytes};

const SIZE: u64 = 4 << 20;

fn file(dir: &Path, size: u64) -> PathBuf {
    let path = dir.join("device");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}
fn temp() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}
fn open(path: &Path) -> Arc<FileDevice> {
    FileDevice::open(path, OpenOptions::default()).unwrap()
}

#[test]
fn a_size_is_whole_sectors_and_an_empty_file_is_no_device() {
    let dir = temp();
    let d = open(&file(dir.path(), SIZE + 100));
    assert_eq!(d.info().size, Bytes(SIZE));
    assert!(d.info().sector.get() <= 4096 && !d.info().is_block);
    let empty = FileDevice::open(&file(dir.path(), 100), OpenOptions::default());
    assert!(matches!(empty, Err(DeviceError::Empty { .. })));
    let directory = FileDevice::open(dir.path(), OpenOptions::default());
    assert!(matches!(directory, Err(DeviceError::NotADevice { .. })));
    let missing = FileDevice::open(&dir.path().join("missing"), OpenOptions::default());
    assert!(matches!(missing, Err(DeviceError::Io { operation: "open", .. })));
}
#[test]
fn reading_only_means_no_writes() {
    let dir = temp();
    let path = file(dir.path(), SIZE);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let d = FileDevice::open(&path, options).unwrap();
    let data = [1; 4096];
    let refused = |r: Result<(), DeviceError>| matches!(r, Err(DeviceError::ReadOnly { .. }));
    assert!(refused(d.write(ByteOffset(0), &data)));
    assert!(refused(d.write_zeroes(ByteOffset(0), Bytes(4096))));
    assert!(refused(d.compare_and_write(ByteOffset(0), &data, &data).map(|_| ())));
    let mut buf = [1; 4096];
    let mut both = [
        Request { device: &*d, at: ByteOffset(0), op: Op::Write(&data), result: Ok(()) },
        Request { device: &*d, at: ByteOffset(0), op: Op::Read(&mut buf), result: Ok(()) },
    ];
    run(&mut both);
    let [write, read] = both;
    assert!(refused(write.result) && read.result.is_ok());
    assert_eq!(buf, [0; 4096]);
    // Liveness can be asked by a reader.
    let writer = open(&path);
    let _guard = writer.abilities().locks.lock_byte(5).unwrap().unwrap();
    assert!(
        d.abilities().locks.byte_locked(5).unwrap() && !d.abilities().locks.byte_locked(6).unwrap()
    );
}
#[test]
fn zeroing_and_discarding_take_ranges_of_any_length() {
    for (place, direct) in [("/var/tmp", Direct::Auto), ("/dev/shm", Direct::Auto)] {
        let dir = tempfile::tempdir_in(place).unwrap();
        let path = file(dir.path(), SIZE);
        let d = FileDevice::open(&path, OpenOptions { direct, ..OpenOptions::default() }).unwrap();
        d.write(ByteOffset(0), &vec![7; SIZE as usize]).unwrap();
        d.write_zeroes(ByteOffset(4096), Bytes(1 << 20)).unwrap();
        d.write_zeroes(ByteOffset(0), Bytes(0)).unwrap();
        d.discard(ByteOffset(2 << 20), Bytes(1 << 20)).unwrap();
        let mut back = vec![1; SIZE as usize];
        d.read(ByteOffset(0), &mut back).unwrap();
        assert!(back[..4096].iter().all(|b| *b == 7));
        assert!(back[4096..4096 + (1 << 20)].iter().all(|b| *b == 0));
        assert!(back[4096 + (1 << 20)..2 << 20].iter().all(|b| *b == 7));
        assert!(back[3 << 20..].iter().all(|b| *b == 7));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE, "the size is kept");
        let past = d.discard(ByteOffset(SIZE), Bytes(4096));
        assert!(matches!(past, Err(DeviceError::OutOfRange { .. })));
    }
}
#[test]
fn what_is_deallocated_reads_as_zeros_and_takes_no_space() {
    for place in ["/var/tmp", "/dev/shm"] {
        let dir = tempfile::tempdir_in(place).unwrap();
        let path = file(dir.path(), SIZE);
        let d = open(&path);
        d.write(ByteOffset(0), &vec![7; SIZE as usize]).unwrap();
        d.flush().unwrap();
        let blocks = |path: &Path| std::fs::metadata(path).unwrap().blocks();
        let before = blocks(&path);
        assert!(d.info().caps.deallocate);
        // Edges that are less than a block of the file system below are zeros too.
        let (at, len) = (d.info().sector.get(), (2 << 20) + d.info().sector.get());
        assert!(d.deallocate(ByteOffset(at), Bytes(len)).unwrap());
        assert!(d.deallocate(ByteOffset(0), Bytes(0)).unwrap());
        let mut back = vec![1; SIZE as usize];
        d.read(ByteOffset(0), &mut back).unwrap();
        let (at, end) = (at as usize, (at + len) as usize);
        assert!(back[..at].iter().chain(&back[end..]).all(|b| *b == 7), "{place}");
        assert!(back[at..end].iter().all(|b| *b == 0), "{place}");
        d.flush().unwrap();
        assert!(
            blocks(&path) + (2 << 20) / 512 <= before + 8,
            "{place}: {before} to {}",
            blocks(&path)
        );
        assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE, "the size is kept");
        let past = d.deallocate(ByteOffset(SIZE), Bytes(4096));
        assert!(matches!(past, Err(DeviceError::OutOfRange { .. })));
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let reader = FileDevice::open(&path, options).unwrap();
        let refused = reader.deallocate(ByteOffset(0), Bytes(4096));
        assert!(matches!(refused, Err(DeviceError::ReadOnly { .. })));
        assert!(!reader.info().caps.deallocate);
    }
}
#[test]
fn an_exclusive_opener_keeps_out_another() {
    let dir = temp();
    let path = file(dir.path(), SIZE);
    let exclusive = OpenOptions { exclusive: true, ..OpenOptions::default() };
    let first = FileDevice::open(&path, exclusive).unwrap();
    let second = FileDevice::open(&path, exclusive);
    assert!(matches!(second, Err(DeviceError::InUse { by: InUse::Claimed, .. })));
    open(&path);
    drop(first);
    FileDevice::open(&path, exclusive).unwrap();
}
#[test]
fn compare_and_write_compares_and_writes() {
    let dir = temp();
    let d = open(&file(dir.path(), SIZE));
    let sector = d.info().sector.to_usize();
    // Memory at an odd address is fine.
    let ones = vec![1; sector + 1];
    let ones = &ones[usize::from(ones.as_ptr().addr().is_multiple_of(2))..][..sector];
    let zeros = vec![0; sector];
    let at = ByteOffset(8192);
    assert_eq!(d.compare_and_write(at, &zeros, ones).unwrap(), CawOutcome::Written);
    let again = d.compare_and_write(at, &zeros, ones).unwrap();
    assert_eq!(again, CawOutcome::Mismatch(ones.to_vec()));
    let long = vec![0; 8192];
    let long = d.compare_and_write(at, &long, &long);
    assert!(matches!(long, Err(DeviceError::Unaligned { .. })));
    let uneven = d.compare_and_write(at, &zeros, &vec![1; 2 * sector]);
    assert!(matches!(uneven, Err(DeviceError::Unaligned { .. })));
}
#[test]
fn liveness_bytes_exclude_within_and_between_handles() {
    let dir = temp();
    let path = file(dir.path(), SIZE);
    let (a, b) = (open(&path), open(&path));
    let held = a.abilities().locks.lock_byte(1).unwrap().unwrap();
    assert!(a.abilities().locks.lock_byte(1).unwrap().is_none(), "the same handle");
    assert!(b.abilities().locks.lock_byte(1).unwrap().is_none(), "another handle");
    assert!(
        a.abilities().locks.byte_locked(1).unwrap() && b.abilities().locks.byte_locked(1).unwrap()
    );
    let other = b.abilities().locks.lock_byte(2).unwrap();
    assert!(other.is_some());
    drop(held);
    assert!(
        !a.abilities().locks.byte_locked(1).unwrap()
            && !b.abilities().locks.byte_locked(1).unwrap()
    );
    assert!(a.abilities().locks.byte_locked(2).unwrap());
    let held = b.abilities().locks.lock_byte(1).unwrap();
    // A handle that is gone holds nothing, except what guards keep.
    drop(b);
    assert!(a.abilities().locks.byte_locked(1).unwrap());
    drop(held);
    assert!(!a.abilities().locks.byte_locked(1).unwrap());
    assert!(a.abilities().locks.lock_byte(u64::MAX).is_err());
}

#[test]
fn a_file_truncated_under_its_user_is_not_made_long_again() {
    let dir = temp();
    let mut written = AlignedBuf::zeroed(4096);
    written.fill(1);
    let make = |name: &str| {
        let path = dir.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let device = open(&path);
        device.write(ByteOffset(0), &written).unwrap();
        device.flush().unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        (device, file)
    };
    let truncated = |r: Result<(), DeviceError>| {
        let error = r.unwrap_err();
        assert!(matches!(error, DeviceError::Truncated { size: Bytes(0), .. }), "{error}");
    };
    type Ask = fn(&Arc<FileDevice>, &[u8]) -> Result<(), DeviceError>;
    let asks: [(&str, Ask); 4] = [
        ("write", |d, data| d.write(ByteOffset(8192), data)),
        ("flush", |d, _| d.flush()),
        ("write in a batch", |d, data| {
            let mut batch = [Op::Write(data), Op::Write(data)].map(|op| Request {
                device: &**d,
                at: ByteOffset(8192),
                op,
                result: Ok(()),
            });
            run(&mut batch);
            let [first, _] = batch;
            first.result
        }),
        ("write in a queue", |d, data| {
            let mut queue = braid_device::IoQueue::new(2).unwrap();
            let mut buf = AlignedBuf::zeroed(data.len());
            buf.copy_from_slice(data);
            queue.submit(1, d.clone(), ByteOffset(8192), OwnedOp::Write(buf)).unwrap();
            queue.complete().2
        }),
    ];
    for (name, ask) in asks {
        let (device, file) = make(name);
        file.set_len(0).unwrap();
        truncated(ask(&device, &written));
        assert_eq!(file.metadata().unwrap().len(), 0, "{name} made the file longer");
        // Somebody gives it its size back: where data stood are zeros now.
        file.set_len(1 << 20).unwrap();
        let mut found = AlignedBuf::zeroed(4096);
        truncated(device.read(ByteOffset(0), &mut found));
        let mut batch = [Request {
            device: &*device,
            at: ByteOffset(0),
            op: Op::Read(&mut found),
            result: Ok(()),
        }];
        run(&mut batch);
        let [read] = batch;
        truncated(read.result);
        for refused in [device.write(ByteOffset(0), &written), device.flush()] {
            assert!(matches!(refused, Err(DeviceError::Poisoned { .. })), "{refused:?}");
        }
    }
}

#[test]
fn a_growing_file_has_no_end_for_writes_and_one_for_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new");
    std::fs::write(&path, []).unwrap();
    let options = OpenOptions { direct: Direct::No, growing: true, ..OpenOptions::default() };
    let device = FileDevice::open(&path, options).unwrap();
    // Any byte will do.
    device.write(ByteOffset(1001), b"abc").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1004);
    let mut back = [0; 3];
    device.read(ByteOffset(1001), &mut back).unwrap();
    assert_eq!(&back, b"abc");
    assert!(device.read(ByteOffset(1002), &mut back).is_err());
    device.flush().unwrap();
    // Requests that are under way together are all done, in whatever order.
    let mut queue = braid_device::IoQueue::new(8).unwrap();
    for n in 0..8_u64 {
        let mut buf = AlignedBuf::zeroed(4096);
        buf.fill(u8::try_from(n).unwrap());
        let write = braid_device::OwnedOp::Write(buf);
        queue.submit(n, device.clone(), ByteOffset(n * 4096), write).unwrap();
    }
    let mut seen = Vec::new();
    while queue.in_flight() > 0 {
        let mut done = Some(queue.complete());
        while let Some((token, _, result)) = done {
            result.unwrap();
            seen.push(token);
            done = queue.completed();
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..8).collect::<Vec<_>>());
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() == 8 * 4096 && bytes.chunks(4096).zip(0..).all(|(c, n)| c[0] == n));
}

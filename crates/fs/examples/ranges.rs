//! Reads many ranges of one file at once, straight into the caller's memory: calls block, so threads are what makes
//! requests go on at the same time. `cargo run --release -p braid-fs --example ranges`.

use std::error::Error;
use std::sync::Arc;

use braid_fs::make::{MakeOptions, make};
use braid_fs::pool::device::{Device, OpenOptions, open};
use braid_fs::pool::{CreateOptions, Pool};
use braid_fs::{Cred, Fh, Fs, MountOptions, NoKernelCache, ReadRange, WriteFlags};

/// Of open(2).
const O_RDWR: i32 = 2;
/// Requests at a time.
const THREADS: usize = 8;

/// Fills each buffer from its offset, several at a time. How many bytes each got is fewer than asked for only at the
/// end of the file.
fn read_ranges(
    fs: &Fs,
    file: Fh,
    ranges: &mut [(u64, &mut [u8])],
) -> Result<Vec<usize>, braid_fs::Error> {
    let share = ranges.len().div_ceil(THREADS).max(1);
    std::thread::scope(|threads| {
        let work = ranges.chunks_mut(share).map(|ranges| {
            threads.spawn(move || {
                let one = |(offset, memory): &mut (u64, &mut [u8])| {
                    let len = u32::try_from(memory.len()).unwrap_or(u32::MAX);
                    let range = ReadRange { offset: *offset, len, fill: false };
                    // The hold that comes with the length keeps other nodes from changing the file until it is dropped.
                    fs.read_into(file, range, memory).map(|(read, _hold)| read)
                };
                ranges.iter_mut().map(one).collect::<Result<Vec<_>, _>>()
            })
        });
        let work: Vec<_> = work.collect();
        let done = work.into_iter().map(|thread| thread.join().expect("no read panics"));
        done.collect::<Result<Vec<_>, _>>().map(|read| read.concat())
    })
}

/// Runs it.
pub fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for name in ["disk0", "disk1", "disk2"] {
        let path = folder.path().join(name);
        std::fs::File::create_new(&path)?.set_len(64 << 20)?;
        devices.push(open(&path, OpenOptions::default())?);
    }
    let pool = Pool::create(devices, &CreateOptions::new("example"))?;
    make(&pool, &MakeOptions::default(), &mut |_, _| {})?;
    let fs = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache))?;

    // Each 4 KiB of the file begins with its number.
    let (_, file) = fs.create(fs.root(), b"data", 0o644, O_RDWR, &Cred::default())?;
    let mut contents = vec![0; 4 << 20];
    for (number, block) in (0_u64..).zip(contents.chunks_mut(4096)) {
        for (to, from) in block.iter_mut().zip(number.to_le_bytes()) {
            *to = from;
        }
    }
    fs.write(file, 0, &contents, WriteFlags::default())?;

    let mut memory = vec![0; 100 * 64];
    let offset = |number: u64| number * 37 % 1024 * 4096;
    let mut ranges: Vec<(u64, &mut [u8])> =
        (0..100).map(offset).zip(memory.chunks_mut(64)).collect();
    let read = read_ranges(&fs, file, &mut ranges)?;
    assert_eq!(read, [64; 100]);
    for (offset, memory) in &ranges {
        assert!(memory.starts_with(&(offset / 4096).to_le_bytes()));
    }
    println!("{} ranges, {} bytes", read.len(), read.iter().sum::<usize>());

    fs.release(file)?;
    fs.unmount()?;
    Ok(())
}

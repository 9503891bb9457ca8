//! Requests per second of the transport alone, over a file system in memory:
//! `cargo run --release -p braid-fuse --example rate`. Needs root and /dev/fuse.
//!
//! Programs and server share the machine; CPU time is of both together. Words on the command line
//! are mount options; `ONLY=getattr` in the environment picks lines.

#![allow(clippy::pedantic, clippy::unwrap_used, reason = "a measurement")]

#[path = "../tests/common/memfs.rs"]
mod memfs;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use braid_fuse::{FuseOptions, Session, unmount};
use memfs::{MemFs, Shared};

const MIB: usize = 1 << 20;

fn rate(what: &str, threads: usize, each: u32, work: impl Fn(usize, u32) + Sync) {
    if std::env::var("ONLY").is_ok_and(|only| !what.contains(&only)) {
        return;
    }
    let (start, cpu) = (Instant::now(), cpu_seconds());
    std::thread::scope(|s| {
        for thread in 0..threads {
            let work = &work;
            s.spawn(move || (0..each).for_each(|i| work(thread, i)));
        }
    });
    let took = start.elapsed().as_secs_f64();
    let count = f64::from(each) * threads as f64;
    let cpu = (cpu_seconds() - cpu) / count * 1e6;
    println!("{what:<28} {threads} threads {:>9.0}/s  {cpu:>6.1} us CPU each", count / took);
}

/// Of this process: programs and server.
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = text.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = fields[11..13].iter().map(|f| f.parse::<f64>().unwrap()).sum();
    ticks / 100.0
}

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = FuseOptions::new(dir.path().to_owned());
    // Attributes are asked for every time.
    options.cache_attributes = false;
    options.cache_names = braid_fuse::CacheNames::Never;
    let words = std::env::args().skip(1);
    words.for_each(|word| assert!(options.apply(&word).unwrap(), "{word}"));
    let fs = MemFs::new();
    let session = Session::mount("rate", options).unwrap();
    println!("{:?}", session.terms());
    let files = Shared(Arc::clone(&fs));
    let server = std::thread::spawn(move || session.serve(files));
    measure(dir.path());
    unmount(dir.path(), false).unwrap();
    server.join().unwrap().unwrap();
}

fn measure(dir: &Path) {
    let path = dir.join("f");
    fs::write(&path, vec![7_u8; 64 * MIB]).unwrap();
    for threads in [1, 2, 4] {
        let open = File::open(&path).unwrap();
        rate("getattr", threads, 100_000, |_, _| assert!(open.metadata().unwrap().is_file()));
        rate("lookup + getattr", threads, 50_000, |_, _| assert!(path.is_file()));
        let sub = |t: usize| dir.join(format!("d{threads}-{t}"));
        (0..threads).for_each(|t| fs::create_dir(sub(t)).unwrap());
        rate("create + close", threads, 20_000, |t, i| {
            drop(File::create_new(sub(t).join(i.to_string())).unwrap());
        });
        rate("unlink", threads, 20_000, |t, i| {
            fs::remove_file(sub(t).join(i.to_string())).unwrap();
        });
        let direct = || {
            let mut options = File::options();
            options.read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap()
        };
        let file = direct();
        rate("read 4 KiB, direct", threads, 50_000, |t, i| {
            thread_local!(static BUF: std::cell::RefCell<Vec<u8>> = vec![0; 4096].into());
            let at = u64::from(i.wrapping_mul(2_654_435_761) >> 18) * 4096 + t as u64;
            BUF.with_borrow_mut(|b| {
                file.read_exact_at(b, at.min((64 * MIB - 4096) as u64)).unwrap()
            });
        });
        let buffer = vec![1_u8; MIB];
        rate("write 1 MiB, direct", threads, 2_000, |t, i| {
            file.write_all_at(&buffer, ((i as usize + 16 * t) % 64 * MIB) as u64).unwrap();
        });
        rate("read 1 MiB, direct", threads, 2_000, |t, i| {
            thread_local!(static BUF: std::cell::RefCell<Vec<u8>> = vec![0; MIB].into());
            let at = ((i as usize + 16 * t) % 64 * MIB) as u64;
            BUF.with_borrow_mut(|b| file.read_exact_at(b, at).unwrap());
        });
    }
}

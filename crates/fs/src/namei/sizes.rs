//! Sizes that several threads see of one file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_format::Bytes;
use braid_pool::Pool;

use crate::Fs;
use crate::attr::{Cred, NoKernelCache, SetAttr};
use crate::make::{MakeOptions, make};
use crate::options::MountOptions;

const CRED: Cred = Cred { uid: 0, gid: 0, pid: 1, umask: 0o022 };

#[test]
fn sizes_of_a_growing_file_are_seen_in_order() {
    let pool = Pool::for_tests(2, Bytes(64 << 20));
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
    let (attr, fh) = fs.create(fs.root(), b"f", 0o644, 2, &CRED).unwrap();
    let (seen, over) = (AtomicU64::new(0), AtomicBool::new(false));

    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let before = seen.load(Ordering::SeqCst);
                    let size = fs.getattr(attr.ino).unwrap().size;
                    assert!(size >= before, "{size} after {before}");
                    seen.fetch_max(size, Ordering::SeqCst);
                }
            });
        }
        s.spawn(|| {
            for n in 0..5000 {
                let set = SetAttr { size: Some(n * 100), ..SetAttr::default() };
                fs.setattr(attr.ino, &set, Some(fh)).unwrap();
            }
            over.store(true, Ordering::SeqCst);
        });
    });
    fs.release(fh).unwrap();
    fs.unmount().unwrap();
}

//! What a node that gives a lock up must do, and must not wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use braid_format::{Bytes, InodeNo};
use braid_pool::device::{Device, FaultKind, FaultPlan, FaultyDevice, MemoryDevice, On};
use braid_pool::{CreateOptions, Pool};

use crate::attr::{Cred, Fh, KernelCache, NoKernelCache, WriteFlags};
use crate::make::{MakeOptions, make};
use crate::{Error, Fs, MountOptions};

const O_RDWR: i32 = 2;
const O_SYNC: i32 = 0o4_010_000;

fn made(device: Arc<dyn Device>) -> Pool {
    let pool = Pool::create(vec![device], &CreateOptions::new("test")).unwrap();
    let options =
        MakeOptions { nodes: Some(2), journal_size: Some(4 << 20), ..MakeOptions::default() };
    make(&pool, &options, &mut |_, _| {}).unwrap();
    pool
}

/// A kernel that sends a mapped page back when it is told to drop the file, and waits for the answer.
#[derive(Default)]
struct Mapped {
    file: Mutex<Option<(Fs, Fh)>>,
    answered: AtomicBool,
}
impl KernelCache for Mapped {
    fn invalidate_inode(&self, _: InodeNo, data: bool) {
        let Some((fs, fh)) = self.file.lock().unwrap().take_if(|_| data) else { return };
        let (done, answer) = mpsc::channel();
        std::thread::spawn(move || {
            let flags = WriteFlags { from_page_cache: true, ..WriteFlags::default() };
            done.send(fs.write(fh, 0, &[7; 4096], flags).is_ok()).ok();
        });
        let answer = answer.recv_timeout(Duration::from_secs(20));
        self.answered.store(answer == Ok(true), Ordering::Release);
    }
    fn invalidate_entries(&self, _: InodeNo) {}
}

#[test]
fn a_page_of_a_synchronous_file_that_comes_back_waits_for_no_lock() {
    let pool = made(MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512)));
    let kernel = Arc::new(Mapped::default());
    let a = Fs::mount(pool.clone(), MountOptions::default(), kernel.clone()).unwrap();
    let b = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap();
    let (attr, fa) = a.create(a.root(), b"f", 0o644, O_RDWR | O_SYNC, &Cred::default()).unwrap();
    a.write(fa, 0, &[1; 8192], WriteFlags::default()).unwrap();
    *kernel.file.lock().unwrap() = Some((a.clone(), fa));
    let fb = b.open(attr.ino, 0).unwrap();
    let read = b.read_reply(fb, 0, 8192, false, <[u8]>::to_vec).unwrap();
    assert!(kernel.answered.load(Ordering::Acquire), "the page's write waited for the lock");
    assert!(read == [[7; 4096], [1; 4096]].concat());
    a.release(fa).unwrap();
    b.release(fb).unwrap();
    a.unmount().unwrap();
    b.unmount().unwrap();
}

#[test]
fn a_node_that_cannot_write_what_another_waits_for_dies_for_it() {
    let inner = MemoryDevice::new("disk", Bytes(64 << 20), Bytes(512));
    let device = FaultyDevice::new(inner, FaultPlan::default());
    let pool = made(device.clone());
    let mount = || Fs::mount(pool.clone(), MountOptions::default(), Arc::new(NoKernelCache));
    let (a, b) = (mount().unwrap(), mount().unwrap());
    let (attr, fa) = a.create(a.root(), b"f", 0o644, O_RDWR, &Cred::default()).unwrap();
    a.write(fa, 0, &[1; 8192], WriteFlags::default()).unwrap();
    a.fsync(fa, false).unwrap();
    // Heartbeats write too, and may take the blow: until it hits the contents.
    let (done, answer) = mpsc::channel();
    let reader = {
        let b = b.clone();
        move || {
            let fb = b.open(attr.ino, 0).unwrap();
            done.send(b.read_reply(fb, 0, 8192, false, <[u8]>::to_vec).unwrap()).unwrap();
        }
    };
    a.write(fa, 0, &[2; 8192], WriteFlags::default()).unwrap();
    for nth in 0..2 {
        device.arm(On::Write, nth, FaultKind::Fails);
    }
    std::thread::spawn(reader);
    let read = answer.recv_timeout(Duration::from_secs(60)).expect("waits for ever");
    device.heal();
    // If the contents were hit, the node has gone, and what it had made durable is there.
    if a.withdrawn().is_some() {
        assert!(read == [1; 8192] || read == [2; 8192]);
        assert!(matches!(a.fsync(fa, false), Err(Error::Withdrawn { .. })));
        assert!(a.unmount().is_err());
    } else {
        assert!(read == [2; 8192]);
        a.unmount().unwrap();
    }
    b.unmount().unwrap();
}

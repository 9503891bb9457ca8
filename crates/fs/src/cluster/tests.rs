use std::time::Instant;

use braid_format::Bytes;
use braid_pool::CreateOptions;
use braid_pool::device::{Device, MemoryDevice};
use braid_pool::layout::Redundancy;

use super::*;
use crate::make::{MakeOptions, make};
use crate::{Fs, MountOptions, NoKernelCache};

/// Nodes of one process, each with the mirror opened for itself.
fn nodes<const N: usize>() -> [Fs; N] {
    let device = |i| MemoryDevice::new(&format!("m{i}"), Bytes(96 << 20), Bytes(512));
    let devices = [0, 1].map(device);
    let all = || devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let options = CreateOptions {
        redundancy: Redundancy::Mirror(2),
        log_slots: 4,
        ..CreateOptions::new("mirror")
    };
    let pool = Pool::create(all(), &options).unwrap();
    make(&pool, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    drop(pool);
    [(); N].map(|()| {
        let pool = Pool::assemble(all()).unwrap();
        Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache)).unwrap()
    })
}

fn cluster(fs: &Fs) -> &Arc<Cluster> {
    fs.core().cluster.as_ref().unwrap()
}

/// A dead node holds two regions; a writer has one of them too, and waits for the other. Whoever
/// recovers the dead one wants both for itself.
#[test]
fn who_waits_for_a_dead_nodes_region_keeps_no_recoverer_waiting() {
    let [dies, writes, other] = nodes();
    let held = cluster(&dies).hold(&[(1, Hold::Shared), (2, Hold::Alone)]).unwrap();
    let writer = {
        let writes = cluster(&writes).clone();
        let regions = [(1, Hold::Shared), (2, Hold::Shared)];
        std::thread::spawn(move || drop(writes.hold(&regions).unwrap()))
    };
    std::thread::sleep(Duration::from_millis(100));
    assert!(!writer.is_finished(), "both held what one held alone");
    // It gives nothing back: its records go on naming it.
    std::mem::forget(held);
    let core = dies.core();
    core.withdraw(&Error::NotPermitted);
    let start = Instant::now();
    while !writer.is_finished() {
        assert!(start.elapsed() < Duration::from_mins(1), "they wait for each other");
        std::thread::sleep(Duration::from_millis(20));
    }
    writer.join().unwrap();
    writes.unmount().unwrap();
    other.unmount().unwrap();
}

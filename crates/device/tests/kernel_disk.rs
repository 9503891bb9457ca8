//! Reservations of a kernel's SCSI disk, by SG_IO. Its contents are lost; it needs root, and two paths to
//! one unit that the kernel shows as two disks:
//!
//! ```text
//! BRAID_TEST_PATHS=/dev/sdX:/dev/sdY cargo test -p braid-device --test kernel_disk -- --ignored
//! ```

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::Path;
use std::sync::Arc;

use braid_device::{
    CawOutcome, Device, DeviceError, FileDevice, Op, OpenOptions, Request, Reservation,
    ReservationKind, run,
};
use braid_format::ByteOffset;

const KIND: ReservationKind = ReservationKind::WriteExclusiveAll;
const AT: ByteOffset = ByteOffset(1 << 20);

fn open(path: &str) -> Arc<FileDevice> {
    FileDevice::open(Path::new(path), OpenOptions::default()).unwrap()
}

fn write(device: &FileDevice, byte: u8) -> Result<(), DeviceError> {
    device.write(AT, &[byte; 4096])
}

fn fenced<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
    assert!(matches!(result, Err(DeviceError::Fenced { .. })), "{result:?}");
}

/// Two nodes of the host that has the first path, one of that with the second.
#[test]
#[ignore = "needs two paths to a SCSI disk that may be written over: BRAID_TEST_PATHS"]
fn two_hosts_reserve_and_fence() {
    let paths = std::env::var("BRAID_TEST_PATHS").expect("BRAID_TEST_PATHS");
    let (first, second) = paths.split_once(':').expect("two paths");
    let ([a, b], c) = ([(); 2].map(|()| open(first)), open(second));
    assert!(a.info().caps.persistent_reservations);
    let [of_a, of_b, of_c] = [&a, &b, &c].map(|d| d.reservations().unwrap());
    assert!(of_a.keys().unwrap().is_empty(), "somebody is registered: nothing is done");

    // Compare-and-write is the unit's: both paths see one another's.
    let sector = a.info().sector.to_usize();
    let [zero, one, two] = [0, 1, 2].map(|n| vec![n; sector]);
    a.write(AT, &zero).unwrap();
    assert_eq!(a.compare_and_write(AT, &zero, &one).unwrap(), CawOutcome::Written);
    let met = c.compare_and_write(AT, &zero, &two).unwrap();
    assert_eq!(met, CawOutcome::Mismatch(one.clone()));
    assert_eq!(c.compare_and_write(AT, &one, &two).unwrap(), CawOutcome::Written);

    // The nodes of a host have one key, on the host's path.
    assert_eq!(of_a.register_anyhow(0xa1).unwrap(), 0xa1);
    of_a.reserve(0xa1, KIND).unwrap();
    assert_eq!(of_b.register_anyhow(0xb2).unwrap(), 0xa1);
    assert_eq!(of_c.keys().unwrap(), [0xa1]);
    assert_eq!(of_c.reservation().unwrap(), Some(Reservation { key: 0, kind: KIND }));
    fenced(write(&c, 9));
    fenced(of_c.reserve(0xc3, KIND));
    assert_eq!(of_c.register_anyhow(0xc3).unwrap(), 0xc3);
    write(&c, 3).unwrap();
    of_a.register(0xa1, 0).unwrap();
    assert_eq!(of_c.keys().unwrap().len(), 2, "the second goes on");
    write(&b, 2).unwrap();
    assert_eq!(of_a.register_anyhow(0xd4).unwrap(), 0xa1);

    // A fence takes the host's key from both, in every way that a write goes.
    of_c.preempt_and_abort(0xc3, 0xa1, KIND).unwrap();
    for fenced_device in [&a, &b] {
        fenced(write(fenced_device, 7));
        fenced(fenced_device.compare_and_write(AT, &one, &two));
        let (device, op): (&dyn Device, _) = (&**fenced_device, Op::Write(&[7; 4096]));
        let mut requests = [Request { device, at: AT, op, result: Ok(()) }];
        run(&mut requests);
        let [request] = requests;
        fenced(request.result);
    }
    fenced(of_c.preempt_and_abort(0xc3, 0xa1, KIND));
    assert_eq!(of_c.keys().unwrap(), [0xc3]);

    // Not before both have ended is there another.
    let late = open(first);
    let refused = |late: &FileDevice| {
        let refused = late.reservations().unwrap().register_anyhow(0xe5);
        assert!(matches!(refused, Err(DeviceError::HostFenced { .. })), "{refused:?}");
    };
    refused(&late);
    drop(a);
    refused(&late);
    drop(b);
    assert_eq!(late.reservations().unwrap().register_anyhow(0xe5).unwrap(), 0xe5);
    write(&late, 5).unwrap();

    // A reset ends what is under way, and no registration.
    of_c.reset().unwrap();
    write(&late, 6).unwrap();
    write(&c, 7).unwrap();
    late.reservations().unwrap().register(0xe5, 0).unwrap();
    fenced(write(&late, 9));
    of_c.register(0xc3, 0).unwrap();
    assert_eq!((of_c.keys().unwrap(), of_c.reservation().unwrap()), (vec![], None));
    write(&late, 8).unwrap();
}

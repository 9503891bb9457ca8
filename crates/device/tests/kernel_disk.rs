//! Reservations of a kernel's SCSI disk, by SG_IO. Its contents are lost; it needs root, and two paths to
//! one unit that the kernel shows as two disks, as two sessions of its iSCSI initiator are, with two
//! names of initiators, to one `braid target`:
//!
//! ```text
//! BRAID_TEST_PATHS=/dev/sdX:/dev/sdY cargo test -p braid-device --test kernel_disk -- --ignored
//! ```

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, in its helpers too"
)]
#![allow(clippy::needless_pass_by_value, reason = "what a call returned is checked and done with")]

use std::path::Path;
use std::sync::Arc;

use braid_device::{
    CawOutcome, Device, DeviceError, FileDevice, Op, OpenOptions, Request, ReservationKind,
    Reservations, run,
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

fn of(device: &FileDevice) -> &dyn Reservations {
    device.abilities().reservations.unwrap()
}

/// Two nodes of the host that has the first path, one of that with the second.
#[test]
#[ignore = "needs two paths to a SCSI disk that may be written over: BRAID_TEST_PATHS"]
fn two_hosts_reserve_and_fence() {
    let paths = std::env::var("BRAID_TEST_PATHS").expect("BRAID_TEST_PATHS");
    let (first, second) = paths.split_once(':').expect("two paths");
    let ([a, b], c) = ([(); 2].map(|()| open(first)), open(second));
    assert!(a.abilities().reservations.is_some());
    assert!(of(&a).keys().unwrap().is_empty(), "somebody is registered: nothing is done");
    compare_and_write(&a, &c);
    share_a_key([&a, &b], &c);
    fence([&a, &b], &c);

    // Not before both have ended is there another key.
    let late = open(first);
    let refused = |late: &FileDevice| {
        let refused = of(late).register_anyhow(0xe5);
        assert!(matches!(refused, Err(DeviceError::HostFenced { .. })), "{refused:?}");
    };
    refused(&late);
    drop(a);
    refused(&late);
    drop(b);
    assert_eq!(of(&late).register_anyhow(0xe5).unwrap(), 0xe5);
    write(&late, 5).unwrap();

    // A reset ends what is under way, and no registration.
    of(&c).reset().unwrap();
    write(&late, 6).unwrap();
    write(&c, 7).unwrap();
    of(&late).register(0xe5, 0).unwrap();
    fenced(write(&late, 9));
    of(&c).register(0xc3, 0).unwrap();
    assert_eq!((of(&c).keys().unwrap(), of(&c).reservation().unwrap()), (vec![], None));
    write(&late, 8).unwrap();
}

/// It is the unit's: both paths see one another's.
fn compare_and_write(a: &FileDevice, c: &FileDevice) {
    let sector = a.info().sector.to_usize();
    let [zero, one, two] = [0, 1, 2].map(|n| vec![n; sector]);
    a.write(AT, &zero).unwrap();
    assert_eq!(a.compare_and_write(AT, &zero, &one).unwrap(), CawOutcome::Written);
    let met = c.compare_and_write(AT, &zero, &two).unwrap();
    assert_eq!(met, CawOutcome::Mismatch(one.clone()));
    assert_eq!(c.compare_and_write(AT, &one, &two).unwrap(), CawOutcome::Written);
    // All of it, wherever the memory happens to stand.
    let (mut now, mut found) = (two, vec![0; sector]);
    for n in 0..200_u8 {
        let next: Vec<u8> = (0..sector).map(|at| n ^ (at % 251) as u8).collect();
        assert_eq!(a.compare_and_write(AT, &now, &next).unwrap(), CawOutcome::Written, "{n}");
        c.read(AT, &mut found).unwrap();
        assert!(found == next, "{n}");
        now = next;
    }
}

/// The nodes of a host have one key, on the host's path.
fn share_a_key([a, b]: [&FileDevice; 2], c: &FileDevice) {
    assert_eq!(of(a).register_anyhow(0xa1).unwrap(), 0xa1);
    of(a).reserve(0xa1, KIND).unwrap();
    assert_eq!(of(b).register_anyhow(0xb2).unwrap(), 0xa1);
    assert_eq!(of(c).keys().unwrap(), [0xa1]);
    assert_eq!(of(c).reservation().unwrap().unwrap().kind, KIND);
    fenced(write(c, 9));
    fenced(of(c).reserve(0xc3, KIND));
    assert_eq!(of(c).register_anyhow(0xc3).unwrap(), 0xc3);
    write(c, 3).unwrap();
    of(a).register(0xa1, 0).unwrap();
    assert_eq!(of(c).keys().unwrap().len(), 2, "the second goes on");
    write(b, 2).unwrap();
    assert_eq!(of(a).register_anyhow(0xd4).unwrap(), 0xa1);
}

/// It takes the host's key from both, in every way that a write goes.
fn fence(both: [&FileDevice; 2], c: &FileDevice) {
    of(c).preempt_and_abort(0xc3, 0xa1, KIND).unwrap();
    for device in both {
        fenced(write(device, 7));
        let sector = vec![3; device.info().sector.to_usize()];
        fenced(device.compare_and_write(AT, &sector, &sector));
        let op = Op::Write(&[7; 4096]);
        let mut requests = [Request { device, at: AT, op, result: Ok(()) }];
        run(&mut requests);
        let [request] = requests;
        fenced(request.result);
    }
    fenced(of(c).preempt_and_abort(0xc3, 0xa1, KIND));
    assert_eq!(of(c).keys().unwrap(), [0xc3]);
}

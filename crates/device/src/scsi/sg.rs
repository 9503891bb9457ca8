//! The way to a kernel's SCSI disk: SG_IO (`scsi/sg.h`).

use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use nix::errno::Errno;

use super::Sense;
use super::unit::{Answer, Data, Transport};

/// In milliseconds: after that the kernel aborts a command, or resets the disk, so it has ended when the
/// call returns. What a fence has aborted may never be answered otherwise.
const TIMEOUT: c_uint = 60 * 1000;
/// Of COMPARE AND WRITE: as long as the kernel tries a write of its own, 30 s and five times more.
const TIMEOUT_WRITE: c_uint = 180 * 1000;
/// Bytes of sense data that are kept.
const SENSE_LEN: usize = 64;

/// `struct sg_io_hdr`.
#[derive(Debug)]
#[repr(C)]
struct Header {
    interface: c_int,
    direction: c_int,
    cdb_len: c_uchar,
    sense_max: c_uchar,
    vectors: c_ushort,
    data_len: c_uint,
    data: *mut c_void,
    cdb: *mut c_uchar,
    sense: *mut c_uchar,
    timeout: c_uint,
    flags: c_uint,
    pack: c_int,
    user: *mut c_void,
    status: c_uchar,
    masked_status: c_uchar,
    message: c_uchar,
    sense_len: c_uchar,
    host_status: c_ushort,
    driver_status: c_ushort,
    residual: c_int,
    duration: c_uint,
    info: c_uint,
}
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Header>() == 88);

mod numbers {
    //! `SG_IO` and `SG_SCSI_RESET` of `scsi/sg.h`.
    nix::ioctl_readwrite_bad!(sg_io, 0x2285, super::Header);
    nix::ioctl_readwrite_bad!(sg_reset, 0x2284, super::c_int);
}

/// An open SCSI disk.
#[derive(Debug)]
pub(crate) struct SgIo(pub Arc<File>);

/// Where a command stands while the kernel does it.
struct Memory<'a> {
    cdb: &'a mut [u8],
    sense: &'a mut [u8; SENSE_LEN],
}

impl Header {
    fn new(memory: &mut Memory<'_>, data: Data<'_>) -> io::Result<Self> {
        const COMPARE_AND_WRITE: u8 = 0x89;
        let (direction, place, len) = match data {
            Data::None => (-1, null_mut(), 0),
            Data::Out(bytes) => (-2, bytes.as_ptr().cast_mut(), bytes.len()),
            Data::In(bytes) => (-3, bytes.as_mut_ptr(), bytes.len()),
        };
        let writes = memory.cdb.first() == Some(&COMPARE_AND_WRITE);
        Ok(Self {
            interface: c_int::from(b'S'),
            direction,
            cdb_len: c_uchar::try_from(memory.cdb.len()).map_err(io::Error::other)?,
            sense_max: c_uchar::try_from(SENSE_LEN).map_err(io::Error::other)?,
            vectors: 0,
            data_len: c_uint::try_from(len).map_err(io::Error::other)?,
            data: place.cast(),
            cdb: memory.cdb.as_mut_ptr(),
            sense: memory.sense.as_mut_ptr(),
            timeout: if writes { TIMEOUT_WRITE } else { TIMEOUT },
            flags: 0,
            pack: 0,
            user: null_mut(),
            status: 0,
            masked_status: 0,
            message: 0,
            sense_len: 0,
            host_status: 0,
            driver_status: 0,
            residual: 0,
            duration: 0,
            info: 0,
        })
    }
}

impl Transport for SgIo {
    fn command(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Answer> {
        let (mut cdb, mut sense) = (cdb.to_vec(), [0; SENSE_LEN]);
        let mut memory = Memory { cdb: &mut cdb, sense: &mut sense };
        let mut header = Header::new(&mut memory, data)?;
        // SAFETY: the header and all that it points to live until the call returns, and are as long
        // as it says; data to the unit is only read.
        let done = unsafe { numbers::sg_io(self.0.as_raw_fd(), &raw mut header) };
        done.map_err(refused)?;
        let told = (header.status, header.host_status, header.driver_status);
        let sense = sense.get(..usize::from(header.sense_len)).unwrap_or_default();
        answer(told, sense, header.residual)
    }
    fn reset(&self) -> io::Result<()> {
        /// `SG_SCSI_RESET_DEVICE`, and nothing more if that fails (`SG_SCSI_RESET_NO_ESCALATE`).
        const RESET_DEVICE: c_int = 0x101;
        let mut how = RESET_DEVICE;
        // SAFETY: the kernel reads one number from `how`.
        unsafe { numbers::sg_reset(self.0.as_raw_fd(), &raw mut how) }.map_err(refused)?;
        Ok(())
    }
}

/// The kernel passed nothing on.
fn refused(e: Errno) -> io::Error {
    let why = match e {
        Errno::ENOTTY | Errno::EINVAL => "it takes no SCSI commands",
        Errno::EPERM | Errno::EACCES => {
            "the kernel lets only root (CAP_SYS_RAWIO, CAP_SYS_ADMIN) send this SCSI command"
        }
        Errno::ENODEV | Errno::ENXIO => "the disk is offline, or gone",
        e => return e.into(),
    };
    io::Error::new(io::Error::from(e).kind(), format!("{why} ({e})"))
}

/// What the kernel's statuses mean.
fn answer(
    (status, host, driver): (u8, u16, u16),
    sense: &[u8],
    residual: c_int,
) -> io::Result<Answer> {
    /// There is sense data: no fault of the driver.
    const DRIVER_SENSE: u16 = 8;
    /// How kernels before 6.0 mark a conflict besides.
    const NEXUS_FAILURE: u16 = 0x11;
    if status & 0xfe == Answer::CONFLICT && matches!(host, 0 | NEXUS_FAILURE) {
        return Ok(Answer { status: Answer::CONFLICT, sense: None, missing: 0 });
    }
    if host != 0 || driver & 0x0f & !DRIVER_SENSE != 0 {
        return Err(io::Error::other(format!(
            "no answer of the unit (host status {host:#x}, driver status {driver:#x}); the command may still be done"
        )));
    }
    let missing = usize::try_from(residual).unwrap_or(0);
    Ok(Answer { status: status & 0xfe, sense: Sense::decode(sense), missing })
}

/// The first block, in units of 512 bytes, of a SCSI disk or a partition of one, whose directory in
/// sysfs this is. `None` for all else: a mapped device too answers SG_IO, by the disk under it, whose
/// blocks have other numbers.
pub(crate) fn first_block(sysfs: &Path) -> Option<u64> {
    let number = |name| std::fs::read_to_string(sysfs.join(name)).ok()?.trim().parse::<u64>().ok();
    let (disk, start) = if sysfs.join("partition").exists() {
        (sysfs.parent()?, number("start")?)
    } else {
        (sysfs, 0)
    };
    let subsystem = std::fs::canonicalize(disk.join("device/subsystem")).ok()?;
    (subsystem.file_name()? == "scsi").then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_unit_said_is_an_answer() {
        let check = [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0];
        let told = answer((2, 0, 8), &check, 7).unwrap();
        assert_eq!((told.status, told.missing), (2, 7));
        assert_eq!(told.sense.unwrap().key, Sense::ATTENTION);
        assert_eq!(answer((0, 0, 0), &[], -1).unwrap().missing, 0);
        for (host, driver) in [(1, 0), (3, 8), (0, 6), (0xe, 0)] {
            assert!(answer((0, host, driver), &[], 0).is_err(), "{host} {driver}");
        }
        // A conflict, as kernels say it that know a host status of their own for it; but not more.
        for host in [0, 0x11] {
            assert_eq!(answer((0x18, host, 0), &[], 24).unwrap().status, Answer::CONFLICT);
        }
        assert!(answer((0x18, 3, 0), &[], 0).is_err() && answer((0, 0x11, 0), &[], 0).is_err());
    }

    #[test]
    fn the_header_says_which_way_how_much_and_how_long() {
        let (mut cdb, mut sense) = ([0x5f, 5, 7, 0, 0, 0, 0, 0, 24, 0], [0; SENSE_LEN]);
        let (place, room) = (cdb.as_ptr(), sense.as_ptr());
        let mut memory = Memory { cdb: &mut cdb, sense: &mut sense };
        let (list, mut answer) = ([1; 24], [0; 8200]);
        let out = Header::new(&mut memory, Data::Out(&list)).unwrap();
        assert_eq!((out.interface, out.direction, out.data_len), (0x53, -2, 24));
        assert_eq!((out.cdb_len, out.cdb.cast_const()), (10, place));
        assert_eq!((out.sense_max, out.sense.cast_const()), (64, room));
        assert_eq!(out.data.cast_const(), list.as_ptr().cast());
        assert_eq!((out.timeout, out.flags, out.vectors), (60_000, 0, 0));
        let wanted = Header::new(&mut memory, Data::In(&mut answer)).unwrap();
        assert_eq!((wanted.direction, wanted.data_len), (-3, 8200));
        let none = Header::new(&mut memory, Data::None).unwrap();
        assert_eq!((none.direction, none.data_len, none.data.is_null()), (-1, 0, true));
        let mut cdb = [0; 16];
        cdb[0] = 0x89;
        let mut memory = Memory { cdb: &mut cdb, ..memory };
        assert_eq!(Header::new(&mut memory, Data::None).unwrap().timeout, 180_000);
        assert_eq!(std::mem::offset_of!(Header, timeout), 40);
        assert_eq!(std::mem::offset_of!(Header, residual), 72);
    }

    #[test]
    fn what_takes_no_commands_says_so() {
        let file = SgIo(Arc::new(tempfile::tempfile().unwrap()));
        let inquiry = [0x12, 0, 0, 0, 36, 0];
        for refused in
            [file.command(&inquiry, Data::In(&mut [0; 36])).unwrap_err(), file.reset().unwrap_err()]
        {
            assert!(refused.to_string().starts_with("it takes no SCSI commands"), "{refused}");
        }
        let refused = refused(Errno::EPERM);
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("CAP_SYS_RAWIO"), "{refused}");
    }

    #[test]
    fn disks_are_told_from_what_stands_on_them() {
        let root = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let path = root.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let (scsi, virtio) = (dir("bus/scsi"), dir("bus/virtio"));
        let (disk, other, mapped) = (dir("sda"), dir("vda"), dir("dm-0"));
        for (disk, bus) in [(&disk, &scsi), (&other, &virtio)] {
            std::fs::create_dir(disk.join("device")).unwrap();
            std::os::unix::fs::symlink(bus, disk.join("device/subsystem")).unwrap();
        }
        let part = dir("sda/sda1");
        std::fs::write(part.join("partition"), "1\n").unwrap();
        std::fs::write(part.join("start"), "2048\n").unwrap();
        assert_eq!(first_block(&disk), Some(0));
        assert_eq!(first_block(&part), Some(2048));
        std::fs::write(part.join("start"), "what\n").unwrap();
        for none in [&part, &other, &mapped] {
            assert_eq!(first_block(none), None, "{}", none.display());
        }
    }
}

//! The way to a kernel's SCSI disk: SG_IO (`scsi/sg.h`).

use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use super::Sense;
use super::unit::{Answer, Data, Transport};

/// A command has no timeout of ours; the kernel wants one: a day, in milliseconds.
const TIMEOUT: c_uint = 24 * 60 * 60 * 1000;
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
    //! `SG_IO` of `scsi/sg.h`.
    nix::ioctl_readwrite_bad!(sg_io, 0x2285, super::Header);
}

/// An open SCSI disk.
#[derive(Debug)]
pub(crate) struct SgIo(pub Arc<File>);

impl Transport for SgIo {
    fn command(&self, cdb: &[u8], data: Data<'_>) -> io::Result<Answer> {
        let (direction, memory, len) = match data {
            Data::None => (-1, null_mut(), 0),
            Data::Out(bytes) => (-2, bytes.as_ptr().cast_mut(), bytes.len()),
            Data::In(bytes) => (-3, bytes.as_mut_ptr(), bytes.len()),
        };
        let (mut cdb, mut sense) = (cdb.to_vec(), [0; SENSE_LEN]);
        let mut header = Header {
            interface: c_int::from(b'S'),
            direction,
            cdb_len: c_uchar::try_from(cdb.len()).map_err(io::Error::other)?,
            sense_max: 64,
            vectors: 0,
            data_len: c_uint::try_from(len).map_err(io::Error::other)?,
            data: memory.cast(),
            cdb: cdb.as_mut_ptr(),
            sense: sense.as_mut_ptr(),
            timeout: TIMEOUT,
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
        };
        // SAFETY: the header and all that it points to live until the call returns, and are as long
        // as it says; data to the unit is only read.
        unsafe { numbers::sg_io(self.0.as_raw_fd(), &raw mut header) }?;
        let told = (header.status, header.host_status, header.driver_status);
        let sense = sense.get(..usize::from(header.sense_len)).unwrap_or_default();
        answer(told, sense, header.residual)
    }
}

/// What the kernel's statuses mean.
fn answer(
    (status, host, driver): (u8, u16, u16),
    sense: &[u8],
    residual: c_int,
) -> io::Result<Answer> {
    /// There is sense data: no fault of the driver.
    const DRIVER_SENSE: u16 = 8;
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

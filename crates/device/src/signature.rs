//! What else may stand on a device: other people's file systems, volume managers and tables.

use std::fmt;

use braid_format::ByteOffset;

use crate::{AlignedBuf, Device};

/// Something of another owner, recognised by its magic bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// What it is, as people call it.
    pub name: &'static str,
}
impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Magic bytes at a fixed offset from the beginning.
type Magic = (&'static str, u64, &'static [u8]);

/// The order matters: a boot sector's 55 AA is also in FAT and NTFS, and a protective MBR is in
/// front of every GPT.
const MAGICS: &[Magic] = &[
    ("a LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an XFS file system", 0, b"XFSB"),
    ("an ext2, ext3 or ext4 file system", 0x438, b"\x53\xef"),
    ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("a GFS2 file system", 0x1_0000, b"\x01\x16\x19\x70\x00\x00\x00\x01"),
    ("an OCFS2 file system", 0x400, b"OCFSV2"),
    ("an OCFS2 file system", 0x1000, b"OCFSV2"),
    ("an F2FS file system", 0x400, b"\x10\x20\xf5\xf2"),
    ("an EROFS image", 0x400, b"\xe2\xe1\xf5\xe0"),
    ("a JFS file system", 0x8000, b"JFS1"),
    ("an ISO 9660 image", 0x8001, b"CD001"),
    ("a squashfs image", 0, b"hsqs"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("a BitLocker volume", 3, b"-FVE-FS-"),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 0x36, b"FAT"),
    ("a FAT file system", 0x52, b"FAT32   "),
    ("a bcachefs file system", 0x1018, BCACHEFS),
    ("a bcache device", 0x1018, BCACHE),
    ("a Ceph BlueStore device", 0, b"bluestore block device\n"),
    ("a software RAID member (md)", 0, MD),
    ("a software RAID member (md)", 0x1000, MD),
    ("a swap area", 0x1000 - 10, b"SWAPSPACE2"),
    ("a swap area", 0x4000 - 10, b"SWAPSPACE2"),
    ("a swap area", 0x1_0000 - 10, b"SWAPSPACE2"),
    ("a hibernated system", 0x1000 - 10, b"S1SUSPEND"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
];

const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
/// 0xa92b4efc, little-endian.
const MD: &[u8] = b"\xfc\x4e\x2b\xa9";

/// ZFS: a label of 256 KiB, its second half a ring of uberblocks.
const ZFS_RING: std::ops::Range<usize> = 128 << 10..256 << 10;
const ZFS_STEP: usize = 1 << 10;
const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// What is read of the beginning and of the end.
const HEAD: u64 = 256 << 10;
const TAIL: u64 = 512 << 10;

/// What foreign structure stands on `device`, if one is recognised: at its beginning, or, for what
/// keeps its mark there, at its end. Ends that cannot be read count as foreign, for safety.
pub fn probe(device: &dyn Device) -> Option<Foreign> {
    let size = device.info().size.get();
    let sector = device.info().sector.get();
    let head = size.min(HEAD);
    let tail = (size.min(TAIL) / sector) * sector;
    let read = |at: u64, len: u64| {
        let mut buf = AlignedBuf::zeroed(usize::try_from(len).ok()?);
        device.read(ByteOffset(at), &mut buf).ok().map(|()| buf)
    };
    let unreadable = |name| Some(Foreign { name });
    let Some(head) = read(0, head) else { return unreadable("an unreadable beginning") };
    let Some(end) = read(size - tail, tail) else { return unreadable("an unreadable end") };
    at_head(&head).or_else(|| at_end(&end, size)).map(|name| Foreign { name })
}

fn holds(bytes: &[u8], at: u64, magic: &[u8]) -> bool {
    usize::try_from(at)
        .ok()
        .and_then(|at| bytes.get(at..))
        .is_some_and(|rest| rest.starts_with(magic))
}

fn at_head(head: &[u8]) -> Option<&'static str> {
    let fixed = MAGICS.iter().find(|(_, at, magic)| holds(head, *at, magic));
    if let Some((name, ..)) = fixed {
        return Some(name);
    }
    let lvm = |n: u64| holds(head, n * 512, b"LABELONE") && holds(head, n * 512 + 24, b"LVM2 001");
    if (0..4).any(lvm) {
        return Some("an LVM physical volume");
    }
    if zfs_label(head) {
        return Some("a ZFS pool member");
    }
    mbr(head).then_some("an MBR partition table")
}

/// A partition table with at least one partition: 55 AA alone is any boot sector.
fn mbr(head: &[u8]) -> bool {
    let Some(table) = head.get(446..510) else { return false };
    let (entries, _) = table.as_chunks::<16>();
    holds(head, 510, b"\x55\xaa")
        && entries.iter().all(|e| matches!(e[0], 0 | 0x80))
        && entries.iter().any(|e| e[4] != 0)
}

fn zfs_label(label: &[u8]) -> bool {
    let Some(ring) = label.get(ZFS_RING) else { return false };
    ring.chunks_exact(ZFS_STEP).any(|u| {
        let magic = u.first_chunk::<8>().map(|m| u64::from_le_bytes(*m));
        magic.is_some_and(|m| m == ZFS_MAGIC || m.swap_bytes() == ZFS_MAGIC)
    })
}

/// `end` is the last part of a device of `size` bytes.
fn at_end(end: &[u8], size: u64) -> Option<&'static str> {
    let begin = size - end.len() as u64;
    let at = |offset: Option<u64>, magic: &[u8]| {
        offset.and_then(|o| o.checked_sub(begin)).is_some_and(|at| holds(end, at, magic))
    };
    // md 1.0: at least 8 KiB before the end, on 4 KiB; md 0.90: 64 KiB before the last 64 KiB
    // boundary.
    let md1 = size.checked_sub(8192).map(|o| o & !4095);
    let md0 = (size & !0xffff).checked_sub(0x1_0000);
    if at(md1, MD) || at(md0, MD) {
        return Some("a software RAID member (md)");
    }
    // The backup table stands in the last sector, whatever its size.
    if [512, 4096].into_iter().any(|s| at(size.checked_sub(s), b"EFI PART")) {
        return Some("a GPT partition table");
    }
    let labels = size & !(HEAD - 1);
    let zfs = |offset: Option<u64>| {
        let at = offset.and_then(|o| o.checked_sub(begin)).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| end.get(at..)).is_some_and(zfs_label)
    };
    if zfs(labels.checked_sub(HEAD)) || zfs(labels.checked_sub(2 * HEAD)) {
        return Some("a ZFS pool member");
    }
    None
}

#[cfg(test)]
mod tests {
    use braid_format::Bytes;

    use super::*;
    use crate::MemoryDevice;

    const SIZE: u64 = 8 << 20;

    fn with(at: u64, bytes: &[u8]) -> Option<Foreign> {
        let device = MemoryDevice::new("probe", Bytes(SIZE), Bytes(512));
        let first = at / 512 * 512;
        let mut buf = vec![0; 1024];
        buf[usize::try_from(at - first).unwrap()..][..bytes.len()].copy_from_slice(bytes);
        let room = usize::try_from(SIZE - first).unwrap().min(1024);
        device.write(ByteOffset(first), &buf[..room]).unwrap();
        probe(&*device)
    }

    #[test]
    fn every_magic_is_recognised_and_an_empty_device_is_not() {
        assert_eq!(with(0, &[]), None);
        for (name, at, magic) in MAGICS {
            assert_eq!(with(*at, magic), Some(Foreign { name }), "{name} at {at}");
        }
        let mut lvm = b"LABELONE".to_vec();
        lvm.resize(24, 1);
        lvm.extend_from_slice(b"LVM2 001");
        assert_eq!(with(512, &lvm).unwrap().name, "an LVM physical volume");
        assert_eq!(with(SIZE - 8192, MD).unwrap().name, "a software RAID member (md)");
        assert_eq!(with(SIZE - 0x1_0000, MD).unwrap().name, "a software RAID member (md)");
        assert_eq!(with(SIZE - 512, b"EFI PART").unwrap().name, "a GPT partition table");
        for label in [0, 256 << 10, SIZE - (512 << 10), SIZE - (256 << 10)] {
            if label == 256 << 10 {
                continue; // The second label is not looked at; the first stands beside it.
            }
            let at = label + (128 << 10) + 5 * 1024;
            assert_eq!(with(at, &ZFS_MAGIC.to_be_bytes()).unwrap().name, "a ZFS pool member");
        }
    }
    #[test]
    fn a_boot_sector_is_a_table_only_with_a_partition_in_it() {
        let mut sector = [0_u8; 512];
        sector[510..].copy_from_slice(b"\x55\xaa");
        assert_eq!(with(0, &sector), None);
        sector[446 + 4] = 0x83;
        assert_eq!(with(0, &sector).unwrap().name, "an MBR partition table");
        sector[446] = 0x12;
        assert_eq!(with(0, &sector), None);
    }
    #[test]
    fn a_small_device_is_no_reason_to_fail() {
        let device = MemoryDevice::new("small", Bytes(512), Bytes(512));
        assert_eq!(probe(&*device), None);
    }
}

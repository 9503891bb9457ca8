//! The disks and buses of 1992 to 2000 that striped file systems were first measured on.
//!
//! Each says where its numbers are from. "Silent" marks what the measuring document does not say;
//! such a number is taken from the named data sheet of a drive of that time and kind, or left out.

use std::time::Duration;

use braid_format::Bytes;

use super::{Bus, DiskModel, Rate, Seek};

const fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// Seek times of a 5.25" SCSI drive of 1991: 2.5 ms to the next track, 15 ms on average; the full
/// stroke, which is not said, twice the average.
///
/// # Source
/// Data sheet of the Seagate ST41650N (Wren 8, June 1991), in the TH99 collection.
const WREN_SEEK: Seek =
    Seek { track_to_track: micros(2500), average: micros(15_000), full_stroke: micros(30_000) };

/// A 1.2 GB SCSI drive of an SGI 4D server, 1992: 2.5 MB/s raw, the upper end of "1.25 to 2.5". One
/// command at a time.
///
/// # Source
/// T. Lam, Improving File System Performance by Striping, NASA Ames 1992, table 1. Silent on
/// mechanics: 3597 rpm, 15 heads, 2107 cylinders and seeks as in the data sheet of the Seagate ST41650N
/// (Wren 8). Overhead: 1 ms, of the order of SCSI-1 controllers; no source.
pub const NASA_SCSI_1992: DiskModel = DiskModel {
    heads: 15,
    cylinders: 2107,
    seek: WREN_SEEK,
    overhead: micros(1000),
    tags: 1,
    transfer_max: Bytes(128 << 10),
    ..DiskModel::spinning(3597, Bytes(41_700))
};

/// The 1.1 GB IPI drive of the same server: 6.0 MB/s raw.
///
/// # Source
/// Lam 1992, table 1. Silent on mechanics: 3600 rpm, the seeks as above.
pub const NASA_IPI_1992: DiskModel = DiskModel {
    heads: 15,
    cylinders: 2107,
    seek: WREN_SEEK,
    overhead: micros(500),
    tags: 1,
    transfer_max: Bytes(128 << 10),
    ..DiskModel::spinning(3600, Bytes(100_000))
};

/// The SCSI bus of the same server, two of which had four drives: "the second disk has to wait
/// until the first drive is serviced. This is no different than a sequential access of two drives
/// on one controller", that is, no disconnect. 5 MB/s.
///
/// # Source
/// Lam 1992, section 3.1. Silent on the rate: synchronous SCSI-1 (ANSI X3.131-1986), which the data
/// sheet of the ST41650N names, too.
pub const NASA_SCSI_BUS_1992: Bus =
    Bus { command: micros(200), disconnect: false, ..Bus::of_rate(Rate::mega(5)) };

/// The drive of the stripe unit table: a track of 100 KB, and nothing that would blur
/// `n / (n + 1)`: no switches, a small overhead. Fast enough (7200 rpm, 12 MB/s) for its time.
///
/// # Source
/// SGI, BDSpro guide, chapter 2, table 2-1 ("1 track = 100 KB") and figure 2-1. Silent on the speed.
pub const BDSPRO_TRACK_100K: DiskModel =
    DiskModel { overhead: micros(300), ..DiskModel::spinning(7200, Bytes(100 << 10)) };

/// An IBM 2 GB drive of SGI's, inner zone: 5 MB/s.
///
/// # Source
/// BDSpro guide, chapter 2: "spin at about 7 MB per second on the outer zone and 5 MB per second on
/// the inner zone". Silent on mechanics: 7200 rpm, switches of 1.6 ms within and 2.6 ms between
/// cylinders and a full stroke of 15 ms as in IBM's specification of the DDRS-39130 (3.4.2); average
/// seek 8 ms, 8 heads, 5000 cylinders and the overhead without source.
pub const IBM_2GB_INNER: DiskModel = DiskModel { track: Bytes(41_667), ..IBM_2GB_OUTER };

/// The same drive, outer zone: 7 MB/s.
///
/// # Source
/// As [`IBM_2GB_INNER`].
pub const IBM_2GB_OUTER: DiskModel = DiskModel {
    heads: 8,
    cylinders: 5000,
    seek: Seek { track_to_track: micros(2600), average: micros(8000), full_stroke: micros(15_000) },
    head_switch: micros(1600),
    overhead: micros(500),
    ..DiskModel::spinning(7200, Bytes(58_333))
};

/// The drive of the arithmetic of saturation: 5 MB/s and nothing else.
///
/// # Source
/// BDSpro guide, chapter 2: "4 disks @ 5 MB/disk/second = 20 MB/second".
pub const BDSPRO_5MB: DiskModel =
    DiskModel { overhead: micros(300), ..DiskModel::spinning(7200, Bytes(41_667)) };

/// A fast-and-wide SCSI channel: 20 MB/s.
///
/// # Source
/// BDSpro guide, chapter 2. Silent on overheads: 0.1 ms for a command, 20 us for a reconnect.
pub const FAST_WIDE_SCSI: Bus =
    Bus { command: micros(100), reconnect: micros(20), ..Bus::of_rate(Rate::mega(20)) };

/// A 50 GB drive of the arrays of 2000, 7200 rpm; 12 MB/s, so that eight of them give the 96 MB/s
/// that were measured of an 8+1 array.
///
/// # Source
/// NCAR, CXFS tests, 8 May 2000: "8+1 50GB, 7200 RPM Seagate drives"; the rate from the LLNL report
/// below. Silent on the rest: seeks of 0.8, 7.4 and 16 ms, 22 heads, 12,000 cylinders and 512 KiB of
/// read-ahead, no source.
pub const BARRACUDA_50: DiskModel = DiskModel {
    heads: 22,
    cylinders: 12_000,
    seek: Seek { track_to_track: micros(800), average: micros(7400), full_stroke: micros(16_000) },
    overhead: micros(200),
    read_ahead: Bytes(512 << 10),
    ..DiskModel::spinning(7200, Bytes(100_000))
};

/// A Ciprico RF7000 array of them behind its port: 96 MB/s, reading and writing alike.
///
/// # Source
/// LLNL and University of Minnesota, SAN and CXFS report, January 2000: "peaked at 96 MB/sec using 8MB data
/// transfers"; two of them 191 MB/s. Silent on the overhead: 0.5 ms, no source.
pub const CIPRICO_RF7000: DiskModel =
    DiskModel { overhead: micros(500), ..DiskModel::flat(Rate::mega(96)) };

/// A Fibre Channel link of 1 Gbit/s: 100 MB/s.
///
/// # Source
/// ANSI X3.230-1994 (FC-PH); the HBAs of the NCAR and LLNL reports.
pub const FIBRE_CHANNEL: Bus = Bus { command: micros(20), ..Bus::of_rate(Rate::mega(100)) };

//! How fast a device reads, alone: large pieces one after the other, and small ones all over it.

use std::time::{Duration, Instant};

use braid_device::{AlignedBuf, Device, DeviceError};
use braid_format::ByteOffset;

/// One read.
const CHUNK: u64 = 4 << 20;
/// Places on the device that are read from: the front, the middle, near the end.
const SPOTS: u64 = 3;

/// A small read: a block of metadata, or a lock.
const SMALL: u64 = 4096;
/// Fewest and most small reads.
const LOOKS: (u64, u64) = (16, 512);
/// Of the device, the part between two small reads: the golden section, so that no two are near each
/// other, however many there are.
const STRIDE: f64 = 0.618_033_988_749_895;

/// Reads a stretch at the front, in the middle and near the end of `device`, for about `time`
/// altogether, and returns the median of their bytes per second (disks are faster at the front; a
/// busy moment spoils one stretch only). Waits for each read, however long it takes. 0 if the
/// device is too small to measure.
///
/// # Errors
/// What the device says.
pub fn measure(device: &dyn Device, time: Duration) -> Result<u64, DeviceError> {
    let size = device.info().size.0;
    let stretch = size / SPOTS / CHUNK * CHUNK;
    if stretch < 2 * CHUNK {
        return Ok(0);
    }
    let mut buf = AlignedBuf::zeroed(usize::try_from(CHUNK).unwrap_or(1 << 20));
    let mut speeds = Vec::new();
    for spot in 0..SPOTS {
        let start = spot * stretch;
        // The first brings the heads there.
        device.read(ByteOffset(start), &mut buf)?;
        let begun = Instant::now();
        let (mut at, mut bytes) = (start + CHUNK, 0_u128);
        while at + CHUNK <= start + stretch {
            device.read(ByteOffset(at), &mut buf)?;
            bytes += u128::from(CHUNK);
            at += CHUNK;
            if begun.elapsed() * u32::try_from(SPOTS).unwrap_or(1) >= time {
                break;
            }
        }
        let took = begun.elapsed().as_nanos().max(1);
        speeds.push(u64::try_from(bytes * 1_000_000_000 / took).unwrap_or(u64::MAX));
    }
    speeds.sort_unstable();
    Ok(speeds.get(speeds.len() / 2).copied().unwrap_or(0))
}

/// The place of the `n`-th small read on a device of `size` bytes.
#[expect(clippy::cast_precision_loss, reason = "a place is no more exact than it must be")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below the size")]
pub(crate) fn small_read(n: u64, size: u64) -> ByteOffset {
    let slots = size / SMALL;
    let slot = ((n as f64 * STRIDE).fract() * slots as f64) as u64;
    ByteOffset(slot.min(slots.saturating_sub(1)) * SMALL)
}

/// Reads small pieces all over `device`, one at a time, for about `time`, and returns the median of
/// how long they took. `None` if the device is too small to measure. (Parts of a file that were
/// never written read as fast as memory.)
///
/// # Errors
/// What the device says.
pub fn latency(device: &dyn Device, time: Duration) -> Result<Option<Duration>, DeviceError> {
    let size = device.info().size.0;
    if size < LOOKS.1 * SMALL {
        return Ok(None);
    }
    let mut buf = AlignedBuf::zeroed(usize::try_from(SMALL).unwrap_or(4096));
    let begun = Instant::now();
    let mut took = Vec::new();
    for n in 0..LOOKS.1 {
        if n >= LOOKS.0 && begun.elapsed() >= time {
            break;
        }
        let one = Instant::now();
        device.read(small_read(n, size), &mut buf)?;
        took.push(one.elapsed());
    }
    took.sort_unstable();
    Ok(took.get(took.len() / 2).copied())
}

//! How fast a device reads, alone.

use std::time::{Duration, Instant};

use braid_device::{AlignedBuf, Device, DeviceError};
use braid_format::ByteOffset;

/// One read.
const CHUNK: u64 = 4 << 20;
/// Places on the device that are read from: the front, the middle, near the end.
const SPOTS: u64 = 3;

/// Reads a stretch at the front, in the middle and near the end of `device`, for about `time`
/// altogether, and returns the median of their bytes per second (disks are faster at the front; a
/// busy moment spoils one stretch only). Waits for each read, however long it takes. 0 where the
/// device is too small to tell.
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

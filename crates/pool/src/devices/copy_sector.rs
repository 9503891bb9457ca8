//! Making one sector of a device equal to the same sector of another device, while nodes compare
//! and write on both.

use braid_device::{CawOutcome, Device, DeviceError};
use braid_format::ByteOffset;

/// Most times in a row that a compare-and-write whose answer was lost is looked at again: a device
/// that always loses them has failed.
pub(crate) const UNKNOWN_MAX: u32 = 8;

/// Which of two copies failed.
pub(crate) enum Side {
    Arbiter(DeviceError),
    Follower(DeviceError),
}

/// Makes a sector of `follower` equal to the same sector of `arbiter`.
pub(crate) fn follow(
    arbiter: &dyn Device,
    place: ByteOffset,
    follower: &dyn Device,
    there: ByteOffset,
    len: usize,
) -> Result<(), Side> {
    let (mut wanted, mut found) = (vec![0; len], vec![0; len]);
    follower.read(there, &mut found).map_err(Side::Follower)?;
    let mut unknown = 0;
    loop {
        arbiter.read(place, &mut wanted).map_err(Side::Arbiter)?;
        if found == wanted {
            return Ok(());
        }
        match follower.compare_and_write(there, &found, &wanted) {
            Ok(CawOutcome::Written) => found.copy_from_slice(&wanted),
            Ok(CawOutcome::Mismatch(now)) => found = now,
            Err(DeviceError::Unknown { .. }) if unknown < UNKNOWN_MAX => {
                unknown += 1;
                follower.read(there, &mut found).map_err(Side::Follower)?;
            }
            Err(error) => return Err(Side::Follower(error)),
        }
    }
}

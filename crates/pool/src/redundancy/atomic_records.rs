//! Sectors that other nodes may change although a region is held against them.
//!
//! Compare-and-writes and heartbeats take no region. So a node that copies bytes under a region
//! lock must look again at the sectors that they may have changed meanwhile. To read every byte
//! twice would be too slow; so compare-and-writes and heartbeats keep to sectors that hold a
//! *record*: of a lock, of a node's slot, or a heartbeat.
//!
//! This is enough while a copy is filled with its region held, because every other write waits for
//! the region. The first change of a sector after the copying node has read it is a
//! compare-and-write or a heartbeat. A compare-and-write succeeds only if the sector holds what it
//! expects, which is what the copying node has read; and if it does not expect a record, it is
//! refused ([`PoolError::NoRecord`](crate::PoolError::NoRecord)). A heartbeat on anything but an
//! earlier heartbeat is a node's first; the next beat writes it to all copies again.

use std::ops::Range;

use braid_format::lock_record::RawLockRecord;
use braid_format::node::{RawHeartbeat, RawSlot};

/// With what records begin. A torn one begins with it too.
const MAGICS: [u32; 3] = [RawLockRecord::MAGIC, RawSlot::MAGIC, RawHeartbeat::MAGIC];

/// Whether a sector that begins with `bytes` holds a record, whole or damaged further on.
pub(crate) fn is_record(bytes: &[u8]) -> bool {
    let magic = bytes.first_chunk::<4>().map(|m| u32::from_le_bytes(*m));
    magic.is_some_and(|m| MAGICS.contains(&m))
}

/// The least run of whole sectors of `bytes` that has all records in it; each stands in a sector of
/// `sector` bytes.
pub(crate) fn record_span(bytes: &[u8], sector: usize) -> Option<Range<usize>> {
    let mut found = bytes.chunks(sector).enumerate().filter(|(_, s)| is_record(s)).map(|(i, _)| i);
    let first = found.next()?;
    let last = found.next_back().unwrap_or(first);
    Some(first * sector..((last + 1) * sector).min(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_at_sectors_and_nowhere_else() {
        for magic in MAGICS {
            let mut bytes = vec![0; 8 * 512];
            assert_eq!(record_span(&bytes, 512), None);
            bytes[100..104].copy_from_slice(&magic.to_le_bytes());
            assert_eq!(record_span(&bytes, 512), None);
            bytes[1024..1028].copy_from_slice(&magic.to_le_bytes());
            assert_eq!(record_span(&bytes, 512), Some(1024..1536));
            assert_eq!(record_span(&bytes, 4096), None);
            bytes[2560..2564].copy_from_slice(&magic.to_le_bytes());
            assert_eq!(record_span(&bytes, 512), Some(1024..3072));
            bytes[..4].copy_from_slice(&magic.to_le_bytes());
            assert_eq!(record_span(&bytes, 512), Some(0..3072));
            assert_eq!(record_span(&bytes, 4096), Some(0..4096));
        }
        assert_eq!(record_span(&[], 512), None);
        assert!(!is_record(b"BRL"));
    }
}

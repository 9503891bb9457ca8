//! Runs of bytes, sector by sector.

use braid_device::Device;
use braid_format::{ByteOffset, Bytes};

/// Cuts `len` bytes from `at` at multiples of `sector`: from where, and how many.
pub(crate) fn sectors(at: u64, len: usize, sector: usize) -> impl Iterator<Item = (u64, usize)> {
    let end = at + len as u64;
    let mut here = at;
    std::iter::from_fn(move || {
        let left = Bytes(end - here).to_usize();
        let len = (sector - Bytes(here % sector as u64).to_usize()).min(left);
        let now = here;
        here += len as u64;
        (len > 0).then_some((now, len))
    })
}

/// Reads from `at` what can be read, sector by sector: where in `buf` those begin that cannot.
pub(crate) fn read_sectors(
    device: &dyn Device,
    at: ByteOffset,
    buf: &mut [u8],
    sector: usize,
) -> Vec<usize> {
    let parts = buf.chunks_mut(sector).enumerate().map(|(i, part)| (i * sector, part));
    let unread = |(i, part): (usize, &mut [u8])| {
        device.read(at + Bytes::from(i), part).is_err().then_some(i)
    };
    parts.filter_map(unread).collect()
}

/// Bytes in sectors that differ.
pub(super) fn differing(a: &[u8], b: &[u8]) -> u64 {
    let sectors = a.chunks(512).zip(b.chunks(512));
    sectors.filter(|(a, b)| a != b).map(|(a, _)| a.len() as u64).sum()
}

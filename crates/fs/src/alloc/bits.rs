//! Bitmaps: two bits a block, four blocks a byte, the lowest block in the lowest bits. Pure.
//!
//! Nothing here panics, whatever range is asked for: beyond the end everything is `Data`, the one
//! state that nobody takes or returns.

use braid_format::rgrp::BlockState;

use crate::groups::PER_BYTE;

fn place(i: u64) -> (usize, u32) {
    let shift = (i % PER_BYTE) * 2;
    (usize::try_from(i / PER_BYTE).unwrap_or(usize::MAX), u32::try_from(shift).unwrap_or(0))
}

/// All four blocks of a byte in `state`.
const fn byte_of(state: BlockState) -> u8 {
    0x55 * state as u8
}

/// State of block `i`.
pub(crate) fn get(bits: &[u8], i: u64) -> BlockState {
    let (at, shift) = place(i);
    bits.get(at).map_or(BlockState::Data, |b| BlockState::from_bits(b >> shift))
}

/// Sets block `i`.
pub(crate) fn set(bits: &mut [u8], i: u64, state: BlockState) {
    let (at, shift) = place(i);
    if let Some(b) = bits.get_mut(at) {
        *b = (*b & !(3 << shift)) | ((state as u8) << shift);
    }
}

/// Sets `len` blocks from `start`.
pub(crate) fn fill(bits: &mut [u8], start: u64, len: u64, state: BlockState) {
    let end = start + len;
    let mut i = start;
    while i < end && !i.is_multiple_of(PER_BYTE) {
        set(bits, i, state);
        i += 1;
    }
    let whole = (end - i) / PER_BYTE;
    let (from, _) = place(i);
    let (to, _) = place(i + whole * PER_BYTE);
    let to = to.min(bits.len());
    if let Some(bytes) = bits.get_mut(from..to) {
        bytes.fill(byte_of(state));
    }
    i += whole * PER_BYTE;
    while i < end {
        set(bits, i, state);
        i += 1;
    }
}

/// Whether a byte holds a block in `state`.
const fn has(byte: u8, state: BlockState) -> bool {
    let x = byte ^ byte_of(state);
    (x | (x >> 1)) & 0x55 != 0x55
}

/// First block in `from..to` that is in `state`.
fn find(bits: &[u8], from: u64, to: u64, state: BlockState) -> Option<u64> {
    let mut i = from;
    while i < to {
        let (at, shift) = place(i);
        let byte = *bits.get(at)?;
        if shift == 0 && !has(byte, state) {
            i += PER_BYTE;
            continue;
        }
        if BlockState::from_bits(byte >> shift) == state {
            return Some(i);
        }
        i += 1;
    }
    None
}

/// End of the run of `state` that begins at `from`, at most `to`.
fn run_end(bits: &[u8], from: u64, to: u64, state: BlockState) -> u64 {
    let mut i = from;
    while i < to {
        let (at, shift) = place(i);
        let Some(&byte) = bits.get(at) else { break };
        if shift == 0 && byte == byte_of(state) {
            i += PER_BYTE;
        } else if BlockState::from_bits(byte >> shift) == state {
            i += 1;
        } else {
            break;
        }
    }
    i.min(to)
}

/// The runs of blocks in `state` within `from..to`, as (start, length), ascending.
pub(crate) fn runs(
    bits: &[u8],
    from: u64,
    to: u64,
    state: BlockState,
) -> impl Iterator<Item = (u64, u64)> {
    let mut at = from;
    core::iter::from_fn(move || {
        let start = find(bits, at, to, state)?;
        at = run_end(bits, start, to, state);
        Some((start, at - start))
    })
}

/// How many blocks of `from..to` are in `state`.
pub(crate) fn count(bits: &[u8], from: u64, to: u64, state: BlockState) -> u64 {
    runs(bits, from, to, state).map(|(_, len)| len).sum()
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [BlockState; 4] =
        [BlockState::Free, BlockState::Data, BlockState::MetaFree, BlockState::MetaUsed];

    proptest! {
        #[test]
        fn agrees_with_an_array(
            ops in prop::collection::vec((0_u64..300, 0_u64..120, 0_usize..4), 1..40),
            from in 0_u64..300,
            span in 0_u64..300,
        ) {
            let mut bits = vec![0_u8; 75];
            let mut model = [BlockState::Free; 300];
            for (start, len, s) in ops {
                fill(&mut bits, start, len, ALL[s]);
                for i in start..(start + len).min(300) {
                    model[i as usize] = ALL[s];
                }
            }
            let to = (from + span).min(300);
            for i in 0..300 {
                prop_assert_eq!(get(&bits, i), model[i as usize]);
            }
            for s in ALL {
                let mut seen = Vec::new();
                let mut last_end = None;
                for (start, len) in runs(&bits, from, to, s) {
                    prop_assert!(len > 0 && last_end != Some(start));
                    seen.extend(start..start + len);
                    last_end = Some(start + len);
                }
                let want: Vec<u64> = (from..to).filter(|&i| model[i as usize] == s).collect();
                prop_assert_eq!(count(&bits, from, to, s), want.len() as u64);
                prop_assert_eq!(seen, want);
            }
        }
    }

    #[test]
    fn beyond_the_end_is_data() {
        let mut bits = vec![0_u8; 2];
        fill(&mut bits, 6, 100, BlockState::MetaUsed);
        assert_eq!(get(&bits, 7), BlockState::MetaUsed);
        assert_eq!(get(&bits, 8), BlockState::Data);
        assert_eq!(runs(&bits, 0, 1000, BlockState::Free).collect::<Vec<_>>(), [(0, 6)]);
    }
}

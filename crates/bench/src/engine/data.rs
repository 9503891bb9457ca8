//! What is written, and how it is verified when it is read.
//!
//! Every 512 bytes of verified data name the run, the address and the generation that they were written
//! with; the other bytes follow from these. So misplaced, stale and torn data is found.

use super::pattern::mix;

/// What is written, and whether it is looked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Content {
    /// Bytes that no layer can compress or leave out, the same in each request.
    #[default]
    Random,
    Byte(u8),
    /// lmdd's: 4-byte words, each its own place.
    Words,
    /// Verified data of a run and a generation.
    Verified {
        run: u64,
        generation: u64,
    },
}

/// The first place that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// Byte of the target.
    pub at: u64,
    /// What should be there: 4 bytes for words, 8 for verified data.
    pub expected: u64,
    /// What is.
    pub found: u64,
}

/// Bytes with a header of their own.
pub(crate) const PIECE: usize = 512;
const MAGIC: u64 = 0x6272_6169_6462_6e63;

impl Content {
    /// Whether it depends on the place.
    pub fn varies(self) -> bool {
        matches!(self, Self::Words | Self::Verified { .. })
    }
    /// Fills a request for `at`.
    pub fn fill(self, at: u64, buf: &mut [u8]) {
        match self {
            Self::Byte(byte) => buf.fill(byte),
            Self::Random => {
                for (n, word) in (0..).zip(buf.chunks_mut(8)) {
                    word.copy_from_slice(&mix(0xda7a, n).to_le_bytes()[..word.len()]);
                }
            }
            Self::Words => {
                for (n, word) in (0..).zip(buf.chunks_mut(4)) {
                    word.copy_from_slice(&place(at, n).to_le_bytes()[..word.len()]);
                }
            }
            Self::Verified { run, generation } => {
                let mut at = at;
                for piece in buf.chunks_mut(PIECE) {
                    for (word, value) in piece.chunks_mut(8).zip(words(run, generation, at)) {
                        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
                    }
                    at += PIECE as u64;
                }
            }
        }
    }
    /// The first place of a request read from `at` that is not as it was written; `None` for
    /// content that is not looked for.
    pub fn check(self, at: u64, buf: &[u8]) -> Option<Mismatch> {
        match self {
            Self::Byte(_) | Self::Random => None,
            Self::Words => (0..).zip(buf.chunks_exact(4)).find_map(|(n, word)| {
                let found = u32::from_le_bytes(word.try_into().ok()?);
                let expected = place(at, n);
                let at = at + n * 4;
                (found != expected).then(|| Mismatch {
                    at,
                    expected: expected.into(),
                    found: found.into(),
                })
            }),
            Self::Verified { run, generation } => {
                (0..).zip(buf.chunks(PIECE)).find_map(|(p, piece)| {
                    let at = at + p * PIECE as u64;
                    differs(piece, at, words(run, generation, at))
                })
            }
        }
    }
}

/// The generation that a verified piece at `at` says it is of, if it is whole and of `run`.
pub(crate) fn generation_of(run: u64, at: u64, piece: &[u8]) -> Option<u64> {
    let word = |n: usize| Some(u64::from_le_bytes(piece.get(n * 8..n * 8 + 8)?.try_into().ok()?));
    let generation = word(3)?;
    let whole = differs(piece, at, words(run, generation, at)).is_none();
    whole.then_some(generation)
}

fn differs(piece: &[u8], at: u64, words: impl Iterator<Item = u64>) -> Option<Mismatch> {
    (0..).zip(piece.chunks_exact(8)).zip(words).find_map(|((n, word), expected)| {
        let found = u64::from_le_bytes(word.try_into().ok()?);
        (found != expected).then_some(Mismatch { at: at + n * 8, expected, found })
    })
}

/// The words of a piece: four that say what it is, then a sequence of their own.
fn words(run: u64, generation: u64, at: u64) -> impl Iterator<Item = u64> {
    let base = mix(run ^ generation.rotate_left(32), at);
    let head = [MAGIC, run, at, generation];
    (0_u64..).map(move |n| match usize::try_from(n).ok().and_then(|n| head.get(n)) {
        Some(word) => *word,
        None => base.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
    })
}

/// lmdd's word `n` of a request at `at`.
#[expect(clippy::cast_possible_truncation, reason = "a place modulo 2^32 is what lmdd writes")]
fn place(at: u64, n: u64) -> u32 {
    (at + n * 4) as u32
}

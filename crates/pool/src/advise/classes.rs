//! Which members deserve metadata and journals: those that answer small reads clearly sooner.
//!
//! Nothing is chosen unless all of this is so:
//! * each of them answers four times sooner than any other, or twice as soon if the system says that
//!   all others rotate and they do not; and by 50 us at least;
//! * both classes have members enough for the redundancy asked for;
//! * they have room for the metadata that the pool should have, and are no more than a quarter of all
//!   space: more would never be filled.

use core::fmt;
use core::time::Duration;

use braid_device::DeviceError;
use braid_format::label::Member;

use super::measure::Bench;
use crate::layout::metadata::wanted;
use crate::layout::usual::least_for_parity;
use crate::layout::{Classes, Redundancy};

/// Times that the one class must answer sooner than the other.
pub const CLEARLY: u32 = 4;
/// The same, if the system says that only the other class rotates. That may be wrong (virtual disks
/// often claim to rotate), and caches hide it.
pub const ROTATES: u32 = 2;
/// And by so much.
pub const LEAST: Duration = Duration::from_micros(50);
/// The fast class is no more than one in so many bytes.
pub const PART: u64 = 4;

/// What is known of a member's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answers {
    /// The median time of a small read; `None`: it is too small to tell.
    pub small: Option<Duration>,
    /// Whether it rotates, as the system says.
    pub rotates: Option<bool>,
}

/// What was chosen, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Metadata and journals on some, data on the others.
    Split {
        /// Which.
        classes: Classes,
        /// The slowest of the fast ones.
        fast: Duration,
        /// The fastest of the others.
        slow: Duration,
        /// By what the system says of rotation, too.
        rotates: bool,
    },
    /// One subpool for everything.
    Whole(Why),
}

/// Why no class gets what is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A member could not be measured.
    Unknown,
    /// All are about as fast.
    Alike {
        /// The fastest.
        least: Duration,
        /// The slowest.
        most: Duration,
    },
    /// A class has too few members.
    Few {
        /// Fast ones, and how many it would take.
        fast: (usize, usize),
        /// The others.
        others: (usize, usize),
    },
    /// The fast ones have too little room.
    Small {
        /// What they have.
        bytes: u64,
        /// What it takes.
        wanted: u64,
    },
    /// They have so much of the space that it would never be filled.
    Large {
        /// Of all space, percent.
        percent: u64,
    },
}

/// Measures how soon each member answers small reads; `rotates`: what the system says of them.
/// `progress` gets the number of members that are done, and of all.
///
/// # Errors
/// A member cannot be read.
pub fn answers(
    bench: &mut dyn Bench,
    rotates: &[Option<bool>],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Answers>, DeviceError> {
    let n = bench.members();
    let mut all = Vec::new();
    for member in 0..n {
        let small = bench.latency(member)?;
        all.push(Answers { small, rotates: rotates.get(member).copied().flatten() });
        progress(member as u64 + 1, n as u64);
    }
    Ok(all)
}

/// Chooses: the clearest of all ways to part the members of which none is ruled out.
pub fn choose(answers: &[Answers], members: &[Member], redundancy: Redundancy) -> Choice {
    let known: Option<Vec<(Duration, usize)>> =
        answers.iter().enumerate().map(|(i, a)| Some((a.small?, i))).collect();
    let Some(mut order) = known.filter(|k| !k.is_empty() && k.len() == members.len()) else {
        return Choice::Whole(Why::Unknown);
    };
    order.sort_unstable();
    let edge = |e: Option<&(Duration, usize)>| e.map_or(Duration::ZERO, |e| e.0);
    let rotates = |i: usize| answers.get(i).and_then(|a| a.rotates);
    let mut ways = Vec::new();
    for at in 1..order.len() {
        let (fast, slow) = order.split_at(at);
        let (Some((last, _)), Some((first, _))) = (fast.last(), slow.first()) else { continue };
        let told = fast.iter().all(|(_, i)| rotates(*i) == Some(false))
            && slow.iter().all(|(_, i)| rotates(*i) == Some(true));
        let times = if told { ROTATES } else { CLEARLY };
        if *first >= last.saturating_mul(times) && *first >= last.saturating_add(LEAST) {
            ways.push((first.as_nanos() / last.as_nanos().max(1), at, told));
        }
    }
    ways.sort_unstable_by_key(|way| core::cmp::Reverse(way.0));
    let mut why = None;
    for (_, at, told) in ways {
        let (fast, slow) = order.split_at(at);
        let places = |class: &[(Duration, usize)]| -> Vec<usize> {
            let mut places: Vec<usize> = class.iter().map(|(_, i)| *i).collect();
            places.sort_unstable();
            places
        };
        let metadata = places(fast);
        if let Some(because) = ruled_out(&metadata, members, redundancy) {
            why = why.or(Some(because));
            continue;
        }
        let metadata = metadata.into_iter().filter_map(|i| u16::try_from(i).ok());
        let classes = Classes { metadata: metadata.collect(), journal: Vec::new() };
        let (fast, slow) = (edge(fast.last()), edge(slow.first()));
        return Choice::Split { classes, fast, slow, rotates: told };
    }
    let (least, most) = (edge(order.first()), edge(order.last()));
    Choice::Whole(why.unwrap_or(Why::Alike { least, most }))
}

/// Why these members cannot hold the metadata of all.
fn ruled_out(fast: &[usize], members: &[Member], redundancy: Redundancy) -> Option<Why> {
    let (copies, least) = match redundancy {
        Redundancy::None => (1, 1),
        Redundancy::Mirror(copies) => (copies, usize::from(copies)),
        Redundancy::Parity(parity) => (parity.saturating_add(1), least_for_parity(parity)),
    };
    let others = members.len() - fast.len();
    if fast.len() < usize::from(copies) || others < least {
        return Some(Why::Few { fast: (fast.len(), usize::from(copies)), others: (others, least) });
    }
    let of = |m: &Member| u128::from(m.data_len.0);
    let all: u128 = members.iter().map(of).sum();
    let bytes: u128 = fast.iter().filter_map(|i| members.get(*i)).map(of).sum();
    let wanted = wanted(all - bytes, copies);
    let small = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    if bytes < wanted {
        return Some(Why::Small { bytes: small(bytes), wanted: small(wanted) });
    }
    let large = bytes * u128::from(PART) > all;
    large.then(|| Why::Large { percent: small(bytes * 100 / all.max(1)) })
}

/// In microseconds, or milliseconds where they are many.
struct Latency(Duration);
impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        if us < 10_000 { write!(f, "{us} us") } else { write!(f, "{} ms", us / 1000) }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("a device is too small to be measured"),
            Self::Alike { least, most } => write!(
                f,
                "no device answers small reads clearly sooner ({} to {})",
                Latency(*least),
                Latency(*most)
            ),
            Self::Few { fast, others } => write!(
                f,
                "{} of {} devices answer small reads clearly sooner: it would take {} for metadata and {} for data",
                fast.0,
                fast.0 + others.0,
                fast.1,
                others.1
            ),
            Self::Small { bytes, wanted } => write!(
                f,
                "the devices that answer small reads sooner have {} MiB, and metadata wants {}",
                bytes >> 20,
                wanted >> 20
            ),
            Self::Large { percent } => write!(
                f,
                "the devices that answer small reads sooner have {percent} % of the space, more than metadata would ever fill"
            ),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(why) => write!(f, "one for everything: {why}"),
            Self::Split { classes, fast, slow, rotates } => {
                let n = classes.metadata.len();
                write!(
                    f,
                    "metadata and journals on {n} {} that {} small reads in {} or less (the others in {} or more{})",
                    if n == 1 { "device" } else { "devices" },
                    if n == 1 { "answers" } else { "answer" },
                    Latency(*fast),
                    Latency(*slow),
                    if *rotates { ": they rotate" } else { "" }
                )
            }
        }
    }
}

//! What is wrong with a layout, where, and what to do about it.

use core::fmt;
use std::sync::Arc;

use thiserror::Error;

/// A place in a text. All places compare as equal, so that two layouts are equal wherever their
/// parts were written.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The text; `None`: nobody wrote it.
    pub text: Option<Arc<str>>,
    /// Byte offset in it.
    pub at: usize,
}
impl PartialEq for Place {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Place {}

impl fmt::Display for Place {
    /// The line, with a mark under the place; nothing where there is no text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(text) = &self.text else { return Ok(()) };
        let at = (0..=self.at.min(text.len())).rev().find(|i| text.is_char_boundary(*i));
        let (before, after) = text.split_at(at.unwrap_or(0));
        let start = before.rfind('\n').map_or(0, |n| n + 1);
        let (head, tail) = (&before[start..], after.lines().next().unwrap_or(""));
        let column = head.chars().count();
        write!(f, "\n  {head}{tail}\n  {:column$}^", "")
    }
}

/// A layout that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("layout: {fault}{place}")]
pub struct LayoutError {
    /// Why.
    pub fault: Box<LayoutFault>,
    /// Where.
    pub place: Place,
}
impl LayoutError {
    /// An error at a place.
    pub fn at(place: &Place, fault: LayoutFault) -> Self {
        Self { fault: Box::new(fault), place: place.clone() }
    }
}
impl From<LayoutFault> for LayoutError {
    fn from(fault: LayoutFault) -> Self {
        Self::at(&Place::default(), fault)
    }
}

/// Why a layout cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant says what it is, to the user")]
pub enum LayoutFault {
    #[error("expected {expected}, found {found}")]
    Expected { expected: &'static str, found: String },
    #[error("a quoted name without its closing '\"'")]
    Unclosed,
    #[error(
        "'{word}' is not a kind of node: write stripe, mirror, mirror+1 to mirror+3, parity+1, parity+2 or concat (stripe/64K gives the unit)"
    )]
    UnknownKind { word: String },
    #[error(
        "'{word}' is not a kind of subpool: write data, metadata or journal, with ';' between them"
    )]
    UnknownSubpool { word: String },
    #[error("a {kind} takes no unit: only stripe, mirror+N and parity+N do")]
    UnitNotHere { kind: &'static str },
    #[error("a unit of '{text}' is not possible: write a multiple of 4K, at most 1G")]
    BadUnit { text: String },
    #[error("{text}")]
    BadSize { text: String },
    #[error(
        "a weight of '{text}' is not possible: write a number from 1 to {}",
        super::weights::MAX
    )]
    BadWeight { text: String },
    #[error("a size of zero: write how much of the device to take, or leave the brackets out")]
    ZeroSize,
    #[error("more than {max} levels: nest less deeply")]
    TooDeep { max: usize },
    #[error("more than {max} parts: write a smaller layout")]
    TooLarge { max: usize },
    #[error("group '{name}' is made of itself")]
    Cycle { name: String },
    #[error("no device '{name}' was given: it must be one of {given}")]
    NoSuchDevice { name: String, given: String },
    #[error("'{name}' may be {first} or {second}: write the whole path, or the place in the list")]
    Ambiguous { name: String, first: String, second: String },
    #[error("there is no device {place}: {count} were given, counted from 0")]
    NoSuchPlace { place: u16, count: usize },
    #[error("{from}-{to} runs backwards: write the lower number first")]
    Backwards { from: u16, to: u16 },
    #[error("nothing is left for 'rest': every device is named elsewhere")]
    NothingLeft,
    #[error("no device is left for data: leave one out of metadata and journal")]
    NoneForData,
    #[error("{path} is given but not used in the layout: use it or leave it out")]
    NotUsed { path: String },
    #[error(
        "{path} is here and elsewhere without a size: say how much to take, as in {path}[10G], in all places but one"
    )]
    TwiceWhole { path: String },
    #[error(
        "{path} is to hold two kinds of things: give it to one, or write a --layout with sizes"
    )]
    TwoClasses { path: String },
    #[error("{path} has no room for this: {asked} bytes asked for, {left} left")]
    NoRoom { path: String, asked: u64, left: u64 },
    #[error("nothing is left of {path}: its other places take all of it")]
    NoneLeft { path: String },
    #[error("{path} is in two columns of one {kind}: losing it would lose both")]
    Shared { path: String, kind: &'static str },
    #[error("a stripe inside a stripe gains nothing: write one stripe over all of them")]
    StripeOfStripes,
    #[error(
        "a {outer} over a {inner} is not possible: nest the other way, as in stripe({outer}(a,b,...), {outer}(c,d,...))"
    )]
    WrongWayRound { outer: String, inner: &'static str },
    #[error("a {outer} over a {inner} is not possible: take parity+2, or mirrors of 3 or 4 copies")]
    GroupOfGroups { outer: String, inner: &'static str },
    #[error(
        "a mirror of {count}: give it 2 to 4 (mirror+1(...) makes mirrors of two over any number)"
    )]
    MirrorWays { count: usize },
    #[error("{copies} copies of each byte need at least {copies} devices, here are {count}")]
    MirrorsWays { copies: u16, count: usize },
    #[error("parity+{parity} over {count}: it needs at least {least}")]
    ParityWidth { parity: u16, count: usize, least: usize },
    #[error(
        "{} no sensible parity+{parity}: take at least {least}, or --mirror {mirror}", make(*count)
    )]
    FewForParity { parity: u16, count: usize, least: usize, mirror: u16 },
    #[error("{} no {copies} copies: take at least {copies}", make(*count))]
    FewForMirror { copies: u16, count: usize },
    #[error("--mirror {copies} is not possible: take 2, 3 or 4 copies")]
    Copies { copies: u16 },
    #[error("--parity {parity} is not possible: take 1 or 2")]
    Parities { parity: u16 },
    #[error("weights belong to the children of a stripe")]
    WeightNotHere,
    #[error("a row of {units} units is too long: at most {max}; use smaller weights")]
    LongRow { units: u64, max: u64 },
    #[error("{count} weights for {devices} devices: give one each, in the devices' order")]
    WeightCount { count: usize, devices: usize },
    #[error(
        "weights by list are for a stripe of devices: leave them out, or write them into the layout, as in stripe(a*2, b)"
    )]
    WeightsOfGroups,
    #[error("nothing to make a {kind} of: give it devices, as in {kind}(all)")]
    Empty { kind: &'static str },
    #[error("several devices without a shape: write stripe(...), mirror(...), concat(...)")]
    Several,
    #[error("subpool {name} is there twice: write concat(...) if both are meant")]
    SubpoolTwice { name: &'static str },
    #[error(
        "there is no subpool for {missing}: write `{missing} = ...` too, or one layout for everything"
    )]
    SubpoolMissing { missing: &'static str },
    #[error("{name} cannot be on parity, where each small write costs four: take mirrors")]
    ParityHolds { name: &'static str },
    #[error("nothing can be stored on this: the devices are too small for it")]
    NothingUsable,
    #[error(
        "{nodes} parts are too many for a label ({max}): use fewer devices, or devices of fewer different sizes"
    )]
    TooManyNodes { nodes: usize, max: usize },
    #[error("{text}")]
    File { text: String },
}

fn make(count: usize) -> String {
    if count == 1 { "1 device makes".to_owned() } else { format!("{count} devices make") }
}

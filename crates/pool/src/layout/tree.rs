//! A [`Layout`]: a tree over devices, and how it is written.

use core::fmt;

use braid_format::StripeUnit;
use braid_format::label::SubpoolKind;

use super::fault::Place;
use super::size;

/// What ends a word that is not quoted, besides a space.
pub(super) const MARKS: &str = "()[],;*=\"";

/// The shape of a pool, as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// One for everything, or one each for metadata, data and (if wanted) journals.
    pub subpools: Vec<Subpool>,
}

impl Layout {
    /// The devices that it names by path, each once, in the order of the text.
    pub fn names(&self) -> Vec<String> {
        fn visit(tree: &Tree, names: &mut Vec<String>) {
            if let Part::Devices { which: Which::Named(name), .. } = &tree.part
                && !names.contains(name)
            {
                names.push(name.clone());
            }
            tree.children().iter().for_each(|child| visit(child, names));
        }
        let mut names = Vec::new();
        self.subpools.iter().for_each(|s| visit(&s.tree, &mut names));
        names
    }
}

/// A part of a pool for one kind of thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subpool {
    /// What it may hold.
    pub kind: SubpoolKind,
    /// Its shape.
    pub tree: Tree,
}

/// A node and what is under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// What it is.
    pub part: Part,
    /// Its units in each row of the stripe it stands in; `None`: not said.
    pub weight: Option<u16>,
    /// Where it was written.
    pub place: Place,
}
impl Tree {
    /// A node that nobody wrote.
    pub fn new(part: Part) -> Self {
        Self { part, weight: None, place: Place::default() }
    }
    /// The device at `place` in the list, all that is left of it.
    pub fn device(place: u16) -> Self {
        Self::new(Part::Devices { which: Which::One(place), size: None })
    }
    /// Whether there is a parity group in it.
    pub fn parity(&self) -> Option<u16> {
        let own = if let Part::Parity { parity, .. } = self.part { Some(parity) } else { None };
        self.children().iter().filter_map(Self::parity).chain(own).max()
    }
    /// What it is made of.
    pub fn children(&self) -> &[Self] {
        match &self.part {
            Part::Devices { .. } => &[],
            Part::Stripe { of, .. }
            | Part::Mirror { of }
            | Part::Mirrors { of, .. }
            | Part::Parity { of, .. }
            | Part::Concat { of } => of,
        }
    }
    /// Calls `f` for each device that is named by its place, in the order in which they are written.
    pub(super) fn each_device(&self, f: &mut impl FnMut(u16, Option<u64>)) {
        if let Part::Devices { which: Which::One(place), size } = &self.part {
            f(*place, *size);
        }
        for child in self.children() {
            child.each_device(f);
        }
    }
}

/// A kind of node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Devices, each by itself.
    Devices {
        /// Which.
        which: Which,
        /// Bytes to take of each; `None`: all that no other place takes.
        size: Option<u64>,
    },
    /// Side by side.
    Stripe {
        /// Contiguous bytes on one child before the next.
        unit: Option<StripeUnit>,
        /// The children.
        of: Vec<Tree>,
    },
    /// Copies of one another.
    Mirror {
        /// The copies.
        of: Vec<Tree>,
    },
    /// A stripe of mirrors over any number of children.
    Mirrors {
        /// Copies of each byte.
        copies: u16,
        /// Contiguous bytes on one mirror before the next.
        unit: Option<StripeUnit>,
        /// What the mirrors are made from.
        of: Vec<Tree>,
    },
    /// Data and parity.
    Parity {
        /// How many children may be lost.
        parity: u16,
        /// Contiguous bytes on one child before the next.
        unit: Option<StripeUnit>,
        /// The children.
        of: Vec<Tree>,
    },
    /// One after the other.
    Concat {
        /// The children.
        of: Vec<Tree>,
    },
}

/// Devices, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// All that were given.
    All,
    /// All that were given and are named nowhere else.
    Rest,
    /// By place in the list, from 0.
    One(u16),
    /// From one place to another, both included.
    Range(u16, u16),
    /// By path, or by the path's last part.
    Named(String),
}

/// Whether a path means itself without quotes.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(|c: char| c.is_whitespace() || c.is_control() || MARKS.contains(c))
        && matches!(which(name), Which::Named(_))
}

/// What a word without quotes means.
pub(super) fn which(word: &str) -> Which {
    let number = |s: &str| {
        let plain = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        s.parse::<u16>().ok().filter(|_| plain)
    };
    match word {
        "all" => return Which::All,
        "rest" => return Which::Rest,
        _ => {}
    }
    if let Some(n) = number(word) {
        return Which::One(n);
    }
    match word.split_once('-').map(|(a, b)| (number(a), number(b))) {
        Some((Some(a), Some(b))) => Which::Range(a, b),
        _ => Which::Named(word.to_owned()),
    }
}

/// The word for a kind of subpool.
pub const fn subpool_name(kind: SubpoolKind) -> &'static str {
    match kind {
        SubpoolKind::General => "all",
        SubpoolKind::Data => "data",
        SubpoolKind::Metadata => "metadata",
        SubpoolKind::Journal => "journal",
        SubpoolKind::Hole => "hole",
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, s) in self.subpools.iter().enumerate() {
            if i != 0 {
                f.write_str("; ")?;
            }
            if s.kind != SubpoolKind::General {
                write!(f, "{} = ", subpool_name(s.kind))?;
            }
            write!(f, "{}", s.tree)?;
        }
        Ok(())
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = |f: &mut fmt::Formatter<'_>, name: &str, unit: Option<StripeUnit>| {
            f.write_str(name)?;
            unit.map_or(Ok(()), |u| write!(f, "/{}", size::exact(u.bytes().0)))
        };
        match &self.part {
            Part::Devices { which, size } => {
                write!(f, "{which}")?;
                if let Some(size) = size {
                    write!(f, "[{}]", size::exact(*size))?;
                }
            }
            Part::Stripe { unit, .. } => head(f, "stripe", *unit)?,
            Part::Mirror { .. } => head(f, "mirror", None)?,
            Part::Mirrors { copies, unit, .. } => {
                head(f, &format!("mirror+{}", copies.saturating_sub(1)), *unit)?;
            }
            Part::Parity { parity, unit, .. } => head(f, &format!("parity+{parity}"), *unit)?,
            Part::Concat { .. } => head(f, "concat", None)?,
        }
        if !matches!(self.part, Part::Devices { .. }) {
            f.write_str("(")?;
            for (i, child) in self.children().iter().enumerate() {
                write!(f, "{}{child}", if i == 0 { "" } else { ", " })?;
            }
            f.write_str(")")?;
        }
        self.weight.map_or(Ok(()), |w| write!(f, "*{w}"))
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Rest => f.write_str("rest"),
            Self::One(n) => write!(f, "{n}"),
            Self::Range(a, b) => write!(f, "{a}-{b}"),
            Self::Named(name) if is_plain(name) => f.write_str(name),
            Self::Named(name) => {
                write!(f, "\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
            }
        }
    }
}
